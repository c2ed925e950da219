#include "buffer.h"

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <utility>

#include "check.h"

namespace covey::testing {
namespace {

TEST(buffer_grows) {
  Buffer<std::int64_t> buffer;
  for (std::int64_t i = 0; i < 1000; ++i) buffer.push_back(i);
  const std::int64_t more[] = {1000, 1001};
  buffer.append(more, 2);
  buffer.append(nullptr, 0);
  CHECK(buffer.size() == 1002 && buffer.back() == 1001);
  for (std::size_t i = 0; i < buffer.size(); ++i) CHECK(buffer[i] == static_cast<std::int64_t>(i));
  buffer.truncate(3);
  buffer.push_back(7);
  CHECK(buffer.size() == 4 && buffer[2] == 2 && buffer[3] == 7);
}

TEST(buffer_releases_its_memory) {
  Buffer<std::int64_t> buffer;
  buffer.push_back(5);
  std::int64_t* const memory = buffer.release();
  CHECK(memory[0] == 5);
  CHECK(buffer.size() == 0 && buffer.data() == nullptr);
  buffer.push_back(6);
  CHECK(buffer[0] == 6);
  std::free(memory);
  void* const nothing = Buffer<std::int64_t>().release();
  CHECK(nothing != nullptr);
  std::free(nothing);
}

TEST(buffer_is_moved) {
  Buffer<std::uint8_t> first;
  first.push_back(1);
  Buffer<std::uint8_t> second = std::move(first);
  CHECK(second.size() == 1);
  Buffer<std::uint8_t> third;
  third.push_back(2);
  third = std::move(second);
  CHECK(third.size() == 1 && third[0] == 1);
}

TEST(impossible_size_throws) {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  for (const std::size_t count : {most, most / 2, most / 8, most / 16 + 1}) {
    Buffer<std::int64_t> buffer;
    buffer.push_back(1);
    bool refused = false;
    try {
      buffer.extend(count);
    } catch (const std::bad_alloc&) {
      refused = true;
    }
    CHECK(refused);
    CHECK(buffer.size() == 1 && buffer[0] == 1);
  }
}

}  // namespace
}  // namespace covey::testing
