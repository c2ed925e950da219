// Records to columns: tf.train.Example and tf.train.SequenceExample.
#pragma once

#include <string_view>
#include <unordered_map>
#include <vector>

#include "buffer.h"
#include "column.h"
#include "fault.h"
#include "wire.h"

namespace covey {

// Where the rows of one column go.
struct ColumnOut {
  // Numbers of fixed layout: the caller's memory, rows * count elements.
  std::uint8_t* dense = nullptr;
  // Everything else grows: numbers as they lie in memory, or the strings' bytes end to end.
  Buffer<std::uint8_t> values;
  Buffer<std::int64_t> offsets;      // strings: where each begins in `values`, and the end
  Buffer<std::int64_t> row_splits;   // variable: where each row begins among the values (steps:
                                     // among the steps), and the end
  Buffer<std::int64_t> step_splits;  // steps: where each step begins among the values, and the end
};

class Decoder {
 public:
  // Keys must differ (among steps, and among the others): the caller has checked.
  explicit Decoder(std::vector<Column> columns);
  // The maps below point into `columns_`: they survive a move, but not a copy.
  Decoder(Decoder&&) = default;
  Decoder& operator=(Decoder&&) = default;

  const std::vector<Column>& columns() const noexcept { return columns_; }

  // Decodes all records; only the wanted columns are looked into. With `verify`, each record is
  // followed by its frame's footer, which is checked first. Safe to call from many threads.
  Fault decode(const std::vector<Bytes>& records, bool verify, std::vector<ColumnOut>& out) const;

 private:
  struct Row;

  Failure locate(Bytes record, Row& row) const;
  Fault verify_located(Bytes record, Row& row, std::size_t number,
                       std::vector<ColumnOut>& out) const;

  std::vector<Column> columns_;
  std::unordered_map<std::string_view, std::size_t> context_;
  std::unordered_map<std::string_view, std::size_t> steps_;
};

}  // namespace covey
