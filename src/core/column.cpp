#include "column.h"

#include <cstring>

namespace covey {

bool is_utf8(const std::uint8_t* data, std::size_t size) noexcept {
  const std::uint8_t* const end = data + size;
  while (data != end) {
    while (end - data >= 8) {  // ASCII is the common case
      std::uint64_t word;
      std::memcpy(&word, data, 8);
      if ((word & 0x8080808080808080U) != 0) break;
      data += 8;
    }
    if (data == end) break;
    const std::uint8_t lead = *data++;
    if (lead < 0x80) continue;
    // The number of following bytes, and the range of the first of them (Unicode, table 3-7).
    int more;
    std::uint8_t low = 0x80, high = 0xbf;
    if (lead >= 0xc2 && lead <= 0xdf) {
      more = 1;
    } else if (lead >= 0xe0 && lead <= 0xef) {
      more = 2;
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
      more = 3;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    } else {
      return false;
    }
    if (end - data < more || *data < low || *data > high) return false;
    for (int i = 1; i < more; ++i) {
      if (data[i] < 0x80 || data[i] > 0xbf) return false;
    }
    data += more;
  }
  return true;
}

float half_to_float(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1f;
  const std::uint32_t mantissa = half & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000U | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  // Subnormal: mantissa * 2^-24, exact in binary32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return sign != 0 ? -magnitude : magnitude;
}

std::uint16_t float_to_half(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {  // a NaN keeps the upper bits of its payload
    const auto payload = static_cast<std::uint16_t>((magnitude >> 13) & 0x3ff);
    return static_cast<std::uint16_t>(sign | 0x7c00 | (payload != 0 ? payload : 0x200));
  }
  if (magnitude >= 0x477ff000U) return sign | 0x7c00;  // rounds to infinity
  if (magnitude < 0x38800000U) {
    // Subnormal: adding 0.5 makes the hardware round the mantissa at the right bit.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) & 0x7ff));
  }
  const std::uint32_t odd = (magnitude >> 13) & 1;  // ties go to the even neighbour
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000U + 0xfffU + odd) >> 13));
}

}  // namespace covey
