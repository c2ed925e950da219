// Records to columns: tf.train.Example and tf.train.SequenceExample.
#pragma once

#include <string_view>
#include <unordered_map>
#include <vector>

#include "column.h"
#include "fault.h"
#include "layout_cache.h"
#include "values.h"
#include "wire.h"

namespace covey {

// What is checked of the frames around records: nothing, the footer that follows each, or also the
// header before it.
enum class Check : std::uint8_t { nothing, data, frame };

class Decoder {
 public:
  // Keys must differ (among steps, and among the others): the caller has checked.
  explicit Decoder(std::vector<Column> columns);
  // The maps below point into `columns_`: they survive a move, but not a copy.
  Decoder(Decoder&&) = default;
  Decoder& operator=(Decoder&&) = default;

  const std::vector<Column>& columns() const noexcept { return columns_; }

  // Decodes all records; only the wanted columns are looked into. What is to be checked of a
  // frame is there, and is checked first. Safe to call from many threads.
  Fault decode(const std::vector<Bytes>& records, Check check, std::vector<ColumnOut>& out) const;

 private:
  struct Row;

  void open(Row& row, Check check, std::vector<ColumnOut>& out) const;
  Failure locate(Row& row) const;
  Failure parse(Row& row) const;
  Fault verify_located(Row& row, std::vector<ColumnOut>& out) const;
  void read_column(Row& row, std::size_t c, ColumnOut& out) const;
  void read_steps(Row& row, std::size_t c, ColumnOut& out) const;
  bool read(Row& row, std::size_t c, Bytes feature, ColumnOut& out, std::uint8_t* dense) const;

  std::vector<Column> columns_;
  std::vector<PlainForm> plain_;  // by column
  std::unordered_map<std::string_view, std::size_t> context_;
  std::unordered_map<std::string_view, std::size_t> steps_;
};

}  // namespace covey
