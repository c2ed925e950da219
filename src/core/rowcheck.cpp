#include "rowcheck.h"

#include "frames.h"

namespace covey {
namespace {

// No place is that far in any file, and no sum of such a place and a length wraps around.
constexpr std::uint64_t kFarthest = std::uint64_t{1} << 62;

}  // namespace

Fault RowCheck::add(const std::uint8_t* rows, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i, rows += layout_.stride) {
    while (shard_ < shards_.size() && seen_ == shards_[shard_].records) {
      ++shard_;
      seen_ = offset_ = following_ = 0;
    }
    const std::uint64_t offset = load<std::uint64_t>(rows + layout_.offset);
    const std::uint64_t inner_offset = mode_ == AddressMode::plain ? 0 : load<std::uint64_t>(rows + inner_offset_);
    const std::uint64_t frame = load<std::uint32_t>(rows + layout_.length) + kFrameBytes;
    bool fits = shard_ < shards_.size() && load<std::uint32_t>(rows + layout_.shard) == shard_ &&
                offset < kFarthest && inner_offset < kFarthest;
    if (fits && mode_ == AddressMode::plain) {
      fits = offset >= following_ && offset + frame <= shards_[shard_].bytes;
      following_ = offset + frame;
    } else if (fits) {
      const bool same = seen_ != 0 && offset == offset_;
      fits = (same ? inner_offset >= following_ : seen_ == 0 || offset > offset_) &&
             offset < shards_[shard_].bytes && (mode_ != AddressMode::single_stream || offset == 0);
      following_ = inner_offset + frame;
    }
    if (!fits) {
      Fault fault;
      fault.code = FaultCode::out_of_bounds;
      fault.row = i;
      fault.offset = offset;
      fault.found = frame - kFrameBytes;
      return fault;
    }
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
