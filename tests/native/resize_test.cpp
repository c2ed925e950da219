// Resizing: every kernel against the portable one, and results against a reference in double
// precision.
#include "resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "encoded_images.h"
#include "wire_bytes.h"

namespace covey::testing {
namespace {

using Samples = std::vector<double>;

// The weights of the triangle filter along one axis, by its definition: output i of `size` shows
// [begin, end), of which whole pixels in [floor(begin), ceil(end)) are used.
std::vector<Samples> reference_weights(double begin, double end, std::uint32_t size) {
  const double scale = (end - begin) / size, support = std::max(scale, 1.0);
  const auto low = static_cast<int>(std::floor(begin)), high = static_cast<int>(std::ceil(end));
  std::vector<Samples> all;
  for (std::uint32_t i = 0; i < size; ++i) {
    const double center = begin + (i + 0.5) * scale;
    Samples weights;
    double sum = 0;
    for (int at = low; at < high; ++at) {
      weights.push_back(std::max(0., 1 - std::abs(at + 0.5 - center) / support));
      sum += weights.back();
    }
    for (double& weight : weights) weight /= sum;
    all.push_back(weights);
  }
  return all;
}

struct Image {
  ImageSize size;
  std::size_t channels;
  Samples samples;
};

// The box of an image, in units of its pixels, resized.
Samples reference(const Image& image, const std::array<double, 4>& box, const ImageSpec& spec,
                  bool is_flipped) {
  const auto [top, left, bottom, right] = box;
  const auto rows = reference_weights(top, bottom, spec.size.height);
  const auto columns = reference_weights(left, right, spec.size.width);
  const auto first_row = static_cast<std::size_t>(std::floor(top));
  const auto first_column = static_cast<std::size_t>(std::floor(left));
  Samples out;
  for (std::uint32_t y = 0; y < spec.size.height; ++y) {
    for (std::uint32_t x = 0; x < spec.size.width; ++x) {
      const Samples& across = columns[is_flipped ? spec.size.width - 1 - x : x];
      for (std::size_t c = 0; c < image.channels; ++c) {
        double sum = 0;
        for (std::size_t i = 0; i < rows[y].size(); ++i) {
          if (rows[y][i] == 0) continue;
          const std::size_t row = (first_row + i) * image.size.width + first_column;
          double line = 0;
          for (std::size_t j = 0; j < across.size(); ++j) {
            line += across[j] * image.samples[(row + j) * image.channels + c];
          }
          sum += rows[y][i] * line;
        }
        out.push_back(sum);
      }
    }
  }
  return out;
}

// Resizes an image whose rows are supplied in strips of random height.
Samples resize(const Image& image, const Box& box, std::uint32_t reduction, bool is_flipped,
               const ImageSpec& spec, std::mt19937& random) {
  static Resizer resizer;  // reused, as by the decoder
  resizer.begin(box, reduction, is_flipped, spec);
  const std::size_t pixel = spec.is_deep ? 2 * image.channels : image.channels == 1 ? 1 : 4;
  const std::size_t row = image.size.width * pixel, stride = row + random() % 9;
  const std::size_t after = spec.is_deep || image.channels == 1 ? 0 : 8;
  for (std::uint32_t y = 0; y < image.size.height;) {
    const std::uint32_t count = std::min<std::uint32_t>(1 + random() % 19, image.size.height - y);
    // The exact size, so that the address sanitizer detects reads past what is promised.
    Exact strip(std::string((count - 1) * stride + row + after, '\xfe'));
    for (std::uint32_t i = 0; i < count; ++i) {
      for (std::size_t x = 0; x < image.size.width; ++x) {
        for (std::size_t c = 0; c < image.channels; ++c) {
          const double sample =
              image.samples[((y + i) * std::size_t{image.size.width} + x) * image.channels + c];
          std::uint8_t* const at = strip.data() + i * stride + x * pixel;
          if (spec.is_deep) {
            const auto word = static_cast<std::uint16_t>(sample);
            std::memcpy(at + 2 * c, &word, sizeof word);
          } else {
            at[c] = static_cast<std::uint8_t>(sample);
          }
        }
      }
    }
    resizer.add(strip.data(), {y, count, 0, image.size.width, stride});
    y += count;
  }
  Exact out(std::string(spec.bytes(), '\x77'));
  resizer.finish(out.data());
  Samples samples;
  for (std::size_t i = 0; i < spec.bytes(); i += spec.is_deep ? 2 : 1) {
    std::uint16_t word = out.data()[i];
    if (spec.is_deep) std::memcpy(&word, out.data() + i, sizeof word);
    samples.push_back(word);
  }
  return samples;
}

Image random_image(ImageSize size, std::size_t channels, bool is_deep, std::mt19937& random) {
  Image image{size, channels, {}};
  const int kind = static_cast<int>(random() % 3);  // noise, extremes, or a constant
  const double value = random() % 256 * (is_deep ? 257. : 1.);
  for (std::size_t i = 0; i < size.pixels() * channels; ++i) {
    const unsigned noise = random() % (is_deep ? 65536 : 256);
    image.samples.push_back(kind == 0   ? noise
                            : kind == 1 ? (noise % 2 == 0 ? 0
                                           : is_deep      ? 65535
                                                          : 255)
                                        : value);
  }
  return image;
}

std::uint32_t side(std::mt19937& random, std::uint32_t most) {
  return 1 + random() % (random() % 3 == 0 ? 4 : most);
}

double distance(const Samples& a, const Samples& b) {
  double worst = a.size() == b.size() ? 0 : 1e9;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    worst = std::max(worst, std::abs(a[i] - b[i]));
  }
  return worst;
}

TEST(resize_equals_the_reference) {
  std::mt19937 random(11);
  for (int round = 0; round < 400; ++round) {
    const bool is_deep = round % 4 == 3;
    const std::size_t channels = 1 + random() % 4;
    const Image image =
        random_image({side(random, 90), side(random, 90)}, channels, is_deep, random);
    ImageSpec spec;
    spec.size = {side(random, 70), side(random, 70)};
    spec.channels = channels;
    spec.is_deep = is_deep;
    // A box of an image that is decoded at a reduced scale.
    const std::uint32_t reduction = 1U << random() % 4;
    const ImageSize full{
        image.size.height * reduction - static_cast<std::uint32_t>(random() % reduction),
        image.size.width * reduction - static_cast<std::uint32_t>(random() % reduction)};
    Box box;
    box.height = 1 + random() % full.height;
    box.width = 1 + random() % full.width;
    box.top = random() % (full.height - box.height + 1);
    box.left = random() % (full.width - box.width + 1);
    const bool is_flipped = random() % 2 == 0;
    const Samples found = resize(image, box, reduction, is_flipped, spec, random);
    const double r = reduction;
    const Samples expected = reference(
        image, {box.top / r, box.left / r, box.bottom() / r, box.right() / r}, spec, is_flipped);
    // Rounding of the result, and of samples between the two passes.
    CHECK(distance(found, expected) <= 0.5 + 1. / 64);
  }
}

TEST(resize_to_the_same_size_is_exact) {
  std::mt19937 random(12);
  for (const bool is_deep : {false, true}) {
    for (std::size_t channels = 1; channels <= 4; ++channels) {
      const ImageSize size{side(random, 60), side(random, 60)};
      const Image image = random_image(size, channels, is_deep, random);
      ImageSpec spec;
      spec.size = size;
      spec.channels = channels;
      spec.is_deep = is_deep;
      CHECK(resize(image, {0, 0, size.height, size.width}, 1, false, spec, random) ==
            image.samples);
    }
  }
}

TEST(constant_images_stay_constant) {
  std::mt19937 random(13);
  const ImageSize sizes[] = {{1, 1}, {3, 2000}, {5000, 1}, {20'000, 3}, {1, 65'535}, {333, 777}};
  for (const ImageSize size : sizes) {
    for (const ImageSize to : {ImageSize{1, 1}, {2, 7}, {64, 33}}) {
      for (const double value : {0., 1., 127., 254., 255.}) {
        for (const std::size_t channels : {1, 3}) {
          const Image image{size, channels, Samples(size.pixels() * channels, value)};
          ImageSpec spec;
          spec.size = to;
          spec.channels = channels;
          const Samples found =
              resize(image, {0, 0, size.height, size.width}, 1, false, spec, random);
          CHECK(found == Samples(found.size(), value));
        }
      }
    }
  }
}

TEST(weights_sum_to_one) {
  std::mt19937 random(14);
  Weights weights;
  for (int round = 0; round < 2000; ++round) {
    const std::uint32_t length = side(random, 3000), size = side(random, 300);
    const double begin = random() % 8 / 8., end = begin + length;
    const auto high = static_cast<std::uint32_t>(std::ceil(end));
    weights.compute({begin, end, 0, high, size, random() % 2 == 0, false});
    CHECK(weights.stride % 2 == 0 && weights.fixed.size() == size * weights.stride);
    for (std::uint32_t i = 0; i < size; ++i) {
      const auto [first, count] = weights.ranges[i];
      CHECK(count >= 1 && count <= weights.stride && first + count <= high);
      int sum = 0;
      bool is_valid = true;
      for (std::size_t j = 0; j < weights.stride; ++j) {
        const int weight = weights.fixed[i * weights.stride + j];
        sum += weight;
        is_valid &= weight >= 0 && (j < count || weight == 0);
      }
      CHECK(is_valid && sum == 1 << weights.precision);
    }
  }
}

// Images of extreme size: a fault of memory, not gigabytes of weights or rows.
TEST(memory_of_resizing_is_bounded) {
  Resizer resizer;
  ImageSpec spec;
  spec.size = {224, 224};
  for (const Box& box :
       {Box{0, 0, 100'000'000, 1}, {0, 0, 1, 100'000'000}, {0, 0, 2'000'000, 50}}) {
    bool has_thrown = false;
    try {
      resizer.begin(box, 1, false, spec);
    } catch (const std::bad_alloc&) {
      has_thrown = true;
    }
    CHECK(has_thrown);
  }
  CHECK(resizer.kept_bytes() < std::size_t{2} << 30);
  resizer.begin({0, 0, 65'535, 65'535}, 1, false, spec);
}

struct NamedKernels {
  const char* name;
  const internal::ResizeKernels* kernels;
};

std::vector<NamedKernels> other_kernels() {
  std::vector<NamedKernels> all;
  if (internal::avx2_kernels() != nullptr) all.push_back({"avx2", internal::avx2_kernels()});
  return all;
}

TEST(resize_kernels_agree) {
  std::mt19937 random(15);
  for (const auto& [name, kernels] : other_kernels()) {
    std::printf("resize: %s\n", name);
    for (int round = 0; round < 2000; ++round) {
      const std::size_t channels = 2 + random() % 3;
      const std::uint32_t width = side(random, 200), rows = side(random, 40);
      const ImageSize size{side(random, 50), side(random, 120)};
      const bool is_extreme = random() % 4 == 0;
      Weights across, down;
      const double left = random() % 8 / 8., right = width - random() % 8 / 8. * (width - left) / 2;
      across.compute({left, right, 0, width, size.width, random() % 2 == 0, false});
      down.compute({0, rows, 0, rows, size.height, false, false});
      const std::size_t stride = 4 * width + random() % 20;
      Exact in(std::string((rows - 1) * stride + 4 * width + 8, '\0'));
      for (std::size_t i = 0; i < in.size(); ++i) {
        in.data()[i] = static_cast<std::uint8_t>(is_extreme ? (random() % 2) * 255 : random());
      }
      const std::size_t samples = size.width * channels, out_stride = samples + 16;
      std::vector<std::int16_t> a(rows * out_stride, -7), b(a);
      internal::kPortableKernels.horizontal({in.data(), stride, rows}, across, channels, a.data(),
                                            out_stride);
      kernels->horizontal({in.data(), stride, rows}, across, channels, b.data(), out_stride);
      bool same = true;
      for (std::size_t y = 0; y < rows; ++y) {
        same &= std::equal(a.begin() + static_cast<std::ptrdiff_t>(y * out_stride),
                           a.begin() + static_cast<std::ptrdiff_t>(y * out_stride + samples),
                           b.begin() + static_cast<std::ptrdiff_t>(y * out_stride));
      }
      CHECK(same);
      Exact x(std::string(size.height * samples, '\1')),
          y(std::string(size.height * samples, '\2'));
      internal::kPortableKernels.vertical({a.data(), out_stride, rows}, down, samples, x.data());
      kernels->vertical({a.data(), out_stride, rows}, down, samples, y.data());
      CHECK(std::memcmp(x.data(), y.data(), x.size()) == 0);
    }
  }
}

}  // namespace
}  // namespace covey::testing
