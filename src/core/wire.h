// The protocol buffer wire format: tags, varints, length-delimited fields, and skipping of unknown
// fields. Every length is checked against the remaining bytes before use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "fault.h"

namespace covey {

// Loads a number from an unaligned address.
template <class T>
T load(const std::uint8_t* data) noexcept {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// A range of bytes, not owned.
struct Bytes {
  const std::uint8_t* begin = nullptr;
  const std::uint8_t* end = nullptr;

  std::size_t size() const noexcept { return static_cast<std::size_t>(end - begin); }
};

inline std::string_view as_string(Bytes bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.begin), bytes.size()};
}

// The reason and position of a parse error; false if there is none.
struct Failure {
  FaultCode code = FaultCode::none;
  const std::uint8_t* at = nullptr;

  explicit operator bool() const noexcept { return code != FaultCode::none; }
};

// Tags are (field number << 3) | wire type.
inline constexpr std::uint32_t kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kStartGroup = 3,
                               kEndGroup = 4, kFixed32 = 5;

constexpr std::uint32_t make_tag(std::uint32_t field, std::uint32_t type) noexcept {
  return field << 3 | type;
}

// The depth limit of groups in protobuf's own parsers.
inline constexpr int kGroupDepth = 100;

// Parses the fields of one message in order.
class Reader {
 public:
  explicit Reader(Bytes bytes) noexcept : at_(bytes.begin), end_(bytes.end) {}

  bool done() const noexcept { return at_ == end_; }
  const std::uint8_t* at() const noexcept { return at_; }

  [[nodiscard]] Failure varint(std::uint64_t& value) noexcept {
    if (at_ != end_ && *at_ < 0x80) [[likely]] {
      value = *at_++;
      return {};
    }
    return long_varint(value);
  }

  [[nodiscard]] Failure tag(std::uint32_t& tag) noexcept {
    const std::uint8_t* const begin = at_;
    std::uint64_t value;
    if (Failure failure = varint(value)) return failure;
    // A tag has at most 32 bits, in at most five bytes, and field numbers start at 1.
    if (value > 0xffffffffU || at_ - begin > 5 || value < 8) return {FaultCode::tag, begin};
    tag = static_cast<std::uint32_t>(value);
    return {};
  }

  [[nodiscard]] Failure bytes(Bytes& value) noexcept {
    const std::uint8_t* const begin = at_;
    std::uint64_t length;
    if (Failure failure = varint(length)) return failure;
    if (length > static_cast<std::size_t>(end_ - at_)) return {FaultCode::length, begin};
    value = {at_, at_ + length};
    at_ += length;
    return {};
  }

  [[nodiscard]] Failure fixed(std::size_t size, const std::uint8_t*& value) noexcept {
    if (size > static_cast<std::size_t>(end_ - at_)) return {FaultCode::length, at_};
    value = at_;
    at_ += size;
    return {};
  }

  // Skips the field whose tag was just read.
  [[nodiscard]] Failure skip(std::uint32_t tag) noexcept {
    // The field numbers of the open groups.
    std::uint32_t open[kGroupDepth];
    int depth = 0;
    for (;;) {
      std::uint64_t number;
      const std::uint8_t* place;
      Bytes value;
      Failure failure;
      switch (tag & 7) {
        case kVarint:
          failure = varint(number);
          break;
        case kFixed64:
          failure = fixed(8, place);
          break;
        case kLengthDelimited:
          failure = bytes(value);
          break;
        case kFixed32:
          failure = fixed(4, place);
          break;
        case kStartGroup:
          if (depth == kGroupDepth) return {FaultCode::group, at_};
          open[depth++] = tag >> 3;
          break;
        case kEndGroup:
          if (depth == 0 || open[depth - 1] != tag >> 3) return {FaultCode::group, at_};
          --depth;
          break;
        default:
          return {FaultCode::tag, at_};
      }
      if (failure) return failure;
      if (depth == 0) return {};
      if (done()) return {FaultCode::group, at_};
      if ((failure = this->tag(tag))) return failure;
    }
  }

 private:
  [[nodiscard]] Failure long_varint(std::uint64_t& value) noexcept {
    const std::uint8_t* at = at_;
    value = 0;
    for (int shift = 0; shift < 70 && at != end_; shift += 7, ++at) {
      value |= static_cast<std::uint64_t>(*at & 0x7f) << shift;
      if (*at < 0x80) {
        at_ = at + 1;
        return {};
      }
    }
    return {FaultCode::varint, at_};
  }

  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

inline constexpr std::size_t kMostVarintBytes = 10;

constexpr std::size_t varint_size(std::uint64_t value) noexcept {
  std::size_t size = 1;
  while (value >= 0x80) {
    value >>= 7;
    ++size;
  }
  return size;
}

inline std::uint8_t* write_varint(std::uint8_t* out, std::uint64_t value) noexcept {
  while (value >= 0x80) {
    *out++ = static_cast<std::uint8_t>(value | 0x80);
    value >>= 7;
  }
  *out++ = static_cast<std::uint8_t>(value);
  return out;
}

}  // namespace covey
