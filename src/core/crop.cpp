#include <algorithm>
#include <cmath>

#include "image.h"
#include "permutation.h"

namespace covey {
namespace {

constexpr int kAttempts = 10;
// Streams of random numbers of a row: flips do not change boxes.
constexpr std::uint64_t kBoxes = 0, kFlips = 1;

// Uniform random numbers derived from a key.
class Uniform {
 public:
  explicit Uniform(std::uint64_t key) noexcept : key_(key) {}

  // A number in [low, high).
  double operator()(double low, double high) noexcept {
    const std::uint64_t word = derive(key_, count_++);
    return low + (high - low) * (static_cast<double>(word >> 11) * 0x1p-53);
  }

  // An integer in [0, end).
  std::uint32_t below(std::uint32_t end) noexcept {
    return std::min(static_cast<std::uint32_t>((*this)(0, end)), end - 1);
  }

 private:
  std::uint64_t key_;
  std::uint64_t count_ = 0;
};

// The functions exp and log of the C library differ between versions and processors; these use
// additions and multiplications only, whose results are defined exactly. |x| must be below 64.
double exp_exactly(double x) noexcept {
  const double reduced = x / 256;
  double sum = 1, term = 1;
  for (int n = 1; n <= 12; ++n) {
    term = term * reduced / n;
    sum = sum + term;
  }
  for (int i = 0; i < 8; ++i) sum = sum * sum;
  return sum;
}

double log_exactly(double x) noexcept {
  int exponent;
  const double mantissa = std::frexp(x, &exponent);  // exact
  const double z = (mantissa - 1) / (mantissa + 1), square = z * z;
  double sum = 0;
  for (int n = 39; n >= 1; n -= 2) sum = sum * square + 1.0 / n;
  return exponent * 0.69314718055994530942 + 2 * z * sum;
}

std::uint32_t round(double value) noexcept {
  return static_cast<std::uint32_t>(std::floor(value + 0.5));
}

Box central(ImageSize image, std::uint32_t height, std::uint32_t width) noexcept {
  height = std::clamp<std::uint32_t>(height, 1, image.height);
  width = std::clamp<std::uint32_t>(width, 1, image.width);
  return {(image.height - height) / 2, (image.width - width) / 2, height, width};
}

// The largest central box with this aspect ratio.
Box central(ImageSize image, double ratio) noexcept {
  if (image.width > image.height * ratio) {
    return central(image, image.height, round(image.height * ratio));
  }
  return central(image, round(image.width / ratio), image.width);
}

Box random_box(const ImageSpec& spec, ImageSize image, std::uint64_t key) noexcept {
  Uniform uniform(key);
  const double area = static_cast<double>(image.pixels());
  const double low = log_exactly(spec.ratio[0]), high = log_exactly(spec.ratio[1]);
  for (int i = 0; i < kAttempts; ++i) {
    const double wanted = area * uniform(spec.scale[0], spec.scale[1]);
    const double ratio = exp_exactly(uniform(low, high));
    const double width = std::floor(std::sqrt(wanted * ratio) + 0.5);
    const double height = std::floor(std::sqrt(wanted / ratio) + 0.5);
    if (width < 1 || height < 1 || width > image.width || height > image.height) continue;
    Box box;
    box.height = static_cast<std::uint32_t>(height);
    box.width = static_cast<std::uint32_t>(width);
    box.top = uniform.below(image.height - box.height + 1);
    box.left = uniform.below(image.width - box.width + 1);
    return box;
  }
  const double ratio = static_cast<double>(image.width) / image.height;
  return central(image, std::clamp(ratio, spec.ratio[0], spec.ratio[1]));
}

}  // namespace

Framing choose_framing(const ImageSpec& spec, ImageSize image, const RowKey& key,
                       std::size_t view) noexcept {
  const std::uint64_t row = derive(derive(derive(key.seed, key.batch), key.row), view);
  Framing framing{{0, 0, image.height, image.width}, false};
  if (spec.crop == Crop::center) {
    framing.box = central(image, static_cast<double>(spec.size.width) / spec.size.height);
  } else if (spec.crop == Crop::random) {
    framing.box = random_box(spec, image, derive(row, kBoxes));
  }
  framing.is_flipped = spec.flip && (derive(row, kFlips) & 1) != 0;
  return framing;
}

}  // namespace covey
