// SipHash-2-4 with 128 bits: a dataset is shuffled by the hashes of its keys. Keys are arbitrary
// data, so the hash must be strong; and it must never change.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "wire.h"

namespace covey {

struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

struct SipState {
  std::uint64_t v0, v1, v2, v3;

  void rounds(int count) noexcept {
    while (count-- > 0) {
      v0 += v1;
      v1 = std::rotl(v1, 13) ^ v0;
      v0 = std::rotl(v0, 32);
      v2 += v3;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1;
      v1 = std::rotl(v1, 17) ^ v2;
      v2 = std::rotl(v2, 32);
    }
  }

  void add(std::uint64_t word) noexcept {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  }

  std::uint64_t result() noexcept {
    rounds(4);
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

inline Hash128 siphash128(Bytes data, std::uint64_t key0, std::uint64_t key1) noexcept {
  // The constants spell "somepseudorandomlygeneratedbytes"; 0xee and 0xdd mark the 128-bit form.
  SipState state{key0 ^ 0x736f6d6570736575, key1 ^ 0x646f72616e646f6d ^ 0xee,
                 key0 ^ 0x6c7967656e657261, key1 ^ 0x7465646279746573};
  const std::size_t size = data.size();
  const std::uint8_t* at = data.begin;
  for (std::size_t words = size / 8; words > 0; --words, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    state.add(word);
  }
  // The last word: the remaining bytes, and the length in its highest byte.
  std::uint64_t last = 0;
  if (size % 8 != 0) std::memcpy(&last, at, size % 8);
  state.add(last | static_cast<std::uint64_t>(size) << 56);
  state.v2 ^= 0xee;
  Hash128 hash;
  hash.low = state.result();
  state.v1 ^= 0xdd;
  hash.high = state.result();
  return hash;
}

}  // namespace covey
