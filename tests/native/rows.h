// Indexes and shards with any rows.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "files.h"
#include "frames.h"
#include "gather.h"
#include "wire_bytes.h"

namespace covey::testing {

struct Row {
  std::uint32_t shard = 0;
  std::uint64_t offset = 0;
  std::uint32_t length = 0;
  std::int64_t label = 0;
};

// Rows of an index file, at unaligned addresses.
class Index {
 public:
  Index& add(const std::vector<Row>& rows, std::size_t shards, bool labelled = true) {
    RowTable table;
    std::string bytes;
    for (const Row& row : rows) {
      bytes += memory_of(row.offset) + 'x' + memory_of(row.label) + memory_of(row.length);
      bytes += memory_of(row.shard);
    }
    table.rows = copies_.emplace_back(bytes).bytes().begin;
    table.count = rows.size();
    table.stride = 25;
    table.offset = 0;
    table.label = 9;
    table.length = 17;
    table.shard = 21;
    table.labelled = labelled;
    table.shards = shards;
    table.first_record = records_;
    table.first_shard = shards_;
    records_ += rows.size();
    shards_ += shards;
    tables_.push_back(table);
    return *this;
  }

  RowTables tables() const { return RowTables(tables_); }

 private:
  std::deque<Exact> copies_;
  std::vector<RowTable> tables_;
  std::size_t records_ = 0, shards_ = 0;
};

// The frames of records, and their rows.
inline std::string framed(const std::vector<std::string>& records, std::uint32_t shard,
                          std::vector<Row>& rows) {
  Buffer<std::uint8_t> frames;
  for (const std::string& record : records) {
    rows.push_back({shard, frames.size(), static_cast<std::uint32_t>(record.size()), 0});
    const Exact copy(record);
    append_frame(frames, copy.bytes().begin, copy.size());
  }
  return text({frames.data(), frames.data() + frames.size()});
}

// Shards that are mapped.
class Shards {
 public:
  void add(const std::string& bytes) {
    const std::string path = files_.emplace_back(bytes).path();
    Mapping::Options options;
    options.path = path;
    options.fingerprint =
        fingerprint(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    const OpenFile file(path);
    mappings.push_back(std::make_shared<const Mapping>(file.descriptor(), bytes.size(), options));
  }

  const TemporaryFile& file(std::size_t shard) const { return files_[shard]; }

  Mappings mappings;

 private:
  std::deque<TemporaryFile> files_;
};

}  // namespace covey::testing
