// One suite for every implementation of CRC-32C that this processor supports.
#include "crc32c.h"

#include <numeric>
#include <string>
#include <vector>

#include "check.h"
#include "wire_bytes.h"

namespace covey::testing {
namespace {

std::uint32_t checksum(const Crc32cImplementation& implementation, std::string_view data) {
  const Exact copy(data);
  return implementation.extend(0, copy.bytes().begin, copy.size());
}

const Crc32cImplementation& portable() { return crc32c_implementations().back(); }

std::string noise(std::size_t size) {
  std::string bytes(size, '\0');
  std::uint32_t state = 1;
  for (char& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

// Whether each implementation agrees with the portable one on bytes [start, start + size) of
// memory that ends there, at every alignment.
bool agrees_at_every_alignment(const std::string& bytes, std::size_t size) {
  for (std::size_t start = 0; start < 8; ++start) {
    const Exact copy(std::string_view(bytes).substr(0, start + size));
    const std::uint8_t* const data = copy.bytes().begin + start;
    const std::uint32_t expected = portable().extend(0, data, size);
    for (const Crc32cImplementation& implementation : crc32c_implementations()) {
      if (implementation.extend(0, data, size) != expected) return false;
    }
  }
  return true;
}

// The bit-at-a-time definition.
std::uint32_t by_definition(std::string_view data) {
  std::uint32_t crc = ~0U;
  for (const char byte : data) {
    crc ^= static_cast<std::uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78U : 0U);
  }
  return ~crc;
}

TEST(crc32c_portable_is_last) {
  CHECK(std::string_view(portable().name) == "portable");
  for (const Crc32cImplementation& implementation : crc32c_implementations()) {
    std::printf("crc32c: %s\n", implementation.name);
  }
}

TEST(crc32c_vectors_of_rfc_3720) {
  std::string ascending(32, '\0');
  std::iota(ascending.begin(), ascending.end(), '\0');
  const std::string descending(ascending.rbegin(), ascending.rend());
  const unsigned char read_pdu[48] = {0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0, 0, 0, 0,
                                      20,   0,    0, 0, 0, 0, 4, 0, 0, 0, 0, 20, 0, 0, 0, 24,
                                      40,   0,    0, 0, 0, 0, 0, 0, 2, 0, 0, 0,  0, 0, 0, 0};
  for (const Crc32cImplementation& implementation : crc32c_implementations()) {
    CHECK(checksum(implementation, std::string(32, '\0')) == 0x8a9136aaU);
    CHECK(checksum(implementation, std::string(32, '\xff')) == 0x62a8ab43U);
    CHECK(checksum(implementation, ascending) == 0x46dd794eU);
    CHECK(checksum(implementation, descending) == 0x113fdb5cU);
    CHECK(implementation.extend(0, read_pdu, sizeof read_pdu) == 0xd9963a56U);
  }
}

TEST(crc32c_check_value) {
  for (const Crc32cImplementation& implementation : crc32c_implementations()) {
    CHECK(checksum(implementation, "123456789") == 0xe3069283U);
    CHECK(checksum(implementation, "") == 0);
  }
  CHECK(crc32c(reinterpret_cast<const std::uint8_t*>("123456789"), 9) == 0xe3069283U);
}

TEST(crc32c_portable_equals_the_definition) {
  const std::string bytes = noise(300);
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    const std::string_view data = std::string_view(bytes).substr(0, size);
    CHECK(checksum(portable(), data) == by_definition(data));
  }
}

TEST(crc32c_implementations_agree_on_every_short_length_and_alignment) {
  const std::string bytes = noise(1108);
  for (std::size_t size = 0; size <= 1100; ++size) CHECK(agrees_at_every_alignment(bytes, size));
}

// Around the size of the longest three streams, and its multiples.
TEST(crc32c_implementations_agree_around_stream_sizes) {
  constexpr std::size_t kStreams = 3 * 272;  // kStreamBytes of crc32c.cpp
  const std::string bytes = noise(49152 + 300);
  for (const std::size_t middle : {kStreams, 2 * kStreams, 3 * kStreams, 10 * kStreams,
                                   std::size_t{24576}, std::size_t{49152}}) {
    for (std::size_t size = middle - 26; size <= middle + 26; ++size) {
      CHECK(agrees_at_every_alignment(bytes, size));
    }
    for (const std::size_t beyond : {191, 192, 193, 200, 215, 216, 217}) {
      CHECK(agrees_at_every_alignment(bytes, middle + beyond));
    }
  }
}

TEST(crc32c_of_two_pieces) {
  const std::string bytes = noise(1000);
  const Exact copy(bytes);
  const std::uint8_t* const data = copy.bytes().begin;
  for (const Crc32cImplementation& implementation : crc32c_implementations()) {
    const std::uint32_t whole = implementation.extend(0, data, bytes.size());
    for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
      const std::uint32_t first = implementation.extend(0, data, cut);
      CHECK(implementation.extend(first, data + cut, bytes.size() - cut) == whole);
    }
  }
}

TEST(crc32c_mask_and_unmask) {
  CHECK(crc32c_mask(0) == 0xa282ead8U);
  for (std::uint64_t crc = 0; crc <= 0xffffffffU; crc += 65521) {
    const auto narrow = static_cast<std::uint32_t>(crc);
    CHECK(crc32c_unmask(crc32c_mask(narrow)) == narrow);
    CHECK(crc32c_mask(crc32c_unmask(narrow)) == narrow);
  }
}

}  // namespace
}  // namespace covey::testing
