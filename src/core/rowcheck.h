// Whether the rows of an index can be true: that records follow each other, within their shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "fault.h"
#include "gather.h"

namespace covey {

// How records are reached, which says what may follow what.
enum class AddressMode : std::uint8_t {
  plain,     // `offset` is the place in the shard
  members,   // `offset` is that of a GZIP member, `inner_offset` the place in its data
  single_stream,  // `offset` is 0, `inner_offset` the place in the data of the whole shard
};

struct ShardExtent {
  std::uint64_t records;
  std::uint64_t bytes;  // of the file
};

// Looks at the rows of a split, some at a time.
class RowCheck {
 public:
  // `layout` says where the fields are; its rows are not looked at. `inner_offset` is where that field
  // is, if there is one.
  RowCheck(const RowTable& layout, std::size_t inner_offset, AddressMode mode, std::vector<ShardExtent> shards)
      : layout_(layout), inner_offset_(inner_offset), mode_(mode), shards_(std::move(shards)) {}

  // Looks at the rows that follow. A fault's row counts from the first of these; its code is
  // `out_of_bounds`.
  Fault add(const std::uint8_t* rows, std::size_t count);

  std::size_t stride() const noexcept { return layout_.stride; }

  // Whether all rows were there.
  bool is_done() const noexcept;

 private:
  RowTable layout_;
  std::size_t inner_offset_;
  AddressMode mode_;
  std::vector<ShardExtent> shards_;
  std::size_t shard_ = 0;        // the shard that the next row is of
  std::uint64_t seen_ = 0;       // rows of it so far
  std::uint64_t offset_ = 0;     // where the last of them is
  std::uint64_t following_ = 0;  // where in the member, or in all data, the next one may begin
};

}  // namespace covey
