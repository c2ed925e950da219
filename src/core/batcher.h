// Builds the batches of a plan: draws, locates, verifies and decodes their records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "decode.h"
#include "gather.h"
#include "image.h"
#include "plan.h"

namespace covey {

// A column of encoded images, of which batches have the pixels.
struct ImageColumn {
  std::size_t column;  // of the decoder
  ImageSpec spec;
  std::vector<std::size_t> outputs;  // index of the output of each view
};

// An image of a batch that the native decoders do not support.
struct PendingImage {
  std::size_t row;
  std::size_t image;  // index of the image column
};

// Holds references only: the caller keeps the arguments alive. Threads may share it.
class Batcher {
 public:
  struct Options {
    Check check = Check::frame;
    std::ptrdiff_t label = -1;   // index of the label column; -1 if it is not decoded
    bool add_labels = false;     // without a label column: output the classes of the index
    bool check_classes = false;  // check that records have the classes of the plan
    // Maps the record ids of the plan to those of all splits; null if they are equal.
    const std::int64_t* record_ids = nullptr;
    std::size_t count = 0;  // size of record_ids
    // The class of each record of the plan, where it is not that of the index; null if it is. The
    // caller ensures that there is one for each.
    const std::int64_t* class_ids = nullptr;
    std::vector<ImageColumn> images;
    std::uint64_t seed = 0;  // of random crops
  };

  // A contiguous part of the rows of a batch.
  struct Part {
    std::size_t index = 0;
    std::size_t count = 1;  // number of parts of the batch
  };

  Batcher(const Plan& plan, const Rank& rank, const RowTables& tables, const Decoder& decoder,
          Options options);

  // The number of records of a full batch.
  std::size_t rows() const noexcept {
    const auto [begin, end] = rank_.units(plan_.units());
    return (end - begin) * plan_.records_per_unit();
  }

  // The bytes of a row of each output: the columns of the decoder, the labels if they are added,
  // and further views of images.
  const std::vector<std::size_t>& row_bytes() const noexcept { return row_bytes_; }

  // Builds a part of the batch of a step, into memory for a full batch. Returns false for a shorter
  // batch and on any fault: the caller then builds the batch in Python, which reports the error.
  bool make(std::uint64_t step, Part part, const Mappings& shards, std::uint8_t* const* columns,
            std::vector<PendingImage>& pending) const;

 private:
  bool look_up(std::int64_t* ids, std::size_t rows, std::int64_t* class_ids) const noexcept;
  bool check_classes(const std::int64_t* planned, const std::int64_t* labels, std::size_t first,
                     std::size_t rows) const noexcept;
  bool decode_images(const std::vector<Bytes>& records, std::uint64_t batch, std::size_t first,
                     std::size_t first_row, std::uint8_t* const* columns,
                     std::vector<PendingImage>& pending) const;

  const Plan& plan_;
  const Rank rank_;
  const RowTables& tables_;
  const Decoder& decoder_;
  const Options options_;
  std::vector<std::size_t> row_bytes_;
};

}  // namespace covey
