#include "encode.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "columns.h"

namespace covey::testing {
namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

// Numbers of the element that a list can hold, from small to extreme.
std::string sample_numbers(Element element, std::size_t count) {
  constexpr std::int64_t integers[] = {0,
                                       1,
                                       -1,
                                       127,
                                       128,
                                       -128,
                                       255,
                                       256,
                                       16383,
                                       16384,
                                       65535,
                                       1 << 21,
                                       -(1 << 30),
                                       std::numeric_limits<std::int64_t>::max(),
                                       std::numeric_limits<std::int64_t>::min()};
  constexpr float reals[] = {0.0F,     -0.0F,    1.5F, -2.25F,
                             65504.0F, 0x1p-24F, 0.1F, std::numeric_limits<float>::infinity()};
  std::string memory;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t integer = integers[i % std::size(integers)];
    const float real = reals[i % std::size(reals)];
    switch (element) {
      case Element::boolean:
        memory += static_cast<char>(integer & 1);
        break;
      case Element::float16:
        memory += memory_of(float_to_half(real));
        break;
      case Element::float32:
        memory += memory_of(real);
        break;
      case Element::float64:
        memory += memory_of(static_cast<double>(real));
        break;
      default:  // little-endian: the low bytes come first
        memory += memory_of(integer).substr(0, element_size(element));
    }
  }
  return memory;
}

// `count` values, strings or numbers.
DecodedColumn sample_values(Element element, std::size_t count) {
  DecodedColumn column;
  if (element != Element::string) {
    column.values = sample_numbers(element, count);
    return column;
  }
  column.offsets.push_back(0);
  for (std::size_t i = 0; i < count; ++i) {
    column.values += std::string(i * 50, static_cast<char>('a' + i % 26));
    column.offsets.push_back(static_cast<std::int64_t>(column.values.size()));
  }
  return column;
}

// The values of a column: `count` in each row if fixed, else the `lengths`.
DecodedColumn sample_column(const Column& column, const std::vector<std::size_t>& lengths) {
  if (column.layout == Layout::fixed) {
    return sample_values(column.element, lengths.size() * column.count);
  }
  std::vector<std::int64_t> splits{0};
  for (const std::size_t length : lengths) {
    splits.push_back(splits.back() + static_cast<std::int64_t>(length * column.count));
  }
  DecodedColumn sample = sample_values(column.element, static_cast<std::size_t>(splits.back()));
  sample.row_splits = splits;
  return sample;
}

Frames encode(const std::vector<Column>& columns, const std::vector<DecodedColumn>& values,
              std::size_t rows) {
  return Encoder(columns).encode(Encodable(columns, values).columns(), 0, rows, kNoLimit);
}

// The one record of one row.
std::string encode_row(const std::vector<Column>& columns,
                       const std::vector<DecodedColumn>& values) {
  return records_of(encode(columns, values, 1)).at(0);
}

void check_round_trip(const std::vector<Column>& columns, const std::vector<std::size_t>& lengths) {
  std::vector<DecodedColumn> values;
  for (const Column& column : columns) values.push_back(sample_column(column, lengths));
  const Decoded decoded = decode(columns, records_of(encode(columns, values, lengths.size())));
  CHECK(!decoded.fault);
  CHECK(decoded.columns == values);
}

TEST(round_trip_of_every_element_and_layout) {
  for (const Element element : kElements) {
    for (const std::size_t count : {0, 1, 2, 20}) {
      check_round_trip({fixed("k", element, count)}, {0, 0, 0});
      if (element != Element::string) check_round_trip({raw(fixed("k", element, count))}, {0, 0});
    }
    for (const std::size_t count : {1, 3}) {
      check_round_trip({variable("k", element, count)}, {2, 0, 15, 1, 0});
      if (element != Element::string) {
        check_round_trip({raw(variable("k", element, count))}, {2, 0, 15, 1, 0});
      }
    }
  }
}

TEST(round_trip_of_many_columns) {
  std::vector<Column> columns;
  for (const Element element : kElements) {
    const std::string name = std::to_string(static_cast<int>(element));
    columns.push_back(variable("variable/" + name, element, 2));
    columns.push_back(fixed("fixed/" + name, element, 3));
    if (element != Element::string) columns.push_back(raw(fixed("raw/" + name, element, 4)));
  }
  check_round_trip(columns, {3, 0, 1});
}

// Sizes depend on the sizes of the varints of sizes, six deep.
TEST(round_trip_of_lengths_around_varint_sizes) {
  for (const std::size_t middle : {std::size_t{128}, std::size_t{16384}}) {
    for (std::size_t size = middle - 24; size <= middle + 2; ++size) {
      check_round_trip({variable("k", Element::uint8), raw(variable("l", Element::uint8))}, {size});
      check_round_trip({variable(std::string(size, 'k'), Element::int64)}, {1});
    }
  }
  check_round_trip({raw(fixed("k", Element::uint8, 1 << 21))}, {0});
}

TEST(round_trip_of_every_half_in_a_float_list) {
  DecodedColumn column;
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    column.values += memory_of(static_cast<std::uint16_t>(bits));
  }
  const std::vector<Column> columns = {fixed("k", Element::float16, 65536)};
  const Decoded decoded = decode(columns, {encode_row(columns, {column})});
  CHECK(!decoded.fault);
  CHECK(decoded[0] == column);
}

TEST(records_are_packed_and_keys_sorted) {
  const std::vector<Column> columns = {
      fixed("b", Element::int8, 2), fixed("\xc3\xa9", Element::int8), fixed("a", Element::float32),
      fixed("B", Element::string), fixed("aa", Element::boolean)};
  DecodedColumn string;
  string.values = "xyz";
  string.offsets = {0, 3};
  const std::vector<DecodedColumn> values = {{memory_of<std::int8_t>({1, -1}), {}, {}, {}},
                                             {"\x05", {}, {}, {}},
                                             {memory_of(0.5F), {}, {}, {}},
                                             string,
                                             {"\x01", {}, {}, {}}};
  CHECK(encode_row(columns, values) ==
        example(entry("B", strings({"xyz"})) + entry("a", floats({0.5F})) + entry("aa", ints({1})) +
                entry("b", ints({1, -1})) + entry("\xc3\xa9", ints({5}))));
}

TEST(order_of_columns_does_not_change_the_record) {
  std::vector<Column> columns;
  std::vector<DecodedColumn> values;
  for (const char* const key : {"c", "", "a", "ab", "B"}) {
    columns.push_back(variable(key, Element::int64));
    values.push_back(sample_column(columns.back(), {columns.size()}));
  }
  const std::string expected = encode_row(columns, values);
  for (std::size_t turn = 0; turn < columns.size(); ++turn) {
    std::rotate(columns.begin(), columns.begin() + 1, columns.end());
    std::rotate(values.begin(), values.begin() + 1, values.end());
    CHECK(encode_row(columns, values) == expected);
  }
}

TEST(empty_list_has_its_kind) {
  const std::vector<Column> columns = {variable("i", Element::int64),
                                       variable("f", Element::float32),
                                       variable("s", Element::string)};
  std::vector<DecodedColumn> values;
  for (const Column& column : columns) values.push_back(sample_column(column, {0}));
  const std::string record = encode_row(columns, values);
  CHECK(record ==
        example(entry("f", feature(Wire::floats, "")) + entry("i", feature(Wire::ints, "")) +
                entry("s", feature(Wire::bytes, ""))));
  CHECK(!decode(columns, {record}).fault);
}

TEST(absent_column_has_no_key) {
  const std::vector<Column> columns = {
      fixed("a", Element::int64), optional(fixed("b", Element::int64), memory_of(std::int64_t{9}))};
  Encodable values(columns, {sample_column(columns[0], {0}), {}});
  values.columns()[1] = ColumnIn{nullptr, nullptr, nullptr, false};
  const std::vector<std::string> records =
      records_of(Encoder(columns).encode(values.columns(), 0, 1, kNoLimit));
  CHECK(records == std::vector<std::string>{example(entry("a", ints({0})))});
}

TEST(example_without_columns) { CHECK(encode_row({}, {}) == example("")); }

TEST(double_is_rounded_to_the_nearest_float) {
  const std::vector<Column> columns = {fixed("k", Element::float64, 2)};
  const double precise[] = {0.1, 1e300};
  const DecodedColumn values{memory_of(precise), {}, {}, {}};
  const Decoded decoded = decode(columns, {encode_row(columns, {values})});
  CHECK(decoded[0].as<double>()[0] == static_cast<double>(0.1F));
  CHECK(decoded[0].as<double>()[1] == std::numeric_limits<double>::infinity());
}

TEST(frames_match_their_offsets) {
  const std::vector<Column> columns = {variable("k", Element::string)};
  const Frames frames = encode(columns, {sample_column(columns[0], {1, 0, 5})}, 3);
  const Exact data(text({frames.data.data(), frames.data.data() + frames.data.size()}));
  const Scan scan = scan_frames(data.bytes().begin, data.size(), kNoLimit, Verify::all);
  CHECK(!scan.fault);
  CHECK(scan.consumed == data.size());
  CHECK(to_vector(scan.offsets) == to_vector(frames.offsets));
  CHECK(to_vector(scan.lengths) == to_vector(frames.lengths));
}

TEST(encoding_in_pieces) {
  const std::vector<Column> columns = {variable("k", Element::int64), fixed("l", Element::string)};
  const std::vector<std::size_t> lengths = {1, 500, 0, 3, 3, 70, 0};
  const std::vector<DecodedColumn> values = {sample_column(columns[0], lengths),
                                             sample_column(columns[1], lengths)};
  const Encoder encoder(columns);
  Encodable in(columns, values);
  const Frames whole = encoder.encode(in.columns(), 0, lengths.size(), kNoLimit);
  const std::size_t two_frames = whole.offsets[2] - kHeaderBytes;
  CHECK(encoder.encode(in.columns(), 0, lengths.size(), two_frames).lengths.size() == 2);
  CHECK(encoder.encode(in.columns(), 0, lengths.size(), two_frames + 1).lengths.size() == 3);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{100}, two_frames, kNoLimit}) {
    std::string joined;
    for (std::size_t row = 0; row < lengths.size();) {
      const Frames piece = encoder.encode(in.columns(), row, lengths.size(), bytes);
      const std::size_t rows = piece.lengths.size();
      CHECK(rows != 0);
      // It stops at the first end of a frame after `bytes`.
      CHECK(row + rows == lengths.size() || piece.data.size() >= bytes);
      CHECK(piece.offsets[rows - 1] - kHeaderBytes < bytes);
      joined += text({piece.data.data(), piece.data.data() + piece.data.size()});
      row += rows;
    }
    CHECK(joined == text({whole.data.data(), whole.data.data() + whole.data.size()}));
  }
}

TEST(encoding_of_no_rows) {
  const std::vector<Column> columns = {fixed("k", Element::int64)};
  const Frames frames = Encoder(columns).encode({ColumnIn{}}, 0, 0, kNoLimit);
  CHECK(frames.data.size() == 0 && frames.lengths.size() == 0);
}

// The size of one huge row must not be reserved for every row.
TEST(buffer_is_reserved_for_the_rows) {
  const std::vector<Column> columns = {variable("k", Element::uint8)};
  const std::size_t rows = std::size_t{1} << 20;
  std::vector<std::int64_t> splits(rows + 1, 1 << 24);
  splits[0] = 0;
  const std::vector<std::uint8_t> numbers(1 << 24);
  const ColumnIn in{numbers.data(), nullptr, splits.data(), true};
  const Frames frames = Encoder(columns).encode({in}, 0, rows, kNoLimit);
  CHECK(frames.lengths.size() == rows);
}

TEST(row_has_the_measured_size) {
  for (const Element element : kElements) {
    for (const bool is_raw : {false, true}) {
      if (is_raw && element == Element::string) continue;
      Column column = variable("key", element);
      if (is_raw) column = raw(column);
      const Encoder encoder({column});
      for (const std::size_t count : {0, 1, 2, 14, 100}) {
        Encodable values({column}, {sample_column(column, {count})});
        const ColumnIn& in = values.columns()[0];
        const Cell cell{in.numbers, in.strings, count, true};
        std::size_t size = 0;
        Exact out(std::string(encoder.measure(&cell, &size), '\0'));
        encoder.write(&cell, &size, out.data());
        CHECK(text(out.bytes()) == encode_row({column}, {sample_column(column, {count})}));
      }
    }
  }
}

// Another thread of the caller may change the values between the two calls.
TEST(values_changed_after_measuring_do_not_overflow) {
  const Column column = variable("k", Element::int64);
  const Encoder encoder({column});
  const std::string small = memory_of<std::int64_t>({1, 2, 3}),
                    mixed = memory_of<std::int64_t>({-1, 5, 300}),
                    large = memory_of<std::int64_t>({-1, -1, -1});
  for (const std::string& before : {small, mixed, large}) {
    for (const std::string& after : {small, mixed, large}) {
      Exact numbers(before);
      const Cell cell{numbers.data(), nullptr, 3, true};
      std::size_t size = 0;
      Exact out(std::string(encoder.measure(&cell, &size), '\xee'));
      std::memcpy(numbers.data(), after.data(), after.size());
      encoder.write(&cell, &size, out.data());
      CHECK(!decode({column}, {text(out.bytes())}).fault);  // a valid record
    }
  }
}

TEST(rows_in_any_order) {
  const std::vector<Column> columns = {fixed("a", Element::uint8, 700),
                                       variable("b", Element::string),
                                       variable("c", Element::int64)};
  const std::vector<std::size_t> lengths = {3, 0, 7, 1, 2};
  std::vector<DecodedColumn> values;
  values.push_back(sample_column(columns[0], std::vector<std::size_t>(5, 700)));
  values.push_back(sample_column(columns[1], lengths));
  values.push_back(sample_column(columns[2], lengths));
  Encodable in(columns, values);
  const Encoder encoder(columns);
  const Frames whole = encoder.encode(in.columns(), 0, lengths.size(), kNoLimit);
  std::vector<std::uint64_t> sizes(lengths.size());
  encoder.measure_rows(in.columns(), 0, lengths.size(), sizes.data());
  for (std::size_t i = 0; i < sizes.size(); ++i) CHECK(sizes[i] == whole.lengths[i]);
  const std::vector<std::string> records = records_of(whole);
  const std::vector<std::uint64_t> order = {4, 2, 2, 0, 1, 3, 0, 4};
  const std::vector<std::string> found =
      records_of(encoder.encode(in.columns(), 0, order.size(), SIZE_MAX, order.data()));
  CHECK(found.size() == order.size());
  for (std::size_t i = 0; i < order.size(); ++i) CHECK(found[i] == records[order[i]]);
  CHECK(encoder.encode(in.columns(), 0, 0, SIZE_MAX).lengths.size() == 0);
}

}  // namespace
}  // namespace covey::testing
