// SipHash-2-4 with 128 bits: the order of a shuffled dataset is the order of its keys' hashes. Keys
// come from anywhere, so the hash must be good for any of them; and it must never change.
#pragma once

#include <cstdint>

#include "wire.h"

namespace covey {

struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

Hash128 siphash128(Bytes data, std::uint64_t key0, std::uint64_t key1) noexcept;

}  // namespace covey
