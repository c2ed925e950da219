// tf.train.Example to columns. SequenceExample is in steps_test.cpp.
#include "decode.h"

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

Ints ints_of(const std::string& feature) {
  const Decoded decoded = decode_feature(variable("k", Element::int64), feature);
  CHECK(!decoded.fault);
  return decoded[0].as<std::int64_t>();
}

Floats floats_of(const std::string& feature) {
  const Decoded decoded = decode_feature(variable("k", Element::float32), feature);
  CHECK(!decoded.fault);
  return decoded[0].as<float>();
}

// A list with every kind of unknown field in it.
std::string unknown_fields() {
  return tag(15, kVarint) + varint(7) + field(16, "unknown") + tag(17, kFixed32) + "1234" +
         tag(18, kFixed64) + "12345678" + tag(19, kStartGroup) + field(1, "x") + tag(19, kEndGroup);
}

TEST(packed_and_unpacked_values) {
  CHECK(ints_of(ints({1, -2, 300})) == Ints{1, -2, 300});
  CHECK(ints_of(feature(Wire::ints, unpacked_ints({1, -2, 300}))) == Ints{1, -2, 300});
  CHECK(floats_of(floats({0.5F, -1.0F})) == Floats{0.5F, -1.0F});
  CHECK(floats_of(feature(Wire::floats, unpacked_floats({0.5F, -1.0F}))) == Floats{0.5F, -1.0F});
}

TEST(mixed_packed_and_unpacked_values) {
  const std::string mixed_ints = packed_ints({1, 2}) + unpacked_ints({3}) + packed_ints({}) +
                                 packed_ints({4}) + unpacked_ints({5, 6});
  CHECK(ints_of(feature(Wire::ints, mixed_ints)) == Ints{1, 2, 3, 4, 5, 6});
  const std::string mixed_floats =
      unpacked_floats({1}) + packed_floats({2, 3}) + unpacked_floats({4});
  CHECK(floats_of(feature(Wire::floats, mixed_floats)) == Floats{1, 2, 3, 4});
}

TEST(packed_and_unpacked_fixed_values) {
  const Column column = fixed("k", Element::int16, 3);
  for (const std::string& list : {packed_ints({1, 2, 3}), unpacked_ints({1, 2, 3}),
                                  packed_ints({1}) + unpacked_ints({2, 3})}) {
    const Decoded decoded = decode_feature(column, feature(Wire::ints, list));
    CHECK(!decoded.fault);
    CHECK(decoded[0].as<std::int16_t>() == std::vector<std::int16_t>{1, 2, 3});
  }
}

TEST(strings_are_contiguous) {
  const Decoded decoded =
      decode({variable("k", Element::string)},
             {example(entry("k", strings({"one", "", "three"}))), example(entry("k", strings({}))),
              example(entry("k", strings({"x"})))});
  CHECK(!decoded.fault);
  CHECK(decoded[0].strings() == Strings{"one", "", "three", "x"});
  CHECK(decoded[0].offsets == Ints{0, 3, 3, 8, 9});
  CHECK(decoded[0].row_splits == Ints{0, 3, 3, 4});
}

TEST(fixed_strings_have_no_splits) {
  const Decoded decoded =
      decode({fixed("k", Element::string, 2)},
             {example(entry("k", strings({"a", "bc"}))), example(entry("k", strings({"", "d"})))});
  CHECK(!decoded.fault);
  CHECK(decoded[0].strings() == Strings{"a", "bc", "", "d"});
  CHECK(decoded[0].row_splits.empty());
}

TEST(fixed_rows_are_contiguous) {
  const Decoded decoded =
      decode({fixed("k", Element::float64, 2)},
             {example(entry("k", floats({1, 2}))), example(entry("k", floats({3, 4})))});
  CHECK(!decoded.fault);
  CHECK(decoded[0].as<double>() == std::vector<double>{1, 2, 3, 4});
}

TEST(variable_rows_have_splits) {
  const Decoded decoded = decode({variable("k", Element::uint8)},
                                 {example(entry("k", ints({1, 2}))), example(entry("k", ints({}))),
                                  example(entry("k", ints({255})))});
  CHECK(!decoded.fault);
  CHECK(decoded[0].as<std::uint8_t>() == std::vector<std::uint8_t>{1, 2, 255});
  CHECK(decoded[0].row_splits == Ints{0, 2, 2, 3});
}

TEST(no_records_give_empty_columns) {
  const Decoded decoded = decode(
      {fixed("a", Element::int64), variable("b", Element::string), steps("c", Element::int8)}, {});
  CHECK(!decoded.fault);
  CHECK(decoded[0].values.empty());
  CHECK(decoded[1].offsets == Ints{0} && decoded[1].row_splits == Ints{0});
  CHECK(decoded[2].row_splits == Ints{0} && decoded[2].step_splits == Ints{0});
}

TEST(keys_in_any_order) {
  const std::vector<Column> columns = {fixed("a", Element::int64), fixed("b", Element::int64),
                                       fixed("", Element::int64)};
  const std::string a = entry("a", ints({1})), b = entry("b", ints({2})),
                    none = entry("", ints({3})), other = entry("other", strings({"?"}));
  for (const std::string& entries :
       {a + b + none, none + b + a, other + b + other + none + a + other, b + a + none}) {
    const Decoded decoded = decode(columns, {example(entries), example(a + none + other + b)});
    CHECK(!decoded.fault);
    CHECK(decoded[0].as<std::int64_t>() == Ints{1, 1});
    CHECK(decoded[1].as<std::int64_t>() == Ints{2, 2});
    CHECK(decoded[2].as<std::int64_t>() == Ints{3, 3});
  }
}

TEST(repeated_key_replaces_the_value) {
  const Decoded decoded =
      decode({variable("k", Element::int64)},
             {example(entry("k", ints({1, 2})) + entry("k", ints({3}))),
              // Repeated `features` fields are merged to one map.
              example(entry("k", ints({4}))) + example(entry("k", ints({5, 6})))});
  CHECK(!decoded.fault);
  CHECK(decoded[0].as<std::int64_t>() == Ints{3, 5, 6});
}

TEST(list_of_another_kind_replaces_the_list) {
  CHECK(ints_of(floats({1, 2}) + ints({3})) == Ints{3});
  CHECK(ints_of(ints({1}) + floats({2}) + ints({3})) == Ints{3});
  CHECK(fault_of(variable("k", Element::int64), ints({1}) + floats({2})) == FaultCode::kind);
  const Decoded text = decode_feature(variable("k", Element::string),
                                      strings({"gone", "too"}) + ints({1}) + strings({"kept"}));
  CHECK(!text.fault);
  CHECK(text[0].strings() == Strings{"kept"});
  const Decoded dense =
      decode_feature(fixed("k", Element::int32, 2), ints({1, 2, 3}) + strings({""}) + ints({4, 5}));
  CHECK(!dense.fault);
  CHECK(dense[0].as<std::int32_t>() == std::vector<std::int32_t>{4, 5});
  const Decoded tensor = decode_feature(raw(variable("k", Element::uint8)),
                                        strings({"gone"}) + ints({1}) + strings({"kept"}));
  CHECK(!tensor.fault);
  CHECK(tensor[0].values == "kept");
}

TEST(lists_of_one_kind_are_concatenated) {
  CHECK(ints_of(ints({1}) + ints({2, 3})) == Ints{1, 2, 3});
  CHECK(floats_of(floats({1}) + floats({}) + floats({2})) == Floats{1, 2});
}

TEST(repeated_values_of_an_entry_are_merged) {
  const auto merged = [](const std::string& fields) {
    const Decoded decoded = decode({variable("k", Element::int64)}, {example(field(1, fields))});
    CHECK(!decoded.fault);
    return decoded[0].as<std::int64_t>();
  };
  const std::string key = field(1, "k");
  CHECK(merged(key + field(2, ints({1})) + field(2, ints({2}))) == Ints{1, 2});
  CHECK(merged(field(2, ints({1})) + key + field(2, "") + field(2, ints({2, 3}))) == Ints{1, 2, 3});
  CHECK(merged(key + field(2, floats({1})) + field(2, ints({2}))) == Ints{2});
  CHECK(merged(field(1, "x") + field(2, ints({1})) + key) == Ints{1});
  // Two entries with merged values.
  const std::string twice = field(2, ints({1})) + field(2, ints({2}));
  const Decoded decoded =
      decode({variable("k", Element::int64), variable("l", Element::int64)},
             {example(field(1, key + twice) + field(1, field(1, "l") + twice + twice))});
  CHECK(!decoded.fault);
  CHECK(decoded[0].as<std::int64_t>() == Ints{1, 2});
  CHECK(decoded[1].as<std::int64_t>() == Ints{1, 2, 1, 2});
}

TEST(fault_in_merged_values_is_at_the_end_of_the_record) {
  const std::string record =
      example(field(1, field(1, "k") + field(2, ints({1})) + field(2, "\x1a\x7f")));
  const Fault fault = decode({variable("k", Element::int64)}, {record}).fault;
  CHECK(fault.code == FaultCode::length);
  CHECK(fault.offset == record.size());
}

TEST(entry_without_key_or_value) {
  const Decoded decoded =
      decode({fixed("", Element::int64), optional(variable("k", Element::int64))},
             {example(field(1, field(2, ints({7}))) + field(1, field(1, "k")))});
  CHECK(!decoded.fault);
  CHECK(decoded[0].as<std::int64_t>() == Ints{7});
  CHECK(decoded[1].row_splits == Ints{0, 0});
}

TEST(unknown_fields_are_skipped) {
  const std::string u = unknown_fields();
  const std::string list = u + packed_ints({1}) + u + unpacked_ints({2}) + u;
  const std::string value = u + feature(Wire::ints, list) + u;
  const std::string map_entry = field(1, u + field(1, "k") + u + field(2, value) + u);
  const Decoded decoded =
      decode({variable("k", Element::int64)}, {u + example(u + map_entry + u) + u});
  CHECK(!decoded.fault);
  CHECK(decoded[0].as<std::int64_t>() == Ints{1, 2});
}

TEST(known_numbers_with_other_wire_types_are_unknown_fields) {
  const std::string number = tag(1, kVarint) + varint(5), fixed64 = tag(1, kFixed64) + "12345678";
  const std::string list = fixed64 + packed_ints({1}) + tag(1, kFixed32) + "1234";
  const std::string value = number + feature(Wire::ints, list) + tag(3, kVarint) + varint(1);
  const std::string map_entry = number + field(1, number + field(1, "k") + field(2, value));
  const Decoded decoded =
      decode({variable("k", Element::int64)}, {number + example(map_entry) + fixed64});
  CHECK(!decoded.fault);
  CHECK(decoded[0].as<std::int64_t>() == Ints{1});
}

TEST(integers_of_every_width) {
  const Decoded decoded = decode(
      {fixed("a", Element::int8), fixed("b", Element::uint64), fixed("c", Element::boolean, 3)},
      {example(entry("a", ints({-5})) + entry("b", ints({-1})) + entry("c", ints({0, 1, -7})))});
  CHECK(!decoded.fault);
  CHECK(decoded[0].as<std::int8_t>()[0] == -5);
  CHECK(decoded[1].as<std::uint64_t>()[0] == std::numeric_limits<std::uint64_t>::max());
  CHECK(decoded[2].values == std::string("\0\1\1", 3));
}

TEST(raw_tensor_is_one_string) {
  const std::string memory = memory_of<std::int32_t>({1, -2, 3});
  for (const Column& column : {fixed("k", Element::int32, 3), variable("k", Element::int32, 3)}) {
    const Decoded decoded = decode_feature(raw(column), strings({memory}));
    CHECK(!decoded.fault);
    CHECK(decoded[0].values == memory);
  }
  const Decoded rows =
      decode({raw(variable("k", Element::int32))},
             {example(entry("k", strings({memory}))), example(entry("k", strings({""})))});
  CHECK(!rows.fault);
  CHECK(rows[0].row_splits == Ints{0, 3, 3});
}

TEST(packed_floats_of_incomplete_size) {
  for (std::size_t size = 0; size <= 9; ++size) {
    const std::string list = field(1, std::string(size, 'x'));
    const FaultCode expected = size % 4 == 0 ? FaultCode::none : FaultCode::packed_floats;
    CHECK(fault_of(variable("k", Element::float32), feature(Wire::floats, list)) == expected);
  }
}

TEST(floats_are_widened_and_narrowed) {
  const float wide = 1.0F + 0x1p-20F;
  const Decoded decoded =
      decode({fixed("a", Element::float64), fixed("b", Element::float16, 2)},
             {example(entry("a", floats({wide})) + entry("b", floats({wide, 1e6F})))});
  CHECK(!decoded.fault);
  CHECK(decoded[0].as<double>()[0] == static_cast<double>(wide));
  CHECK(decoded[1].as<std::uint16_t>() == std::vector<std::uint16_t>{0x3c00, 0x7c00});
}

TEST(fault_has_record_column_and_offset) {
  const std::string valid = example(entry("a", ints({1})) + entry("b", ints({1})));
  const std::string before = entry("a", ints({1}));
  const std::string record = example(before + entry("b", ints({300})));
  const Fault fault =
      decode({fixed("a", Element::int64), fixed("b", Element::int8)}, {valid, valid, record}).fault;
  CHECK(fault.code == FaultCode::range);
  CHECK(fault.row == 2);
  CHECK(fault.column == 1);
  CHECK(fault.found == 300);
  // The last field is the packed run: a tag, a length and two bytes.
  CHECK(fault.offset == record.size() - 4);
}

TEST(fault_of_an_invalid_message_has_no_column) {
  const Fault fault = decode({fixed("a", Element::int64)}, {std::string("\x0a\x05xx")}).fault;
  CHECK(fault.code == FaultCode::length);
  CHECK(fault.offset == 1);
  CHECK(fault.column == 1);
}

TEST(unselected_columns_are_not_parsed) {
  const std::string broken = entry("broken", feature(Wire::ints, "\x0a\x7f"));
  CHECK(!decode({fixed("a", Element::int64)}, {example(broken + entry("a", ints({1})))}).fault);
  CHECK(!decode({}, {example(broken)}).fault);
}

TEST(decoder_is_moved) {
  std::vector<Column> columns = {fixed("k", Element::int64)};
  Decoder first(columns);
  const Decoder second = std::move(first);
  const Exact record(example(entry("other", ints({2})) + entry("k", ints({1}))));
  std::int64_t value = 0;
  std::vector<ColumnOut> out(1);
  out[0].dense = reinterpret_cast<std::uint8_t*>(&value);
  CHECK(!second.decode({record.bytes()}, Check::nothing, out));
  CHECK(value == 1);
}

// A schema with columns of every type, and a record of it.
std::vector<Column> wide_schema() {
  return {fixed("a", Element::int32, 2),
          variable("b", Element::float16),
          variable("c", Element::string),
          raw(fixed("d", Element::uint16, 2)),
          optional_strings(fixed("e", Element::string), {"default"}),
          optional(variable("f", Element::float64))};
}

std::string wide_record() {
  const std::string twice = field(1, "f") + field(2, floats({1})) + field(2, floats({2}));
  return unknown_fields() +
         example(entry("a", ints({1, 300})) + entry("z", strings({"unknown"})) +
                 entry("b", feature(Wire::floats, packed_floats({1, 2}) + unpacked_floats({3}))) +
                 entry("c", strings({"one", "two"})) + entry("d", strings({"1234"})) +
                 entry("e", strings({"here"})) + field(1, twice));
}

TEST(record_truncated_at_any_byte) {
  const std::string record = wide_record();
  CHECK(!decode(wide_schema(), {record}).fault);
  for (std::size_t size = 0; size < record.size(); ++size) {
    const Fault fault = decode(wide_schema(), {record.substr(0, size)}).fault;
    CHECK(fault);  // the required columns are last
    CHECK(fault.offset <= size);
  }
}

TEST(record_with_any_byte_changed) {
  const std::string record = wide_record();
  for (std::size_t at = 0; at < record.size(); ++at) {
    for (int change = 1; change < 256; change += 2) {
      std::string corrupt = record;
      corrupt[at] = static_cast<char>(corrupt[at] + change);
      const Decoded decoded = decode(wide_schema(), {corrupt});
      CHECK(decoded.fault.offset <= record.size());
      CHECK(decoded.fault || decoded[2].row_splits.size() == 2);
    }
  }
}

}  // namespace
}  // namespace covey::testing
