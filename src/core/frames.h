// TFRecord frames:
//
//   u64 length | u32 masked CRC of the length | length bytes of data | u32 masked CRC of the data
//
// all little-endian. A file is a sequence of frames.
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

// The checksums that a scan verifies. `lengths` does not read the data, for callers that verify it
// while decoding.
enum class Verify : std::uint8_t { nothing, lengths, all };

struct Scan {
  Buffer<std::uint64_t> offsets;  // offset of each record's data in the buffer
  Buffer<std::uint64_t> lengths;  // length of each record's data
  std::size_t consumed = 0;       // bytes scanned; the offset of the next frame
  std::size_t needed = 0;         // size of an incomplete last frame; 0 if unknown
  Fault fault;                    // the reason for an early stop
};

// Finds the complete frames in `data`, at most `limit`, and stops at the first corrupt one. After
// corrupt data the offset of the next frame is known, because its length was verified; after a
// corrupt length it is not.
Scan scan_frames(const std::uint8_t* data, std::size_t size, std::size_t limit, Verify verify);

// Verifies the data of a record with the footer that follows it.
Fault verify_data(const std::uint8_t* data, std::size_t size) noexcept;

// Verifies that the header before a record's data has this length.
Fault verify_header(const std::uint8_t* data, std::size_t size) noexcept;

// Like verify_data(), and copies `payload`, a range of the data, to `out`. The copy is invalid if
// the data does not match.
Fault verify_and_copy(const std::uint8_t* data, std::size_t size, const std::uint8_t* payload,
                      std::size_t payload_size, std::uint8_t* out) noexcept;

// The result of a search for a frame.
struct Found {
  std::size_t position = 0;  // offset of the frame; the end of the buffer if there is none
  std::size_t needed = 0;    // bytes from there that are required to decide; 0 if decided
};

// Searches from `begin` for a valid frame, whose length and data match their checksums, of at most
// `most` bytes of data. Before `end`, the recorded end of a corrupt record, a frame counts only if
// valid frames lead from it to `end` or beyond, or to the end of the file: frames inside the data
// of a record stop before its checksum. `ended` means that the file ends with the buffer.
Found find_frame(const std::uint8_t* data, std::size_t size, std::size_t begin, std::size_t end,
                 std::uint64_t most, bool ended) noexcept;

// Returns the end of the frame at the start of `data` if only its header is corrupt: the position
// where the checksum of its data matches and a valid frame or the end of the file follows. 0 if
// none.
std::size_t find_end(const std::uint8_t* data, std::size_t size, bool ended) noexcept;

// Complete frames, concatenated.
struct Frames {
  Buffer<std::uint8_t> data;
  Buffer<std::uint64_t> offsets;  // offset of each record's data
  Buffer<std::uint64_t> lengths;  // length of each record's data
};

// Copies records, each with its frame, in the given order.
Frames copy_frames(const std::vector<Bytes>& records);

// Writes the header before and the footer after `size` bytes of data.
void write_header(std::uint8_t* out, std::uint64_t size) noexcept;
void write_footer(std::uint8_t* out, const std::uint8_t* data, std::size_t size) noexcept;

// Appends a frame of `size` bytes to `out`.
void append_frame(Buffer<std::uint8_t>& out, const std::uint8_t* data, std::size_t size);

}  // namespace covey
