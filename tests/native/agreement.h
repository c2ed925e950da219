// Fast paths must give the results of the slow ones. Shared by the tests and the fuzz target.
#pragma once

#include <string>
#include <vector>

#include "columns.h"

namespace covey::testing {

inline bool same(const Fault& a, const Fault& b) {
  return a.code == b.code && a.offset == b.offset && a.found == b.found &&
         a.expected == b.expected && a.column == b.column;
}

inline void append_splits(std::vector<std::int64_t>& splits,
                          const std::vector<std::int64_t>& more) {
  if (splits.empty()) {
    splits = more;
    return;
  }
  const std::int64_t before = splits.back();
  for (std::size_t i = 1; i < more.size(); ++i) splits.push_back(before + more[i]);
}

// The result of decoding each record separately, without a cached layout.
inline Decoded decode_alone(const std::vector<Column>& columns,
                            const std::vector<std::string>& records) {
  Decoded all = decode(columns, {});
  for (std::size_t r = 0; r < records.size(); ++r) {
    const Decoded one = decode(columns, {records[r]});
    if (one.fault) {
      all.fault = one.fault;
      all.fault.row = r;
      return all;
    }
    for (std::size_t c = 0; c < columns.size(); ++c) {
      all.columns[c].values += one[c].values;
      append_splits(all.columns[c].offsets, one[c].offsets);
      append_splits(all.columns[c].row_splits, one[c].row_splits);
      append_splits(all.columns[c].step_splits, one[c].step_splits);
    }
  }
  return all;
}

// Whether records decode together as they do separately.
inline bool decode_alike(const std::vector<Column>& columns,
                         const std::vector<std::string>& records) {
  const Decoded together = decode(columns, records), alone = decode_alone(columns, records);
  return same(together.fault, alone.fault) && together.fault.row == alone.fault.row &&
         (together.fault || together.columns == alone.columns);
}

enum class Plain { no, yes, wrong };

// Whether a Feature has the plain form of its column; fails if the general decoder differs.
inline Plain read_plain(const Column& column, const std::string& feature) {
  if (!is_dense(column)) return Plain::no;
  const Exact copy(feature);
  const std::string row(column.count * element_size(column.element), '\xee');
  Exact quick(row), slow(row);
  if (!PlainForm(column).read(copy.bytes(), quick.data())) return Plain::no;
  ColumnOut out;
  const Outcome outcome = read_values(column, copy.bytes(), out, slow.data());
  const bool agrees = !outcome.failure && outcome.kind == static_cast<int>(column.wire) &&
                      outcome.count == column.count && text(quick.bytes()) == text(slow.bytes());
  return agrees ? Plain::yes : Plain::wrong;
}

}  // namespace covey::testing
