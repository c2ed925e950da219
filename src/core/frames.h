// TFRecord frames:
//
//   u64 length | u32 masked CRC of the length | length bytes of data | u32 masked CRC of the data
//
// all little-endian. A file is nothing but frames.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "buffer.h"
#include "fault.h"
#include "wire.h"

namespace covey {

static_assert(std::endian::native == std::endian::little,
              "covey copies TFRecord's little-endian numbers as they are");

inline constexpr std::size_t kHeaderBytes = 12;
inline constexpr std::size_t kFooterBytes = 4;
inline constexpr std::size_t kFrameBytes = kHeaderBytes + kFooterBytes;

// Which checksums a scan verifies. `lengths` leaves the data unread, for callers that verify it
// when they decode it.
enum class Verify : std::uint8_t { nothing, lengths, all };

struct Scan {
  Buffer<std::uint64_t> offsets;  // where each record's data begins in the buffer
  Buffer<std::uint64_t> lengths;  // and how long it is
  std::size_t consumed = 0;       // bytes passed; the next frame begins here
  std::size_t needed = 0;         // bytes that frame has, 0 if unknown, when the buffer ends in it
  Fault fault;                    // what stopped the scan, unless it was the end of the buffer
};

// Finds the frames that lie wholly within `data`, at most `limit` of them, and stops at the first
// that is damaged. After damaged data the next frame is known, for its length was verified; after
// a damaged length nothing tells where it is.
Scan scan_frames(const std::uint8_t* data, std::size_t size, std::size_t limit, Verify verify);

// Whether the data of a record that is followed by its footer matches it.
Fault verify_data(const std::uint8_t* data, std::size_t size) noexcept;

// Whether the twelve bytes before a record's data say that it is that long.
Fault verify_header(const std::uint8_t* data, std::size_t size) noexcept;

// The same as verify_data, copying `payload`, a stretch of the data, to `out` on the way. What was
// copied is worth nothing if the data does not match.
Fault verify_and_copy(const std::uint8_t* data, std::size_t size, const std::uint8_t* payload,
                      std::size_t payload_size, std::uint8_t* out) noexcept;

// Where a search for frames has come to.
struct Found {
  std::size_t position = 0;  // of the frame, or of the end of the buffer if there is none
  std::size_t needed = 0;    // bytes that must be seen from there on to tell, 0 if that is settled
};

// Searches for a sound frame from `begin` on, byte by byte: one whose length and data both match
// their checksums, of at most `most` bytes of data. Before `end`, where a damaged record says that
// it ends, a frame counts only if sound frames lead from it to `end` or beyond, or to the end of
// the file: those that a record may hold in its data stop before its own checksum does. `ended`
// says whether the file ends with the buffer.
Found find_frame(const std::uint8_t* data, std::size_t size, std::size_t begin, std::size_t end,
                 std::uint64_t most, bool ended) noexcept;

// Where the frame that `data` begins with ends, if nothing but its header is damaged: where the
// checksum of its data stands, and then a sound frame or the end of the file. 0 if nowhere.
std::size_t find_end(const std::uint8_t* data, std::size_t size, bool ended) noexcept;

// Whole frames, one after another.
struct Frames {
  Buffer<std::uint8_t> data;
  Buffer<std::uint64_t> offsets;  // where each record's data begins
  Buffer<std::uint64_t> lengths;  // and how long it is
};

// Brings records that lie anywhere, each in its frame, into this order.
Frames copy_frames(const std::vector<Bytes>& records);

// Writes the twelve bytes that precede, and the four that follow, `size` bytes of data.
void write_header(std::uint8_t* out, std::uint64_t size) noexcept;
void write_footer(std::uint8_t* out, const std::uint8_t* data, std::size_t size) noexcept;

// Frames `size` bytes at the end of `out`.
void append_frame(Buffer<std::uint8_t>& out, const std::uint8_t* data, std::size_t size);

}  // namespace covey
