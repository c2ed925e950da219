// Columns as Python specifies them, and the conversion of a Python value to the cell of a column.
#pragma once

#include "../encode.h"
#include "support.h"

namespace covey {

// The images that a column takes as they are; the Python side checks and converts other values.
struct ImageCheck {
  std::int64_t height = -1;  // -1 if it may differ
  std::int64_t width = -1;
  bool deep = false;  // of 16 bits

  bool takes(Bytes value) const noexcept;
};

// A Column, and what only the Python side needs to check a value.
struct ColumnSpec {
  Column column;
  std::vector<std::int64_t> shape;  // of one row's value; -1 for an unknown dimension
  std::int64_t minimum = 0;         // of an integer
  std::int64_t maximum = 0;
  bool bounded = false;  // whether these are narrower than the type
  std::optional<ImageCheck> image;
};

std::vector<Column> plain_columns(const std::vector<ColumnSpec>& specs);

// The Python numbers that a float32 column stores.
struct Rounding {
  std::uint64_t rounded = 0;  // whose shortest decimal form changes
  std::uint64_t total = 0;

  void add(const Rounding& other) noexcept {
    rounded += other.rounded;
    total += other.total;
  }
};

// The integers of a column.
struct IntegerRange {
  std::int64_t low = 0;    // minimum of 0 and the integers
  std::uint64_t high = 0;  // maximum of 0 and the integers

  // Adds the integers of a cell; nothing if the element is not an integer.
  void add(const Cell& cell, Element element) noexcept;
};

// Scratch memory of encode_example(), reused by the next call.
struct Scratch {
  explicit Scratch(std::size_t columns)
      : cells(columns),
        sizes(columns),
        numbers(columns),
        string(columns),
        strings(columns),
        lists(columns),
        rounding(columns) {}

  std::vector<Cell> cells;
  std::vector<std::size_t> sizes;
  std::vector<std::uint64_t> numbers;            // scalars, by column
  std::vector<Bytes> string;                     // single strings, by column
  std::vector<std::vector<Bytes>> strings;       // lists of them, by column
  std::vector<std::vector<std::uint8_t>> lists;  // lists of numbers, by column
  std::vector<std::int64_t> list_shape;          // of the list that is being read
  std::vector<Rounding> rounding;                // of lists, by column, if they are counted
  bool counts_rounding = false;
  std::vector<View> views;
  std::vector<nb::object> held;

  void release() {
    counts_rounding = false;
    views.clear();
    held.clear();
  }
};

// The bytes of a str or bytes object; false for anything else.
bool string_bytes(PyObject* value, bool text, Bytes& out);

// Which values a cell takes.
enum class Accept {
  inferred,   // values from which the type of the column would be inferred
  declared,   // values that fit the column
  canonical,  // results of a conversion by the Python side
};

// Fills `cell` from a value of the column; returns false for values that the Python side must
// convert or reject. The cell points into `value` or `scratch`.
bool fill_cell(PyObject* value, const ColumnSpec& spec, std::size_t c, Accept accept,
               Scratch& scratch);

}  // namespace covey
