// A cache of record layouts. Records of one file usually differ only in their values: the tags,
// lengths and keys between them are equal in records of equal size. Comparing them is faster than
// parsing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "wire.h"

namespace covey {

// The locations of the values of a record.
struct RecordLayout {
  std::vector<Bytes> values;  // of all keys, in record order
  std::vector<Bytes> place;   // by column: its value
  std::vector<char> there;    // by column: whether the record has it
  bool whole = true;          // whether all values are inside the record

  explicit RecordLayout(std::size_t columns) : place(columns), there(columns) {}
};

// Not thread-safe.
class LayoutCache {
 public:
  // Returns whether a record has a cached layout; `layout` is then that of a parsed record, except
  // `values`.
  bool find(Bytes record, RecordLayout& layout);

  // Adds the layout of a parsed record.
  void learn(Bytes record, const RecordLayout& layout);

 private:
  struct Range {
    std::size_t begin, end;
  };
  struct Pattern {
    std::size_t size = 0;
    std::vector<std::uint8_t> bytes;  // of the record, without the values
    std::vector<Range> between;       // the ranges between the values
    std::vector<Range> place;         // by column
    std::vector<char> there;          // by column
  };

  // Several, because records of different sizes may alternate.
  std::array<Pattern, 4> patterns_;
  std::size_t tried_ = 0;
  std::size_t found_ = 0;
};

}  // namespace covey
