#include "survey.h"

#include <algorithm>
#include <tuple>

#include "feature.h"

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

// The list type of a Feature, the number of its values, and the first string.
struct Values {
  int kind = 0;
  std::size_t count = 0;
  Bytes first{};
};

Failure count_values(Bytes feature, Values& values) {
  // The list type is known only at the end of a Feature, so an unusual Feature is parsed twice.
  Counter counter{Wire::ints};
  if (Failure failure = read_feature(feature, counter, values.kind)) return failure;
  if (values.kind != 0 && values.kind != static_cast<int>(counter.wire)) {
    counter = {static_cast<Wire>(values.kind)};
    if (Failure failure = read_feature(feature, counter, values.kind)) return failure;
  }
  values.count = counter.count;
  values.first = counter.first;
  return {};
}

// A repeated key replaces the earlier one.
template <class Found>
void set(Found& found, Bytes key, Bytes value) {
  const std::string_view name = as_string(key);
  for (auto& [known, place] : found) {
    if (known == name) {
      place = value;
      return;
    }
  }
  found.emplace_back(name, value);
}

auto order(const ImageStatistics::Size& size) noexcept {
  return std::tuple(std::uint64_t{size.first} * size.second, size.first);
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
  MergedValues merged;
  const std::size_t number = records_++;
  in_context_.clear();
  in_lists_.clear();

  const auto read = [&]() -> Failure {
    Failure failure =
        read_record(record, true, merged, [&](bool is_list, Bytes key, Bytes value) -> Failure {
          set(is_list ? in_lists_ : in_context_, key, value);
          return {};
        });
    if (failure) return failure;
    for (std::size_t i = 0; i < in_context_.size(); ++i) {
      const auto [key, feature] = in_context_[i];
      Values values;
      if ((failure = count_values(feature, values))) return failure;
      Seen& seen = context_.at(i, key);
      seen.records += 1;
      seen.add(number, values.kind, values.count);
      if (values.kind == static_cast<int>(Wire::bytes) && values.count == 1) {
        seen.add_image(number, values.first);
      }
    }
    for (std::size_t i = 0; i < in_lists_.size(); ++i) {
      const auto [key, list] = in_lists_[i];
      Seen& seen = lists_.at(i, key);
      seen.records += 1;
      failure = each_bytes(list, 1, [&](Bytes step) -> Failure {
        Values values;
        if (Failure failure = count_values(step, values)) return failure;
        seen.add(number, values.kind, values.count);
        // Unlike a key, a step without a list counts: it has no values.
        if (values.kind == 0) seen.least = 0;
        return {};
      });
      if (failure) return failure;
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

void ImageStatistics::add(Bytes value) noexcept {
  const std::optional<ImageHeader> header = read_image_header(value);
  if (!header) {
    ++unknown;
    return;
  }
  ++by_format[static_cast<std::size_t>(header->format)];
  ++by_channels[header->channels];
  ++by_bits[header->bits];
  if (header->orientation != 1) ++oriented;
  const Size size{header->height, header->width};
  if (smallest == Size{} || order(size) < order(smallest)) smallest = size;
  if (largest == Size{} || order(size) > order(largest)) largest = size;
}

ImageSurvey::ImageSurvey(std::vector<std::string> keys)
    : keys_(std::move(keys)), results_(keys_.size()), features_(keys_.size()) {}

Fault ImageSurvey::add(Bytes record) {
  MergedValues merged;
  features_.assign(keys_.size(), Bytes{});
  const Failure failure =
      read_record(record, false, merged, [&](bool, Bytes key, Bytes value) -> Failure {
        for (std::size_t i = 0; i < keys_.size(); ++i) {
          if (keys_[i] == as_string(key)) features_[i] = value;  // replaces an earlier one
        }
        return {};
      });
  if (failure) return {};
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    Counter strings{Wire::bytes};
    int kind = 0;
    if (read_feature(features_[i], strings, kind)) continue;
    if (strings.count != 0) results_[i].add(strings.first);
  }
  return {};
}

}  // namespace covey
