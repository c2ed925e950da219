// binary16: every half, and every boundary between two of them.
#include <bit>
#include <cmath>
#include <limits>

#include "check.h"
#include "column.h"

namespace covey::testing {
namespace {

constexpr std::uint16_t kInfinity = 0x7c00;
constexpr std::uint16_t kSign = 0x8000;

bool is_nan(std::uint16_t half) { return (half & 0x7fff) > kInfinity; }

TEST(round_trip_of_every_half) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    CHECK(float_to_half(half_to_float(half)) == half);
    CHECK(std::isnan(half_to_float(half)) == is_nan(half));
  }
}

TEST(values_of_halves) {
  CHECK(half_to_float(0x3c00) == 1.0F);
  CHECK(half_to_float(0xc000) == -2.0F);
  CHECK(half_to_float(0x7bff) == 65504.0F);
  CHECK(half_to_float(0x0400) == 0x1p-14F);
  CHECK(half_to_float(0x0001) == 0x1p-24F);
  CHECK(half_to_float(kInfinity) == std::numeric_limits<float>::infinity());
  CHECK(half_to_float(0) == 0.0F && !std::signbit(half_to_float(0)));
  CHECK(half_to_float(kSign) == 0.0F && std::signbit(half_to_float(kSign)));
  for (std::uint16_t half = 0; half < kInfinity; ++half) {
    const int exponent = half >> 10;
    const float significand = static_cast<float>(half & 0x3ff) + (exponent != 0 ? 1024.0F : 0.0F);
    CHECK(half_to_float(half) == std::ldexp(significand, (exponent != 0 ? exponent : 1) - 25));
  }
}

// Values that round to 2^16, the successor of the largest half, are infinite.
TEST(floats_are_rounded_to_the_nearest_even_half) {
  for (const std::uint16_t sign : {std::uint16_t{0}, kSign}) {
    for (std::uint16_t half = 0; half < kInfinity; ++half) {
      const auto low = static_cast<std::uint16_t>(sign | half);
      const auto high = static_cast<std::uint16_t>(sign | (half + 1));
      const float below = half_to_float(low);
      const float above =
          half + 1 == kInfinity ? (sign != 0 ? -0x1p16F : 0x1p16F) : half_to_float(high);
      const float middle = (below + above) / 2;  // exact: a float has 13 bits more
      CHECK(float_to_half(middle) == (half % 2 == 0 ? low : high));
      CHECK(float_to_half(std::nextafter(middle, below)) == low);
      CHECK(float_to_half(std::nextafter(middle, above)) == high);
    }
  }
}

TEST(floats_out_of_range_become_infinite_or_zero) {
  CHECK(float_to_half(65519.99F) == 0x7bff);
  CHECK(float_to_half(65520.0F) == kInfinity);
  CHECK(float_to_half(std::numeric_limits<float>::max()) == kInfinity);
  CHECK(float_to_half(-std::numeric_limits<float>::max()) == (kSign | kInfinity));
  CHECK(float_to_half(std::numeric_limits<float>::infinity()) == kInfinity);
  CHECK(float_to_half(0x1p-25F) == 0);
  CHECK(float_to_half(std::nextafter(0x1p-25F, 1.0F)) == 1);
  CHECK(float_to_half(std::numeric_limits<float>::denorm_min()) == 0);
  CHECK(float_to_half(-std::numeric_limits<float>::denorm_min()) == kSign);
}

TEST(nan_stays_nan) {
  for (std::uint32_t payload = 1; payload < 0x800000; payload = payload * 2 + 1) {
    CHECK(is_nan(float_to_half(std::bit_cast<float>(0x7f800000U | payload))));
    CHECK(is_nan(float_to_half(std::bit_cast<float>(0xff800000U | payload))));
  }
}

}  // namespace
}  // namespace covey::testing
