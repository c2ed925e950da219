#include "hash.h"

#include <string>

#include "check.h"
#include "wire_bytes.h"

namespace covey::testing {
namespace {

// Published vectors of SipHash: key 00 01 .. 0f, and an input of this many bytes 00 01 02 ..
std::string hash_of(std::size_t size) {
  std::string input;
  for (std::size_t i = 0; i < size; ++i) input += static_cast<char>(i);
  const Exact copy(input);
  const Hash128 hash = siphash128(copy.bytes(), 0x0706050403020100, 0x0f0e0d0c0b0a0908);
  return memory_of(hash.low) + memory_of(hash.high);
}

TEST(siphash_published_vectors) {
  CHECK(hash_of(0) == std::string("\xa3\x81\x7f\x04\xba\x25\xa8\xe6\x6d\xf6\x72\x14\xc7\x55\x02"
                                  "\x93"));
  CHECK(hash_of(1) == std::string("\xda\x87\xc1\xd8\x6b\x99\xaf\x44\x34\x76\x59\x11\x9b\x22\xfc"
                                  "\x45"));
}

TEST(siphash_depends_on_every_byte_and_on_the_length) {
  const std::string base(19, '\0');
  const auto hash = [](const std::string& input) {
    const Exact copy(input);
    return siphash128(copy.bytes(), 1, 2);
  };
  const Hash128 plain = hash(base);
  for (std::size_t i = 0; i < base.size(); ++i) {
    std::string changed = base;
    changed[i] = 1;
    CHECK(hash(changed).low != plain.low && hash(changed).high != plain.high);
    CHECK(hash(base.substr(0, i)).low != plain.low);
  }
}

}  // namespace
}  // namespace covey::testing
