// Validation of UTF-8, and of columns of strings.
#include <string>
#include <vector>

#include "check.h"
#include "columns.h"

namespace covey::testing {
namespace {

bool is_text(std::string_view bytes) {
  const Exact copy(bytes);
  return is_utf8(copy.bytes().begin, copy.size());
}

std::string encoded(std::uint32_t point) {
  const auto tail = [point](int shift) {
    return static_cast<char>(0x80 | ((point >> shift) & 0x3f));
  };
  if (point < 0x80) return {static_cast<char>(point)};
  if (point < 0x800) return {static_cast<char>(0xc0 | point >> 6), tail(0)};
  if (point < 0x10000) return {static_cast<char>(0xe0 | point >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | point >> 18), tail(12), tail(6), tail(0)};
}

TEST(every_character_is_valid_and_surrogates_are_not) {
  for (std::uint32_t point = 0; point <= 0x10ffff; ++point) {
    const bool surrogate = point >= 0xd800 && point <= 0xdfff;
    const std::string bytes = encoded(point);
    CHECK(is_utf8(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()) != surrogate);
  }
  CHECK(!is_text("\xf4\x90\x80\x80"));  // one past the last
}

// The number of valid strings of two and of three bytes follows from the number of characters.
TEST(invalid_utf8) {
  std::size_t two = 0, three = 0;
  for (std::uint32_t bits = 0; bits < 1U << 24; ++bits) {
    const std::uint8_t bytes[] = {static_cast<std::uint8_t>(bits >> 16),
                                  static_cast<std::uint8_t>(bits >> 8),
                                  static_cast<std::uint8_t>(bits)};
    three += is_utf8(bytes, 3);
    if (bytes[2] == 0) two += is_utf8(bytes, 2);
  }
  constexpr std::size_t one_byte = 0x80, two_bytes = 0x800 - 0x80,
                        three_bytes = 0x10000 - 0x800 - 0x800;
  CHECK(two == one_byte * one_byte + two_bytes);
  CHECK(three == one_byte * one_byte * one_byte + 2 * one_byte * two_bytes + three_bytes);
}

TEST(overlong_characters_are_invalid) {
  for (const char* const bytes :
       {"\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xf0\x80\x80\x80",
        "\xf0\x8f\xbf\xbf", "\xf8\x88\x80\x80\x80", "\xfc\x84\x80\x80\x80\x80", "\xfe", "\xff"}) {
    CHECK(!is_text(bytes));
  }
}

TEST(strings_of_every_length) {
  for (std::size_t before = 0; before < 20; ++before) {
    for (std::size_t after = 0; after < 20; ++after) {
      for (const char* const character : {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\xa6\x89"}) {
        const std::string whole = std::string(before, 'a') + character + std::string(after, 'z');
        CHECK(is_text(whole));
        for (std::size_t i = before; i < whole.size() - after; ++i) {
          std::string corrupt = whole;
          corrupt[i] = i % 2 == 0 ? '\xff' : 'x';
          CHECK(!is_text(corrupt));
          if (i > before) CHECK(!is_text(std::string_view(whole).substr(0, i)));
        }
      }
    }
  }
  CHECK(is_text(""));
}

TEST(string_column_must_be_utf8) {
  const std::string owl = "\xf0\x9f\xa6\x89", broken = "\xf0\x9f\xa6";
  for (const Column& column : {fixed("k", Element::string, 2), variable("k", Element::string)}) {
    CHECK(!decode({utf8(column)}, {example(entry("k", strings({owl, "owl"})))}).fault);
    const std::string record = example(entry("k", strings({owl, broken})));
    CHECK(!decode({column}, {record}).fault);
    const Fault fault = decode({utf8(column)}, {record}).fault;
    CHECK(fault.code == FaultCode::utf8 && fault.column == 0);
    CHECK(fault.offset == record.size() - broken.size());
  }
}

TEST(replaced_string_need_not_be_utf8) {
  const std::string value = strings({"\xff"}) + ints({1}) + strings({"text"});
  CHECK(!decode({utf8(fixed("k", Element::string))}, {example(entry("k", value))}).fault);
}

TEST(strings_of_steps_must_be_utf8) {
  const std::string list = feature_list({strings({"a"}), strings({"\x80"})});
  const std::string record = sequence_example("", entry("k", list));
  CHECK(!decode({steps("k", Element::string)}, {record}).fault);
  CHECK(decode({utf8(steps("k", Element::string))}, {record}).fault.code == FaultCode::utf8);
}

}  // namespace
}  // namespace covey::testing
