// Builds the batches of a plan: draws, locates, verifies and decodes their records.
#pragma once

#include <cstddef>
#include <cstdint>

#include "decode.h"
#include "gather.h"
#include "plan.h"

namespace covey {

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
  };

  Batcher(const Plan& plan, const Share& share, const RowTables& tables, const Decoder& decoder,
          const Options& options) noexcept
      : plan_(plan), share_(share), tables_(tables), decoder_(decoder), options_(options) {}

  // The number of records of a full batch.
  std::size_t rows() const noexcept {
    const auto [begin, end] = share_.units(plan_.units());
    return (end - begin) * plan_.records_per_unit();
  }

  // Builds the batch of a step, into memory for a full batch. Returns false for a shorter batch and
  // on any fault: the caller then builds it in Python, which reports the error.
  bool make(std::uint64_t step, const Mappings& shards, std::uint8_t* const* columns) const;

 private:
  bool look_up(std::int64_t* ids, std::size_t rows) const noexcept;
  bool check_classes(const std::int64_t* planned, const std::int64_t* labels,
                     std::size_t rows) const noexcept;

  const Plan& plan_;
  const Share share_;
  const RowTables& tables_;
  const Decoder& decoder_;
  const Options options_;
};

}  // namespace covey
