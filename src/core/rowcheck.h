// Consistency check of the rows of an index: records are consecutive, and within their shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "fault.h"
#include "gather.h"

namespace covey {

// How records are addressed.
enum class AddressMode : std::uint8_t {
  plain,          // `offset` is the position in the shard
  members,        // `offset` is that of a GZIP member, `inner_offset` the position in its data
  single_stream,  // `offset` is 0, `inner_offset` the position in the decompressed shard
};

struct ShardExtent {
  std::uint64_t records;
  std::uint64_t bytes;  // of the file
};

// Checks the rows of a split, some at a time.
class RowCheck {
 public:
  // `layout` has the byte offsets of the fields; its rows are not used. `inner_offset` is the byte
  // offset of that field, if the rows have it.
  RowCheck(const RowTable& layout, std::size_t inner_offset, AddressMode mode,
           std::vector<ShardExtent> shards)
      : layout_(layout), inner_offset_(inner_offset), mode_(mode), shards_(std::move(shards)) {}

  // Checks the next rows. The row of a fault counts from the first of these; its code is
  // `out_of_bounds`.
  Fault add(const std::uint8_t* rows, std::size_t count);

  std::size_t stride() const noexcept { return layout_.stride; }

  // Whether every shard had all its rows.
  bool is_done() const noexcept;

 private:
  RowTable layout_;
  std::size_t inner_offset_;
  AddressMode mode_;
  std::vector<ShardExtent> shards_;
  std::size_t shard_ = 0;        // the shard of the next row
  std::uint64_t seen_ = 0;       // its rows so far
  std::uint64_t offset_ = 0;     // `offset` of the last row
  std::uint64_t following_ = 0;  // minimum position of the next record
};

}  // namespace covey
