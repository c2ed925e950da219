// SipHash-2-4 with 128 bits: a dataset is shuffled by the hashes of its keys. Keys are arbitrary
// data, so the hash must be strong; and it must never change.
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
