#include "frames.h"

#include <cstring>

#include "crc32c.h"
#include "prefetch.h"

namespace covey {
namespace {

template <class T>
void store(std::uint8_t* out, T value) noexcept {
  std::memcpy(out, &value, sizeof value);
}

Fault mismatch(FaultCode code, std::uint32_t found, std::uint32_t stored) noexcept {
  return {.code = code, .found = found, .expected = crc32c_unmask(stored)};
}

// Compares the checksum of data with the footer that follows it.
Fault compare(std::uint32_t found, const std::uint8_t* footer) noexcept {
  const auto stored = load<std::uint32_t>(footer);
  if (crc32c_mask(found) == stored) return {};
  return mismatch(FaultCode::data_checksum, found, stored);
}

// Verifies the length in a header.
Fault verify_length(const std::uint8_t* header) noexcept {
  const auto stored = load<std::uint32_t>(header + 8);
  const std::uint32_t found = crc32c(header, 8);
  if (crc32c_mask(found) == stored) return {};
  return mismatch(FaultCode::length_checksum, found, stored);
}

// The bytes that a search may checksum without success, per byte searched. Without this limit a
// malicious file full of headers would take quadratic time.
constexpr std::size_t kSearchBudget = 16;

// The result of a search at one position: a valid frame of `bytes` bytes; or a frame or a partial
// header that needs more bytes to decide; or neither.
struct Probe {
  std::size_t bytes = 0;
  std::size_t needed = 0;
};

Probe look(const std::uint8_t* data, std::size_t left, std::uint64_t most,
           std::size_t& spare) noexcept {
  if (left < kHeaderBytes) return {0, kHeaderBytes};
  const auto length = load<std::uint64_t>(data);
  if (length > most || verify_length(data)) return {};  // in this order: the first test is cheaper
  if (left < kFrameBytes || length > left - kFrameBytes) return {0, length + kFrameBytes};
  if (length > spare) return {};
  if (!verify_data(data + kHeaderBytes, length)) return {length + kFrameBytes, 0};
  spare -= length;
  return {};
}

}  // namespace

Fault verify_data(const std::uint8_t* data, std::size_t size) noexcept {
  return compare(crc32c(data, size), data + size);
}

Fault verify_header(const std::uint8_t* data, std::size_t size) noexcept {
  const std::uint8_t* const header = data - kHeaderBytes;
  if (const Fault fault = verify_length(header)) return fault;
  const auto length = load<std::uint64_t>(header);
  if (length == size) return {};
  return {.code = FaultCode::length_mismatch, .found = length, .expected = size};
}

Fault verify_and_copy(const std::uint8_t* data, std::size_t size, const std::uint8_t* payload,
                      std::size_t payload_size, std::uint8_t* out) noexcept {
  const auto before = static_cast<std::size_t>(payload - data);
  std::uint32_t crc = crc32c(data, before);
  crc = crc32c_copy(crc, out, payload, payload_size);
  crc = crc32c_extend(crc, payload + payload_size, size - before - payload_size);
  return compare(crc, data + size);
}

Scan scan_frames(const std::uint8_t* data, std::size_t size, std::size_t limit, Verify verify) {
  Scan scan;
  const auto stop = [&scan](Fault fault) {
    scan.fault = fault;
    scan.fault.row = scan.lengths.size();
    scan.fault.offset = scan.consumed;
  };
  while (scan.lengths.size() < limit) {
    const std::size_t left = size - scan.consumed;
    const std::uint8_t* const header = data + scan.consumed;
    if (left < kHeaderBytes) break;
    if (verify != Verify::nothing) {
      if (const Fault damage = verify_length(header)) {
        stop(damage);
        break;
      }
    }
    const auto length = load<std::uint64_t>(header);
    if (left < kFrameBytes || length > left - kFrameBytes) {
      // A length near 2^64 must not wrap around to a small one.
      const bool countable = length <= static_cast<std::size_t>(-1) - kFrameBytes;
      scan.needed = countable ? length + kFrameBytes : static_cast<std::size_t>(-1);
      break;
    }
    if (verify == Verify::all) {
      if (const Fault damage = verify_data(header + kHeaderBytes, length)) {
        stop(damage);
        break;
      }
    }
    scan.offsets.push_back(scan.consumed + kHeaderBytes);
    scan.lengths.push_back(length);
    scan.consumed += length + kFrameBytes;
  }
  return scan;
}

Found find_frame(const std::uint8_t* data, std::size_t size, std::size_t begin, std::size_t end,
                 std::uint64_t most, bool ended) noexcept {
  constexpr std::uint64_t kCountable = static_cast<std::size_t>(-1) / 2;
  if (most > kCountable) most = kCountable;
  std::size_t spare = kSearchBudget * size;
  for (std::size_t at = begin; at < size; ++at) {
    std::size_t next = at;
    while (true) {
      const Probe probe = look(data + next, size - next, most, spare);
      if (probe.needed != 0 && !ended) return {at, next - at + probe.needed};
      if (probe.bytes == 0) break;
      next += probe.bytes;
      if (next >= end || (next == size && ended)) return {at, 0};
    }
    if (next > at) at = next - 1;  // these frames are inside the data of the corrupt one
  }
  return {size, ended ? 0 : kHeaderBytes};
}

std::size_t find_end(const std::uint8_t* data, std::size_t size, bool ended) noexcept {
  std::size_t summed = kHeaderBytes;
  std::uint32_t crc = 0;
  const auto ends_at = [&](std::size_t at) {
    crc = crc32c_extend(crc, data + summed, at - kFooterBytes - summed);
    summed = at - kFooterBytes;
    return crc32c_mask(crc) == load<std::uint32_t>(data + summed);
  };
  std::size_t spare = kSearchBudget * size;
  for (std::size_t at = kFrameBytes; at < size;) {
    // A header alone is not enough: a record of eight bytes and its checksum can equal one.
    const Probe probe = look(data + at, size - at, size, spare);
    if (probe.bytes != 0 && ends_at(at)) return at;
    at += probe.bytes != 0 ? probe.bytes : 1;  // no frame ends inside a frame in its own data
  }
  return ended && size >= kFrameBytes && ends_at(size) ? size : 0;
}

Frames copy_frames(const std::vector<Bytes>& records) {
  constexpr std::size_t kAhead = 4;
  Frames frames;
  std::size_t total = 0;
  for (const Bytes& record : records) total += record.size() + kFrameBytes;
  frames.data.reserve(total);
  frames.offsets.reserve(records.size());
  frames.lengths.reserve(records.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (i + kAhead < records.size()) {
      prefetch(records[i + kAhead].begin - kHeaderBytes, records[i + kAhead].size());
    }
    const std::size_t size = records[i].size();
    frames.offsets.push_back(frames.data.size() + kHeaderBytes);
    frames.lengths.push_back(size);
    frames.data.append(records[i].begin - kHeaderBytes, size + kFrameBytes);
  }
  return frames;
}

void write_header(std::uint8_t* out, std::uint64_t size) noexcept {
  store(out, size);
  store(out + 8, crc32c_mask(crc32c(out, 8)));
}

void write_footer(std::uint8_t* out, const std::uint8_t* data, std::size_t size) noexcept {
  store(out, crc32c_mask(crc32c(data, size)));
}

void append_frame(Buffer<std::uint8_t>& out, const std::uint8_t* data, std::size_t size) {
  std::uint8_t* const frame = out.extend(size + kFrameBytes);
  write_header(frame, size);
  if (size != 0) std::memcpy(frame + kHeaderBytes, data, size);
  write_footer(frame + kHeaderBytes + size, frame + kHeaderBytes, size);
}

}  // namespace covey
