// Columns: the storage of one key of tf.train.Example in a record and in memory. The Python side
// composes all features (images, labels, ragged, sparse, nested) from columns.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace covey {

// The three lists of tf.train.Feature, by their field numbers.
enum class Wire : std::uint8_t { bytes = 1, floats = 2, ints = 3 };

enum class Element : std::uint8_t {
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  boolean,
  float16,
  float32,
  float64,
  string,
};

// A string counts as bytes.
constexpr std::size_t element_size(Element element) noexcept {
  constexpr std::uint8_t kSizes[] = {1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1};
  return kSizes[static_cast<std::size_t>(element)];
}

// The type of float16, distinct from uint16.
struct Half {
  std::uint16_t bits;
};

template <class T>
inline constexpr bool kIsFloat = std::is_floating_point_v<T> || std::is_same_v<T, Half>;

// Calls f with a value of the element's type, which is not `string`.
template <class F>
auto with_type(Element element, F&& f) {
  switch (element) {
    case Element::int8:
      return f(std::int8_t{});
    case Element::int16:
      return f(std::int16_t{});
    case Element::int32:
      return f(std::int32_t{});
    case Element::int64:
      return f(std::int64_t{});
    case Element::uint8:
      return f(std::uint8_t{});
    case Element::uint16:
      return f(std::uint16_t{});
    case Element::uint32:
      return f(std::uint32_t{});
    case Element::uint64:
      return f(std::uint64_t{});
    case Element::boolean:
      return f(bool{});
    case Element::float16:
      return f(Half{});
    case Element::float32:
      return f(float{});
    case Element::float64:
    case Element::string:
      break;
  }
  return f(double{});
}

enum class Layout : std::uint8_t {
  fixed,     // the same number of values in every row: one dense array
  variable,  // any number of values in a row: values and row splits
  steps,     // a FeatureList of a SequenceExample: values, step splits and row splits
};

struct Column {
  std::string key;
  Wire wire = Wire::ints;
  Element element = Element::int64;
  Layout layout = Layout::fixed;
  std::size_t count = 1;
  bool exact = true;  // `count` values per row or step; otherwise a multiple of it
  bool required = true;
  bool text = false;  // strings must be valid UTF-8
  // The default of an optional key.
  std::vector<std::uint8_t> default_values;  // numbers, in their memory layout
  std::vector<std::string> default_strings;

  // Numbers that are stored raw, as the single value of a bytes list.
  bool raw() const noexcept { return wire == Wire::bytes && element != Element::string; }
};

// Whether bytes are valid UTF-8 as defined by Unicode: no surrogates, no overlong forms.
bool is_utf8(const std::uint8_t* data, std::size_t size) noexcept;

// IEEE 754 binary16, for which C++20 has no type.
float half_to_float(std::uint16_t half) noexcept;
std::uint16_t float_to_half(float value) noexcept;

}  // namespace covey
