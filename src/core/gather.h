// Location of the records of an index: from record ids, through rows, to bytes of mapped shards;
// and the consistency of the rows: records are consecutive, and within their shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "fault.h"
#include "mapping.h"
#include "wire.h"

namespace covey {

// The rows of one split, as stored in the index file: untrusted.
struct RowTable {
  const std::uint8_t* rows = nullptr;
  std::size_t count = 0;
  std::size_t stride = 0;  // bytes per row; the following are byte offsets of fields
  std::size_t shard = 0;   // u32
  std::size_t length = 0;  // u32
  std::size_t offset = 0;  // u64
  std::size_t label = 0;   // i64, if `labelled`
  bool labelled = false;
  std::size_t first_record = 0;  // id of its first record among all splits
  std::size_t first_shard = 0;   // index of its first shard among all splits
  std::size_t shards = 0;        // number of its shards
};

// The mapped shards by index; null if a shard is not mapped.
using Mappings = std::vector<std::shared_ptr<const Mapping>>;

// Records in memory, and the shards they are stored in.
struct Located {
  struct Shard {
    std::size_t number;
    std::size_t row;  // its first record in `records`
  };
  std::vector<Bytes> records;
  std::vector<Shard> shards;
  std::vector<char> seen;  // by shard: whether it is in `shards`
};

class RowTables {
 public:
  explicit RowTables(std::vector<RowTable> tables) : tables_(std::move(tables)) {}

  std::size_t records() const noexcept;
  std::size_t shards() const noexcept;

  // Finds the data of records, each of which has its frame around it; a negative id counts from the
  // end. Faults: `row` if an id is out of range, `unmapped` if its shard is not mapped,
  // `out_of_bounds` if the record is outside the shard.
  Fault locate(const std::int64_t* ids, std::size_t count, const Mappings& shards,
               Located& out) const;

  // Whether what was read since locate() is valid; `fault` is what the read has found itself, of
  // which a fault here is the cause. Faults: `index`, `changed`, or `fault`. After a read that has
  // failed, each file is asked for its state; else only if it was not asked recently. So records
  // in the page in which a file was truncated may be read as zeros for a short time, which only
  // checksums detect.
  Fault check_read(const Located& located, const Mappings& shards, const Fault& fault) const;

  // The shards of records that are not mapped, each once. Ids out of range are ignored.
  std::vector<std::size_t> missing(const std::int64_t* ids, std::size_t count,
                                   const Mappings& shards) const;

  // The classes of records from their rows; 0 if the rows have none. Ids must be in range.
  void read_labels(const std::int64_t* ids, std::size_t count, std::int64_t* out) const noexcept;

  // Checks that records have the classes of their rows.
  Fault check_labels(const std::int64_t* ids, std::size_t count, const std::int64_t* labels) const;

 private:
  struct Row;
  bool find(std::int64_t id, Row& row) const noexcept;

  std::vector<RowTable> tables_;
};

// How records are addressed.
enum class AddressMode : std::uint8_t {
  plain,          // `offset` is the position in the shard
  members,        // `offset` locates a GZIP member, `inner_offset` a record in its data
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
