// Hostile bytes for frames, decoder and survey. They must not crash, and their results must be
// consistent:
//
//   - a scan finds frames within the buffer, and the frames of append_frame;
//   - a fault is within its record; many records decode as they do separately, especially records
//     of one size, which share a cached layout; plain forms equal the general decoder;
//   - decoded values have the shape of their column;
//   - encoding the decoded values, and decoding them again, gives the same values;
//   - a schema inferred by the survey decodes the record;
//   - the header of an image is valid.
//
// An input is a few bytes that choose the columns, and the record:
//
//   u8 form | u8 columns | per column: u8 element and layout, u8 count and flags | the record
//
// The form selects which part of a tf.train.Example the record is: all of it, or a map of features
// or a Feature, to which the enclosing messages are added, so that the innermost bytes do not
// depend on four valid lengths around them. It also selects whether an unknown field before or
// after it makes the record long, because long records are verified differently, and whether its
// bytes are two records of one size.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../native/agreement.h"
#include "crc32c.h"
#include "decode.h"
#include "encode.h"
#include "frames.h"
#include "image_header.h"
#include "survey.h"

namespace covey::testing {
namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kMostColumns = 4;
constexpr const char* kKeys[kMostColumns] = {"a", "b", "", "ab"};

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz_decode: %s\n", what);
  std::abort();
}

class Input {
 public:
  explicit Input(std::string_view bytes) : bytes_(bytes) {}

  std::uint8_t take() {
    if (bytes_.empty()) return 0;
    const auto first = static_cast<std::uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return first;
  }
  std::string rest() const { return std::string(bytes_); }

 private:
  std::string_view bytes_;
};

// A column that the bindings accept. `a` is element * 6 + layout * 2 + raw (for strings: UTF-8), so
// that every byte is valid; `b` has the count and the flags.
Column take_column(Input& input, std::size_t index) {
  const std::uint8_t a = input.take(), b = input.take();
  const Element element = kElements[a / 6 % std::size(kElements)];
  const std::size_t count = b & 7;
  const bool required = (b & 8) != 0, exact = (b & 16) != 0;
  Column column;
  switch (a % 6 / 2) {
    case 0:
      column = fixed(kKeys[index], element, count);
      break;
    case 1:
      column = variable(kKeys[index], element, std::max<std::size_t>(count, 1));
      break;
    default:
      // Shares its key with another column, which may be of the context.
      column = exact ? steps(kKeys[(index + 1) % kMostColumns], element, count)
                     : ragged_steps(kKeys[(index + 1) % kMostColumns], element,
                                    std::max<std::size_t>(count, 1));
  }
  if (a % 2 == 1) column = element == Element::string ? utf8(column) : raw(column);
  if (required) return column;
  const std::size_t values = column.exact ? column.count : column.count * (b >> 6);
  if (element == Element::string) {
    return optional_strings(column, std::vector<std::string>(values, "default"));
  }
  // Bytes of 1 are a valid integer and bool; as a double they are not a float.
  const char fill = element == Element::float64 ? '\0' : '\1';
  return optional(column, std::string(values * element_size(element), fill));
}

// The record of the rest of the input, or of a part of it.
std::string make_record(const std::string& rest, int form, const std::vector<Column>& columns) {
  const bool lists = !columns.empty() && columns[0].layout == Layout::steps;
  const std::string key = columns.empty() ? "" : columns[0].key;
  switch (form) {
    case 1:  // a map
      return field(lists ? 2 : 1, rest);
    case 2:  // the Feature, or FeatureList, of the first column
      return field(lists ? 2 : 1, entry(key, rest));
    case 3: {  // the list of the first column's kind
      if (columns.empty()) return rest;
      const std::string value = feature(columns[0].wire, rest);
      return field(lists ? 2 : 1, entry(key, lists ? field(1, value) : value));
    }
    default:
      return rest;
  }
}

// The records of `data` without verification of checksums.
std::vector<std::string> check_scans(const std::string& data) {
  const Exact copy(data);
  std::vector<std::string> records;
  std::size_t before = kNoLimit;
  for (const Verify verify : {Verify::nothing, Verify::lengths, Verify::all}) {
    const Scan scan = scan_frames(copy.bytes().begin, copy.size(), kNoLimit, verify);
    expect(scan.offsets.size() == scan.lengths.size(), "offsets and lengths differ");
    expect(scan.lengths.size() <= before, "a stricter scan found more");
    before = scan.lengths.size();
    std::size_t at = 0;
    for (std::size_t i = 0; i < scan.lengths.size(); ++i) {
      expect(scan.offsets[i] == at + kHeaderBytes, "frames do not follow one another");
      at = scan.offsets[i] + scan.lengths[i] + kFooterBytes;
      expect(scan.lengths[i] <= data.size() && at <= data.size(), "a frame passes the end");
      if (verify == Verify::nothing) {
        records.push_back(data.substr(scan.offsets[i], scan.lengths[i]));
      }
    }
    expect(scan.consumed == at, "consumed is not the end of the last frame");
    expect(scan.needed == 0 || scan.needed > data.size() - at, "a frame that is there was missed");
    expect(!scan.fault || (scan.fault.offset == at && scan.needed == 0), "a fault is elsewhere");
    expect(!scan.fault || verify != Verify::nothing, "a fault without verification");
    const Scan one = scan_frames(copy.bytes().begin, copy.size(), 1, verify);
    expect(one.lengths.size() == std::min<std::size_t>(scan.lengths.size(), 1), "limit");
  }
  return records;
}

// Round trip of records in frames; they decode with and without verification alike.
void check_frames(const std::vector<Column>& columns, const std::vector<std::string>& records) {
  Buffer<std::uint8_t> frames;
  for (const std::string& record : records) {
    append_frame(frames, reinterpret_cast<const std::uint8_t*>(record.data()), record.size());
  }
  const Scan scan = scan_frames(frames.data(), frames.size(), kNoLimit, Verify::all);
  expect(!scan.fault && scan.lengths.size() == records.size(), "frames did not come back");
  expect(scan.consumed == frames.size(), "frames were not passed whole");

  std::vector<std::string> followed;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const std::uint8_t* const begin = frames.data() + scan.offsets[i];
    followed.push_back(text({begin, begin + records[i].size() + kFooterBytes}));
    expect(followed[i].compare(0, records[i].size(), records[i]) == 0, "a frame changed its data");
  }
  const Decoded plain = decode(columns, records), verified = decode(columns, followed, true);
  const Fault& fault = plain.fault;
  expect(same(verified.fault, fault), "verifying changed the outcome");
  expect(fault || verified.columns == plain.columns, "verifying changed a value");
  followed.back().back() ^= 1;
  const std::size_t last = records.size() - 1;
  const Fault damage = decode(columns, followed, true).fault;
  expect(fault && fault.row < last ? same(damage, fault)
                                   : damage.code == FaultCode::data_checksum && damage.row == last,
         "a corrupt footer was not found");
}

void check_splits(const std::vector<std::int64_t>& splits, std::size_t rows, std::size_t values,
                  std::size_t multiple, bool exact) {
  expect(splits.size() == rows + 1 && splits[0] == 0, "splits do not begin at 0");
  for (std::size_t i = 0; i < rows; ++i) {
    const std::int64_t length = splits[i + 1] - splits[i];
    expect(length >= 0, "splits decrease");
    expect(exact ? static_cast<std::size_t>(length) == multiple
                 : static_cast<std::size_t>(length) % multiple == 0,
           "a row does not fit the shape");
  }
  expect(splits.back() == static_cast<std::int64_t>(values), "splits do not end at the values");
}

void check_shape(const Column& column, const DecodedColumn& decoded, std::size_t rows) {
  std::size_t values = decoded.values.size() / element_size(column.element);
  if (column.element == Element::string) {
    expect(!decoded.offsets.empty(), "strings without offsets");
    values = decoded.offsets.size() - 1;
    check_splits(decoded.offsets, values, decoded.values.size(), 1, false);
    for (const std::string& string : decoded.strings()) {
      const auto* const begin = reinterpret_cast<const std::uint8_t*>(string.data());
      expect(!column.text || is_utf8(begin, string.size()), "a string that is not valid UTF-8");
    }
  } else {
    expect(decoded.offsets.empty(), "numbers with offsets");
    expect(decoded.values.size() % element_size(column.element) == 0, "a part of a number");
  }
  switch (column.layout) {
    case Layout::fixed:
      expect(values == rows * column.count, "a fixed column has the wrong size");
      break;
    case Layout::variable:
      check_splits(decoded.row_splits, rows, values, column.count, column.exact);
      break;
    case Layout::steps:
      expect(!decoded.step_splits.empty(), "steps without splits");
      check_splits(decoded.row_splits, rows, decoded.step_splits.size() - 1, 1, false);
      check_splits(decoded.step_splits, decoded.step_splits.size() - 1, values, column.count,
                   column.exact);
  }
}

void check_encoding(const std::vector<Column>& columns, const Decoded& decoded, std::size_t rows) {
  for (const Column& column : columns) {
    if (column.layout == Layout::steps) return;
  }
  Encodable in(columns, decoded.columns);
  const Frames frames = Encoder(columns).encode(in.columns(), 0, rows, kNoLimit);
  const std::vector<std::string> records = records_of(frames);
  expect(records.size() == rows, "rows were lost");
  const Decoded again = decode(columns, records);
  expect(!again.fault, "what was encoded does not decode");
  expect(again.columns == decoded.columns, "encoding changed a value");
}

void check_decoding(const std::vector<Column>& columns, const std::vector<std::string>& records) {
  const Decoded decoded = decode(columns, records);
  const Fault& fault = decoded.fault;
  if (fault) {
    expect(fault.row < records.size(), "a fault in no record");
    expect(fault.offset <= records[fault.row].size(), "a fault past its record");
    expect(fault.column <= columns.size(), "a fault in no column");
  }
  expect(records.size() < 2 || decode_alike(columns, records), "a batch of its own");
  if (fault) return;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    check_shape(columns[c], decoded[c], records.size());
  }
  check_encoding(columns, decoded, records.size());
}

// Records of the same size that differ in few bytes, which the record selects.
std::vector<std::string> neighbours(const std::string& record) {
  if (record.empty()) return {};
  auto choice = crc32c(reinterpret_cast<const std::uint8_t*>(record.data()), record.size());
  const auto next = [&](std::size_t limit) {
    choice = choice * 1664525 + 1013904223;  // the low bits are not random
    return (choice >> 8) % limit;
  };
  std::string changed = record, shifted = record, exchanged = record;
  changed[next(record.size())] ^= static_cast<char>(1 << next(8));
  ++shifted[next(record.size())];
  --shifted[next(record.size())];
  std::swap(exchanged[next(record.size())], exchanged[next(record.size())]);
  return {changed, shifted, exchanged};
}

// Two records of one size.
void check_pair(const std::vector<Column>& columns, const std::string& a, const std::string& b) {
  expect(decode_alike(columns, {a, b, b, a}), "records that are not alike were taken for it");
  expect(decode_alike(columns, {b, a, a, b}), "records that are not alike were taken for it");
}

void check_plain(const std::vector<Column>& columns, const std::string& bytes) {
  for (const Column& column : columns) {
    for (const std::string& each : {bytes, feature(column.wire, bytes)}) {
      expect(read_plain(column, each) != Plain::wrong, "a plain form that is none");
    }
  }
}

Element usual_element(int kind) {
  return kind == 1 ? Element::string : kind == 2 ? Element::float32 : Element::int64;
}

int kind_of(const Seen& seen) {
  for (int kind = 1; kind <= 3; ++kind) {
    if (seen.by_kind[static_cast<std::size_t>(kind)] != 0) return kind;
  }
  return 0;
}

// The schema that covey infers from one record must decode it.
void check_survey(const std::string& record) {
  Survey survey;
  const Exact copy(record);
  const Fault fault = survey.add(copy.bytes());
  expect(survey.records() == 1, "a record was not counted");
  expect(fault.offset <= record.size(), "a fault of the survey past its record");
  if (fault) return;
  std::vector<Column> columns;
  for (const auto& [key, seen] : survey.context()) {
    expect(seen.records == 1, "a key was counted twice");
    const int kind = kind_of(seen);
    if (kind == 0) continue;
    expect(seen.least == seen.most, "one record has two counts");
    columns.push_back(fixed(key, usual_element(kind), seen.most));
    if (columns.back().count > record.size()) expect(false, "more values than bytes");
  }
  for (const auto& [key, seen] : survey.lists()) {
    const int kind = kind_of(seen);
    if (kind == 0 || seen.by_kind[1] + seen.by_kind[2] + seen.by_kind[3] !=
                         seen.by_kind[static_cast<std::size_t>(kind)]) {
      continue;  // nothing to infer, or steps of several kinds
    }
    columns.push_back(seen.least == seen.most ? steps(key, usual_element(kind), seen.most)
                                              : ragged_steps(key, usual_element(kind)));
  }
  const Decoded decoded = decode(columns, {record});
  expect(!decoded.fault, "the schema that the survey gave does not fit");
  for (std::size_t c = 0; c < columns.size(); ++c) check_shape(columns[c], decoded[c], 1);
}

void check_image_header(const std::string& data) {
  const Exact copy(data);
  const auto header = read_image_header(copy.bytes());
  if (!header) return;
  expect(header->width >= 1 && header->height >= 1, "an image without pixels");
  expect(header->channels >= 1 && header->channels <= 4, "an image without channels");
  expect(header->bits >= 1 && header->bits <= 16, "an image without bits");
  expect(header->orientation >= 1 && header->orientation <= 8, "an invalid orientation");
}

void check_input(const std::string& data) {
  check_scans(data);
  check_image_header(data);
  Input input(data);
  const std::uint8_t first = input.take();
  const int form = first % 4, length = first / 4 % 4;
  const bool halves = (first & 16) != 0;
  std::vector<Column> columns(input.take() % (kMostColumns + 1));
  for (std::size_t c = 0; c < columns.size(); ++c) columns[c] = take_column(input, c);

  const std::string rest = input.rest(), record = make_record(rest, form, columns);
  check_decoding(columns, {record});
  check_survey(record);
  check_plain(columns, rest);
  for (const std::string& other : neighbours(record)) check_pair(columns, record, other);
  if (halves) {
    const std::size_t half = rest.size() / 2;
    check_pair(columns, make_record(rest.substr(0, half), form, columns),
               make_record(rest.substr(half, half), form, columns));
  }

  std::vector<std::string> records = check_scans(rest);
  for (const std::string& each : records) check_survey(each);
  records.push_back(record);
  check_frames(columns, records);
  check_decoding(columns, records);

  const std::string padding = field(15, std::string(1 << 14, 'x'));
  if (length == 1) check_frames(columns, {record + padding, padding});
  if (length == 2) check_frames(columns, {padding + record});
}

}  // namespace
}  // namespace covey::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  covey::testing::check_input(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
