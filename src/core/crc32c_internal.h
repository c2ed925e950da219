// What the files of crc32c share: one function per kind of processor, and the table that joins
// interleaved streams.
#pragma once

#include <array>

#include "crc32c.h"

namespace covey::internal {

// A long input is cut into three equal streams, because the processor's CRC instruction takes
// three cycles but can start one every cycle. No stream is longer than this.
inline constexpr std::size_t kStreamBytes = 8192;

// Below this the join costs more than the interleaving gains.
inline constexpr std::size_t kInterleaveFrom = 192;

// kShift[j] is x^(64 j - 33) modulo the CRC's polynomial, bit-reflected. The carry-less product
// of a CRC with kShift[j], fed through one more CRC instruction, is that CRC moved past 8 j
// zero bytes (the instruction itself contributes the missing x^33).
inline constexpr std::size_t kShifts = 2 * kStreamBytes / 8 + 1;

extern const std::array<std::uint32_t, kShifts> kShift;

std::uint32_t crc32c_portable(std::uint32_t crc, const std::uint8_t* data,
                              std::size_t size) noexcept;

// Null where the processor lacks the instructions, or the compiler cannot make them.
Crc32cExtend crc32c_sse42() noexcept;
Crc32cExtend crc32c_armv8() noexcept;

}  // namespace covey::internal
