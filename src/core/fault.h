// What the core reports about bytes that are not what they should be. The core knows no file
// names and no Python: it says what and where within its input, the caller adds the rest.
#pragma once

#include <cstddef>
#include <cstdint>

namespace covey {

enum class FaultCode : std::uint8_t {
  none,
  // frames
  length_checksum,  // the checksum of a frame's length does not match
  data_checksum,    // the checksum of a frame's data does not match
  out_of_bounds,    // a record's place lies outside its buffer
  // an index
  row,       // there is no such record
  unmapped,  // the shard of a record is not there yet
  changed,   // the file of a shard was truncated or overwritten after it was opened
  index,     // the file of the index was truncated while it was mapped
  moved,     // at a record's place no frame of its length begins
  label,     // a record has another class than its row says
  // protocol buffers
  varint,         // a varint is cut off or longer than ten bytes
  tag,            // a tag with field number 0, a reserved wire type, or more than 32 bits
  length,         // a length that points past the end of its message
  group,          // a group that is not closed, closed wrongly, or nested too deeply
  packed_floats,  // a packed list of floats whose size is no multiple of four
  // features
  missing,  // a required feature is not there
  kind,     // the feature holds another list than the schema says
  count,    // the number of values does not fit the shape
  bytes,    // the size of a raw tensor does not fit the dtype and shape
  range,    // an integer does not fit the dtype
  utf8,     // a string that should be text is no UTF-8
};

const char* fault_name(FaultCode code) noexcept;

struct Fault {
  FaultCode code = FaultCode::none;
  std::size_t row = 0;         // which record of the input
  std::size_t offset = 0;      // byte within the buffer (frames) or within the record (examples)
  std::uint64_t found = 0;     // what was found there, in the code's own terms
  std::uint64_t expected = 0;  // and what should have been
  std::size_t column = 0;      // which column of the schema, for the codes of features

  explicit operator bool() const noexcept { return code != FaultCode::none; }
};

}  // namespace covey
