// Faults: invalid bytes or values that the core reports. The core has no file names and no Python
// types: a fault gives the code and the position within the input, and the caller adds the rest.
#pragma once

#include <cstddef>
#include <cstdint>

namespace covey {

enum class FaultCode : std::uint8_t {
  none,
  // Frames.
  length_checksum,  // the checksum of a frame's length does not match
  data_checksum,    // the checksum of a frame's data does not match
  out_of_bounds,    // a record is outside its buffer
  // Indexes.
  row,              // a record id is out of range
  unmapped,         // the shard of a record is not mapped yet
  changed,          // the file of a shard was truncated or overwritten after it was opened
  index,            // the file of the index was truncated while it was mapped
  length_mismatch,  // the frame at a record's offset has a different length than its row
  label,            // a record has a different class than its row
  // Protocol buffers.
  varint,         // a varint is truncated or longer than ten bytes
  tag,            // a tag with field number 0, a reserved wire type, or more than 32 bits
  length,         // a length that exceeds its message
  group,          // a group without its end, with a wrong end, or nested too deeply
  packed_floats,  // a packed list of floats whose size is not a multiple of four
  // Decoded features.
  missing,  // a required feature is absent
  kind,     // the feature has a different list type than the schema
  count,    // the number of values does not match the shape
  bytes,    // the size of a raw tensor does not match the dtype and shape
  range,    // an integer does not fit the dtype
  utf8,     // a string is not valid UTF-8
  // Values to encode.
  type,       // a value or key has an unsupported type
  inexact,    // a value does not have the type of its column, and conversion is disabled
  canonical,  // a converted value still does not have the type of its column
  extra,      // an example has a key that is not a column
  string,     // a value is not a valid string
  size,       // a column has the wrong number of values
  splits,     // row splits do not match their values
};

// Its name in Python.
constexpr const char* fault_name(FaultCode code) noexcept {
  constexpr const char* kNames[] = {"none",
                                    "length_checksum",
                                    "data_checksum",
                                    "out_of_bounds",
                                    "row",
                                    "unmapped",
                                    "changed",
                                    "index",
                                    "length_mismatch",
                                    "label",
                                    "varint",
                                    "tag",
                                    "length",
                                    "group",
                                    "packed_floats",
                                    "missing",
                                    "kind",
                                    "count",
                                    "bytes",
                                    "range",
                                    "utf8",
                                    "type",
                                    "inexact",
                                    "canonical",
                                    "extra",
                                    "string",
                                    "size",
                                    "splits"};
  static_assert(sizeof kNames / sizeof *kNames == static_cast<std::size_t>(FaultCode::splits) + 1);
  return kNames[static_cast<std::size_t>(code)];
}

struct Fault {
  FaultCode code = FaultCode::none;
  std::size_t row = 0;         // index of the record in the input
  std::size_t offset = 0;      // byte within the buffer (frames) or within the record (examples)
  std::uint64_t found = 0;     // the value that was found; its meaning depends on the code
  std::uint64_t expected = 0;  // the value that was expected
  std::size_t column = 0;      // index of the column, for the codes of features

  explicit operator bool() const noexcept { return code != FaultCode::none; }
};

}  // namespace covey
