#include "image_survey.h"

#include <cstring>
#include <memory>
#include <tuple>

#include "feature.h"

namespace covey {
namespace {

// Keeps the first string of a feature.
struct FirstString {
  Wire wire = Wire::bytes;
  Bytes first{};
  bool found = false;

  void clear() noexcept { found = false; }
  bool ints(Bytes, Failure&) noexcept { return true; }
  bool one_int(std::uint64_t) noexcept { return true; }
  bool floats(const std::uint8_t*, std::size_t) noexcept { return true; }
  bool string(Bytes value) noexcept {
    if (!found) first = value;
    found = true;
    return true;
  }
};

auto order(const ImageStatistics::Size& size) noexcept {
  return std::tuple(std::uint64_t{size.first} * size.second, size.first);
}

}  // namespace

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

void ImageSurvey::add(Bytes record) {
  std::vector<std::unique_ptr<std::uint8_t[]>> memory;
  const auto scratch = [&](std::size_t size) {
    memory.push_back(std::make_unique<std::uint8_t[]>(size));
    return memory.back().get();
  };
  features_.assign(keys_.size(), Bytes{});
  Reader fields(record);
  while (!fields.done()) {
    std::uint32_t tag;
    if (fields.tag(tag)) return;
    if (tag != make_tag(1, kLengthDelimited)) {
      if (fields.skip(tag)) return;
      continue;
    }
    Bytes map;
    if (fields.bytes(map)) return;
    const Failure failure = read_map(map, scratch, [&](Bytes key, Bytes value) -> Failure {
      for (std::size_t i = 0; i < keys_.size(); ++i) {
        if (keys_[i].size() == key.size() &&
            std::memcmp(keys_[i].data(), key.begin, key.size()) == 0) {
          features_[i] = value;  // a repeated key replaces the earlier one
        }
      }
      return {};
    });
    if (failure) return;
  }
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    FirstString values;
    int kind = 0;
    if (read_feature(features_[i], values, kind)) continue;
    if (values.found) results_[i].add(values.first);
  }
}

}  // namespace covey
