#include "gather.h"

#include "frames.h"
#include "prefetch.h"

namespace covey {
namespace {

// Rows are scattered in memory: this many are prefetched.
constexpr std::size_t kRowsAhead = 8;

// Files whose state is asked for after a read.
constexpr int kAskedPerRead = 8;

// A limit of positions; the sum of two values below it does not overflow.
constexpr std::uint64_t kMaxPosition = std::uint64_t{1} << 62;

}  // namespace

struct RowTables::Row {
  const RowTable* table;
  const std::uint8_t* bytes;

  std::uint64_t shard_in_table() const noexcept {
    return load<std::uint32_t>(bytes + table->shard);
  }
  std::uint64_t length() const noexcept { return load<std::uint32_t>(bytes + table->length); }
  std::int64_t label() const noexcept {
    return table->labelled ? load<std::int64_t>(bytes + table->label) : 0;
  }
  std::uint64_t offset() const noexcept { return load<std::uint64_t>(bytes + table->offset); }
};

std::size_t RowTables::records() const noexcept {
  return tables_.empty() ? 0 : tables_.back().first_record + tables_.back().count;
}

std::size_t RowTables::shards() const noexcept {
  return tables_.empty() ? 0 : tables_.back().first_shard + tables_.back().shards;
}

bool RowTables::find(std::int64_t id, Row& row) const noexcept {
  const std::size_t all = records();
  const auto number = static_cast<std::uint64_t>(id < 0 ? id + static_cast<std::int64_t>(all) : id);
  if (number >= all) return false;
  std::size_t t = tables_.size() - 1;
  while (tables_[t].first_record > number) --t;
  row.table = &tables_[t];
  row.bytes = tables_[t].rows + (number - tables_[t].first_record) * tables_[t].stride;
  return true;
}

Fault RowTables::locate(const std::int64_t* ids, std::size_t count, const Mappings& shards,
                        Located& out) const {
  out.records.resize(count);
  out.shards.clear();
  out.seen.assign(shards.size(), 0);
  for (std::size_t i = 0; i < count; ++i) {
    Row row;
    if (i + kRowsAhead < count && find(ids[i + kRowsAhead], row)) {
      prefetch(row.bytes, row.table->stride);
    }
    if (!find(ids[i], row)) {
      return {FaultCode::row, i, 0, static_cast<std::uint64_t>(ids[i]), records()};
    }
    const std::uint64_t within = row.shard_in_table();
    if (within >= row.table->shards) {
      return {FaultCode::out_of_bounds, i, row.offset(), row.length(), 0};
    }
    const std::size_t number = row.table->first_shard + within;
    const Mapping* const shard = shards[number].get();
    if (shard == nullptr) return {FaultCode::unmapped, i, number};
    if (!out.seen[number]) out.shards.push_back({number, i});
    out.seen[number] = 1;
    const std::uint64_t offset = row.offset(), length = row.length();
    const std::size_t size = shard->size();
    if (size < kFrameBytes || offset > size - kFrameBytes || length > size - kFrameBytes - offset) {
      return {FaultCode::out_of_bounds, i, offset, length, size};
    }
    const std::uint8_t* const data = shard->data() + offset + kHeaderBytes;
    out.records[i] = {data, data + length};
  }
  return {};
}

Fault RowTables::check_read(const Located& located, const Mappings& shards,
                            const Fault& fault) const {
  if (fault_count() != 0) {
    for (const RowTable& table : tables_) {
      if (lies_in_fault(table.rows)) return {FaultCode::index};
    }
  }
  const std::int64_t now = Mapping::now();
  int budget = kAskedPerRead;
  const std::size_t count = located.shards.size();
  // Begins at another shard each time, so that each is asked eventually.
  std::size_t at = count == 0 ? 0 : static_cast<std::size_t>(now) % count;
  for (std::size_t i = 0; i < count; ++i, at = at + 1 == count ? 0 : at + 1) {
    const Located::Shard& each = located.shards[at];
    const Mapping& shard = *shards[each.number];
    if (fault ? shard.has_changed() : shard.has_changed(now, budget)) {
      return {FaultCode::changed, each.row, each.number, 0, shard.size()};
    }
  }
  return fault;
}

std::vector<std::size_t> RowTables::missing(const std::int64_t* ids, std::size_t count,
                                            const Mappings& shards) const {
  std::vector<char> seen(shards.size());
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < count; ++i) {
    Row row;
    if (!find(ids[i], row) || row.shard_in_table() >= row.table->shards) continue;
    const std::size_t number = row.table->first_shard + row.shard_in_table();
    if (shards[number] == nullptr && !seen[number]) found.push_back(number);
    seen[number] = 1;
  }
  return found;
}

void RowTables::read_labels(const std::int64_t* ids, std::size_t count,
                            std::int64_t* out) const noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    Row row;
    out[i] = find(ids[i], row) ? row.label() : 0;
  }
}

Fault RowTables::check_labels(const std::int64_t* ids, std::size_t count,
                              const std::int64_t* labels) const {
  for (std::size_t i = 0; i < count; ++i) {
    Row row;
    if (!find(ids[i], row) || !row.table->labelled) continue;
    const std::int64_t expected = row.label();
    if (labels[i] != expected) {
      return {FaultCode::label, i, 0, static_cast<std::uint64_t>(labels[i]),
              static_cast<std::uint64_t>(expected)};
    }
  }
  return {};
}

Fault RowCheck::add(const std::uint8_t* rows, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i, rows += layout_.stride) {
    while (shard_ < shards_.size() && seen_ == shards_[shard_].records) {
      ++shard_;
      seen_ = offset_ = following_ = 0;
    }
    const std::uint64_t offset = load<std::uint64_t>(rows + layout_.offset);
    const std::uint64_t inner_offset =
        mode_ == AddressMode::plain ? 0 : load<std::uint64_t>(rows + inner_offset_);
    const std::uint64_t frame = load<std::uint32_t>(rows + layout_.length) + kFrameBytes;
    bool fits = shard_ < shards_.size() && load<std::uint32_t>(rows + layout_.shard) == shard_ &&
                offset < kMaxPosition && inner_offset < kMaxPosition;
    if (fits && mode_ == AddressMode::plain) {
      fits = offset >= following_ && offset + frame <= shards_[shard_].bytes;
      following_ = offset + frame;
    } else if (fits) {
      const bool same = seen_ != 0 && offset == offset_;
      fits = (same ? inner_offset >= following_ : seen_ == 0 || offset > offset_) &&
             offset < shards_[shard_].bytes && (mode_ != AddressMode::single_stream || offset == 0);
      following_ = inner_offset + frame;
    }
    if (!fits) return {FaultCode::out_of_bounds, i, offset, frame - kFrameBytes};
    offset_ = offset;
    ++seen_;
  }
  return {};
}

bool RowCheck::is_done() const noexcept {
  std::size_t shard = shard_;
  std::uint64_t seen = seen_;
  while (shard < shards_.size() && seen == shards_[shard].records) {
    ++shard;
    seen = 0;
  }
  return shard == shards_.size();
}

}  // namespace covey
