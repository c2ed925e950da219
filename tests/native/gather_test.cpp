// Location of records by id, with untrusted rows, and their frames.
#include "gather.h"

#include <chrono>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "columns.h"
#include "rows.h"

namespace covey::testing {
namespace {

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kLast = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint32_t kLastShard = std::numeric_limits<std::uint32_t>::max();

using Numbers = std::vector<std::size_t>;

struct Found {
  Fault fault;
  std::vector<std::string> records;  // none after a fault
};

Found locate(const RowTables& tables, const std::vector<std::int64_t>& ids,
             const Mappings& shards) {
  Found found;
  Located located;
  found.fault = tables.locate(ids.data(), ids.size(), shards, located);
  if (found.fault) return found;
  for (const Bytes& place : located.records) found.records.push_back(text(place));
  found.fault = tables.check_read(located, shards, {});
  return found;
}

bool is(const Fault& fault, FaultCode code, std::size_t row, std::uint64_t found = 0,
        std::uint64_t expected = 0) {
  return fault.code == code && fault.row == row && fault.found == found &&
         fault.expected == expected;
}

// Three splits, the second of which is empty, with five records and three shards.
struct Birds {
  Birds() {
    std::vector<Row> train, test;
    shards.add(framed({"wren", "", "owl"}, 0, train));
    shards.add(framed({"eagle"}, 1, train));
    shards.add(framed({"gull"}, 0, test));
    std::swap(train[1], train[3]);
    tables = index.add(train, 2).add({}, 0).add(test, 1).tables();
  }

  Found locate(const std::vector<std::int64_t>& ids) const {
    return testing::locate(tables, ids, shards.mappings);
  }

  Shards shards;
  Index index;
  RowTables tables{{}};
};

TEST(records_by_id) {
  const Birds birds;
  CHECK(birds.tables.records() == 5);
  CHECK(birds.tables.shards() == 3);
  const std::vector<std::string> all = {"wren", "eagle", "owl", "", "gull"};
  CHECK(birds.locate({0, 1, 2, 3, 4}).records == all);
  CHECK(birds.locate({-5, -4, -3, -2, -1}).records == all);
  std::vector<std::int64_t> many;
  std::vector<std::string> expected;
  for (int i = 0; i < 100; ++i) {
    many.push_back(i * 7 % 10 - 5);
    expected.push_back(all[static_cast<std::size_t>((i * 7 % 10) % 5)]);
  }
  CHECK(birds.locate(many).records == expected);
  CHECK(!birds.locate({}).fault);
}

TEST(ids_out_of_range_are_faults) {
  const Birds birds;
  for (const std::int64_t id : {std::int64_t{5}, std::int64_t{6}, std::int64_t{-6}, kMost, kLeast,
                                kLeast + 1, kLeast + 5, std::int64_t{1} << 32}) {
    const Fault fault = birds.locate({0, id}).fault;
    CHECK(is(fault, FaultCode::row, 1, static_cast<std::uint64_t>(id), 5));
    // Far ahead: the row is prefetched before it is checked.
    std::vector<std::int64_t> ids(20, 3);
    ids[15] = id;
    CHECK(birds.locate(ids).fault.row == 15);
    CHECK(birds.tables.missing(&id, 1, birds.shards.mappings).empty());
    CHECK(!birds.tables.check_labels(&id, 1, &id));
  }
  for (const RowTables& none : {RowTables({}), Index().add({}, 0).add({}, 2).tables()}) {
    CHECK(none.records() == 0);
    for (const std::int64_t id : {std::int64_t{0}, std::int64_t{-1}, kMost, kLeast}) {
      const Fault fault = locate(none, {id}, Mappings(none.shards())).fault;
      CHECK(is(fault, FaultCode::row, 0, static_cast<std::uint64_t>(id), 0));
    }
  }
}

// Ends of shards, and offsets that reach them by an overflow.
TEST(record_outside_its_shard_is_a_fault) {
  for (const std::uint64_t size : {0, 1, 15, 16, 17, 40}) {
    Shards shards;
    shards.add(std::string(size, 's'));
    std::vector<std::uint64_t> offsets, lengths = {kLastShard, kLastShard - 15, 1U << 31};
    for (std::uint64_t i = 0; i <= size + 2; ++i) {
      lengths.push_back(i);
      offsets.push_back(i);
      offsets.push_back(kLast - i);
      offsets.push_back(kLast - kLastShard - i);
      offsets.push_back((std::uint64_t{1} << 63) + i);
      offsets.push_back((std::uint64_t{1} << 32) + i);
    }
    for (const std::uint64_t offset : offsets) {
      for (const std::uint64_t length : lengths) {
        Index index;
        index.add({{0, offset, static_cast<std::uint32_t>(length), 0}}, 1);
        const Found located = locate(index.tables(), {0}, shards.mappings);
        const bool inside = offset <= size && length <= size && offset + length + 16 <= size;
        if (inside) {
          CHECK(!located.fault);
          CHECK(located.records == std::vector<std::string>{std::string(length, 's')});
        } else {
          CHECK(is(located.fault, FaultCode::out_of_bounds, 0, length, size));
          CHECK(located.fault.offset == offset);
        }
      }
    }
  }
}

TEST(records_exclude_header_and_footer) {
  const Birds birds;
  Located located;
  const std::int64_t id = 2;
  CHECK(!birds.tables.locate(&id, 1, birds.shards.mappings, located));
  const std::vector<Bytes>& places = located.records;
  const std::uint8_t* const shard = birds.shards.mappings[0]->data();
  CHECK(places[0].begin == shard + (4 + 16) + 16 + 12);
  CHECK(places[0].end == shard + birds.shards.mappings[0]->size() - 4);
}

// A table must not reach into the shards of the one that follows.
TEST(shard_out_of_range_is_a_fault) {
  Shards shards;
  std::vector<Row> rows;
  shards.add(framed({"a"}, 0, rows));
  shards.add(framed({"b"}, 0, rows));
  for (const std::uint32_t number : {1U, 2U, 1U << 31, kLastShard}) {
    Index index;
    index.add({{0, 0, 1, 0}, {number, 0, 1, 0}}, 1).add({{0, 0, 1, 0}}, 1);
    const Found located = locate(index.tables(), {0, 2, 1}, shards.mappings);
    CHECK(is(located.fault, FaultCode::out_of_bounds, 2, 1, 0));
    const std::int64_t id = 1;
    CHECK(index.tables().missing(&id, 1, Mappings(2)).empty());
  }
  Index index;
  index.add({{0, 0, 1, 0}}, 0).add({{0, 0, 1, 0}}, 2);  // a split without shards
  CHECK(is(locate(index.tables(), {0}, shards.mappings).fault, FaultCode::out_of_bounds, 0, 1, 0));
  CHECK(locate(index.tables(), {1}, shards.mappings).records == std::vector<std::string>{"a"});
}

TEST(missing_shards_are_returned) {
  const Birds birds;
  const std::vector<std::int64_t> ids = {4, 0, 9, 3, -1, 1, kLeast, 1};
  const auto missing = [&](const Mappings& shards) {
    return birds.tables.missing(ids.data(), ids.size(), shards);
  };
  CHECK(missing(birds.shards.mappings).empty());
  CHECK(missing(Mappings(3)) == Numbers{2, 0, 1});
  for (std::size_t gone = 0; gone < 3; ++gone) {
    Mappings shards = birds.shards.mappings;
    shards[gone] = nullptr;
    CHECK(missing(shards) == Numbers{gone});
    const Fault fault = locate(birds.tables, {4, 0, 3, 1}, shards).fault;
    CHECK(is(fault, FaultCode::unmapped, gone == 2 ? 0 : gone == 0 ? 1 : 3));
    CHECK(fault.offset == gone);
  }
  // Shards without requested records may be missing.
  Mappings shards = birds.shards.mappings;
  shards[1] = nullptr;
  CHECK(locate(birds.tables, {0, 4}, shards).records == std::vector<std::string>{"wren", "gull"});
}

TEST(truncated_shard_is_a_fault) {
  for (const int kept : {-1, 1, 0}) {
    const Birds birds;
    const TemporaryFile& file = birds.shards.file(1);
    const std::size_t size = birds.shards.mappings[1]->size();
    CHECK(!birds.locate({0, 1, 1}).fault);
    file.resize(kept < 0 ? size - 1 : static_cast<std::size_t>(kept));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until files are checked again
    for (int round = 0; round < 3; ++round) {
      const Fault fault = birds.locate({0, 1, 1}).fault;
      CHECK(is(fault, FaultCode::changed, 1, 0, size));
      CHECK(fault.offset == 1);
      CHECK(!birds.locate({0, 2, 3, 4}).fault);
    }
  }
}

TEST(changed_shard_replaces_other_faults) {
  const Birds birds;
  Located located;
  const std::int64_t id = 1;
  CHECK(!birds.tables.locate(&id, 1, birds.shards.mappings, located));
  Fault fault;
  fault.code = FaultCode::data_checksum;
  const auto check = [&](const Fault& found) {
    return birds.tables.check_read(located, birds.shards.mappings, found).code;
  };
  CHECK(check({}) == FaultCode::none && check(fault) == FaultCode::data_checksum);
  birds.shards.file(1).write(std::string(birds.shards.mappings[1]->size(), 'x'));
  CHECK(check(fault) == FaultCode::changed && check({}) == FaultCode::changed);
}

TEST(truncated_index_is_a_fault) {
  const Birds birds;
  std::vector<Row> rows;
  Shards shards;
  shards.add(framed(std::vector<std::string>(1000, "wren"), 0, rows));
  std::string bytes;
  for (const Row& row : rows) {
    bytes +=
        memory_of(row.offset) + memory_of(row.label) + memory_of(row.length) + memory_of(row.shard);
  }
  const TemporaryFile file(bytes);
  const OpenFile open(file.path());
  const MappedBytes mapped(open.descriptor(), 0, bytes.size(), Access::normal);
  RowTable table;
  table.rows = mapped.data();
  table.count = rows.size();
  table.stride = 24;
  table.label = 8;
  table.length = 16;
  table.shard = 20;
  table.shards = 1;
  const RowTables tables({table});
  CHECK(!locate(tables, {0, 999}, shards.mappings).fault);
  file.resize(4096);
  Located located;
  const std::int64_t ids[] = {0, 999};
  (void)tables.locate(ids, 2, shards.mappings, located);
  CHECK(tables.check_read(located, shards.mappings, {}).code == FaultCode::index);
  CHECK(!birds.locate({0, 1}).fault);
}

TEST(labels_of_rows) {
  Index index;
  index.add({{0, 0, 1, 3}, {0, 0, 1, -1}, {0, 0, 1, kLeast}}, 1)
      .add({{0, 0, 1, 8}}, 1, false)
      .add({{0, 0, 1, kMost}}, 1);
  const RowTables tables = index.tables();
  const auto check = [&](const std::vector<std::int64_t>& ids,
                         const std::vector<std::int64_t>& labels) {
    return tables.check_labels(ids.data(), ids.size(), labels.data());
  };
  CHECK(!check({0, 1, 2, 4}, {3, -1, kLeast, kMost}));
  CHECK(!check({-5, -4, -3, -1}, {3, -1, kLeast, kMost}));
  CHECK(!check({3, 3, -2}, {8, 9, 0}));  // a split without labels
  CHECK(!check({5, -6, kLeast, kMost}, {0, 0, 0, 0}));
  CHECK(!check({}, {}));
  CHECK(is(check({0, 0}, {3, 4}), FaultCode::label, 1, 4, 3));
  CHECK(is(check({1}, {0}), FaultCode::label, 0, 0, kLast));
  CHECK(is(check({2}, {kMost}), FaultCode::label, 0, kLast >> 1, std::uint64_t{1} << 63));
  CHECK(is(check({3, 4}, {0, -1}), FaultCode::label, 1, kLast, kLast >> 1));
}

TEST(any_rows_equal_a_linear_search) {
  std::mt19937_64 random(7);
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  for (int round = 0; round < 300; ++round) {
    Shards shards;
    Index index;
    std::vector<Row> rows;          // of all tables
    std::vector<std::size_t> last;  // the end of each row's shards
    for (std::uint64_t tables = below(4); tables > 0; --tables) {
      const std::size_t first = shards.mappings.size(), own = below(3);
      for (std::size_t s = 0; s < own; ++s) {
        shards.add(std::string(below(48), static_cast<char>('a' + first + s)));
        if (below(8) == 0) shards.mappings.back() = nullptr;
      }
      std::vector<Row> table(below(5));
      for (Row& row : table) {
        row = {static_cast<std::uint32_t>(below(own + 1)), below(24),
               static_cast<std::uint32_t>(below(24)), 0};
        rows.push_back(row);
        rows.back().shard += static_cast<std::uint32_t>(first);
        last.push_back(first + own);
      }
      index.add(table, own);
    }
    const RowTables tables = index.tables();
    CHECK(tables.records() == rows.size());
    const auto all = static_cast<std::int64_t>(rows.size());
    for (std::int64_t id = -all - 2; id <= all + 2; ++id) {
      const Found located = locate(tables, {id}, shards.mappings);
      const auto number = static_cast<std::size_t>(id < 0 ? id + all : id);
      if (id < -all || id >= all) {
        CHECK(located.fault.code == FaultCode::row);
        continue;
      }
      const Row& row = rows[number];
      if (row.shard >= last[number]) {
        CHECK(located.fault.code == FaultCode::out_of_bounds);
      } else if (shards.mappings[row.shard] == nullptr) {
        CHECK(located.fault.code == FaultCode::unmapped);
        CHECK(tables.missing(&id, 1, shards.mappings) == Numbers{row.shard});
      } else if (row.offset + row.length + 16 > shards.mappings[row.shard]->size()) {
        CHECK(located.fault.code == FaultCode::out_of_bounds);
      } else {
        const std::string expected(row.length, static_cast<char>('a' + row.shard));
        CHECK(located.records == std::vector<std::string>{expected});
      }
    }
  }
}

// The frames around the records that were found.

TEST(header_has_the_length_of_the_record) {
  for (const std::string& record : {std::string(), std::string("wren"), std::string(300, 'x')}) {
    Buffer<std::uint8_t> frame;
    append_frame(frame, reinterpret_cast<const std::uint8_t*>(record.data()), record.size());
    Exact copy(text({frame.data(), frame.data() + kHeaderBytes}));
    const std::uint8_t* const data = copy.data() + kHeaderBytes;
    CHECK(!verify_header(data, record.size()));
    for (const std::size_t other : {record.size() + 1, record.size() + 256, std::size_t{7}}) {
      CHECK(is(verify_header(data, other), FaultCode::length_mismatch, 0, record.size(), other));
    }
    for (std::size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
      const auto flip = static_cast<std::uint8_t>(1U << bit % 8);
      copy.data()[bit / 8] ^= flip;
      const Fault fault = verify_header(data, record.size());
      CHECK(fault.code == FaultCode::length_checksum && fault.found != fault.expected);
      copy.data()[bit / 8] ^= flip;
    }
  }
  Exact huge(std::string(kHeaderBytes, '\0'));
  write_header(huge.data(), kLast);
  CHECK(is(verify_header(huge.data() + kHeaderBytes, 5), FaultCode::length_mismatch, 0, kLast, 5));
}

// Decodes records of one int64 column, and verifies their frames to the given level.
Fault decode_located(const RowTables& tables, const std::vector<std::int64_t>& ids,
                     const Mappings& shards, Check check, std::vector<std::int64_t>& numbers) {
  Located located;
  if (const Fault fault = tables.locate(ids.data(), ids.size(), shards, located)) return fault;
  Exact dense(std::string(8 * ids.size(), '\0'));
  std::vector<ColumnOut> out(1);
  out[0].dense = dense.data();
  const Fault fault = Decoder({fixed("k", Element::int64)}).decode(located.records, check, out);
  numbers.resize(ids.size());
  if (!numbers.empty()) std::memcpy(numbers.data(), dense.data(), dense.size());
  return fault;
}

TEST(frames_are_verified_to_the_requested_level) {
  const auto record = [](std::int64_t number) { return example(entry("k", ints({number}))); };
  std::vector<Row> rows;
  std::string bytes = framed({record(1), record(2), record(300), record(4)}, 0, rows);
  const auto decode_rows = [&](const std::vector<Row>& given, Check check,
                               const std::vector<std::int64_t>& ids) {
    Index index;
    Shards shards;
    index.add(given, 1);
    shards.add(bytes);
    std::vector<std::int64_t> numbers;
    const Fault fault = decode_located(index.tables(), ids, shards.mappings, check, numbers);
    return std::pair(fault, numbers);
  };
  for (const Check check : {Check::nothing, Check::data, Check::frame}) {
    const auto [fault, numbers] = decode_rows(rows, check, {3, 2, 1, 0, -1});
    CHECK(!fault);
    CHECK(numbers == std::vector<std::int64_t>{4, 300, 2, 1, 4});
  }
  // A row with another offset or length.
  std::vector<Row> moved = rows, other = rows;
  moved[1].offset += 1;
  CHECK(decode_rows(moved, Check::frame, {0, 1}).first.code == FaultCode::length_checksum);
  CHECK(decode_rows(moved, Check::frame, {0, 1}).first.row == 1);
  CHECK(decode_rows(moved, Check::data, {0, 1}).first.code == FaultCode::data_checksum);
  other[1].length += 1;
  CHECK(is(decode_rows(other, Check::frame, {0, 1}).first, FaultCode::length_mismatch, 1,
           rows[1].length, rows[1].length + 1));
  other[1] = rows[2];
  other[1].length -= 1;
  CHECK(is(decode_rows(other, Check::frame, {0, 1}).first, FaultCode::length_mismatch, 1,
           rows[2].length, rows[2].length - 1));
  // Corruption in the header, in the data and in the footer.
  const auto corrupt = [&](std::size_t at, Check check) {
    char& byte = bytes[rows[1].offset + at];
    byte ^= 1;
    const Fault fault = decode_rows(rows, check, {0, 1}).first;
    byte ^= 1;
    return fault.row == 1 ? fault.code : FaultCode::none;
  };
  const std::size_t last = kHeaderBytes + rows[1].length - 1;
  CHECK(corrupt(3, Check::frame) == FaultCode::length_checksum);
  CHECK(corrupt(3, Check::data) == FaultCode::none);
  CHECK(corrupt(last, Check::frame) == FaultCode::data_checksum);
  CHECK(corrupt(last, Check::data) == FaultCode::data_checksum);
  CHECK(corrupt(last, Check::nothing) == FaultCode::none);
  CHECK(corrupt(last + 1, Check::frame) == FaultCode::data_checksum);
  CHECK(corrupt(last + 1, Check::nothing) == FaultCode::none);
}

}  // namespace
}  // namespace covey::testing
