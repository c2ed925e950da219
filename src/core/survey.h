// Statistics of a set of records: the keys, list types and counts from which a schema is inferred,
// and the encoded images.
#pragma once

#include <array>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "column.h"
#include "fault.h"
#include "image_header.h"
#include "wire.h"

namespace covey {

// The statistics of one key.
struct Seen {
  std::size_t records = 0;  // records that have the key
  // Records with no list, bytes, floats, ints; of those with one byte string, an encoded image of 8
  // bits, and one of 16 bits.
  std::array<std::size_t, 6> by_kind{};
  std::array<std::size_t, 6> first_of_kind{};  // index of the first record of each
  std::size_t least =
      std::numeric_limits<std::size_t>::max();  // number of values (per step, for lists)
  std::size_t most = 0;

  void add(std::size_t record, int kind, std::size_t count) noexcept;
  void add_image(std::size_t record, Bytes value) noexcept;
};

class Survey {
 public:
  // Adds a record.
  Fault add(Bytes record);

  std::size_t records() const noexcept { return records_; }
  const std::map<std::string, Seen>& context() const noexcept { return context_.seen; }
  const std::map<std::string, Seen>& lists() const noexcept { return lists_.seen; }

 private:
  using Found = std::vector<std::pair<std::string_view, Bytes>>;

  // The statistics by key, and the keys of the previous record in order: the next record usually
  // has the same.
  struct Keys {
    std::map<std::string, Seen> seen;
    std::vector<std::pair<const std::string*, Seen*>> order;

    Seen& at(std::size_t place, std::string_view key);
  };

  std::size_t records_ = 0;
  Keys context_;
  Keys lists_;                   // the FeatureLists of a SequenceExample
  Found in_context_, in_lists_;  // of the current record
};

// The encoded images of one key.
struct ImageStatistics {
  using Size = std::pair<std::uint32_t, std::uint32_t>;  // height, width

  std::array<std::uint64_t, kImageFormats> by_format{};
  std::array<std::uint64_t, 5> by_channels{};
  std::array<std::uint64_t, 17> by_bits{};
  std::uint64_t oriented = 0;  // images with an orientation other than 1
  std::uint64_t unknown = 0;   // values whose header cannot be read
  // The images of the fewest and of the most pixels; of equal ones the lower and the higher image.
  // Both are the same only if all images have one size.
  Size smallest{}, largest{};

  void add(Bytes value) noexcept;
};

class ImageSurvey {
 public:
  explicit ImageSurvey(std::vector<std::string> keys);

  // Adds the images of a record. Records that are not a tf.train.Example are ignored, without a
  // fault, and so are keys that a record lacks.
  Fault add(Bytes record);

  const std::vector<ImageStatistics>& results() const noexcept { return results_; }

 private:
  std::vector<std::string> keys_;
  std::vector<ImageStatistics> results_;
  std::vector<Bytes> features_;  // of the current record
};

}  // namespace covey
