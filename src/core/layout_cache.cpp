#include "layout_cache.h"

#include <cstring>

namespace covey {
namespace {

// Where nothing is alike after so many records, looking costs more than it saves.
constexpr std::size_t kTries = 64;

// What lies between the values of an example is short; of anything else no copy is kept.
constexpr std::size_t kMaxBetween = 4096;

}  // namespace

bool LayoutCache::find(Bytes record, RecordLayout& layout) {
  if (tried_ >= kTries && found_ * 2 < tried_) return false;
  ++tried_;
  const Pattern& pattern = patterns_[record.size() % patterns_.size()];
  if (pattern.size != record.size() || pattern.size == 0) return false;
  const std::uint8_t* known = pattern.bytes.data();
  for (const Stretch& stretch : pattern.between) {
    const std::size_t size = stretch.end - stretch.begin;
    if (std::memcmp(record.begin + stretch.begin, known, size) != 0) return false;
    known += size;
  }
  for (std::size_t c = 0; c < pattern.place.size(); ++c) {
    layout.place[c] = {record.begin + pattern.place[c].begin, record.begin + pattern.place[c].end};
  }
  layout.there = pattern.there;
  ++found_;
  return true;
}

void LayoutCache::learn(Bytes record, const RecordLayout& layout) {
  if (tried_ >= kTries && found_ * 2 < tried_) return;
  if (!layout.whole || record.size() == 0) return;
  Pattern& pattern = patterns_[record.size() % patterns_.size()];
  pattern.size = 0;
  pattern.bytes.clear();
  pattern.between.clear();
  const auto at = [&](const std::uint8_t* byte) {
    return static_cast<std::size_t>(byte - record.begin);
  };
  std::size_t position = 0;
  const auto keep_to = [&](std::size_t end) {
    if (end > position) {
      pattern.between.push_back({position, end});
      pattern.bytes.insert(pattern.bytes.end(), record.begin + position, record.begin + end);
    }
  };
  for (const Bytes& value : layout.values) {
    keep_to(at(value.begin));
    position = at(value.end);
  }
  keep_to(record.size());
  if (pattern.bytes.size() > kMaxBetween) return;
  pattern.there = layout.there;
  pattern.place.clear();
  for (std::size_t c = 0; c < layout.place.size(); ++c) {
    const Bytes place = layout.place[c];
    pattern.place.push_back(layout.there[c] ? Stretch{at(place.begin), at(place.end)}
                                             : Stretch{0, 0});
  }
  pattern.size = record.size();
}

}  // namespace covey
