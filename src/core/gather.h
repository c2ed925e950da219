// Where the records of an index lie: from their numbers, over the rows, to bytes of mapped shards.
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

// The rows of one split, as they are in the index file: nothing in them can be trusted.
struct RowTable {
  const std::uint8_t* rows = nullptr;
  std::size_t count = 0;
  std::size_t stride = 0;  // bytes of a row, and where in it the fields are
  std::size_t shard = 0;   // u32
  std::size_t length = 0;  // u32
  std::size_t offset = 0;  // u64
  std::size_t label = 0;   // i64, if `labelled`
  bool labelled = false;
  std::size_t first_record = 0;  // the number of its first record among all splits
  std::size_t first_shard = 0;   // and of its first shard
  std::size_t shards = 0;        // how many it has
};

// The shards that are there, by number; null where one is not mapped yet.
using Mappings = std::vector<std::shared_ptr<const Mapping>>;

// Records in memory, and the shards that they lie in.
struct Located {
  struct Shard {
    std::size_t number;
    std::size_t row;  // the first record of it
  };
  std::vector<Bytes> records;
  std::vector<Shard> shards;
};

class RowTables {
 public:
  explicit RowTables(std::vector<RowTable> tables) : tables_(std::move(tables)) {}

  std::size_t records() const noexcept;
  std::size_t shards() const noexcept;

  // Finds the data of records, each of which has its frame around it; a number below 0 counts from
  // the end. Faults: `row` if there is no such record, `unmapped` if its shard is not there,
  // `out_of_bounds` if its place is not in the shard, `changed` if its file was truncated.
  Fault locate(const std::int64_t* ids, std::size_t count, const Mappings& shards,
               Located& out) const;

  // Whether what was read since locate() is valid; `fault` is what the read has found itself, of
  // which a fault here is the cause. Faults: `index`, `changed`, or `fault`. After a read that has
  // failed, each file is asked for its state; else only if it was not asked recently. So records
  // in the page in which a file was truncated may be read as zeros for a short time, which only
  // checksums detect.
  Fault check_read(const Located& located, const Mappings& shards, const Fault& fault) const;

  // The shards of records that are not there, each once. Numbers that are no records are left out.
  std::vector<std::size_t> missing(const std::int64_t* ids, std::size_t count,
                                   const Mappings& shards) const;

  // The classes of records, as their rows say; 0 where there are none. Numbers are of records.
  void read_labels(const std::int64_t* ids, std::size_t count, std::int64_t* out) const noexcept;

  // Whether records have the classes that their rows say.
  Fault check_labels(const std::int64_t* ids, std::size_t count, const std::int64_t* labels) const;

 private:
  struct Row;
  bool find(std::int64_t id, Row& row) const noexcept;

  std::vector<RowTable> tables_;
};

}  // namespace covey
