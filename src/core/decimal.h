// The shortest decimal form of numbers, which decides between float32 and float64.
//
// 0.1 has the same form in both types. The shortest form of 1700000000.123 in float32 is 1.7e+09:
// as float32 it would be another number.
#pragma once

namespace covey {

// The number that the shortest decimal form of a float32 denotes: 0.1 for 0.1F.
double widen_by_decimal(float value) noexcept;

// Whether a number has the same shortest decimal form as the float32 nearest to it. Infinities and
// NaN have.
bool is_same_in_float32(double value) noexcept;

}  // namespace covey
