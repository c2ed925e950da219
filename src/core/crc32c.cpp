#include "crc32c.h"

#include <cstring>

#include "crc32c_internal.h"

namespace covey {
namespace internal {

namespace {

using Table = std::array<std::array<std::uint32_t, 256>, 8>;

// kTable[k][b] is the checksum of byte b followed by k zero bytes: eight lookups advance the
// checksum by eight bytes.
constexpr Table make_table() noexcept {
  Table table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78U : 0U);
    }
    table[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t previous = table[k - 1][byte];
      table[k][byte] = (previous >> 8) ^ table[0][previous & 0xff];
    }
  }
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

std::uint32_t crc32c_portable(std::uint32_t crc, const std::uint8_t* data,
                              std::size_t size) noexcept {
  crc = ~crc;
  for (; size >= 8; data += 8, size -= 8) {
    std::uint32_t low, high;
    std::memcpy(&low, data, 4);
    std::memcpy(&high, data + 4, 4);
    low ^= crc;
    crc = kTable[7][low & 0xff] ^ kTable[6][(low >> 8) & 0xff] ^ kTable[5][(low >> 16) & 0xff] ^
          kTable[4][low >> 24] ^ kTable[3][high & 0xff] ^ kTable[2][(high >> 8) & 0xff] ^
          kTable[1][(high >> 16) & 0xff] ^ kTable[0][high >> 24];
  }
  for (; size > 0; ++data, --size) {
    crc = (crc >> 8) ^ kTable[0][(crc ^ *data) & 0xff];
  }
  return ~crc;
}

}  // namespace internal

namespace {

struct Available {
  std::array<Crc32cImplementation, 3> list{};
  std::size_t count = 0;

  Available() noexcept {
    add("sse4.2", internal::crc32c_sse42());
    add("armv8", internal::crc32c_armv8());
    add("portable", &internal::crc32c_portable);
  }

  void add(const char* name, Crc32cExtend extend) noexcept {
    if (extend != nullptr) list[count++] = {name, extend};
  }
};

const Available& available() noexcept {
  static const Available instance;
  return instance;
}

// A plain global, so that the hot path has no initialisation guard. It is null during static
// initialisation, when covey computes no checksums.
const Crc32cExtend best = available().list[0].extend;

}  // namespace

std::span<const Crc32cImplementation> crc32c_implementations() noexcept {
  return {available().list.data(), available().count};
}

std::uint32_t crc32c(const std::uint8_t* data, std::size_t size) noexcept {
  return best(0, data, size);
}

std::uint32_t crc32c_extend(std::uint32_t crc, const std::uint8_t* data,
                            std::size_t size) noexcept {
  return best(crc, data, size);
}

std::uint32_t crc32c_copy(std::uint32_t crc, std::uint8_t* out, const std::uint8_t* data,
                          std::size_t size) noexcept {
  constexpr std::size_t kPiece = 3 * internal::kStreamBytes;
  while (size != 0) {
    const std::size_t piece = size < kPiece ? size : kPiece;
    crc = best(crc, data, piece);
    std::memcpy(out, data, piece);
    out += piece;
    data += piece;
    size -= piece;
  }
  return crc;
}

}  // namespace covey
