// Records with the layout of an earlier record are not parsed; the result must be the same.
#include "layout_cache.h"

#include <string>
#include <utility>
#include <vector>

#include "agreement.h"
#include "check.h"

namespace covey::testing {
namespace {

// A record whose values are in brackets, and the numbers of the values that columns select.
struct Parsed {
  explicit Parsed(const std::string& marked, const std::vector<std::size_t>& wanted = {0})
      : record(without_marks(marked)), layout(wanted.size()) {
    std::size_t at = 0, begin = 0;
    for (const char each : marked) {
      if (each == '[') {
        begin = at;
      } else if (each == ']') {
        layout.values.push_back({record.bytes().begin + begin, record.bytes().begin + at});
      } else {
        ++at;
      }
    }
    for (std::size_t c = 0; c < wanted.size(); ++c) {
      if (wanted[c] >= layout.values.size()) continue;
      layout.place[c] = layout.values[wanted[c]];
      layout.there[c] = 1;
    }
  }

  static std::string without_marks(const std::string& marked) {
    std::string bytes;
    for (const char each : marked) {
      if (each != '[' && each != ']') bytes += each;
    }
    return bytes;
  }

  Exact record;
  RecordLayout layout;
};

// The values that a cache finds in a record, "-" for missing ones; empty if no layout matches.
std::vector<std::string> found(LayoutCache& cache, const std::string& record,
                               std::size_t columns = 1) {
  const Exact copy(record);
  RecordLayout layout(columns);
  if (!cache.find(copy.bytes(), layout)) return {};
  std::vector<std::string> values;
  for (std::size_t c = 0; c < columns; ++c) {
    values.push_back(layout.there[c] ? text(layout.place[c]) : "-");
  }
  return values;
}

using Values = std::vector<std::string>;

TEST(layouts_are_compared_between_the_values) {
  LayoutCache cache;
  CHECK(found(cache, "a=1;b=22;", 3) == Values{});
  const Parsed parsed("a=[1];b=[22];", {1, 9, 0});
  cache.learn(parsed.record.bytes(), parsed.layout);
  CHECK(found(cache, "a=1;b=22;", 3) == Values{"22", "-", "1"});
  CHECK(found(cache, "a=x;b=yz;", 3) == Values{"yz", "-", "x"});
  const std::string record = "a=1;b=22;";
  for (const std::size_t at : {0, 1, 3, 4, 5, 8}) {
    std::string other = record;
    other[at] ^= 1;
    CHECK(found(cache, other, 3) == Values{});
  }
  for (std::size_t more = 1; more <= 16; ++more) {
    CHECK(found(cache, record + std::string(more, ';'), 3) == Values{});
  }
  CHECK(found(cache, record.substr(1), 3) == Values{});
  CHECK(found(cache, "", 3) == Values{});
}

TEST(records_with_long_gaps_between_values_are_not_cached) {
  for (const std::size_t size : {4096, 4097, 100'000}) {
    const std::string between(size, 'x');
    const Parsed known("[1x]" + between.substr(1)), much("[1]" + between);
    LayoutCache cache;
    cache.learn(known.record.bytes(), known.layout);
    cache.learn(much.record.bytes(), much.layout);
    // The layouts before it were evicted: parsing follows a miss.
    CHECK(found(cache, "2" + between) == (size == 4096 ? Values{"2"} : Values{}));
  }
}

TEST(search_stops_without_matches) {
  const Parsed parsed("a=[1]");
  for (const bool alike : {false, true}) {
    LayoutCache cache;
    cache.learn(parsed.record.bytes(), parsed.layout);
    for (int i = 0; i < 100; ++i) found(cache, alike ? "a=2" : "b=2");
    CHECK(found(cache, "a=3") == (alike ? Values{"3"} : Values{}));
  }
}

// The following tests use the decoder.

const std::vector<Column> kColumns = {
    fixed("id", Element::int64), optional(fixed("x", Element::float32, 2), std::string(8, '\1')),
    optional(raw(fixed("m", Element::uint8, 3)), "def"),
    optional_strings(variable("name", Element::string), {"none"}),
    optional(variable("n", Element::int64))};

const std::string kId = entry("id", ints({7})), kX = entry("x", floats({1, 2})),
                  kM = entry("m", strings({"abc"})), kName = entry("name", strings({"wren"})),
                  kN = entry("n", ints({1, 2, 3}));

// A record of this size: the rest is an unknown field.
std::string padded(const std::string& record, std::size_t size) {
  std::string all = record;
  for (std::size_t rest = size; all.size() != size && rest-- > 0;) {
    all = record + field(15, std::string(rest, 'p'));
  }
  return all;
}

// Whether records decode correctly in this order, and each after itself and every other one.
void check_alike(const std::vector<Column>& columns, const std::vector<std::string>& records) {
  CHECK(decode_alike(columns, records));
  for (const std::string& a : records) {
    for (const std::string& b : records) {
      CHECK(decode_alike(columns, {a, b}));
      CHECK(decode_alike(columns, {a, a, b, b, a, b}));
    }
  }
}

TEST(records_that_differ_in_values) {
  std::vector<std::string> records;
  for (int i = 0; i < 200; ++i) {
    // Long and short names alternate, and some lengths are repeated.
    const std::string name(static_cast<std::size_t>(i % 7), static_cast<char>('a' + i % 26));
    records.push_back(example(entry("id", ints({i})) + kX + entry("name", strings({name}))));
  }
  CHECK(decode_alike(kColumns, records));
  const Decoded decoded = decode(kColumns, records);
  CHECK(!decoded.fault);
  CHECK(decoded[0].as<std::int64_t>()[199] == 199);
  CHECK(decoded[3].strings()[199] == std::string(199 % 7, static_cast<char>('a' + 199 % 26)));
}

TEST(records_of_one_size_with_different_layouts) {
  const std::string twice = field(1, field(1, "m") + field(2, strings({"ab"})) +
                                         field(2, ints({1})) + field(2, strings({"xyz"})));
  const std::string merged_list =
      field(1, field(1, "n") + field(2, ints({1})) + field(2, ints({2, 3})));
  std::vector<std::string> records;
  for (const std::string& entries : {
           kId + kX + kM + kName + kN,
           kN + kName + kM + kX + kId,                           // in another order
           kX + kM + kName + kN,                                 // a key is missing
           kId + entry("y", floats({1, 2})) + kM + kName + kN,   // another key
           kId + entry("X", floats({1, 2})) + kM + kName + kN,   // in one bit
           entry("n", ints({7})) + kX + entry("id", ints({1})),  // keys exchanged
           kId + kX + kM + kName + kN + entry("id", ints({8})),  // a repeated key
           entry("id", ints({8})) + kX + kM + kName + kN + kId,  // at another position
           // The same size, with values of other lengths.
           kId + entry("name", strings({"wrens"})) + entry("n", ints({1, 2})),
           kId + entry("name", strings({"wre"})) + entry("n", ints({1, 2, 3, 4})),
           kId + entry("name", strings({"w", "en"})) + kN,
           // A key without a column, with a value that is longer or shorter.
           kId + kX + entry("u", strings({"12"})) + kN,
           kId + kX + entry("u", strings({"123"})) + kN,
           kId + kX + entry("uu", strings({"1"})) + kN,
           // Merged values, and records that are similar to them.
           kId + twice,
           kId + merged_list,
           kId + twice + merged_list,
           kId + field(1, field(1, "n") + field(2, ints({1})) + field(3, ints({2, 3}))),
           // Entries without a value, without a key, with two keys, and in reverse order.
           kId + field(1, field(1, "n")),
           kId + field(1, field(2, ints({1}))),
           kId + field(1, ""),
           kId + field(1, field(1, "m") + field(1, "n") + field(2, ints({1}))),
           kId + field(1, field(2, ints({1})) + field(1, "n")),
           kId + field(1, field(2, ints({1})) + field(1, "u")),
           // Forms that are not plain, and values out of range.
           entry("id", feature(Wire::ints, unpacked_ints({7}))),
           entry("id", ints({7}) + ints({})),
           entry("id", ints({7, 8})),
           entry("id", floats({1})),
           entry("id", ""),
           kId + entry("x", floats({1})),
           kId + entry("m", strings({"abcd"})),
           kId + entry("m", strings({"abc", ""})),
           kId + field(2, "unknown"),
           std::string(),
       }) {
    records.push_back(padded(example(entries), 128));
    CHECK(records.back().size() == 128);
  }
  // Records with other parts than one map.
  const std::string entries = kId + kX;
  records.push_back(padded(field(15, "before") + example(entries), 128));
  records.push_back(padded(example(kId) + example(kX), 128));
  records.push_back(padded(example(kX) + field(2, "lists") + example(kId), 128));
  records.push_back(
      padded(tag(9, kStartGroup) + example(kX) + tag(9, kEndGroup) + example(kId), 128));
  records.push_back(padded("", 128));
  // Invalid records.
  records.push_back(padded(example(entries), 126) + tag(9, kStartGroup) + '\0');
  records.push_back(std::string(128, '\xff'));
  records.push_back(std::string(128, '\0'));
  check_alike(kColumns, records);
  check_alike({}, records);
}

TEST(records_that_differ_in_any_byte) {
  const std::vector<Column> steps_too = {
      fixed("id", Element::int64), optional(fixed("k", Element::int64)),
      steps("k", Element::float32), optional(ragged_steps("s", Element::string))};
  const std::string sequence = sequence_example(
      kId + entry("k", ints({1})),
      entry("k", feature_list({floats({1}), floats({2})})) +
          entry("s", feature_list({strings({"a", "b"}), strings({}), strings({"c"})})));
  const std::string plain = example(kId + entry("u", strings({"1"})) + kX + kM + kName + kN);
  for (const bool lists : {false, true}) {
    const std::vector<Column>& columns = lists ? steps_too : kColumns;
    const std::string& record = lists ? sequence : plain;
    CHECK(!decode(columns, {record}).fault);
    const auto check = [&](const std::string& other) {
      CHECK(decode_alike(columns, {record, other, record}));
      CHECK(decode_alike(columns, {other, record, other}));
    };
    for (std::size_t at = 0; at < record.size(); ++at) {
      for (const int change : {1, 2, 3, 4, 8, 16, 32, 64, 128, 0x7f, 0xff}) {
        std::string other = record;
        other[at] = static_cast<char>(other[at] ^ change);
        check(other);
      }
      // One length increased and another decreased, and bytes exchanged.
      for (std::size_t with = 0; with < record.size(); ++with) {
        if (with == at) continue;
        std::string shifted = record, exchanged = record;
        ++shifted[at];
        --shifted[with];
        std::swap(exchanged[at], exchanged[with]);
        check(shifted);
        check(exchanged);
      }
    }
  }
}

TEST(steps_of_one_size) {
  const std::vector<Column> columns = {optional(fixed("k", Element::int64), std::string(8, '\1')),
                                       ragged_steps("k", Element::int64),
                                       optional(raw(steps("m", Element::uint8, 2)))};
  const std::string k = entry("k", ints({5}));
  const auto list = [](std::initializer_list<std::string> features) {
    return entry("k", feature_list(features));
  };
  const std::string split = field(
      1, field(1, "k") + field(2, feature_list({ints({1})})) + field(2, feature_list({ints({2})})));
  std::vector<std::string> records;
  for (const std::string& record :
       {sequence_example(k, list({ints({1, 2}), ints({3})})),
        sequence_example(k, list({ints({1}), ints({2, 3})})),
        sequence_example(k, list({ints({1, 2, 3})})), sequence_example(k, list({})),
        sequence_example(k, list({"", ""})), sequence_example("", list({ints({1})})),
        sequence_example(k, list({ints({1})}) + list({ints({2})})), sequence_example(k, split),
        sequence_example(k, list({ints({1})}) + entry("m", feature_list({strings({"ab"})}))),
        sequence_example(k, list({ints({1})}) + entry("u", feature_list({strings({"ab"})}))),
        sequence_example(k, list({ints({1})}) + entry("m", feature_list({strings({"abc"})}))),
        // The maps exchanged: a Feature can be read as a FeatureList.
        field(2, k) + field(1, list({ints({1})})), field(2, list({ints({1})})) + field(1, k),
        sequence_example(k, ""), sequence_example("", k)}) {
    records.push_back(padded(record, 64));
    CHECK(records.back().size() == 64);
  }
  check_alike(columns, records);
  check_alike({fixed("k", Element::int64)}, records);  // skips the lists
}

TEST(records_that_are_prefixes_of_others) {
  const std::string record = example(kX + kId);
  std::vector<std::string> records = {record};
  for (std::size_t more = 0; more < 8; ++more) {
    const std::string name(more, 'x');
    records.push_back(record + example(entry("id", ints({9})) + entry("name", strings({name}))));
    records.push_back(records.back() + field(15, name));
  }
  check_alike(kColumns, records);
}

TEST(empty_records) {
  const std::vector<Column> columns = {optional(variable("n", Element::int64))};
  check_alike(columns, {"", example(""), example(kN), example(kN) + example(""), field(15, "")});
}

// Long records are verified while their largest tensor is copied.
TEST(long_records_of_one_size_with_checksums) {
  const std::vector<Column> columns = {
      fixed("id", Element::int64), raw(fixed("a", Element::uint8, 9'000)),
      optional(raw(fixed("b", Element::uint8, 9'000)), std::string(9'000, 'b'))};
  const std::string a = entry("a", strings({std::string(9'000, '1')}));
  const std::string b = entry("b", strings({std::string(9'000, '2')}));
  const std::string u = entry("u", strings({std::string(9'000, '3')}));
  const std::string merged =
      field(1, field(1, "b") + field(2, strings({std::string(8'000, '4')})) + field(2, ints({})) +
                   field(2, strings({std::string(9'000, '5')})));
  std::vector<std::string> records, framed;
  for (const std::string& entries :
       {kId + a + b, kId + b + a, kId + a + u, u + kId + a, kId + a + a, kId + a, kId + a + merged,
        entry("id", ints({9})) + a + b, b + a + kId}) {
    records.push_back(padded(example(entries), 30'000));
    Buffer<std::uint8_t> frame;
    const Exact copy(records.back());
    append_frame(frame, copy.bytes().begin, copy.size());
    framed.push_back(text({frame.data() + kHeaderBytes, frame.data() + frame.size()}));
  }
  const Decoded alone = decode_alone(columns, records);
  CHECK(!alone.fault);
  CHECK(decode(columns, records).columns == alone.columns);
  CHECK(decode(columns, framed, true).columns == alone.columns);
  // Corruption in a value, with the cached layout, and between values, with another one.
  for (const std::size_t at : {100, 1, 29'999}) {
    std::vector<std::string> corrupt = {framed[0], framed[0], framed[0]};
    corrupt[1][at] ^= 1;
    const Fault fault = decode(columns, corrupt, true).fault;
    CHECK(fault.code == FaultCode::data_checksum && fault.row == 1);
  }
}

}  // namespace
}  // namespace covey::testing
