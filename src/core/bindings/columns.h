// Column specifications as Python passes them.
#pragma once

#include <optional>
#include <vector>

#include "../column.h"
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

}  // namespace covey
