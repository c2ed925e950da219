// Encodes columns to records: tf.train.Example with keys in byte order and packed lists, so that
// equal values have equal bytes.
#pragma once

#include <vector>

#include "buffer.h"
#include "column.h"
#include "frames.h"
#include "wire.h"

namespace covey {

// The values of one column in one row.
struct Cell {
  const std::uint8_t* numbers = nullptr;  // in their memory layout
  const Bytes* strings = nullptr;
  std::size_t count = 0;
  bool present = true;  // the key of an absent cell is omitted
};

// The values of one column in all rows.
struct ColumnIn {
  const std::uint8_t* numbers = nullptr;
  const Bytes* strings = nullptr;
  const std::int64_t* row_splits = nullptr;  // variable layout: rows + 1, checked by the caller
  bool present = true;
};

class Encoder {
 public:
  explicit Encoder(std::vector<Column> columns);

  const std::vector<Column>& columns() const noexcept { return columns_; }

  // The size of a message precedes it, so a row is measured before it is written. `sizes` has one
  // element per column, and is passed unchanged to write().
  std::size_t measure(const Cell* cells, std::size_t* sizes) const noexcept;
  void write(const Cell* cells, const std::size_t* sizes, std::uint8_t* out) const noexcept;

  // Appends a measured row, with its frame, to `frames`.
  void frame(const Cell* cells, const std::size_t* sizes, std::size_t size, Frames& frames) const;

  // Frames the rows [begin, end), or those elements of `rows`, and stops after the first frame that
  // ends past `bytes`.
  Frames encode(const std::vector<ColumnIn>& columns, std::size_t begin, std::size_t end,
                std::size_t bytes, const std::uint64_t* rows = nullptr) const;

  // The record sizes of the rows [begin, end).
  void measure_rows(const std::vector<ColumnIn>& columns, std::size_t begin, std::size_t end,
                    std::uint64_t* lengths) const;

 private:
  std::size_t features_size(const Cell* cells, const std::size_t* sizes) const noexcept;
  void fill(const std::vector<ColumnIn>& columns, std::size_t row, Cell* cells) const noexcept;

  std::vector<Column> columns_;
  std::vector<std::size_t> order_;              // columns by key
  std::vector<std::vector<std::uint8_t>> key_;  // by column: the encoded key of its map entry
};

}  // namespace covey
