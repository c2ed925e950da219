// Statistics of the encoded images in a set of records.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "image_header.h"
#include "wire.h"

namespace covey {

// The statistics of one key.
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

  // Adds the images of a record. Records that are not a tf.train.Example are ignored, and so are
  // keys that a record lacks.
  void add(Bytes record);

  const std::vector<ImageStatistics>& results() const noexcept { return results_; }

 private:
  std::vector<std::string> keys_;
  std::vector<ImageStatistics> results_;
  std::vector<Bytes> features_;  // of the current record
};

}  // namespace covey
