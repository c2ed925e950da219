// Decodes the values of a Feature into the memory of a column.
#pragma once

#include <array>
#include <vector>

#include "buffer.h"
#include "column.h"
#include "wire.h"

namespace covey {

// The output of one column.
struct ColumnOut {
  // Numbers of fixed layout: memory of the caller, rows * count elements.
  std::uint8_t* dense = nullptr;
  // Everything else grows: numbers in their memory layout, or the concatenated bytes of strings.
  Buffer<std::uint8_t> values;
  Buffer<std::int64_t> offsets;      // strings: offset of each in `values`, and the end
  Buffer<std::int64_t> row_splits;   // variable: offset of each row among the values (steps: among
                                     // the steps), and the end
  Buffer<std::int64_t> step_splits;  // steps: offset of each step among the values, and the end
  // If not null, strings of fixed layout are located instead of copied. A string that a record has
  // in several parts is outside of the record, in memory that is invalid after the call.
  std::vector<Bytes>* located = nullptr;
};

// The result of decoding one Feature.
struct Outcome {
  Failure failure;
  int kind = 0;           // the list type found, 0 for none
  std::size_t count = 0;  // values
  std::uint64_t found = 0;
  std::uint64_t expected = 0;
};

// Decodes a Feature into its column. `dense` is the output of this row if the layout is fixed.
Outcome read_values(const Column& column, Bytes feature, ColumnOut& out, std::uint8_t* dense);

// The common encoding of a row of fixed numbers: one packed list and nothing else. Testing for
// exactly that is faster than general parsing.
class PlainForm {
 public:
  explicit PlainForm(const Column& column);

  // Decodes a Feature with this encoding; returns false for others, which read_values() handles.
  bool read(Bytes feature, std::uint8_t* dense) const noexcept;

 private:
  enum class Kind : std::uint8_t { none, memory, one_int };

  Kind kind_ = Kind::none;
  Element element_;
  std::size_t size_ = 0;  // bytes of the values, in memory and in the record
  std::array<std::uint8_t, 2 * (1 + kMostVarintBytes)> header_{};
  std::size_t header_size_ = 0;
};

// Finds the bytes of a raw tensor, and checks their size.
Outcome find_raw(const Column& column, Bytes feature, Bytes& value);

// Fills a row with the default of its column.
void put_default(const Column& column, ColumnOut& out, std::uint8_t* dense);

// The number of values of a column that grows.
std::int64_t values_so_far(const Column& column, const ColumnOut& out) noexcept;

}  // namespace covey
