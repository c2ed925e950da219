// Builds protocol-buffer bytes by hand, independently of the encoder: a record is a string.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "column.h"
#include "wire.h"

namespace covey::testing {

// A copy on the heap of the exact size, so that the address sanitizer detects a read past the end.
class Exact {
 public:
  explicit Exact(std::string_view bytes)
      : data_(std::make_unique<std::uint8_t[]>(bytes.size())), size_(bytes.size()) {
    if (size_ != 0) std::memcpy(data_.get(), bytes.data(), size_);
  }

  Bytes bytes() const noexcept { return {data_.get(), data_.get() + size_}; }
  std::uint8_t* data() noexcept { return data_.get(); }
  std::size_t size() const noexcept { return size_; }

 private:
  std::unique_ptr<std::uint8_t[]> data_;
  std::size_t size_;
};

inline std::string text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.begin), bytes.size()};
}

template <class T>
std::string memory_of(const T& value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

template <class T>
std::string memory_of(std::initializer_list<T> values) {
  std::string bytes;
  for (const T& value : values) bytes += memory_of(value);
  return bytes;
}

inline std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

inline std::string tag(std::uint32_t field, std::uint32_t type) {
  return varint(make_tag(field, type));
}

inline std::string field(std::uint32_t number, std::string_view content) {
  return tag(number, kLengthDelimited) + varint(content.size()) + std::string(content);
}

// The lists of tf.train.Feature.

inline std::string packed_ints(std::initializer_list<std::int64_t> values) {
  std::string run;
  for (std::int64_t value : values) run += varint(static_cast<std::uint64_t>(value));
  return field(1, run);
}

inline std::string unpacked_ints(std::initializer_list<std::int64_t> values) {
  std::string list;
  for (std::int64_t value : values) {
    list += tag(1, kVarint);
    list += varint(static_cast<std::uint64_t>(value));
  }
  return list;
}

inline std::string packed_floats(std::initializer_list<float> values) {
  return field(1, memory_of(values));
}

inline std::string unpacked_floats(std::initializer_list<float> values) {
  std::string list;
  for (float value : values) list += tag(1, kFixed32) + memory_of(value);
  return list;
}

inline std::string string_list(std::initializer_list<std::string_view> values) {
  std::string list;
  for (std::string_view value : values) list += field(1, value);
  return list;
}

// tf.train.Feature.

inline std::string feature(Wire wire, std::string_view list) {
  return field(static_cast<std::uint32_t>(wire), list);
}

inline std::string ints(std::initializer_list<std::int64_t> values) {
  return feature(Wire::ints, packed_ints(values));
}

inline std::string floats(std::initializer_list<float> values) {
  return feature(Wire::floats, packed_floats(values));
}

inline std::string strings(std::initializer_list<std::string_view> values) {
  return feature(Wire::bytes, string_list(values));
}

// tf.train.Example and tf.train.SequenceExample: maps of entries.

inline std::string entry(std::string_view key, std::string_view value) {
  return field(1, field(1, key) + field(2, value));
}

inline std::string example(std::string_view entries) { return field(1, entries); }

inline std::string feature_list(std::initializer_list<std::string> features) {
  std::string list;
  for (const std::string& each : features) list += field(1, each);
  return list;
}

inline std::string sequence_example(std::string_view context, std::string_view lists) {
  return field(1, context) + field(2, lists);
}

}  // namespace covey::testing
