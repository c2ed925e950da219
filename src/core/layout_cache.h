// Records of one file mostly differ only in their values: what lies between them, tags, lengths
// and keys, is the same in all that are equally long. Comparing is faster than parsing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "wire.h"

namespace covey {

// Where the values of a record are: those of all its keys, and which of them are wanted.
struct RecordLayout {
  std::vector<Bytes> values;  // in the order in which they lie, whoever wants them
  std::vector<Bytes> place;   // by column
  std::vector<char> there;    // by column
  bool whole = true;          // whether all values lie in the record itself

  explicit RecordLayout(std::size_t columns) : place(columns), there(columns) {}
};

// Remembers how some records were built. Not for several threads at once.
class LayoutCache {
 public:
  // Whether a record is built like one before it; then the columns' places are filled in, and are
  // those that parsing it would find.
  bool find(Bytes record, RecordLayout& layout);

  // Remembers a record that was parsed.
  void learn(Bytes record, const RecordLayout& layout);

 private:
  struct Stretch {
    std::size_t begin, end;
  };
  struct Pattern {
    std::size_t size = 0;
    std::vector<std::uint8_t> bytes;  // of the record it was learned from
    std::vector<Stretch> between;     // the stretches that are no values
    std::vector<Stretch> place;       // by column
    std::vector<char> there;          // by column
  };

  // Records whose labels are long and short, say, take turns.
  std::array<Pattern, 4> patterns_;
  std::size_t tried_ = 0;
  std::size_t found_ = 0;
};

}  // namespace covey
