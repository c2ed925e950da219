// The search for frames in corrupt data, of src/core/frames.cpp.
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "frames.h"
#include "wire_bytes.h"

namespace covey::testing {
namespace {

constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();

std::string frame(const std::string& record) {
  const Exact copy(record);
  Buffer<std::uint8_t> out;
  append_frame(out, copy.bytes().begin, copy.size());
  return text({out.data(), out.data() + out.size()});
}

std::string header(std::uint64_t length) {
  std::string bytes(kHeaderBytes, '\0');
  write_header(reinterpret_cast<std::uint8_t*>(bytes.data()), length);
  return bytes;
}

Found find(const std::string& data, std::size_t begin = 0, std::size_t end = 0, bool ended = true,
           std::uint64_t most = kAny) {
  const Exact copy(data);
  return find_frame(copy.bytes().begin, copy.size(), begin, end, most, ended);
}

std::size_t end_of(const std::string& data, bool ended = true) {
  const Exact copy(data);
  return find_end(copy.bytes().begin, copy.size(), ended);
}

bool operator==(const Found& found, const Found& other) {
  return found.position == other.position && found.needed == other.needed;
}

TEST(frame_after_any_number_of_bytes) {
  for (const std::string record : {"", "x", "a longer record, of more than a header"}) {
    for (std::size_t before = 0; before < 40; ++before) {
      const std::string data = std::string(before, '\x7f') + frame(record);
      CHECK(find(data) == Found{before, 0});
      CHECK(find(data, before) == Found{before, 0});
      CHECK(find(data, before + 1) == Found{data.size(), 0});
    }
  }
}

TEST(search_of_empty_data) {
  CHECK(find_frame(nullptr, 0, 0, 0, kAny, true) == Found{0, 0});
  CHECK(find_frame(nullptr, 0, 0, 0, kAny, false) == Found{0, kHeaderBytes});
  CHECK(find_end(nullptr, 0, true) == 0);
}

TEST(search_of_zeros) {
  for (std::size_t size = 0; size < 100; ++size)
    CHECK(find(std::string(size, '\0')) == Found{size, 0});
}

TEST(search_ignores_a_corrupt_frame) {
  const std::string valid = frame("record");
  for (std::size_t bit = 0; bit < 8 * valid.size(); ++bit) {
    std::string corrupt = valid;
    corrupt[bit / 8] ^= static_cast<char>(1 << bit % 8);
    CHECK(find(corrupt + valid) == Found{valid.size(), 0});
  }
}

TEST(search_of_a_truncated_frame_needs_the_rest) {
  const std::string valid = frame("record");
  for (std::size_t size = 0; size < valid.size(); ++size) {
    const std::string data = "junk" + valid.substr(0, size);
    const Found found = find(data, 4, 0, false);
    CHECK(found == Found{4, size < kHeaderBytes ? kHeaderBytes : valid.size()});
    CHECK(find(data) == Found{data.size(), 0});
  }
}

TEST(search_resumes_at_a_possible_header) {
  CHECK(find(std::string(100, 'x'), 0, 0, false) == Found{100 - kHeaderBytes + 1, kHeaderBytes});
}

TEST(search_skips_lengths_over_the_limit) {
  const std::string data = header(1000) + frame("next");
  CHECK(find(data, 0, 0, false, 999) == Found{kHeaderBytes, 0});
  CHECK(find(data, 0, 0, false, 1000) == Found{0, 1000 + kFrameBytes});
  for (const std::uint64_t length : {kAny, kAny - 15, kAny - 16, kAny / 2 + 1}) {
    CHECK(find(header(length) + frame("next"), 0, 0, false) == Found{kHeaderBytes, 0});
  }
}

TEST(frames_in_a_corrupt_record_must_end_with_it) {
  const std::string inner = frame("one") + frame("two");
  // The data of a record ends before its checksum.
  const std::string held = inner + "crc4" + frame("next");
  CHECK(find(held, 0, inner.size() + 4) == Found{inner.size() + 4, 0});
  CHECK(find(held) == Found{0, 0});
  // Frames that reach its end, or pass it, are not inside it.
  for (std::size_t end = 1; end <= inner.size(); ++end)
    CHECK(find(inner + "x", 0, end) == Found{0, 0});
  // Frames that end with the file are not inside it either.
  CHECK(find(inner, 0, inner.size() + 9) == Found{0, 0});
  CHECK(find(inner, 0, inner.size() + 9, false) == Found{0, inner.size() + kHeaderBytes});
}

TEST(search_of_headers_ends) {
  std::string data;
  while (data.size() < (1 << 20)) data += header(500'000);
  CHECK(find(data + frame("last")).position >= data.size());
}

TEST(end_of_a_frame_with_a_corrupt_header) {
  const std::string inner = frame("a record") + frame("within a record");
  for (const std::string& record : {std::string(), std::string("x"), inner, "a" + inner + "b"}) {
    const std::string valid = frame(record);
    for (std::size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
      std::string corrupt = valid;
      corrupt[bit / 8] ^= static_cast<char>(1 << bit % 8);
      CHECK(end_of(corrupt) == valid.size());
      CHECK(end_of(corrupt, false) == 0);
      CHECK(end_of(corrupt + frame("next"), false) == valid.size());
      CHECK(end_of(corrupt + "x") == 0);
      corrupt.back() ^= 1;
      CHECK(end_of(corrupt) == 0);
    }
  }
}

TEST(end_of_less_than_a_frame) {
  for (std::size_t size = 0; size < kFrameBytes; ++size) CHECK(end_of(std::string(size, 'x')) == 0);
}

}  // namespace
}  // namespace covey::testing
