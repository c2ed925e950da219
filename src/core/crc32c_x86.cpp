// CRC-32C with the SSE4.2 instruction on three interleaved streams, combined by carry-less
// multiplication. Compiled for every x86-64; selected at run time if the processor supports it.
#include "crc32c_internal.h"

#if defined(__x86_64__)

#include <nmmintrin.h>
#include <wmmintrin.h>

#include <cstring>

#define COVEY_SSE42 __attribute__((target("sse4.2,pclmul")))

namespace covey::internal {
namespace {

std::uint64_t load(const std::uint8_t* data) noexcept {
  std::uint64_t word;
  std::memcpy(&word, data, 8);
  return word;
}

// The checksum of three consecutive streams of `bytes` each.
COVEY_SSE42 std::uint64_t interleaved(std::uint64_t crc, const std::uint8_t* data,
                                      std::size_t bytes) noexcept {
  const std::uint8_t* const end = data + bytes;
  std::uint64_t a = crc, b = 0, c = 0;
  for (; data != end; data += 8) {
    a = _mm_crc32_u64(a, load(data));
    b = _mm_crc32_u64(b, load(data + bytes));
    c = _mm_crc32_u64(c, load(data + 2 * bytes));
  }
  const std::size_t words = bytes / 8;
  const __m128i moved_a = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(a)),
                                               _mm_cvtsi64_si128(kShift[2 * words]), 0);
  const __m128i moved_b = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(b)),
                                               _mm_cvtsi64_si128(kShift[words]), 0);
  const auto product =
      static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_xor_si128(moved_a, moved_b)));
  return _mm_crc32_u64(0, product) ^ c;
}

COVEY_SSE42 std::uint32_t extend(std::uint32_t before, const std::uint8_t* data,
                                 std::size_t size) noexcept {
  std::uint64_t crc = ~before;
  while (size >= kInterleaveFrom) {
    const std::size_t bytes = size < 3 * kStreamBytes ? size / 24 * 8 : kStreamBytes;
    crc = interleaved(crc, data, bytes);
    data += 3 * bytes;
    size -= 3 * bytes;
  }
  for (; size >= 8; data += 8, size -= 8) crc = _mm_crc32_u64(crc, load(data));
  auto narrow = static_cast<std::uint32_t>(crc);
  for (; size > 0; ++data, --size) narrow = _mm_crc32_u8(narrow, *data);
  return ~narrow;
}

bool supported() noexcept {
  __builtin_cpu_init();
  return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

}  // namespace

Crc32cExtend crc32c_sse42() noexcept { return supported() ? &extend : nullptr; }

}  // namespace covey::internal

#else

namespace covey::internal {
Crc32cExtend crc32c_sse42() noexcept { return nullptr; }
}  // namespace covey::internal

#endif
