// tf.train.Feature: one of three lists. Used by the decoder and the survey.
#pragma once

#include <memory>
#include <vector>

#include "column.h"
#include "wire.h"

namespace covey {

// Parses a Feature like protobuf: the lists are a oneof, so a list of another type replaces the
// previous one, and a list of the same type is appended to it; values may be packed or not.
//
// The sink receives the values of one list type:
//   Wire wire;                               the list type
//   void clear();                            discards the values of this Feature so far
//   bool ints(Bytes packed, Failure&);       a packed range of varints
//   bool one_int(std::uint64_t);             ...
//   bool floats(const std::uint8_t*, std::size_t count);
//   bool string(Bytes);
// Each returns false if the value is invalid. `kind` is 0 if the Feature has no list.
template <class Sink>
[[nodiscard]] Failure read_feature(Bytes feature, Sink& sink, int& kind) {
  kind = 0;
  Reader fields(feature);
  while (!fields.done()) {
    std::uint32_t tag;
    if (Failure failure = fields.tag(tag)) return failure;
    const auto field = static_cast<int>(tag >> 3);
    if ((tag & 7) != kLengthDelimited || field > 3) {
      if (Failure failure = fields.skip(tag)) return failure;
      continue;
    }
    Bytes list;
    if (Failure failure = fields.bytes(list)) return failure;
    if (kind != 0 && kind != field) sink.clear();
    kind = field;
    if (field != static_cast<int>(sink.wire)) continue;
    if (Failure failure = read_list(list, sink)) return failure;
  }
  return {};
}

template <class Sink>
[[nodiscard]] Failure read_list(Bytes list, Sink& sink) {
  constexpr std::uint32_t packed = make_tag(1, kLengthDelimited);
  Reader values(list);
  while (!values.done()) {
    const std::uint8_t* const place = values.at();
    std::uint32_t tag;
    if (Failure failure = values.tag(tag)) return failure;
    bool fits = true;
    if (tag == packed) {
      Bytes run;
      if (Failure failure = values.bytes(run)) return failure;
      if (sink.wire == Wire::ints) {
        Failure failure;
        fits = sink.ints(run, failure);
        if (failure) return failure;
      } else if (sink.wire == Wire::floats) {
        if (run.size() % 4 != 0) return {FaultCode::packed_floats, place};
        fits = sink.floats(run.begin, run.size() / 4);
      } else {
        fits = sink.string(run);
      }
    } else if (sink.wire == Wire::ints && tag == make_tag(1, kVarint)) {
      std::uint64_t value;
      if (Failure failure = values.varint(value)) return failure;
      fits = sink.one_int(value);
    } else if (sink.wire == Wire::floats && tag == make_tag(1, kFixed32)) {
      const std::uint8_t* value;
      if (Failure failure = values.fixed(4, value)) return failure;
      fits = sink.floats(value, 1);
    } else if (Failure failure = values.skip(tag)) {
      return failure;
    }
    if (!fits) return {FaultCode::range, place};
  }
  return {};
}

// Calls f(value) for every length-delimited field with this number; others are skipped.
template <class F>
[[nodiscard]] Failure each_bytes(Bytes message, std::uint32_t field, F&& f) {
  Reader fields(message);
  while (!fields.done()) {
    std::uint32_t tag;
    if (Failure failure = fields.tag(tag)) return failure;
    if (tag != make_tag(field, kLengthDelimited)) {
      if (Failure failure = fields.skip(tag)) return failure;
      continue;
    }
    Bytes value;
    if (Failure failure = fields.bytes(value)) return failure;
    if (Failure failure = f(value)) return failure;
  }
  return {};
}

// Memory of values that a record has in several parts, which is rare.
using MergedValues = std::vector<std::unique_ptr<std::uint8_t[]>>;

// Calls found(key, value) for every entry of a map<string, message> that is field 1 of `map`, the
// encoding of both Features and FeatureLists. `value` is the concatenation of the entry's value
// fields: protobuf merges repeated messages, and parsing the concatenation is equivalent.
template <class Found>
[[nodiscard]] Failure read_map(Bytes map, MergedValues& merged, Found&& found) {
  constexpr std::uint32_t key_tag = make_tag(1, kLengthDelimited);
  constexpr std::uint32_t value_tag = make_tag(2, kLengthDelimited);
  return each_bytes(map, 1, [&](Bytes entry) -> Failure {
    // If absent, the key is "" and the value an empty message.
    Bytes key{entry.begin, entry.begin}, value{entry.begin, entry.begin};
    std::size_t values = 0;
    std::uint8_t* merged_end = nullptr;
    Reader fields(entry);
    while (!fields.done()) {
      std::uint32_t tag;
      if (Failure failure = fields.tag(tag)) return failure;
      if (tag == key_tag) {
        if (Failure failure = fields.bytes(key)) return failure;
      } else if (tag == value_tag) {
        Bytes next;
        if (Failure failure = fields.bytes(next)) return failure;
        values += 1;
        if (values == 1) {
          value = next;
          continue;
        }
        if (values == 2) {  // once per entry, and not longer than the entry
          merged.push_back(std::make_unique<std::uint8_t[]>(entry.size()));
          std::uint8_t* const copy = merged.back().get();
          if (value.size() != 0) std::memcpy(copy, value.begin, value.size());
          value = {copy, copy + value.size()};
          merged_end = copy + value.size();
        }
        if (next.size() != 0) std::memcpy(merged_end, next.begin, next.size());
        merged_end += next.size();
        value.end = merged_end;
      } else if (Failure failure = fields.skip(tag)) {
        return failure;
      }
    }
    return found(key, value);
  });
}

// Calls found(is_list, key, value) for every feature of an Example or the context of a
// SequenceExample, and for its feature lists if `has_lists`; others are skipped.
template <class Found>
[[nodiscard]] Failure read_record(Bytes record, bool has_lists, MergedValues& merged,
                                  Found&& found) {
  Reader fields(record);
  while (!fields.done()) {
    std::uint32_t tag;
    if (Failure failure = fields.tag(tag)) return failure;
    const bool is_list = tag == make_tag(2, kLengthDelimited) && has_lists;
    if (!is_list && tag != make_tag(1, kLengthDelimited)) {
      if (Failure failure = fields.skip(tag)) return failure;
      continue;
    }
    Bytes map;
    if (Failure failure = fields.bytes(map)) return failure;
    const Failure failure = read_map(
        map, merged, [&](Bytes key, Bytes value) -> Failure { return found(is_list, key, value); });
    if (failure) return failure;
  }
  return {};
}

}  // namespace covey
