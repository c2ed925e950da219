// The values of one Feature, into the memory of a column.
#pragma once

#include <array>

#include "buffer.h"
#include "column.h"
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

// What reading one Feature into one column came to.
struct Outcome {
  Failure failure;
  int kind = 0;           // the list that was there, 0 for none
  std::size_t count = 0;  // values
  std::uint64_t found = 0;
  std::uint64_t expected = 0;
};

// Reads a Feature into its column. `dense` is where this row's values go when the layout is fixed.
Outcome read_values(const Column& column, Bytes feature, ColumnOut& out, std::uint8_t* dense);

// The usual way in which a row of fixed numbers lies: one list, packed, with nothing around it.
// Looking for exactly that is faster than reading whatever there may be.
class PlainForm {
 public:
  explicit PlainForm(const Column& column);

  // Reads a Feature that has this form, and fits; otherwise false, and read_values() says why.
  bool read(Bytes feature, std::uint8_t* dense) const noexcept;

 private:
  enum class Kind : std::uint8_t { none, memory, one_int };

  Kind kind_ = Kind::none;
  Element element_;
  std::size_t size_ = 0;  // of the values in memory, which is how they lie
  std::array<std::uint8_t, 2 * (1 + kMostVarintBytes)> header_{};
  std::size_t header_size_ = 0;
};

// Finds the memory of a raw tensor, and checks that it fits.
Outcome find_raw(const Column& column, Bytes feature, Bytes& value);

// Gives a row what its column has for those that lack the key.
void put_default(const Column& column, ColumnOut& out, std::uint8_t* dense);

// How many values a column that grows has.
std::int64_t values_so_far(const Column& column, const ColumnOut& out) noexcept;

}  // namespace covey
