// The plain form of a row of numbers, which has a fast path.
#include "values.h"

#include <limits>
#include <string>
#include <vector>

#include "agreement.h"
#include "check.h"

namespace covey::testing {
namespace {

std::string raw_feature(const Column& column, char fill) {
  return strings({std::string(column.count * element_size(column.element), fill)});
}

// A Feature, and every Feature that differs from it in one byte or is truncated or longer.
std::vector<std::string> around(const std::string& feature) {
  std::vector<std::string> all = {feature, feature + '\0', feature + feature};
  for (std::size_t at = 0; at < feature.size(); ++at) {
    all.push_back(feature.substr(0, at));
    all.push_back(feature.substr(at));
    for (int value = 0; value < 256; ++value) {
      all.push_back(feature);
      all.back()[at] = static_cast<char>(value);
    }
  }
  return all;
}

TEST(encodings_of_other_writers_have_the_plain_form) {
  for (const Element element : kElements) {
    if (element == Element::string) continue;
    for (const std::size_t count : {0, 1, 2, 15, 16, 17, 31, 32, 127, 128, 5000}) {
      const Column column = raw(fixed("k", element, count));
      CHECK(read_plain(column, raw_feature(column, '\1')) == Plain::yes);
    }
    if (!is_float(element)) CHECK(read_plain(fixed("k", element), ints({1})) == Plain::yes);
  }
  CHECK(read_plain(fixed("k", Element::float32), floats({1.5F})) == Plain::yes);
  CHECK(read_plain(fixed("k", Element::float32, 3), floats({1, 2, 3})) == Plain::yes);
  CHECK(read_plain(fixed("k", Element::float32, 0), floats({})) == Plain::yes);
}

TEST(integers_have_the_plain_form_if_they_fit) {
  const auto plain = [](Element element, std::int64_t value) {
    return read_plain(fixed("k", element), ints({value}));
  };
  CHECK(plain(Element::int8, 127) == Plain::yes);
  CHECK(plain(Element::int8, -128) == Plain::yes);
  CHECK(plain(Element::int8, 128) == Plain::no);
  CHECK(plain(Element::int8, -129) == Plain::no);
  CHECK(plain(Element::uint8, 255) == Plain::yes);
  CHECK(plain(Element::uint8, 256) == Plain::no);
  CHECK(plain(Element::uint8, -1) == Plain::no);
  CHECK(plain(Element::uint32, std::int64_t{1} << 32) == Plain::no);
  CHECK(plain(Element::int64, std::numeric_limits<std::int64_t>::min()) == Plain::yes);
  CHECK(plain(Element::int64, std::numeric_limits<std::int64_t>::max()) == Plain::yes);
  CHECK(plain(Element::uint64, -1) == Plain::yes);
  CHECK(plain(Element::boolean, 2) == Plain::yes);
  // Longer than necessary, but a valid varint.
  const auto long_one = [](std::size_t zeros) {
    const std::string run = '\x85' + std::string(zeros, '\x80') + '\0';
    return read_plain(fixed("k", Element::int64), feature(Wire::ints, field(1, run)));
  };
  for (std::size_t zeros = 0; zeros <= 8; ++zeros) CHECK(long_one(zeros) == Plain::yes);
  CHECK(long_one(9) == Plain::no);
}

TEST(other_forms_are_not_plain) {
  const Column one = fixed("k", Element::int64), two = fixed("k", Element::int64, 2);
  const Column number = fixed("k", Element::float32);
  const Column memory = raw(fixed("k", Element::uint8, 2));
  CHECK(read_plain(one, feature(Wire::ints, unpacked_ints({1}))) == Plain::no);
  CHECK(read_plain(one, ints({})) == Plain::no);
  CHECK(read_plain(one, ints({1, 2})) == Plain::no);
  CHECK(read_plain(one, "") == Plain::no);
  CHECK(read_plain(one, floats({1})) == Plain::no);
  CHECK(read_plain(two, ints({1, 2})) == Plain::no);
  CHECK(read_plain(number, feature(Wire::floats, unpacked_floats({1}))) == Plain::no);
  CHECK(read_plain(number, floats({1, 2})) == Plain::no);
  CHECK(read_plain(number, strings({"1234"})) == Plain::no);
  CHECK(read_plain(fixed("k", Element::float64), floats({1})) == Plain::no);
  CHECK(read_plain(memory, strings({"1"})) == Plain::no);
  CHECK(read_plain(memory, strings({"12", "34"})) == Plain::no);
  CHECK(read_plain(memory, strings({"12"}) + strings({})) == Plain::no);
  CHECK(read_plain(fixed("k", Element::string), strings({"12"})) == Plain::no);
  CHECK(read_plain(variable("k", Element::int64), ints({1})) == Plain::no);
}

TEST(plain_form_equals_the_general_decoder) {
  const std::string fill = {'\0', '\1', '\x7f'};
  for (const Element element : kElements) {
    if (element == Element::string) continue;
    for (const std::size_t count : {0, 1, 2, 16}) {
      const Column natural = fixed("k", element, count), memory = raw(natural);
      std::vector<std::string> features = {
          ints({1}),       ints({300}), ints({-1}),      ints({}),
          ints({1, 2}),    floats({}),  floats({1.5F}),  floats({1, 2}),
          strings({""}),   strings({}), strings({"12"}), feature(Wire::ints, unpacked_ints({1})),
          ints({1}) + '\0'};
      for (const char each : fill) features.push_back(raw_feature(memory, each));
      for (const std::string& feature : features) {
        for (const std::string& each : around(feature)) {
          CHECK(read_plain(natural, each) != Plain::wrong);
          CHECK(read_plain(memory, each) != Plain::wrong);
        }
      }
    }
  }
}

}  // namespace
}  // namespace covey::testing
