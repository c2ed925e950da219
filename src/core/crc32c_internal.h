// Shared by the files of crc32c: one function per processor architecture, and the table that
// combines interleaved streams.
#pragma once

#include <array>

#include "crc32c.h"

namespace covey::internal {

// The input is processed as three interleaved streams, because the CRC instruction has a latency of
// three cycles and a throughput of one per cycle. The streams are short, so that all three are
// within a few hundred bytes and the hardware prefetcher sees one stream: from memory this is
// almost twice as fast as streams of kilobytes (21 against 12 GB/s on an AMD EPYC).
inline constexpr std::size_t kStreamBytes = 272;

// For shorter inputs combining costs more than interleaving gains.
inline constexpr std::size_t kInterleaveFrom = 192;

// kShift[j] is x^(64 j - 33) modulo the CRC polynomial, bit-reflected. The carry-less product of a
// CRC with kShift[j], processed by one more CRC instruction, is that CRC extended by 8 j zero bytes
// (the instruction itself contributes the missing x^33).
inline constexpr std::size_t kShifts = 2 * kStreamBytes / 8 + 1;

constexpr std::array<std::uint32_t, kShifts> make_shifts() noexcept {
  std::array<std::uint32_t, kShifts> shifts{};
  std::uint32_t power = 1;  // x^31, reflected
  for (std::size_t j = 1; j < kShifts; ++j) {
    shifts[j] = power;
    for (int bit = 0; bit < 64; ++bit) {
      power = (power >> 1) ^ ((power & 1) ? 0x82f63b78U : 0U);
    }
  }
  return shifts;
}

inline constexpr std::array<std::uint32_t, kShifts> kShift = make_shifts();

std::uint32_t crc32c_portable(std::uint32_t crc, const std::uint8_t* data,
                              std::size_t size) noexcept;

// Null if the processor or the compiler does not support the instructions.
Crc32cExtend crc32c_sse42() noexcept;
Crc32cExtend crc32c_armv8() noexcept;

}  // namespace covey::internal
