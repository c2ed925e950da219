#include "decimal.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace covey {
namespace {

// Powers of ten that a double holds exactly.
constexpr int kMostExactPower = 22;
constexpr std::array<double, kMostExactPower + 1> kPowers{
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

// digits * 10^exponent, correctly rounded for digits below 2^53 and an exact power.
double scale(double digits, int exponent) noexcept {
  return exponent < 0 ? digits / kPowers[static_cast<std::size_t>(-exponent)]
                      : digits * kPowers[static_cast<std::size_t>(exponent)];
}

}  // namespace

double widen_by_decimal(float value) noexcept {
  if (!std::isfinite(value) || value == 0) return value;
  // d.ddde-38: at most nine digits.
  std::array<char, 24> text{};
  char* const begin = text.data();
  char* const end =
      std::to_chars(begin, begin + 20, std::fabs(value), std::chars_format::scientific).ptr;
  std::int64_t digits = 0;
  int fraction = 0;
  const char* at = begin;
  for (bool after = false; *at != 'e'; ++at) {
    if (*at == '.') {
      after = true;
      continue;
    }
    digits = 10 * digits + (*at - '0');
    fraction += after;
  }
  int exponent = 0;
  ++at;
  std::from_chars(at + (*at == '+'), end, exponent);
  exponent -= fraction;
  double size;
  if (-kMostExactPower <= exponent && exponent <= kMostExactPower) {
    size = scale(static_cast<double>(digits), exponent);
  } else {
    // Without a decimal point, the locale does not matter.
    char* rest = std::to_chars(begin, begin + 12, digits).ptr;
    *rest++ = 'e';
    *std::to_chars(rest, rest + 5, exponent).ptr = '\0';
    size = std::strtod(begin, nullptr);
  }
  return std::copysign(size, static_cast<double>(value));
}

bool is_same_in_float32(double value) noexcept {
  if (!std::isfinite(value)) return true;
  const double size = std::fabs(value);
  // Integers that a float32 holds exactly.
  if (size <= 0x1p24 && size == std::floor(size)) return true;
  const auto narrow = static_cast<float>(value);
  if (!std::isfinite(narrow)) return false;
  // The shortest form has at most nine digits: the number times a power of ten is an integer, up to
  // the rounding of both. This rejects most other numbers.
  int binary;
  std::frexp(size, &binary);
  const int shift = 8 - ((binary - 1) * 1233 >> 12);  // 1233 / 4096 is about log10(2)
  if (-kMostExactPower <= shift && shift <= kMostExactPower) {
    const double scaled = scale(size, shift);  // 10^8 to 2 * 10^10
    const double digits = std::nearbyint(scaled);
    if (std::fabs(scaled - digits) > 1e-5 || scale(digits, -shift) != size) return false;
    // Decimals of up to six digits are the shortest forms of their float32.
    if (static_cast<std::int64_t>(digits) % 10'000 == 0) return true;
  }
  return widen_by_decimal(narrow) == value;
}

}  // namespace covey
