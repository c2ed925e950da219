// Columns to records: tf.train.Example, keys in the order of their bytes, lists packed, so that
// the same values always give the same bytes.
#pragma once

#include <vector>

#include "buffer.h"
#include "column.h"
#include "frames.h"
#include "wire.h"

namespace covey {

// The values of one column in one row.
struct Cell {
  const std::uint8_t* numbers = nullptr;  // as they lie in memory
  const Bytes* strings = nullptr;
  std::size_t count = 0;
  bool present = true;  // an absent cell leaves its key out
};

// The values of one column in all rows.
struct ColumnIn {
  const std::uint8_t* numbers = nullptr;
  const Bytes* strings = nullptr;
  const std::int64_t* row_splits = nullptr;  // variable: rows + 1 of them, checked by the caller
  bool present = true;
};

class Encoder {
 public:
  explicit Encoder(std::vector<Column> columns);

  const std::vector<Column>& columns() const noexcept { return columns_; }

  // Sizes depend on one another from the inside out, so a row is measured before it is written.
  // `sizes` has one place per column, and belongs to the row until it is written.
  std::size_t measure(const Cell* cells, std::size_t* sizes) const noexcept;
  void write(const Cell* cells, const std::size_t* sizes, std::uint8_t* out) const noexcept;

  // Writes a row of the size that was measured, in its frame, at the end of `frames`.
  void frame(const Cell* cells, const std::size_t* sizes, std::size_t size, Frames& frames) const;

  // Frames rows [begin, end), and stops early at the first frame end past `bytes`.
  Frames encode(const std::vector<ColumnIn>& columns, std::size_t begin, std::size_t end,
                std::size_t bytes) const;

  // Frames these rows, in this order.
  Frames encode_rows(const std::vector<ColumnIn>& columns, const std::uint64_t* rows,
                     std::size_t count) const;

  // The sizes that the records of rows [begin, end) will have.
  void measure_rows(const std::vector<ColumnIn>& columns, std::size_t begin, std::size_t end,
                    std::uint64_t* lengths) const;

 private:
  void fill(const std::vector<ColumnIn>& columns, std::size_t row, Cell* cells) const noexcept;

  std::vector<Column> columns_;
  std::vector<std::size_t> order_;              // columns by key
  std::vector<std::vector<std::uint8_t>> key_;  // by column: the key field of its map entry
};

}  // namespace covey
