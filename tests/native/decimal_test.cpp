// The shortest decimal form of numbers.
#include "decimal.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "check.h"

namespace covey::testing {
namespace {

double parse(const std::string& text) { return std::stod(text); }

std::string shortest(float value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr};
}

// Numbers of all magnitudes.
std::uint64_t next(std::uint64_t& state) {
  state = state * 6364136223846793005U + 1442695040888963407U;
  return state ^ state >> 29;
}

TEST(decimal_form_of_a_float32) {
  CHECK(widen_by_decimal(0.1F) == 0.1);
  CHECK(widen_by_decimal(-16777216.0F) == -16777216.0);
  CHECK(std::signbit(widen_by_decimal(-0.0F)));
  CHECK(std::isnan(widen_by_decimal(std::numeric_limits<float>::quiet_NaN())));
  CHECK(widen_by_decimal(std::numeric_limits<float>::denorm_min()) == 1e-45);
  CHECK(widen_by_decimal(std::numeric_limits<float>::max()) == 3.4028235e38);
  std::uint64_t state = 1;
  for (int i = 0; i < 200'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(next(state)));
    if (!std::isfinite(value)) continue;
    const double wide = widen_by_decimal(value);
    CHECK(wide == parse(shortest(value)));
    CHECK(static_cast<float>(wide) == value);
    CHECK(is_same_in_float32(wide));
  }
}

TEST(numbers_that_are_the_same_in_float32) {
  for (const double value : {0.0, -0.0, 0.1, 0.5, 19.99, -273.15, 1e-45, 1e20, 3.4028235e38,
                             16777216.0, 1700000000.0, 1e300 * 1e300}) {
    CHECK(is_same_in_float32(value));
  }
  for (const double value : {1700000000.123, 1.0 / 3, 16777217.0, 0.1 + 1e-12, 1e39, 1e-46,
                             static_cast<double>(0.1F), 0x1p100}) {
    CHECK(!is_same_in_float32(value));
  }
  CHECK(is_same_in_float32(std::numeric_limits<double>::quiet_NaN()));
}

TEST(decimals_of_any_length) {
  std::uint64_t state = 7;
  for (int i = 0; i < 400'000; ++i) {
    const int length = 1 + static_cast<int>(next(state) % 17);
    std::string text = std::to_string(1 + next(state) % 9);
    for (int digit = 1; digit < length; ++digit) text += std::to_string(next(state) % 10);
    const double value =
        parse(text + "e" + std::to_string(static_cast<int>(next(state) % 70) - 45));
    const auto narrow = static_cast<float>(value);
    const bool same = std::isfinite(narrow) && parse(shortest(narrow)) == value;
    CHECK(is_same_in_float32(value) == same);
    CHECK(is_same_in_float32(-value) == same);
  }
}

}  // namespace
}  // namespace covey::testing
