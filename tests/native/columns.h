// Decodes records and encodes columns. Every buffer is on the heap and has the exact size, so that
// the address sanitizer detects overflows. Shared by the tests and the fuzz target.
#pragma once

#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "decode.h"
#include "encode.h"
#include "frames.h"
#include "wire_bytes.h"

namespace covey::testing {

inline constexpr Element kElements[] = {
    Element::int8,    Element::int16,   Element::int32,  Element::int64,   Element::uint8,
    Element::uint16,  Element::uint32,  Element::uint64, Element::boolean, Element::float16,
    Element::float32, Element::float64, Element::string,
};

constexpr bool is_float(Element element) noexcept {
  return element == Element::float16 || element == Element::float32 || element == Element::float64;
}

// The list type of values that are not raw.
constexpr Wire natural_wire(Element element) noexcept {
  return element == Element::string ? Wire::bytes : is_float(element) ? Wire::floats : Wire::ints;
}

inline Column fixed(std::string key, Element element, std::size_t count = 1) {
  Column column;
  column.key = std::move(key);
  column.wire = natural_wire(element);
  column.element = element;
  column.count = count;
  return column;
}

inline Column variable(std::string key, Element element, std::size_t multiple = 1) {
  Column column = fixed(std::move(key), element, multiple);
  column.layout = Layout::variable;
  column.exact = false;
  return column;
}

// `count` values in every step.
inline Column steps(std::string key, Element element, std::size_t count = 1) {
  Column column = fixed(std::move(key), element, count);
  column.layout = Layout::steps;
  return column;
}

// A multiple of `multiple` values in a step.
inline Column ragged_steps(std::string key, Element element, std::size_t multiple = 1) {
  Column column = steps(std::move(key), element, multiple);
  column.exact = false;
  return column;
}

inline Column raw(Column column) {
  column.wire = Wire::bytes;
  return column;
}

inline Column utf8(Column column) {
  column.text = true;
  return column;
}

inline Column optional(Column column, std::string_view default_values = {}) {
  column.required = false;
  column.default_values.assign(default_values.begin(), default_values.end());
  return column;
}

inline Column optional_strings(Column column, std::vector<std::string> default_strings) {
  column.required = false;
  column.default_strings = std::move(default_strings);
  return column;
}

inline bool is_dense(const Column& column) noexcept {
  return column.layout == Layout::fixed && column.element != Element::string;
}

template <class T>
std::vector<T> to_vector(const Buffer<T>& buffer) {
  return buffer.size() == 0 ? std::vector<T>()
                            : std::vector<T>(buffer.data(), buffer.data() + buffer.size());
}

// One decoded column.
struct DecodedColumn {
  std::string values;  // numbers in their memory layout, or concatenated strings
  std::vector<std::int64_t> offsets, row_splits, step_splits;

  bool operator==(const DecodedColumn&) const = default;

  template <class T>
  std::vector<T> as() const {
    std::vector<T> numbers(values.size() / sizeof(T));
    if (!numbers.empty()) std::memcpy(numbers.data(), values.data(), numbers.size() * sizeof(T));
    return numbers;
  }

  std::vector<std::string> strings() const {
    std::vector<std::string> all;
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
      all.push_back(values.substr(static_cast<std::size_t>(offsets[i]),
                                  static_cast<std::size_t>(offsets[i + 1] - offsets[i])));
    }
    return all;
  }
};

struct Decoded {
  Fault fault;
  std::vector<DecodedColumn> columns;  // meaningless after a fault

  const DecodedColumn& operator[](std::size_t column) const { return columns[column]; }
};

// With `verify`, four bytes of each record are its frame's footer.
inline Decoded decode(const std::vector<Column>& columns, const std::vector<std::string>& records,
                      bool verify = false) {
  std::deque<Exact> copies;
  std::vector<Bytes> places;
  for (const std::string& record : records) {
    Bytes place = copies.emplace_back(record).bytes();
    if (verify) place.end -= kFooterBytes;
    places.push_back(place);
  }
  std::vector<ColumnOut> out(columns.size());
  std::deque<Exact> dense;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const std::size_t row = columns[c].count * element_size(columns[c].element);
    dense.emplace_back(std::string(is_dense(columns[c]) ? row * records.size() : 0, '\xee'));
    if (is_dense(columns[c])) out[c].dense = dense.back().data();
  }
  Decoded decoded;
  decoded.fault = Decoder(columns).decode(places, verify ? Check::data : Check::nothing, out);
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const std::vector<std::uint8_t> grown = to_vector(out[c].values);
    decoded.columns.push_back(
        {is_dense(columns[c]) ? text(dense[c].bytes()) : std::string(grown.begin(), grown.end()),
         to_vector(out[c].offsets), to_vector(out[c].row_splits), to_vector(out[c].step_splits)});
  }
  return decoded;
}

// Columns for the encoder, from decoded columns.
class Encodable {
 public:
  Encodable(const std::vector<Column>& columns, const std::vector<DecodedColumn>& decoded) {
    for (std::size_t c = 0; c < columns.size(); ++c) {
      ColumnIn in;
      const Bytes values = copies_.emplace_back(decoded[c].values).bytes();
      if (columns[c].element == Element::string) {
        std::vector<Bytes>& strings = strings_.emplace_back();
        for (std::size_t i = 0; i + 1 < decoded[c].offsets.size(); ++i) {
          strings.push_back(
              {values.begin + decoded[c].offsets[i], values.begin + decoded[c].offsets[i + 1]});
        }
        in.strings = strings.data();
      } else {
        in.numbers = values.begin;
      }
      if (columns[c].layout == Layout::variable) {
        in.row_splits = splits_.emplace_back(decoded[c].row_splits).data();
      }
      columns_.push_back(in);
    }
  }

  std::vector<ColumnIn>& columns() noexcept { return columns_; }

 private:
  std::vector<ColumnIn> columns_;
  std::deque<Exact> copies_;
  std::deque<std::vector<Bytes>> strings_;
  std::deque<std::vector<std::int64_t>> splits_;
};

inline std::vector<std::string> records_of(const Frames& frames) {
  std::vector<std::string> records;
  for (std::size_t i = 0; i < frames.lengths.size(); ++i) {
    const std::uint8_t* const begin = frames.data.data() + frames.offsets[i];
    records.push_back(text({begin, begin + frames.lengths[i]}));
  }
  return records;
}

// The one column of one record.
inline Decoded decode_feature(const Column& column, const std::string& feature) {
  return decode({column}, {example(entry(column.key, feature))});
}

inline FaultCode fault_of(const Column& column, const std::string& feature) {
  return decode_feature(column, feature).fault.code;
}

}  // namespace covey::testing
