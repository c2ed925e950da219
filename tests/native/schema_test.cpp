// Records that do not match their columns.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "columns.h"

namespace covey::testing {
namespace {

using Ints = std::vector<std::int64_t>;
using Floats = std::vector<float>;
using Strings = std::vector<std::string>;

TEST(required_key_is_missing) {
  const std::vector<Column> columns = {fixed("a", Element::int64), variable("b", Element::string)};
  const std::string a = entry("a", ints({1})), b = entry("b", strings({}));
  CHECK(!decode(columns, {example(a + b)}).fault);
  const std::string short_record = example(a);
  const Fault missing = decode(columns, {example(a + b), short_record}).fault;
  CHECK(missing.code == FaultCode::missing);
  CHECK(missing.row == 1 && missing.column == 1 && missing.offset == short_record.size());
  CHECK(decode(columns, {""}).fault.code == FaultCode::missing);
  // A Feature without a list is missing.
  CHECK(fault_of(fixed("k", Element::int64), "") == FaultCode::missing);
  CHECK(fault_of(variable("k", Element::int64), field(16, "unknown")) == FaultCode::missing);
}

TEST(optional_key_has_its_default) {
  const std::vector<Column> columns = {
      optional(fixed("a", Element::int16, 2), memory_of<std::int16_t>({7, -8})),
      optional(variable("b", Element::float32), memory_of<float>({0.5F})),
      optional(variable("c", Element::float32)),
      optional_strings(fixed("d", Element::string, 2), {"x", "yz"}),
      optional_strings(variable("e", Element::string), {"w"}),
      optional(raw(fixed("f", Element::uint8, 3)), "abc"),
      optional(fixed("g", Element::int64, 0)),
  };
  const std::string no_list = entry("a", "") + entry("b", "") + entry("e", "") + entry("f", "");
  const std::string full = entry("a", ints({1, 2})) + entry("b", floats({})) +
                           entry("c", floats({3})) + entry("d", strings({"p", "q"})) +
                           entry("e", strings({})) + entry("f", strings({"def"})) +
                           entry("g", ints({}));
  const Decoded decoded = decode(columns, {"", example(full), example(no_list)});
  CHECK(!decoded.fault);
  CHECK(decoded[0].as<std::int16_t>() == std::vector<std::int16_t>{7, -8, 1, 2, 7, -8});
  CHECK(decoded[1].as<float>() == Floats{0.5F, 0.5F});
  CHECK(decoded[1].row_splits == Ints{0, 1, 1, 2});
  CHECK(decoded[2].as<float>() == Floats{3});
  CHECK(decoded[2].row_splits == Ints{0, 0, 1, 1});
  CHECK(decoded[3].strings() == Strings{"x", "yz", "p", "q", "x", "yz"});
  CHECK(decoded[4].strings() == Strings{"w", "w"});
  CHECK(decoded[4].row_splits == Ints{0, 1, 1, 2});
  CHECK(decoded[5].values == "abcdefabc");
  CHECK(decoded[6].values.empty());
}

TEST(optional_key_of_another_shape) {
  const Column column = optional(fixed("k", Element::int64), memory_of<std::int64_t>({9}));
  CHECK(fault_of(column, floats({1})) == FaultCode::kind);
  CHECK(fault_of(column, ints({1, 2})) == FaultCode::count);
}

TEST(kind_differs_from_the_schema) {
  const std::string lists[] = {"", strings({"x"}), floats({1}), ints({1})};
  for (const Element element : {Element::string, Element::float32, Element::int64}) {
    for (const Column& column : {fixed("k", element), variable("k", element)}) {
      for (int kind = 1; kind <= 3; ++kind) {
        const Fault fault = decode_feature(column, lists[kind]).fault;
        if (kind == static_cast<int>(column.wire)) {
          CHECK(!fault);
        } else {
          CHECK(fault.code == FaultCode::kind);
          CHECK(fault.found == static_cast<std::uint64_t>(kind));
          CHECK(fault.expected == static_cast<std::uint64_t>(column.wire));
        }
      }
    }
  }
  CHECK(fault_of(raw(fixed("k", Element::int64)), ints({1})) == FaultCode::kind);
}

TEST(count_differs_from_the_shape) {
  const Fault fault = decode_feature(fixed("k", Element::int64, 2), ints({1, 2, 3})).fault;
  CHECK(fault.code == FaultCode::count && fault.found == 3 && fault.expected == 2);
  for (const Element element : kElements) {
    const std::string three = element == Element::string ? strings({"", "", ""})
                              : is_float(element)        ? floats({0, 0, 0})
                                                         : ints({0, 0, 0});
    for (std::size_t count = 0; count <= 4; ++count) {
      const FaultCode expected = count == 3 ? FaultCode::none : FaultCode::count;
      CHECK(fault_of(fixed("k", element, count), three) == expected);
    }
    CHECK(fault_of(variable("k", element, 1), three) == FaultCode::none);
    CHECK(fault_of(variable("k", element, 2), three) == FaultCode::count);
    CHECK(fault_of(variable("k", element, 3), three) == FaultCode::none);
    CHECK(fault_of(variable("k", element, 6), three) == FaultCode::count);
  }
}

TEST(integers_out_of_range_of_the_dtype) {
  struct Case {
    Element element;
    std::int64_t least, most;
  };
  for (const Case& each :
       {Case{Element::int8, -128, 127}, Case{Element::int16, -32768, 32767},
        Case{Element::int32, -2147483648, 2147483647}, Case{Element::uint8, 0, 255},
        Case{Element::uint16, 0, 65535}, Case{Element::uint32, 0, 4294967295}}) {
    for (const Column& column : {fixed("k", each.element), variable("k", each.element)}) {
      CHECK(fault_of(column, ints({each.least})) == FaultCode::none);
      CHECK(fault_of(column, ints({each.most})) == FaultCode::none);
      for (const std::int64_t outside :
           {each.least - 1, each.most + 1, std::numeric_limits<std::int64_t>::min(),
            std::numeric_limits<std::int64_t>::max()}) {
        const Fault fault = decode_feature(column, ints({outside})).fault;
        CHECK(fault.code == FaultCode::range);
        CHECK(fault.found == static_cast<std::uint64_t>(outside));
        CHECK(fault_of(column, feature(Wire::ints, unpacked_ints({outside}))) == FaultCode::range);
      }
    }
  }
  CHECK(fault_of(fixed("k", Element::uint64), ints({-1})) == FaultCode::none);
}

TEST(raw_tensor_of_another_size) {
  const Fault fault =
      decode_feature(raw(fixed("k", Element::int32, 2)), strings({"1234567"})).fault;
  CHECK(fault.code == FaultCode::bytes && fault.found == 7 && fault.expected == 8);
  const Fault ragged =
      decode_feature(raw(variable("k", Element::int32)), strings({"1234567"})).fault;
  CHECK(ragged.code == FaultCode::bytes && ragged.found == 7 && ragged.expected == 4);
  CHECK(fault_of(raw(fixed("k", Element::int32, 2)), strings({"123456789012"})) ==
        FaultCode::bytes);
  CHECK(fault_of(raw(variable("k", Element::int32, 2)), strings({"1234"})) == FaultCode::count);
  CHECK(fault_of(raw(fixed("k", Element::uint8, 0)), strings({""})) == FaultCode::none);
}

TEST(raw_tensor_of_several_strings) {
  const Column column = raw(fixed("k", Element::uint8, 2));
  CHECK(fault_of(column, strings({"ab"})) == FaultCode::none);
  CHECK(fault_of(column, strings({"ab", "ab"})) == FaultCode::count);
  CHECK(fault_of(column, strings({})) == FaultCode::count);
  CHECK(decode_feature(column, strings({"ab", "ab"})).fault.found == 2);
}

}  // namespace
}  // namespace covey::testing
