// The batches of a plan: drawn, found in the index, checked and decoded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "decode.h"
#include "gather.h"
#include "plan.h"

namespace covey {

// What it is made of belongs to others, who keep it; threads may share it.
class Batcher {
 public:
  struct Options {
    Check check = Check::frame;
    std::ptrdiff_t label = -1;   // the column that holds the class, if it is one of them
    bool add_labels = false;     // otherwise: whether the classes of the index are another column
    bool check_classes = false;  // whether records must be of the classes that the plan says
    // The record_ids of the plan's records among all, if they are not the same.
    const std::int64_t* record_ids = nullptr;
    std::size_t count = 0;  // of these
  };

  Batcher(const Plan& plan, const Share& share, const RowTables& tables, const Decoder& decoder,
          const Options& options) noexcept
      : plan_(plan), share_(share), tables_(tables), decoder_(decoder), options_(options) {}

  // The records of a full batch.
  std::size_t rows() const noexcept {
    const auto [begin, end] = share_.units(plan_.units());
    return (end - begin) * plan_.records_per_unit();
  }

  // Makes the batch of a step, into memory for a full one. False if it is a shorter one, or if
  // anything is amiss: whoever asks goes another way then, which finds out what.
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
