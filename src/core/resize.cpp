#include "resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#if defined(__x86_64__)
#include <immintrin.h>
#define COVEY_AVX2 __attribute__((target("avx2")))
#endif

namespace covey {
namespace internal {
namespace {

// The fractional bits of a sample between the two passes. Rounding it to 8 bits, as Pillow does,
// would let results differ from Pillow's by more than one level.
constexpr int kFraction = 6;

std::int16_t to_sample(std::int32_t sum, int precision) noexcept {
  return static_cast<std::int16_t>(sum >> (precision - kFraction));
}

// Half a unit of the result, which rounds it.
std::int32_t sample_half(int precision) noexcept { return 1 << (precision - kFraction - 1); }
std::int32_t byte_half(int precision) noexcept { return 1 << (precision + kFraction - 1); }

// The samples [first, samples) of one output row, for which wider loads are too long.
void vertical_tail(const Rows<std::int16_t>& in, const Weights& weights, std::size_t y,
                   std::size_t first, std::size_t samples, std::uint8_t* out) noexcept {
  const auto [begin, count] = weights.ranges[y];
  const std::int16_t* const k = weights.fixed.data() + y * weights.stride;
  for (std::size_t x = first; x < samples; ++x) {
    std::int32_t sum = byte_half(weights.precision);
    const std::int16_t* at = in.data + begin * in.stride + x;
    for (std::size_t i = 0; i < count; ++i, at += in.stride) sum += *at * k[i];
    const std::int32_t value = sum >> (weights.precision + kFraction);
    out[x] = static_cast<std::uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
  }
}

template <std::size_t kPixel>
void resize_rows(const Rows<std::uint8_t>& in, const Weights& weights, std::size_t channels,
                 std::int16_t* out, std::size_t out_stride) {
  for (std::size_t y = 0; y < in.count; ++y) {
    std::int16_t* to = out + y * out_stride;
    for (std::size_t x = 0; x < weights.ranges.size(); ++x, to += channels) {
      const auto [first, count] = weights.ranges[x];
      const std::int16_t* const k = weights.fixed.data() + x * weights.stride;
      const std::uint8_t* const at = in.data + y * in.stride + kPixel * first;
      for (std::size_t c = 0; c < channels; ++c) {
        std::int32_t sum = sample_half(weights.precision);
        for (std::size_t i = 0; i < count; ++i) sum += at[kPixel * i + c] * k[i];
        to[c] = to_sample(sum, weights.precision);
      }
    }
  }
}

void vertical(const Rows<std::int16_t>& in, const Weights& weights, std::size_t samples,
              std::uint8_t* out) {
  for (std::size_t y = 0; y < weights.ranges.size(); ++y, out += samples) {
    vertical_tail(in, weights, y, 0, samples, out);
  }
}

#if defined(COVEY_AVX2)

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
COVEY_AVX2 void horizontal_avx2(const Rows<std::uint8_t>& in, const Weights& weights,
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

COVEY_AVX2 void vertical_avx2(const Rows<std::int16_t>& in, const Weights& weights,
                              std::size_t samples, std::uint8_t* out) {
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

constexpr ResizeKernels kAvx2Kernels{horizontal_avx2, vertical_avx2};

#endif

}  // namespace

const ResizeKernels kPortableKernels{resize_rows<4>, vertical};

const ResizeKernels* avx2_kernels() noexcept {
#if defined(COVEY_AVX2)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) return &kAvx2Kernels;
#endif
  return nullptr;
}

}  // namespace internal

namespace {

using internal::ResizeKernels;
using internal::Rows;

// The largest precision for which sums of the samples of either pass fit into 32 bits.
constexpr int kMaxPrecision = 22 - internal::kFraction;
constexpr double kMaxWeight = 32767;
// Samples after a row that the kernels may read or write.
constexpr std::size_t kPadding = 16;
// Of the weights of an axis, and of the rows between the two passes.
constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

const ResizeKernels& kernels() noexcept {
  static const ResizeKernels* const found = internal::avx2_kernels();
  return found != nullptr ? *found : internal::kPortableKernels;
}

// Resizes rows of 16-bit samples.
template <std::size_t kChannels>
void resize_deep(const Rows<std::uint8_t>& in, const Weights& weights, float* to) {
  for (std::size_t y = 0; y < in.count; ++y) {
    const std::uint8_t* const row = in.data + y * in.stride;
    for (std::size_t x = 0; x < weights.ranges.size(); ++x) {
      const auto [first, taps] = weights.ranges[x];
      const double* const k = weights.exact.data() + x * weights.stride;
      double sums[kChannels] = {};
      for (std::size_t i = 0; i < taps; ++i) {
        std::uint16_t samples[kChannels];
        std::memcpy(samples, row + (first + i) * sizeof samples, sizeof samples);
        for (std::size_t c = 0; c < kChannels; ++c) sums[c] += samples[c] * k[i];
      }
      for (const double sum : sums) *to++ = static_cast<float>(sum);
    }
  }
}

}  // namespace

void Weights::compute(const Axis& axis) {
  if (axis == last_) return;
  last_ = {};
  const auto [begin, end, low, high, size, is_reversed, is_deep] = axis;
  const double scale = (end - begin) / size;
  const double support = std::max(scale, 1.0);
  const std::size_t taps = static_cast<std::size_t>(std::ceil(support)) * 2 + 1;
  stride = (std::min<std::size_t>(taps, high - low) + 1) / 2 * 2;
  if (size * stride > kMaxBytes / sizeof(double)) throw std::bad_alloc();
  ranges.assign(size, {0, 0});
  exact.assign(size * stride, 0.0);
  double largest = 0;
  for (std::uint32_t i = 0; i < size; ++i) {
    const double center = begin + (i + 0.5) * scale;
    auto first = static_cast<std::int64_t>(center - support + 0.5);
    auto last = static_cast<std::int64_t>(center + support + 0.5);
    first = std::max<std::int64_t>(first, low);
    last = std::min<std::int64_t>(last, high);
    const auto weight = [&](std::int64_t at) {
      const double distance = std::abs((static_cast<double>(at) - center + 0.5) / support);
      return distance < 1 ? 1 - distance : 0.0;
    };
    while (first + 1 < last && weight(first) == 0) ++first;
    while (first + 1 < last && weight(last - 1) == 0) --last;
    const std::size_t to = is_reversed ? size - 1 - i : i;
    const auto count = static_cast<std::size_t>(last - first);
    double* const k = exact.data() + to * stride;
    double sum = 0;
    for (std::size_t j = 0; j < count; ++j) {
      k[j] = weight(first + static_cast<std::int64_t>(j));
      sum += k[j];
    }
    for (std::size_t j = 0; j < count; ++j) {
      k[j] = sum == 0 ? 1.0 / static_cast<double>(count) : k[j] / sum;
      largest = std::max(largest, k[j]);
    }
    ranges[to] = {static_cast<std::uint32_t>(first - low), static_cast<std::uint32_t>(count)};
  }
  last_ = axis;
  if (is_deep) return;
  precision = 0;
  while (precision < kMaxPrecision && largest * (2 << precision) < kMaxWeight) ++precision;
  // Sums are rounded, not weights: errors of many small weights would add up.
  fixed.assign(exact.size(), 0);
  for (std::size_t i = 0; i < size; ++i) {
    double sum = 0;
    long before = 0;
    for (std::size_t j = i * stride; j < i * stride + ranges[i].count; ++j) {
      sum += exact[j];
      const long rounded = std::lrint(sum * (1 << precision));
      fixed[j] = static_cast<std::int16_t>(rounded - before);
      before = rounded;
    }
  }
}

void Resizer::begin(const Box& box, std::uint32_t reduction, bool is_flipped,
                    const ImageSpec& spec) {
  const auto scaled = [&](std::uint32_t at) { return static_cast<double>(at) / reduction; };
  const auto up = [&](std::uint32_t at) { return (at + reduction - 1) / reduction; };
  needed_.top = box.top / reduction;
  needed_.left = box.left / reduction;
  needed_.height = up(box.bottom()) - needed_.top;
  needed_.width = up(box.right()) - needed_.left;
  size_ = spec.size;
  channels_ = spec.channels;
  is_deep_ = spec.is_deep;
  horizontal_.compute({scaled(box.left), scaled(box.right()), needed_.left, needed_.right(),
                       size_.width, is_flipped, is_deep_});
  vertical_.compute({scaled(box.top), scaled(box.bottom()), needed_.top, needed_.bottom(),
                     size_.height, false, is_deep_});
  stride_ = size_.width * channels_ + kPadding;
  if (needed_.height > kMaxBytes / sizeof(float) / stride_) throw std::bad_alloc();
  if (is_deep_) {
    deep_.resize(std::size_t{needed_.height} * size_.width * channels_);
  } else {
    resized_.resize(needed_.height * stride_);
  }
}

void Resizer::add(const std::uint8_t* data, const RowRange& rows) {
  const std::uint32_t begin = std::max(rows.first, needed_.top);
  const std::uint32_t end = std::min(rows.first + rows.count, needed_.bottom());
  if (begin >= end) return;
  const std::size_t pixel = is_deep_ ? 2 * channels_ : channels_ == 1 ? 1 : 4;
  data += (begin - rows.first) * rows.stride + (needed_.left - rows.left) * pixel;
  const Rows<std::uint8_t> in{data, rows.stride, end - begin};
  const std::size_t row = begin - needed_.top;
  if (is_deep_) return add_deep(data, rows.stride, row, end - begin);
  std::int16_t* const out = resized_.data() + row * stride_;
  const auto resize = channels_ == 1 ? internal::resize_rows<1> : kernels().horizontal;
  resize(in, horizontal_, channels_, out, stride_);
}

void Resizer::add_deep(const std::uint8_t* data, std::size_t stride, std::size_t row,
                       std::size_t count) {
  const auto resize = channels_ == 1   ? resize_deep<1>
                      : channels_ == 3 ? resize_deep<3>
                      : channels_ == 4 ? resize_deep<4>
                                       : resize_deep<2>;
  float* const out = deep_.data() + row * size_.width * channels_;
  resize({data, stride, count}, horizontal_, out);
}

std::size_t Resizer::kept_bytes() const noexcept {
  std::size_t bytes = resized_.capacity() * sizeof(std::int16_t) + deep_.capacity() * sizeof(float);
  for (const Weights* const weights : {&horizontal_, &vertical_}) {
    bytes += weights->exact.capacity() * sizeof(double);
    bytes += weights->fixed.capacity() * sizeof(std::int16_t);
    bytes += weights->ranges.capacity() * sizeof(Weights::Range);
  }
  return bytes;
}

void Resizer::finish(std::uint8_t* out) {
  const std::size_t samples = size_.width * channels_;
  if (!is_deep_) {
    kernels().vertical({resized_.data(), stride_, needed_.height}, vertical_, samples, out);
    return;
  }
  std::vector<double> sums(samples);
  for (std::size_t y = 0; y < size_.height; ++y) {
    const auto [first, taps] = vertical_.ranges[y];
    const double* const k = vertical_.exact.data() + y * vertical_.stride;
    std::fill(sums.begin(), sums.end(), 0.0);
    for (std::size_t i = 0; i < taps; ++i) {  // vectorised over x
      const float* const row = deep_.data() + (first + i) * samples;
      for (std::size_t x = 0; x < samples; ++x) sums[x] += row[x] * k[i];
    }
    for (std::size_t x = 0; x < samples; ++x, out += 2) {
      constexpr float kRound = 0x1.8p23f;  // x + kRound has no digits after the point
      const float sum = std::clamp(static_cast<float>(sums[x]), 0.f, 65535.f);
      const auto value = static_cast<std::uint16_t>((sum + kRound) - kRound);
      std::memcpy(out, &value, sizeof value);
    }
  }
}

}  // namespace covey
