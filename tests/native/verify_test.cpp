// Decoding of records with verification of their checksums.
#include <string>
#include <vector>

#include "check.h"
#include "columns.h"

namespace covey::testing {
namespace {

// A record and its footer.
std::string followed_by_footer(const std::string& record) {
  std::string footer(kFooterBytes, '\0');
  write_footer(reinterpret_cast<std::uint8_t*>(footer.data()),
               reinterpret_cast<const std::uint8_t*>(record.data()), record.size());
  return record + footer;
}

TEST(checksums_are_verified_on_request) {
  const std::string record = example(entry("k", ints({1})));
  const std::string with_footer = followed_by_footer(record);
  const std::vector<Column> columns = {fixed("k", Element::int64)};
  CHECK(!decode(columns, {with_footer, with_footer}, true).fault);
  std::string corrupt = with_footer;
  corrupt[record.size() - 1] ^= 2;
  const Fault fault = decode(columns, {with_footer, corrupt}, true).fault;
  CHECK(fault.code == FaultCode::data_checksum && fault.row == 1 && fault.offset == 0);
  CHECK(!decode(columns, {corrupt.substr(0, record.size())}).fault);
}

// Long records are verified while they are copied; the result must be the same.
TEST(long_records_with_and_without_checksums) {
  std::string memory(60'000, '\0');
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<char>(i * i >> 3);
  const std::string large = memory.substr(0, 40'000), small = memory.substr(1, 2'000);
  const std::string merged = field(1, "m") + field(2, strings({large})) + field(2, ints({1})) +
                             field(2, strings({memory.substr(2, 50'000)}));
  const std::vector<Column> columns = {
      raw(fixed("s", Element::uint16, 1'000)), raw(fixed("l", Element::float32, 10'000)),
      variable("n", Element::int64), optional(raw(fixed("o", Element::uint8, 3)), "abc"),
      optional(raw(fixed("m", Element::uint8, 50'000)), std::string(50'000, 'm'))};
  const std::string s = entry("s", strings({small})), l = entry("l", strings({large})),
                    n = entry("n", ints({1, 2, 3})), m = field(1, merged);
  std::vector<std::string> records, followed;
  for (const std::string& entries :
       {s + l + n, n + l + s, l + s + n + entry("o", strings({"def"})), l + m + s + n,
        // A repeated key; the largest tensor is not the first one.
        entry("l", strings({small})) + s + n + l}) {
    records.push_back(example(entries));
    followed.push_back(followed_by_footer(records.back()));
  }
  const Decoded plain = decode(columns, records), verified = decode(columns, followed, true);
  CHECK(!plain.fault);
  CHECK(!verified.fault);
  CHECK(verified.columns == plain.columns);
  CHECK(plain[1].values.substr(0, large.size()) == large);
  CHECK(plain[0].values.substr(0, small.size()) == small);
  for (std::size_t at = 0; at < followed[2].size(); at += 97) {
    std::vector<std::string> corrupt = followed;
    corrupt[2][at] ^= 0x10;
    const Fault fault = decode(columns, corrupt, true).fault;
    CHECK(fault.code == FaultCode::data_checksum && fault.row == 2 && fault.offset == 0);
  }
}

TEST(faults_of_long_records_with_and_without_checksums) {
  const std::string memory(20'000, 'x');
  const std::vector<Column> columns = {raw(fixed("a", Element::uint8, 20'000)),
                                       raw(fixed("b", Element::uint8, 10'000))};
  const std::string a = entry("a", strings({memory})),
                    b = entry("b", strings({memory.substr(10'000)}));
  CHECK(!decode(columns, {followed_by_footer(example(a + b))}, true).fault);
  for (const std::string& record :
       {example(a), example(b), example(a + entry("b", strings({memory}))),
        example(entry("a", strings({memory + "x"})) + b), example(a + entry("b", ints({1}))),
        example(a + entry("b", "")), example(entry("a", strings({memory, memory})) + b),
        example(a + b) + "\x0a", example(a + b).substr(1), std::string(9'000, '\xff')}) {
    const Fault plain = decode(columns, {record}).fault;
    const Fault verified = decode(columns, {followed_by_footer(record)}, true).fault;
    CHECK(plain);
    CHECK(plain.code == verified.code && plain.offset == verified.offset);
    CHECK(plain.column == verified.column && plain.found == verified.found);
    std::string corrupt = followed_by_footer(record);
    corrupt.back() ^= 1;
    CHECK(decode(columns, {corrupt}, true).fault.code == FaultCode::data_checksum);
  }
}

}  // namespace
}  // namespace covey::testing
