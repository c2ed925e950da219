// What a set of records holds: the keys, kinds and counts from which a schema is inferred.
#pragma once

#include <array>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "column.h"
#include "fault.h"
#include "wire.h"

namespace covey {

// What was seen of one key.
struct Seen {
  std::size_t records = 0;                     // that have it
  std::array<std::size_t, 4> by_kind{};        // how many with no list, bytes, floats, ints
  std::array<std::size_t, 4> first_of_kind{};  // number of the first of each
  std::size_t least = std::numeric_limits<std::size_t>::max();  // values (in a step, for lists)
  std::size_t most = 0;

  void add(std::size_t record, int kind, std::size_t count) noexcept;
};

class Survey {
 public:
  // Looks through one more record.
  Fault add(Bytes record);

  std::size_t records() const noexcept { return records_; }
  const std::map<std::string, Seen>& context() const noexcept { return context_.seen; }
  const std::map<std::string, Seen>& lists() const noexcept { return lists_.seen; }

 private:
  using Found = std::vector<std::pair<std::string_view, Bytes>>;

  // What was seen of a map's keys, and those of the last record in their order: the next one
  // mostly has the same.
  struct Keys {
    std::map<std::string, Seen> seen;
    std::vector<std::pair<const std::string*, Seen*>> order;

    Seen& at(std::size_t place, std::string_view key);
  };

  std::size_t records_ = 0;
  Keys context_;
  Keys lists_;                   // the FeatureLists of a SequenceExample
  Found in_context_, in_lists_;  // of the record at hand
};

}  // namespace covey
