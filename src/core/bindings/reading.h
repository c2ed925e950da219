// The Python classes that a prefetcher reads with.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "../decode.h"
#include "../gather.h"
#include "../plan.h"
#include "support.h"

namespace covey {

// A file to map.
struct ShardFile {
  std::size_t shard;  // index among all shards
  std::string path;
  std::size_t size;
  int descriptor;  // of the open file; negative to open it
  std::optional<std::uint32_t> fingerprint;
};

using Grown = std::optional<std::tuple<nb::object, nb::object, nb::object, nb::object>>;

// Random access to the records of an index.
class PyGather {
 public:
  explicit PyGather(nb::list tables);
  PyGather(const PyGather&) = delete;

  void map(const std::vector<ShardFile>& files, bool scattered, std::size_t limit);
  std::vector<std::size_t> missing(ArrayArg<std::int64_t> ids) const;
  std::vector<Grown> decode(const Decoder& decoder, ArrayArg<std::int64_t> ids, int check,
                            std::ptrdiff_t label, List dense) const;
  nb::typed<nb::list, nb::bytes> slice(ArrayArg<std::int64_t> ids, bool verify) const;

  const RowTables& tables() const noexcept { return tables_; }

  // The shards that are mapped now; they stay mapped as long as the result is alive.
  std::shared_ptr<const Mappings> shards() const {
    const std::lock_guard guard(lock_);
    return shards_;
  }

 private:
  Fault locate(const ArrayArg<std::int64_t>& ids, const Mappings& shards, Located& located) const;

  nb::tuple held_;  // keeps the memory of the rows alive
  RowTables tables_;
  // Immutable: readers hold a reference, and map() replaces the vector.
  std::shared_ptr<const Mappings> shards_;
  mutable std::mutex lock_;  // guards the pointer; prefetch threads read it without the GIL
};

// A plan, and the memory that it refers to.
struct PyPlan {
  std::shared_ptr<const Plan> plan;
  nb::tuple held;  // arrays

  std::uint64_t last_batch() const noexcept;

  // Checks that products with the step do not overflow.
  void check_step(std::uint64_t step, const Rank& rank) const;
};

inline Check parse_check(int value) {
  check(value >= 0 && value <= static_cast<int>(Check::frame), "check must be 0, 1 or 2");
  return static_cast<Check>(value);
}

// Checks the index of a label column; -1 is none.
inline void check_label(const Decoder& decoder, std::ptrdiff_t label) {
  if (label < 0) return;
  const auto c = static_cast<std::size_t>(label);
  const std::vector<Column>& columns = decoder.columns();
  check(c < columns.size() && columns[c].layout == Layout::fixed &&
            columns[c].element == Element::int64 && columns[c].count == 1,
        "the label must be a column of one int64");
}

}  // namespace covey
