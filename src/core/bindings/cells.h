// Conversion of a Python value to the cell of a column.
#pragma once

#include <vector>

#include "../encode.h"
#include "columns.h"
#include "support.h"

namespace covey {

// Scratch memory of encode_example(), reused by the next call.
struct Scratch {
  explicit Scratch(std::size_t columns)
      : cells(columns), sizes(columns), numbers(columns), string(columns), strings(columns) {}

  std::vector<Cell> cells;
  std::vector<std::size_t> sizes;
  std::vector<std::uint64_t> numbers;       // scalars, by column
  std::vector<Bytes> string;                // single strings, by column
  std::vector<std::vector<Bytes>> strings;  // lists of them, by column
  std::vector<View> views;
  std::vector<nb::object> held;

  void release() {
    views.clear();
    held.clear();
  }
};

// The bytes of a str or bytes object; false for anything else.
bool string_bytes(PyObject* value, bool text, Bytes& out);

// Fills `cell` from a value that has the type of the column; returns false for other values. The
// cell points into `value` or `scratch`.
bool fill_cell(PyObject* value, const ColumnSpec& spec, std::size_t c, bool canonical,
               Scratch& scratch);

}  // namespace covey
