// CRC-32C (Castagnoli), the checksum of TFRecord frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace covey {

// Extends `crc`, the checksum of the preceding bytes (0 for none), by `size` bytes.
using Crc32cExtend = std::uint32_t (*)(std::uint32_t crc, const std::uint8_t* data,
                                       std::size_t size) noexcept;

struct Crc32cImplementation {
  const char* name;
  Crc32cExtend extend;
};

// The implementations that this processor supports, the fastest first; the portable one is last.
std::span<const Crc32cImplementation> crc32c_implementations() noexcept;

// The checksum of `size` bytes, by the fastest implementation.
std::uint32_t crc32c(const std::uint8_t* data, std::size_t size) noexcept;

// Extends `crc` by `size` bytes.
std::uint32_t crc32c_extend(std::uint32_t crc, const std::uint8_t* data, std::size_t size) noexcept;

// The same, and copies the bytes to `out` while they are in the cache.
std::uint32_t crc32c_copy(std::uint32_t crc, std::uint8_t* out, const std::uint8_t* data,
                          std::size_t size) noexcept;

// TFRecord masks checksums (rotates and offsets them), because the CRC of data that contains CRCs
// is weak.
constexpr std::uint32_t crc32c_mask(std::uint32_t crc) noexcept {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

constexpr std::uint32_t crc32c_unmask(std::uint32_t masked) noexcept {
  const std::uint32_t rotated = masked - 0xa282ead8U;
  return (rotated >> 17) | (rotated << 15);
}

}  // namespace covey
