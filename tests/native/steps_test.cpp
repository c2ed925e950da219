// The feature lists of tf.train.SequenceExample to columns.
#include <string>
#include <vector>

#include "check.h"
#include "columns.h"

namespace covey::testing {
namespace {

using Ints = std::vector<std::int64_t>;

// A record of one list.
std::string with_list(std::string_view key, const std::string& list) {
  return sequence_example("", entry(key, list));
}

TEST(steps_have_splits_for_steps_and_rows) {
  const Decoded decoded =
      decode({ragged_steps("k", Element::int64)},
             {with_list("k", feature_list({ints({1, 2}), ints({}), ints({3})})),
              with_list("k", feature_list({})), with_list("k", feature_list({ints({4, 5})}))});
  CHECK(!decoded.fault);
  CHECK(decoded[0].as<std::int64_t>() == Ints{1, 2, 3, 4, 5});
  CHECK(decoded[0].step_splits == Ints{0, 2, 2, 3, 5});
  CHECK(decoded[0].row_splits == Ints{0, 3, 3, 4});
}

TEST(steps_of_every_kind) {
  const Decoded decoded = decode(
      {steps("floats", Element::float32, 2), steps("strings", Element::string),
       raw(steps("raw", Element::uint16, 2))},
      {sequence_example("", entry("floats", feature_list({floats({1, 2}), floats({3, 4})})) +
                                entry("strings", feature_list({strings({"a"}), strings({"bc"})})) +
                                entry("raw", feature_list({strings({"1234"})})))});
  CHECK(!decoded.fault);
  CHECK(decoded[0].as<float>() == std::vector<float>{1, 2, 3, 4});
  CHECK(decoded[0].step_splits == Ints{0, 2, 4});
  CHECK(decoded[1].strings() == std::vector<std::string>{"a", "bc"});
  CHECK(decoded[1].step_splits == Ints{0, 1, 2});
  CHECK(decoded[1].row_splits == Ints{0, 2});
  CHECK(decoded[2].values == "1234");
  CHECK(decoded[2].step_splits == Ints{0, 2});
}

TEST(context_and_lists_have_separate_keys) {
  const std::string record = sequence_example(entry("k", ints({1})) + entry("only", ints({2})),
                                              entry("k", feature_list({ints({3}), ints({4})})));
  for (const bool turned : {false, true}) {
    std::vector<Column> columns = {fixed("k", Element::int64), steps("k", Element::int64)};
    if (turned) std::swap(columns[0], columns[1]);
    const Decoded decoded = decode(columns, {record, record});
    CHECK(!decoded.fault);
    CHECK(decoded[turned ? 1 : 0].as<std::int64_t>() == Ints{1, 1});
    CHECK(decoded[turned ? 0 : 1].as<std::int64_t>() == Ints{3, 4, 3, 4});
  }
  CHECK(decode({steps("only", Element::int64)}, {record}).fault.code == FaultCode::missing);
}

TEST(missing_or_empty_list) {
  const std::string empty = with_list("k", ""), none = sequence_example("", "");
  CHECK(!decode({steps("k", Element::int64)}, {empty}).fault);
  CHECK(decode({steps("k", Element::int64)}, {none}).fault.code == FaultCode::missing);
  const Decoded decoded = decode({optional(steps("k", Element::int64))}, {none, empty, ""});
  CHECK(!decoded.fault);
  CHECK(decoded[0].row_splits == Ints{0, 0, 0, 0});
}

TEST(step_of_another_shape) {
  const auto fault_of = [](const Column& column, const std::string& step) {
    const std::string valid =
        column.element == Element::string ? strings({"a", "b"}) : ints({1, 2});
    return decode({column}, {with_list("k", feature_list({valid, step}))}).fault;
  };
  const Column exact = steps("k", Element::int64, 2), ragged = ragged_steps("k", Element::int64, 2);
  CHECK(!fault_of(exact, ints({3, 4})));
  CHECK(fault_of(exact, ints({3})).code == FaultCode::count);
  CHECK(fault_of(exact, ints({})).code == FaultCode::count);
  CHECK(fault_of(exact, ints({1, 2, 3, 4})).code == FaultCode::count);
  CHECK(fault_of(exact, floats({1, 2})).code == FaultCode::kind);
  CHECK(!fault_of(ragged, ints({})));
  CHECK(!fault_of(ragged, ints({1, 2, 3, 4})));
  CHECK(fault_of(ragged, ints({1, 2, 3})).code == FaultCode::count);
  CHECK(fault_of(steps("k", Element::string, 2), strings({"a"})).code == FaultCode::count);
}

// The caller shapes exact steps as (steps, count), so that each of them must have its values.
TEST(step_without_a_list) {
  const std::string record = with_list("k", feature_list({ints({1}), "", ints({2})}));
  const Fault fault = decode({steps("k", Element::int64)}, {record}).fault;
  CHECK(fault.code == FaultCode::count);
  CHECK(fault.found == 0 && fault.expected == 1);
  CHECK(
      decode({raw(steps("k", Element::uint8))}, {with_list("k", feature_list({""}))}).fault.code ==
      FaultCode::count);
  const Decoded ragged = decode({ragged_steps("k", Element::int64)}, {record});
  CHECK(!ragged.fault);
  CHECK(ragged[0].step_splits == Ints{0, 1, 1, 2});
  const Decoded empty =
      decode({steps("k", Element::int64, 0)}, {with_list("k", feature_list({""}))});
  CHECK(!empty.fault);
  CHECK(empty[0].step_splits == Ints{0, 0});
}

TEST(repeated_list_replaces_the_list) {
  const std::string one = entry("k", feature_list({ints({1}), ints({2})}));
  const std::string two = entry("k", feature_list({ints({3})}));
  const Decoded decoded = decode({steps("k", Element::int64)}, {sequence_example("", one + two)});
  CHECK(!decoded.fault);
  CHECK(decoded[0].as<std::int64_t>() == Ints{3});
  CHECK(decoded[0].row_splits == Ints{0, 1});
}

TEST(repeated_lists_of_an_entry_are_merged) {
  const std::string fields = field(1, "k") + field(2, feature_list({ints({1})})) +
                             field(2, feature_list({ints({2}), ints({3})}));
  const Decoded decoded =
      decode({steps("k", Element::int64)}, {sequence_example("", field(1, fields))});
  CHECK(!decoded.fault);
  CHECK(decoded[0].as<std::int64_t>() == Ints{1, 2, 3});
}

TEST(lists_without_a_column_are_skipped) {
  const std::string record = field(2, "this is no map of feature lists") + field(1, "");
  CHECK(!decode({optional(variable("k", Element::int64))}, {record}).fault);
  CHECK(decode({optional(steps("k", Element::int64))}, {record}).fault);
}

TEST(unknown_fields_of_a_list_are_skipped) {
  const std::string unknown = tag(1, kVarint) + varint(1) + field(2, "x");
  const std::string list = unknown + field(1, ints({1})) + unknown;
  const Decoded decoded = decode({steps("k", Element::int64)}, {with_list("k", list)});
  CHECK(!decoded.fault);
  CHECK(decoded[0].as<std::int64_t>() == Ints{1});
}

TEST(sequence_example_truncated_at_any_byte) {
  const std::vector<Column> columns = {fixed("id", Element::int64), steps("a", Element::float32, 2),
                                       ragged_steps("b", Element::string),
                                       raw(steps("c", Element::int16))};
  const std::string record = sequence_example(
      entry("id", ints({1})),
      entry("a", feature_list({floats({1, 2}), feature(Wire::floats, unpacked_floats({3, 4}))})) +
          entry("b", feature_list({strings({"x", "y"}), "", strings({})})) +
          entry("c", feature_list({strings({"12"}), strings({"34"})})));
  CHECK(!decode(columns, {record}).fault);
  for (std::size_t size = 0; size < record.size(); ++size) {
    CHECK(decode(columns, {record.substr(0, size)}).fault);
    for (const char change : {'\1', '\x7f', '\x80', '\xff'}) {
      std::string corrupt = record;
      corrupt[size] ^= change;
      CHECK(decode(columns, {corrupt}).fault.offset <= record.size());
    }
  }
}

}  // namespace
}  // namespace covey::testing
