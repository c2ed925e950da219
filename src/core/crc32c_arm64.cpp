// CRC-32C with the ARMv8 instruction on three interleaved streams, combined by polynomial
// multiplication. The structure is that of crc32c_x86.cpp.
#include "crc32c_internal.h"

#if defined(__aarch64__) && \
    (defined(__ARM_FEATURE_CRC32) || !defined(__clang__) || __clang_major__ >= 16)

#include <arm_acle.h>
#include <arm_neon.h>

#include <cstring>

#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#if defined(__clang__)
#define COVEY_ARMV8 __attribute__((target("crc,aes")))
#else
#define COVEY_ARMV8 __attribute__((target("+crc+crypto")))
#endif

namespace covey::internal {
namespace {

std::uint64_t load(const std::uint8_t* data) noexcept {
  std::uint64_t word;
  std::memcpy(&word, data, 8);
  return word;
}

COVEY_ARMV8 std::uint64_t product(std::uint32_t crc, std::uint32_t shift) noexcept {
  return vgetq_lane_u64(vreinterpretq_u64_p128(vmull_p64(crc, shift)), 0);
}

// The checksum of three consecutive streams of `bytes` each.
COVEY_ARMV8 std::uint32_t interleaved(std::uint32_t crc, const std::uint8_t* data,
                                      std::size_t bytes) noexcept {
  const std::uint8_t* const end = data + bytes;
  std::uint32_t a = crc, b = 0, c = 0;
  for (; data != end; data += 8) {
    a = __crc32cd(a, load(data));
    b = __crc32cd(b, load(data + bytes));
    c = __crc32cd(c, load(data + 2 * bytes));
  }
  const std::size_t words = bytes / 8;
  return __crc32cd(0, product(a, kShift[2 * words]) ^ product(b, kShift[words])) ^ c;
}

COVEY_ARMV8 std::uint32_t extend(std::uint32_t before, const std::uint8_t* data,
                                 std::size_t size) noexcept {
  std::uint32_t crc = ~before;
  while (size >= kInterleaveFrom) {
    const std::size_t bytes = size < 3 * kStreamBytes ? size / 24 * 8 : kStreamBytes;
    crc = interleaved(crc, data, bytes);
    data += 3 * bytes;
    size -= 3 * bytes;
  }
  for (; size >= 8; data += 8, size -= 8) crc = __crc32cd(crc, load(data));
  for (; size > 0; ++data, --size) crc = __crc32cb(crc, *data);
  return ~crc;
}

bool supported() noexcept {
#if defined(__APPLE__)
  return true;  // every arm64 Mac has both
#elif defined(__linux__)
  const unsigned long capabilities = getauxval(AT_HWCAP);
  return (capabilities & HWCAP_CRC32) != 0 && (capabilities & HWCAP_PMULL) != 0;
#else
  return false;
#endif
}

}  // namespace

Crc32cExtend crc32c_armv8() noexcept { return supported() ? &extend : nullptr; }

}  // namespace covey::internal

#else

namespace covey::internal {
Crc32cExtend crc32c_armv8() noexcept { return nullptr; }
}  // namespace covey::internal

#endif
