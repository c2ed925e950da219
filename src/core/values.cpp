#include "values.h"

#include <algorithm>
#include <type_traits>

#include "feature.h"

namespace covey {
namespace {

// Whether the int64 of a varint is a value of T. uint64 is stored by its bits.
template <class T>
bool convert(std::uint64_t varint, T& out) noexcept {
  const auto value = static_cast<std::int64_t>(varint);
  if constexpr (std::is_same_v<T, bool>) {
    out = value != 0;
  } else if constexpr (sizeof(T) == 8) {
    out = static_cast<T>(varint);
  } else {
    out = static_cast<T>(value);
    return static_cast<std::int64_t>(out) == value;
  }
  return true;
}

template <class T>
T from_float(float value) noexcept {
  if constexpr (std::is_same_v<T, Half>) {
    return Half{float_to_half(value)};
  } else {
    return static_cast<T>(value);
  }
}

// A sink receives the values of one Feature, of one list type only.
struct NoSink {
  std::size_t count = 0;    // values so far
  std::uint64_t found = 0;  // the invalid value

  bool ints(Bytes, Failure&) { return true; }
  bool one_int(std::uint64_t) { return true; }
  bool floats(const std::uint8_t*, std::size_t) { return true; }
  bool string(Bytes) { return true; }
};

// Stores up to `capacity` numbers; more are counted only.
template <class T>
struct DenseSink : NoSink {
  static constexpr Wire wire = kIsFloat<T> ? Wire::floats : Wire::ints;

  std::uint8_t* out;
  std::size_t capacity;

  DenseSink(std::uint8_t* out, std::size_t capacity) noexcept : out(out), capacity(capacity) {}

  void clear() noexcept { count = 0; }

  void put(T value) noexcept {
    if (count < capacity) std::memcpy(out + count * sizeof(T), &value, sizeof(T));
    ++count;
  }

  bool one_int([[maybe_unused]] std::uint64_t varint) noexcept {
    if constexpr (!kIsFloat<T>) {
      T value;
      if (!convert(varint, value)) {
        found = varint;
        return false;
      }
      put(value);
    }
    return true;
  }

  bool ints(Bytes run, Failure& failure) noexcept {
    Reader varints(run);
    while (!varints.done()) {
      std::uint64_t varint;
      if ((failure = varints.varint(varint))) return true;
      if (!one_int(varint)) return false;
    }
    return true;
  }

  bool floats([[maybe_unused]] const std::uint8_t* run,
              [[maybe_unused]] std::size_t number) noexcept {
    if constexpr (kIsFloat<T>) {
      if constexpr (std::is_same_v<T, float>) {
        if (number != 0 && count < capacity) {
          std::memcpy(out + count * 4, run, std::min(number, capacity - count) * 4);
        }
        count += number;
      } else {
        for (std::size_t i = 0; i < number; ++i) {
          float value;
          std::memcpy(&value, run + 4 * i, 4);
          put(from_float<T>(value));
        }
      }
    }
    return true;
  }
};

// Any number of numbers. Reserves memory by the bytes that are present, never by a recorded length.
template <class T>
struct GrowingSink : NoSink {
  static constexpr Wire wire = DenseSink<T>::wire;

  Buffer<std::uint8_t>& values;
  std::size_t begin;

  explicit GrowingSink(Buffer<std::uint8_t>& values) : values(values), begin(values.size()) {}

  void clear() noexcept {
    values.truncate(begin);
    count = 0;
  }

  // Fills space for up to `most` values with a dense sink, and keeps the filled part.
  template <class Fill>
  bool fill(std::size_t most, Fill&& f) {
    const std::size_t before = values.size();
    DenseSink<T> dense(values.extend(most * sizeof(T)), most);
    const bool fits = f(dense);
    values.truncate(before + dense.count * sizeof(T));
    count += dense.count;
    found = dense.found;
    return fits;
  }

  bool one_int(std::uint64_t varint) {
    return fill(1, [&](auto& dense) { return dense.one_int(varint); });
  }
  bool ints(Bytes run, Failure& failure) {
    return fill(run.size(), [&](auto& dense) { return dense.ints(run, failure); });
  }
  bool floats(const std::uint8_t* run, std::size_t number) {
    return fill(number, [&](auto& dense) { return dense.floats(run, number); });
  }
};

// A raw tensor in one string. Of several strings the last is used, and the count is then a fault.
struct RawSink : NoSink {
  static constexpr Wire wire = Wire::bytes;
  Bytes value;

  void clear() noexcept { count = 0; }
  bool string(Bytes bytes) noexcept {
    value = bytes;
    ++count;
    return true;
  }
};

struct StringSink : NoSink {
  static constexpr Wire wire = Wire::bytes;
  ColumnOut& out;
  std::size_t begin;
  std::size_t begin_offsets;
  std::size_t begin_located;

  bool text;
  const std::uint8_t* wrong = nullptr;  // the first that is not valid UTF-8

  StringSink(ColumnOut& out, bool text)
      : out(out),
        begin(out.values.size()),
        begin_offsets(out.offsets.size()),
        begin_located(out.located == nullptr ? 0 : out.located->size()),
        text(text) {}

  void clear() noexcept {
    out.values.truncate(begin);
    out.offsets.truncate(begin_offsets);
    if (out.located != nullptr) out.located->resize(begin_located);
    count = 0;
    wrong = nullptr;
  }
  bool string(Bytes bytes) {
    if (text && wrong == nullptr && !is_utf8(bytes.begin, bytes.size())) wrong = bytes.begin;
    ++count;
    if (out.located != nullptr) {
      out.located->push_back(bytes);
      return true;
    }
    out.values.append(bytes.begin, bytes.size());
    out.offsets.push_back(static_cast<std::int64_t>(out.values.size()));
    return true;
  }
};

template <class Sink>
Outcome read_into(Bytes feature, Sink& sink) {
  Outcome outcome;
  outcome.failure = read_feature(feature, sink, outcome.kind);
  outcome.count = sink.count;
  outcome.found = sink.found;
  return outcome;
}

}  // namespace

PlainForm::PlainForm(const Column& column) : element_(column.element) {
  if (column.layout != Layout::fixed) return;
  size_ = column.count * element_size(column.element);
  const bool floats = column.wire == Wire::floats && column.element == Element::float32;
  if (column.raw() || floats) {
    // tag, length of the list, tag, length of its values
    std::uint8_t* at = header_.data();
    *at++ = static_cast<std::uint8_t>(
        make_tag(static_cast<std::uint32_t>(column.wire), kLengthDelimited));
    at = write_varint(at, 1 + varint_size(size_) + size_);
    *at++ = make_tag(1, kLengthDelimited);
    at = write_varint(at, size_);
    header_size_ = static_cast<std::size_t>(at - header_.data());
    kind_ = Kind::memory;
  } else if (column.wire == Wire::ints && column.count == 1) {
    kind_ = Kind::one_int;
  }
}

bool PlainForm::read(Bytes feature, std::uint8_t* dense) const noexcept {
  if (kind_ == Kind::memory) {
    if (feature.size() != header_size_ + size_) return false;
    if (std::memcmp(feature.begin, header_.data(), header_size_) != 0) return false;
    std::memcpy(dense, feature.begin + header_size_, size_);
    return true;
  }
  if (kind_ != Kind::one_int) return false;
  constexpr auto list =
      static_cast<std::uint8_t>(make_tag(static_cast<std::uint32_t>(Wire::ints), kLengthDelimited));
  constexpr auto packed = static_cast<std::uint8_t>(make_tag(1, kLengthDelimited));
  const std::uint8_t* const at = feature.begin;
  const std::size_t size = feature.size();
  if (size < 5 || size > 4 + kMostVarintBytes) return false;
  if (at[0] != list || at[1] != size - 2 || at[2] != packed || at[3] != size - 4) return false;
  Reader run({at + 4, feature.end});
  std::uint64_t varint;
  if (run.varint(varint) || !run.done()) return false;
  return with_type(element_, [&](auto type) {
    using T = decltype(type);
    DenseSink<T> sink(dense, 1);
    return sink.one_int(varint);
  });
}

Outcome find_raw(const Column& column, Bytes feature, Bytes& value) {
  RawSink sink;
  Outcome outcome = read_into(feature, sink);
  if (outcome.failure || outcome.kind != static_cast<int>(Wire::bytes)) return outcome;
  if (outcome.count != 1) {
    outcome.failure = {FaultCode::count, feature.begin};
    outcome.found = outcome.count;
    outcome.expected = 1;
    return outcome;
  }
  const std::size_t size = element_size(column.element);
  const std::size_t bytes = sink.value.size();
  const bool fits =
      column.layout == Layout::fixed ? bytes == column.count * size : bytes % size == 0;
  if (!fits) {
    outcome.failure = {FaultCode::bytes, sink.value.begin};
    outcome.found = bytes;
    outcome.expected = column.layout == Layout::fixed ? column.count * size : size;
    return outcome;
  }
  outcome.count = bytes / size;
  value = sink.value;
  return outcome;
}

Outcome read_values(const Column& column, Bytes feature, ColumnOut& out, std::uint8_t* dense) {
  if (column.raw()) {
    Bytes value;
    const Outcome outcome = find_raw(column, feature, value);
    if (value.size() != 0) {
      std::uint8_t* const target =
          column.layout == Layout::fixed ? dense : out.values.extend(value.size());
      std::memcpy(target, value.begin, value.size());
    }
    return outcome;
  }
  if (column.element == Element::string) {
    StringSink sink(out, column.text);
    Outcome outcome = read_into(feature, sink);
    if (!outcome.failure && sink.wrong != nullptr) outcome.failure = {FaultCode::utf8, sink.wrong};
    return outcome;
  }
  return with_type(column.element, [&](auto type) {
    using T = decltype(type);
    if (column.layout == Layout::fixed) {
      DenseSink<T> sink(dense, column.count);
      return read_into(feature, sink);
    }
    GrowingSink<T> sink(out.values);
    return read_into(feature, sink);
  });
}

void put_default(const Column& column, ColumnOut& out, std::uint8_t* dense) {
  if (column.element == Element::string) {
    StringSink sink(out, false);
    for (const std::string& text : column.default_strings) {
      const auto* const begin = reinterpret_cast<const std::uint8_t*>(text.data());
      sink.string({begin, begin + text.size()});
    }
  } else if (column.layout != Layout::fixed) {
    out.values.append(column.default_values.data(), column.default_values.size());
  } else if (!column.default_values.empty()) {
    std::memcpy(dense, column.default_values.data(), column.default_values.size());
  }
}

std::int64_t values_so_far(const Column& column, const ColumnOut& out) noexcept {
  return static_cast<std::int64_t>(column.element == Element::string
                                       ? out.offsets.size() - 1
                                       : out.values.size() / element_size(column.element));
}

}  // namespace covey
