// The boxes of results. Published seeds depend on them: the golden boxes must never change.
#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <vector>

#include "check.h"
#include "image.h"

namespace covey::testing {
namespace {

ImageSpec spec_of(Crop crop, ImageSize size = {224, 224}) {
  ImageSpec spec;
  spec.crop = crop;
  spec.size = size;
  return spec;
}

bool is_inside(const Box& box, ImageSize image) {
  return box.height >= 1 && box.width >= 1 && box.height <= image.height &&
         box.width <= image.width && box.top <= image.height - box.height &&
         box.left <= image.width - box.width;
}

struct Golden {
  ImageSize image;
  RowKey key;
  std::size_t view;
  Box box;
  bool is_flipped;
};

constexpr Golden kGoldens[] = {
    {{375, 500}, {0U, 0U, 0U}, 0, {25, 52, 291, 331}, false},
    {{375, 500}, {0U, 0U, 0U}, 1, {101, 90, 232, 294}, false},
    {{375, 500}, {42U, 7U, 31U}, 0, {1, 54, 373, 435}, true},
    {{375, 500}, {42U, 7U, 31U}, 1, {24, 9, 342, 323}, false},
    {{375, 500}, {18446744073709551615U, 1099511627776U, 511U}, 0, {80, 232, 239, 208}, false},
    {{375, 500}, {18446744073709551615U, 1099511627776U, 511U}, 1, {63, 125, 238, 290}, true},
    {{500, 375}, {0U, 0U, 0U}, 0, {63, 13, 291, 331}, false},
    {{500, 375}, {0U, 0U, 0U}, 1, {190, 35, 232, 294}, false},
    {{500, 375}, {42U, 7U, 31U}, 0, {83, 64, 197, 220}, true},
    {{500, 375}, {42U, 7U, 31U}, 1, {53, 21, 404, 322}, false},
    {{500, 375}, {18446744073709551615U, 1099511627776U, 511U}, 0, {154, 133, 239, 208}, false},
    {{500, 375}, {18446744073709551615U, 1099511627776U, 511U}, 1, {10, 5, 468, 370}, true},
    {{1, 1}, {0U, 0U, 0U}, 0, {0, 0, 1, 1}, false},
    {{1, 1}, {0U, 0U, 0U}, 1, {0, 0, 1, 1}, false},
    {{1, 1}, {42U, 7U, 31U}, 0, {0, 0, 1, 1}, true},
    {{1, 1}, {42U, 7U, 31U}, 1, {0, 0, 1, 1}, false},
    {{1, 1}, {18446744073709551615U, 1099511627776U, 511U}, 0, {0, 0, 1, 1}, false},
    {{1, 1}, {18446744073709551615U, 1099511627776U, 511U}, 1, {0, 0, 1, 1}, true},
    {{7, 3}, {0U, 0U, 0U}, 0, {4, 0, 3, 3}, false},
    {{7, 3}, {0U, 0U, 0U}, 1, {4, 0, 2, 3}, false},
    {{7, 3}, {42U, 7U, 31U}, 0, {1, 0, 2, 2}, true},
    {{7, 3}, {42U, 7U, 31U}, 1, {2, 0, 4, 3}, false},
    {{7, 3}, {18446744073709551615U, 1099511627776U, 511U}, 0, {2, 1, 3, 2}, false},
    {{7, 3}, {18446744073709551615U, 1099511627776U, 511U}, 1, {2, 0, 3, 3}, true},
    {{64, 64}, {0U, 0U, 0U}, 0, {6, 4, 43, 49}, false},
    {{64, 64}, {0U, 0U, 0U}, 1, {21, 9, 34, 43}, false},
    {{64, 64}, {42U, 7U, 31U}, 0, {8, 6, 56, 56}, true},
    {{64, 64}, {42U, 7U, 31U}, 1, {2, 6, 60, 48}, false},
    {{64, 64}, {18446744073709551615U, 1099511627776U, 511U}, 0, {17, 26, 35, 31}, false},
    {{64, 64}, {18446744073709551615U, 1099511627776U, 511U}, 1, {13, 13, 35, 43}, true},
    {{2000, 10}, {0U, 0U, 0U}, 0, {993, 0, 13, 10}, false},
    {{2000, 10}, {0U, 0U, 0U}, 1, {993, 0, 13, 10}, false},
    {{2000, 10}, {42U, 7U, 31U}, 0, {993, 0, 13, 10}, true},
    {{2000, 10}, {42U, 7U, 31U}, 1, {993, 0, 13, 10}, false},
    {{2000, 10}, {18446744073709551615U, 1099511627776U, 511U}, 0, {993, 0, 13, 10}, false},
    {{2000, 10}, {18446744073709551615U, 1099511627776U, 511U}, 1, {993, 0, 13, 10}, true},
    {{65535, 65535}, {0U, 0U, 0U}, 0, {6516, 4770, 44030, 50108}, false},
    {{65535, 65535}, {0U, 0U, 0U}, 1, {21546, 9207, 35107, 44530}, false},
    {{65535, 65535}, {42U, 7U, 31U}, 0, {7288, 6300, 57666, 56898}, true},
    {{65535, 65535}, {42U, 7U, 31U}, 1, {2445, 6787, 61115, 48659}, false},
    {{65535, 65535},
     {18446744073709551615U, 1099511627776U, 511U},
     0,
     {17321, 27045, 36161, 31424},
     false},
    {{65535, 65535},
     {18446744073709551615U, 1099511627776U, 511U},
     1,
     {13563, 12874, 36045, 43958},
     true},
    {{480, 640}, {0U, 0U, 0U}, 0, {33, 67, 372, 424}, false},
    {{480, 640}, {0U, 0U, 0U}, 1, {130, 115, 297, 377}, false},
    {{480, 640}, {42U, 7U, 31U}, 0, {1, 70, 478, 556}, true},
    {{480, 640}, {42U, 7U, 31U}, 1, {31, 11, 437, 414}, false},
    {{480, 640}, {18446744073709551615U, 1099511627776U, 511U}, 0, {103, 297, 306, 266}, false},
    {{480, 640}, {18446744073709551615U, 1099511627776U, 511U}, 1, {80, 160, 305, 372}, true},
};
constexpr Golden kOtherGoldens[] = {
    {{375, 500}, {0U, 0U, 0U}, 0, {38, 31, 249, 399}, false},
    {{375, 500}, {42U, 7U, 31U}, 0, {20, 87, 354, 381}, true},
    {{375, 500}, {18446744073709551615U, 1099511627776U, 511U}, 0, {50, 222, 291, 220}, false},
    {{500, 375}, {0U, 0U, 0U}, 0, {181, 0, 307, 252}, false},
    {{500, 375}, {42U, 7U, 31U}, 0, {83, 31, 197, 299}, true},
    {{500, 375}, {18446744073709551615U, 1099511627776U, 511U}, 0, {123, 123, 291, 220}, false},
    {{1, 1}, {0U, 0U, 0U}, 0, {0, 0, 1, 1}, false},
    {{1, 1}, {42U, 7U, 31U}, 0, {0, 0, 1, 1}, true},
    {{1, 1}, {18446744073709551615U, 1099511627776U, 511U}, 0, {0, 0, 1, 1}, false},
    {{7, 3}, {0U, 0U, 0U}, 0, {4, 0, 3, 3}, false},
    {{7, 3}, {42U, 7U, 31U}, 0, {1, 0, 2, 3}, true},
    {{7, 3}, {18446744073709551615U, 1099511627776U, 511U}, 0, {2, 1, 3, 2}, false},
    {{64, 64}, {0U, 0U, 0U}, 0, {8, 1, 37, 59}, false},
    {{64, 64}, {42U, 7U, 31U}, 0, {12, 6, 52, 56}, true},
    {{64, 64}, {18446744073709551615U, 1099511627776U, 511U}, 0, {12, 26, 43, 32}, false},
    {{2000, 10}, {0U, 0U, 0U}, 0, {990, 0, 20, 10}, false},
    {{2000, 10}, {42U, 7U, 31U}, 0, {990, 0, 20, 10}, true},
    {{2000, 10}, {18446744073709551615U, 1099511627776U, 511U}, 0, {990, 0, 20, 10}, false},
    {{65535, 65535}, {0U, 0U, 0U}, 0, {8448, 1573, 37656, 60448}, false},
    {{65535, 65535}, {42U, 7U, 31U}, 0, {11052, 5699, 53601, 57722}, true},
    {{65535, 65535},
     {18446744073709551615U, 1099511627776U, 511U},
     0,
     {12692, 25619, 44011, 33222},
     false},
    {{480, 640}, {0U, 0U, 0U}, 0, {49, 40, 318, 511}, false},
    {{480, 640}, {42U, 7U, 31U}, 0, {25, 111, 453, 488}, true},
    {{480, 640}, {18446744073709551615U, 1099511627776U, 511U}, 0, {64, 285, 372, 281}, false},
};

TEST(random_boxes_never_change) {
  ImageSpec spec = spec_of(Crop::random);
  spec.flip = true;
  for (const Golden& golden : kGoldens) {
    const Framing framing = choose_framing(spec, golden.image, golden.key, golden.view);
    CHECK(framing.box == golden.box);
    CHECK(framing.is_flipped == golden.is_flipped);
  }
  spec.scale = {0.2, 0.9};
  spec.ratio = {0.5, 2.5};
  for (const Golden& golden : kOtherGoldens) {
    CHECK(choose_framing(spec, golden.image, golden.key, golden.view).box == golden.box);
  }
}

TEST(boxes_depend_on_every_part_of_the_key) {
  ImageSpec spec = spec_of(Crop::random);
  std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>> boxes;
  const RowKey keys[] = {{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1, 1, 0}, {~0ULL, 0, 0}};
  for (const RowKey& key : keys) {
    for (std::size_t view = 0; view < 3; ++view) {
      const Box box = choose_framing(spec, {3000, 4000}, key, view).box;
      boxes.insert({box.top, box.left, box.height, box.width});
    }
  }
  CHECK(boxes.size() == 18);
}

TEST(flips_do_not_change_boxes) {
  ImageSpec plain = spec_of(Crop::random), flipping = plain;
  flipping.flip = true;
  int flipped = 0;
  for (std::uint64_t row = 0; row < 10'000; ++row) {
    const Framing a = choose_framing(plain, {300, 400}, {4, 2, row}, 0);
    const Framing b = choose_framing(flipping, {300, 400}, {4, 2, row}, 0);
    CHECK(a.box == b.box && !a.is_flipped);
    flipped += b.is_flipped;
  }
  CHECK(std::abs(flipped - 5000) < 250);  // five standard deviations
}

// Counts how often each tenth of [0, 1) occurs.
struct Histogram {
  int counts[10] = {};
  int total = 0;

  void add(double value) {
    ++counts[std::clamp(static_cast<int>(value * 10), 0, 9)];
    ++total;
  }
  bool is_uniform() const {
    const double expected = total / 10.;
    return std::all_of(counts, counts + 10, [&](int count) {
      return std::abs(count - expected) < 5 * std::sqrt(expected);
    });
  }
};

// In a square image no attempt is rejected if the ratio is moderate and the area is at most half.
TEST(random_boxes_are_uniform) {
  ImageSpec spec = spec_of(Crop::random);
  spec.scale = {0.1, 0.5};
  const double low = std::log(spec.ratio[0]), high = std::log(spec.ratio[1]);
  const ImageSize image{20'000, 20'000};
  Histogram area, ratio, top, left;
  for (std::uint64_t row = 0; row < 20'000; ++row) {
    const Box box = choose_framing(spec, image, {1, 0, row}, 0).box;
    CHECK(is_inside(box, image));
    const double height = box.height, width = box.width;
    area.add((height * width / static_cast<double>(image.pixels()) - 0.1) / 0.4);
    ratio.add((std::log(width / height) - low) / (high - low));
    top.add(box.top / (20'001. - height));
    left.add(box.left / (20'001. - width));
  }
  CHECK(area.is_uniform());
  CHECK(ratio.is_uniform());
  CHECK(top.is_uniform());
  CHECK(left.is_uniform());
}

TEST(every_position_of_a_small_box_occurs) {
  ImageSpec spec = spec_of(Crop::random);
  spec.scale = {0.25, 0.25};
  spec.ratio = {1, 1};
  std::set<std::pair<std::uint32_t, std::uint32_t>> positions;
  for (std::uint64_t row = 0; row < 500; ++row) {
    const Box box = choose_framing(spec, {4, 4}, {0, 0, row}, 0).box;
    CHECK(box.height == 2 && box.width == 2);
    positions.insert({box.top, box.left});
  }
  CHECK(positions.size() == 9);
}

TEST(boxes_are_inside_of_all_images) {
  const double ratios[][2] = {{3. / 4, 4. / 3}, {1, 1}, {0.01, 0.02}, {50, 100}, {1e-9, 1e9}};
  const double scales[][2] = {{0.08, 1}, {1e-6, 1e-6}, {1, 1}};
  for (const auto& ratio : ratios) {
    for (const auto& scale : scales) {
      ImageSpec spec = spec_of(Crop::random);
      spec.ratio = {ratio[0], ratio[1]};
      spec.scale = {scale[0], scale[1]};
      for (std::uint32_t height = 1; height <= 64; ++height) {
        for (std::uint32_t width = 1; width <= 64; ++width) {
          const Box box = choose_framing(spec, {height, width}, {3, height, width}, 0).box;
          CHECK(is_inside(box, {height, width}));
        }
      }
      for (const ImageSize image : {ImageSize{65535, 65535}, {1, 65535}, {0x7fffffff, 1}}) {
        CHECK(is_inside(choose_framing(spec, image, {}, 0).box, image));
      }
    }
  }
}

TEST(central_boxes_are_inside_of_all_images) {
  for (const ImageSize size : {ImageSize{1, 1}, {224, 224}, {1, 64}, {64, 1}, {65536, 1}, {3, 5}}) {
    const ImageSpec spec = spec_of(Crop::center, size);
    const double ratio = static_cast<double>(size.width) / size.height;
    for (std::uint32_t height = 1; height <= 64; ++height) {
      for (std::uint32_t width = 1; width <= 64; ++width) {
        const Box box = choose_framing(spec, {height, width}, {}, 0).box;
        CHECK(is_inside(box, {height, width}));
        // As large as possible, and in the center.
        CHECK(box.height == height || box.width == width);
        CHECK(box.top == (height - box.height) / 2 && box.left == (width - box.width) / 2);
        const double side = box.height == height ? height * ratio : width / ratio;
        const double found = box.height == height ? box.width : box.height;
        CHECK(std::abs(found - std::clamp(side, 1.,
                                          static_cast<double>(
                                              box.height == height ? width : height))) <= 0.5);
      }
    }
  }
}

TEST(central_boxes) {
  const auto center = [](ImageSize size, ImageSize image) {
    return choose_framing(spec_of(Crop::center, size), image, {5, 6, 7}, 1).box;
  };
  CHECK(center({224, 224}, {300, 400}) == Box{0, 50, 300, 300});
  CHECK(center({224, 224}, {401, 300}) == Box{50, 0, 300, 300});
  CHECK(center({100, 200}, {300, 300}) == Box{75, 0, 150, 300});
  CHECK(center({200, 100}, {7, 300}) == Box{0, 148, 7, 4});
  CHECK(center({224, 224}, {224, 224}) == Box{0, 0, 224, 224});
}

// If all attempts fail, the box is the largest central one whose ratio is in the range.
TEST(fallback_of_random_boxes) {
  ImageSpec spec = spec_of(Crop::random);
  spec.scale = {1, 1};
  spec.ratio = {1, 1};
  CHECK(choose_framing(spec, {10, 1000}, {}, 0).box == Box{0, 495, 10, 10});
  CHECK(choose_framing(spec, {1000, 10}, {}, 0).box == Box{495, 0, 10, 10});
  spec.ratio = {2, 4};
  CHECK(choose_framing(spec, {10, 1000}, {}, 0).box == Box{0, 480, 10, 40});
  CHECK(choose_framing(spec, {1000, 10}, {}, 0).box == Box{497, 0, 5, 10});
  spec.ratio = {1e-9, 1e-8};
  CHECK(choose_framing(spec, {10, 1000}, {}, 0).box == Box{0, 499, 10, 1});
}

TEST(other_crops_show_the_complete_image) {
  for (const Crop crop : {Crop::none, Crop::squash}) {
    CHECK(choose_framing(spec_of(crop), {30, 500}, {1, 2, 3}, 0).box == Box{0, 0, 30, 500});
  }
}

}  // namespace
}  // namespace covey::testing
