#include "survey.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "feature.h"
#include "image_header.h"

namespace covey {
namespace {

// Counts the values of one list type, and keeps the first string.
struct Counter {
  Wire wire;
  std::size_t count = 0;
  Bytes first{};

  void clear() noexcept { count = 0; }
  bool one_int(std::uint64_t) noexcept {
    ++count;
    return true;
  }
  bool ints(Bytes run, Failure& failure) noexcept {
    Reader varints(run);
    while (!varints.done()) {
      std::uint64_t value;
      if ((failure = varints.varint(value))) return true;
      ++count;
    }
    return true;
  }
  bool floats(const std::uint8_t*, std::size_t number) noexcept {
    count += number;
    return true;
  }
  bool string(Bytes value) noexcept {
    if (count++ == 0) first = value;
    return true;
  }
};

Failure count_values(Bytes feature, int& kind, std::size_t& count, Bytes& first) {
  // The list type is known only at the end of a Feature, so an unusual Feature is parsed twice.
  Counter counter{Wire::ints};
  if (Failure failure = read_feature(feature, counter, kind)) return failure;
  if (kind != 0 && kind != static_cast<int>(counter.wire)) {
    counter = {static_cast<Wire>(kind)};
    if (Failure failure = read_feature(feature, counter, kind)) return failure;
  }
  count = counter.count;
  first = counter.first;
  return {};
}

// A repeated key replaces the earlier one.
template <class Found>
void set(Found& found, Bytes key, Bytes value) {
  const std::string_view name(reinterpret_cast<const char*>(key.begin), key.size());
  for (auto& [known, place] : found) {
    if (known == name) {
      place = value;
      return;
    }
  }
  found.emplace_back(name, value);
}

}  // namespace

void Seen::add(std::size_t record, int kind, std::size_t count) noexcept {
  const auto k = static_cast<std::size_t>(kind);
  if (by_kind[k]++ == 0) first_of_kind[k] = record;
  if (kind == 0) return;
  least = std::min(least, count);
  most = std::max(most, count);
}

void Seen::add_image(std::size_t record, Bytes value) noexcept {
  constexpr std::size_t kImages = 4, kDeepImages = 5;
  const auto header = read_image_header(value);
  if (!header) return;
  const std::size_t kind = header->bits == 16 ? kDeepImages : kImages;
  if (by_kind[kind]++ == 0) first_of_kind[kind] = record;
}

Seen& Survey::Keys::at(std::size_t place, std::string_view key) {
  if (place < order.size() && *order[place].first == key) return *order[place].second;
  auto& [name, known] = *seen.try_emplace(std::string(key)).first;
  order.resize(place);  // the rest is from an earlier record
  order.emplace_back(&name, &known);
  return known;
}

Fault Survey::add(Bytes record) {
  std::vector<std::unique_ptr<std::uint8_t[]>> memory;
  const auto scratch = [&](std::size_t size) {
    memory.push_back(std::make_unique<std::uint8_t[]>(size));
    return memory.back().get();
  };
  const std::size_t number = records_++;
  in_context_.clear();
  in_lists_.clear();

  const auto read = [&]() -> Failure {
    Reader fields(record);
    while (!fields.done()) {
      std::uint32_t tag;
      if (Failure failure = fields.tag(tag)) return failure;
      const bool is_context = tag == make_tag(1, kLengthDelimited);
      if (!is_context && tag != make_tag(2, kLengthDelimited)) {
        if (Failure failure = fields.skip(tag)) return failure;
        continue;
      }
      Bytes map;
      if (Failure failure = fields.bytes(map)) return failure;
      auto& found = is_context ? in_context_ : in_lists_;
      Failure failure = read_map(map, scratch, [&](Bytes key, Bytes value) -> Failure {
        set(found, key, value);
        return {};
      });
      if (failure) return failure;
    }
    for (std::size_t i = 0; i < in_context_.size(); ++i) {
      const auto [key, feature] = in_context_[i];
      int kind;
      std::size_t count = 0;
      Bytes first;
      if (Failure failure = count_values(feature, kind, count, first)) return failure;
      Seen& seen = context_.at(i, key);
      seen.records += 1;
      seen.add(number, kind, count);
      if (kind == static_cast<int>(Wire::bytes) && count == 1) seen.add_image(number, first);
    }
    for (std::size_t i = 0; i < in_lists_.size(); ++i) {
      const auto [key, list] = in_lists_[i];
      Seen& seen = lists_.at(i, key);
      seen.records += 1;
      Reader steps(list);
      while (!steps.done()) {
        std::uint32_t tag;
        if (Failure failure = steps.tag(tag)) return failure;
        if (tag != make_tag(1, kLengthDelimited)) {
          if (Failure failure = steps.skip(tag)) return failure;
          continue;
        }
        Bytes step;
        if (Failure failure = steps.bytes(step)) return failure;
        int kind;
        std::size_t count = 0;
        Bytes first;
        if (Failure failure = count_values(step, kind, count, first)) return failure;
        seen.add(number, kind, count);
        // Unlike a key, a step without a list counts: it has no values.
        if (kind == 0) seen.least = 0;
      }
    }
    return {};
  };

  Fault fault;
  if (const Failure failure = read()) {
    fault.code = failure.code;
    fault.row = number;
    const bool inside = failure.at >= record.begin && failure.at <= record.end;
    fault.offset = inside ? static_cast<std::size_t>(failure.at - record.begin) : record.size();
  }
  return fault;
}

}  // namespace covey
