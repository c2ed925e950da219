#include "survey.h"

#include <array>
#include <string>
#include <vector>

#include "check.h"
#include "wire_bytes.h"

namespace covey::testing {
namespace {

using Kinds = std::array<std::size_t, 6>;

Fault add(Survey& survey, const std::string& record) {
  const Exact copy(record);
  return survey.add(copy.bytes());
}

Survey survey_of(const std::vector<std::string>& records) {
  Survey survey;
  for (const std::string& record : records) CHECK(!add(survey, record));
  return survey;
}

TEST(survey_counts_records_kinds_and_values) {
  const Survey survey = survey_of({
      example(entry("a", ints({1, 2})) + entry("b", strings({"x"}))),
      example(entry("a", ints({})) + entry("b", floats({1, 2, 3}))),
      example(entry("b", "")),
      "",
      example(entry("b", strings({"y"}))),
  });
  CHECK(survey.records() == 5);
  CHECK(survey.lists().empty());
  CHECK(survey.context().size() == 2);
  const Seen& a = survey.context().at("a");
  CHECK(a.records == 2 && a.least == 0 && a.most == 2);
  CHECK(a.by_kind == Kinds{0, 0, 0, 2});
  const Seen& b = survey.context().at("b");
  CHECK(b.records == 4 && b.least == 1 && b.most == 3);
  CHECK(b.by_kind == Kinds{1, 2, 1, 0});
  CHECK(b.first_of_kind == Kinds{2, 0, 1, 0});
}

TEST(survey_counts_encoded_images) {
  const std::string gif = "GIF89a" + std::string("\5\0\4\0\0\0\0", 7);
  const Survey survey = survey_of({
      example(entry("a", strings({gif})) + entry("b", strings({gif, gif}))),
      example(entry("a", strings({"text"})) + entry("b", ints({1}))),
      example(entry("a", strings({gif})) + entry("b", strings({gif}))),
      example(entry("a", strings({gif.substr(0, 9)}))),
  });
  CHECK(survey.context().at("a").by_kind == Kinds{0, 4, 0, 0, 2, 0});
  CHECK(survey.context().at("b").by_kind == Kinds{0, 2, 0, 1, 1, 0});
}

TEST(survey_of_packed_and_unpacked_values) {
  const Survey survey = survey_of({example(
      entry("i", feature(Wire::ints, packed_ints({1, 300}) + unpacked_ints({-1}))) +
      entry("f", feature(Wire::floats, packed_floats({1, 2}) + unpacked_floats({3, 4}))))});
  CHECK(survey.context().at("i").most == 3);
  CHECK(survey.context().at("f").most == 4);
}

TEST(survey_equals_protobuf) {
  const std::string twice = field(1, "merged") + field(2, ints({1})) + field(2, ints({2}));
  const Survey survey = survey_of({
      example(entry("replaced", ints({1, 2, 3})) + entry("replaced", strings({"x"})) +
              entry("switched", ints({1, 2}) + floats({1}) + ints({5})) + field(1, twice)),
  });
  CHECK(survey.context().at("replaced").by_kind == Kinds{0, 1, 0, 0});
  CHECK(survey.context().at("replaced").most == 1);
  CHECK(survey.context().at("replaced").records == 1);
  CHECK(survey.context().at("switched").by_kind == Kinds{0, 0, 0, 1});
  CHECK(survey.context().at("switched").most == 1);
  CHECK(survey.context().at("merged").most == 2);
}

TEST(survey_counts_the_values_of_steps) {
  const Survey survey = survey_of({
      sequence_example(
          entry("k", ints({1})),
          entry("k", feature_list({floats({1, 2}), floats({3})})) + entry("empty", "")),
      sequence_example("", entry("k", feature_list({floats({4})}))),
  });
  CHECK(survey.context().at("k").by_kind == Kinds{0, 0, 0, 1});
  const Seen& k = survey.lists().at("k");
  CHECK(k.records == 2 && k.least == 1 && k.most == 2);
  CHECK(k.by_kind == Kinds{0, 0, 3, 0});
  CHECK(survey.lists().at("empty").records == 1);
  CHECK(survey.lists().at("empty").by_kind == Kinds{});
}

// The decoder returns no values for such a step, so the minimum number of values is 0.
TEST(survey_of_a_step_without_a_list) {
  const Survey survey =
      survey_of({sequence_example("", entry("k", feature_list({ints({1, 2}), ""})))});
  const Seen& k = survey.lists().at("k");
  CHECK(k.by_kind == Kinds{1, 0, 0, 1});
  CHECK(k.least == 0 && k.most == 2);
}

TEST(survey_fault_has_the_record) {
  Survey survey;
  const std::string valid = example(entry("k", ints({1})));
  CHECK(!add(survey, valid));
  const Fault fault = add(survey, example(entry("k", feature(Wire::ints, "\x0a\x7f"))));
  CHECK(fault.code == FaultCode::length);
  CHECK(fault.row == 1);
  CHECK(fault.offset == valid.size() - 2);
}

TEST(survey_of_a_record_truncated_at_any_byte) {
  const std::string record = sequence_example(
      entry("a", ints({1, 300})) + entry("b", strings({"x", "yz"})),
      entry("c", feature_list({floats({1}), feature(Wire::floats, unpacked_floats({2})), ""})));
  for (std::size_t size = 0; size < record.size(); ++size) {
    Survey survey;
    CHECK(add(survey, record.substr(0, size)).offset <= size);
    for (const char change : {'\1', '\x7f', '\x80', '\xff'}) {
      std::string corrupt = record;
      corrupt[size] ^= change;
      CHECK(add(survey, corrupt).offset <= record.size());
    }
  }
}

}  // namespace
}  // namespace covey::testing
