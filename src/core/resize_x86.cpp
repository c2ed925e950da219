// Resizing with AVX2. Compiled for every x86-64; selected at run time if the processor supports it.
#include "resize_internal.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#define COVEY_AVX2 __attribute__((target("avx2")))

namespace covey::internal {
namespace {

std::int32_t load4(const void* from) noexcept {
  std::int32_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

// Two pixels from each of two rows.
COVEY_AVX2 __m256i load_pair(const std::uint8_t* a, const std::uint8_t* b) noexcept {
  const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(a));
  const __m128i high = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

// Four samples of a pixel; the fourth of three channels is overwritten by the next pixel.
COVEY_AVX2 void store(std::int16_t* a, std::int16_t* b, __m256i sums, __m128i shift) noexcept {
  const __m256i shifted = _mm256_sra_epi32(sums, shift);
  const __m256i samples = _mm256_packs_epi32(shifted, shifted);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(a), _mm256_castsi256_si128(samples));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(b), _mm256_extracti128_si256(samples, 1));
}

// Four rows at a time: their pixels are multiplied by the same weights.
COVEY_AVX2 void horizontal(const Rows<std::uint8_t>& in, const Weights& weights,
                           std::size_t channels, std::int16_t* out, std::size_t out_stride) {
  // From pixels RGBX RGBX to the words R R G G B B X X.
  const __m256i interleave =
      _mm256_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1,  //
                       0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1);
  const __m256i half = _mm256_set1_epi32(sample_half(weights.precision));
  const __m128i shift = _mm_cvtsi32_si128(weights.precision - kFraction);
  for (std::size_t y = 0; y < in.count; y += 4) {
    const std::uint8_t* from[4];
    std::int16_t* to[4];
    for (std::size_t i = 0; i < 4; ++i) {  // the last row may be repeated
      const std::size_t row = y + i < in.count ? y + i : in.count - 1;
      from[i] = in.data + row * in.stride;
      to[i] = out + row * out_stride;
    }
    const std::int16_t* k = weights.fixed.data();
    for (std::size_t x = 0; x < weights.ranges.size(); ++x, k += weights.stride) {
      const auto [first, count] = weights.ranges[x];
      __m256i sum01 = half, sum23 = half;
      for (std::size_t i = 0; i < count; i += 2) {
        const std::size_t at = 4 * (first + i);
        const __m256i pair = _mm256_set1_epi32(load4(k + i));
        const __m256i p01 = _mm256_shuffle_epi8(load_pair(from[0] + at, from[1] + at), interleave);
        const __m256i p23 = _mm256_shuffle_epi8(load_pair(from[2] + at, from[3] + at), interleave);
        sum01 = _mm256_add_epi32(sum01, _mm256_madd_epi16(p01, pair));
        sum23 = _mm256_add_epi32(sum23, _mm256_madd_epi16(p23, pair));
      }
      const std::size_t at = x * channels;
      store(to[0] + at, to[1] + at, sum01, shift);
      store(to[2] + at, to[3] + at, sum23, shift);
    }
  }
}

COVEY_AVX2 __m256i load(const std::int16_t* from) noexcept {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

COVEY_AVX2 void vertical(const Rows<std::int16_t>& in, const Weights& weights, std::size_t samples,
                         std::uint8_t* out) {
  const __m256i half = _mm256_set1_epi32(byte_half(weights.precision));
  const __m128i shift = _mm_cvtsi32_si128(weights.precision + kFraction);
  for (std::size_t y = 0; y < weights.ranges.size(); ++y, out += samples) {
    const auto [first, count] = weights.ranges[y];
    const std::int16_t* const k = weights.fixed.data() + y * weights.stride;
    std::size_t x = 0;
    for (; x + 32 <= samples; x += 32) {
      __m256i s0 = half, s1 = half, s2 = half, s3 = half;
      const std::int16_t* at = in.data + first * in.stride + x;
      for (std::size_t i = 0; i < count; i += 2, at += 2 * in.stride) {
        const std::int16_t* const next = i + 1 < count ? at + in.stride : at;  // its weight is 0
        const __m256i pair = _mm256_set1_epi32(load4(k + i));
        const __m256i a0 = load(at), b0 = load(next), a1 = load(at + 16), b1 = load(next + 16);
        s0 = _mm256_add_epi32(s0, _mm256_madd_epi16(_mm256_unpacklo_epi16(a0, b0), pair));
        s1 = _mm256_add_epi32(s1, _mm256_madd_epi16(_mm256_unpackhi_epi16(a0, b0), pair));
        s2 = _mm256_add_epi32(s2, _mm256_madd_epi16(_mm256_unpacklo_epi16(a1, b1), pair));
        s3 = _mm256_add_epi32(s3, _mm256_madd_epi16(_mm256_unpackhi_epi16(a1, b1), pair));
      }
      // Unpacking and packing to words work within halves, and restore the order; packing to bytes
      // mixes the halves of its arguments.
      const __m256i w0 =
          _mm256_packs_epi32(_mm256_sra_epi32(s0, shift), _mm256_sra_epi32(s1, shift));
      const __m256i w1 =
          _mm256_packs_epi32(_mm256_sra_epi32(s2, shift), _mm256_sra_epi32(s3, shift));
      const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(w0, w1), 0xd8);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + x), bytes);
    }
    vertical_tail(in, weights, y, x, samples, out);
  }
}

constexpr ResizeKernels kKernels{horizontal, vertical};

}  // namespace

const ResizeKernels* x86_kernels() noexcept {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") ? &kKernels : nullptr;
}

}  // namespace covey::internal

#else

namespace covey::internal {

const ResizeKernels* x86_kernels() noexcept { return nullptr; }

}  // namespace covey::internal

#endif
