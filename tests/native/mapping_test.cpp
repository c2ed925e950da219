#include "mapping.h"

#include <cerrno>
#include <string>

#include "check.h"
#include "files.h"
#include "wire_bytes.h"

namespace covey::testing {
namespace {

constexpr bool kBoth[] = {false, true};

TEST(a_mapping_has_the_bytes_of_its_file) {
  for (const std::size_t size : {0, 1, 4095, 4096, 4097, 100'000}) {
    std::string bytes(size, '\0');
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * i >> 3);
    const TemporaryFile file(bytes);
    for (const bool keep_open : kBoth) {
      for (const bool scattered : kBoth) {
        const Mapping mapping(file.path(), size, keep_open, scattered);
        CHECK(mapping.error() == 0);
        CHECK(mapping.data() != nullptr && mapping.size() == size);
        CHECK(text({mapping.data(), mapping.data() + size}) == bytes);
        CHECK(!mapping.is_cut());
      }
    }
  }
}

TEST(a_file_of_another_size_is_not_mapped) {
  const TemporaryFile file("wren");
  for (const std::size_t size : {0, 3, 5, 4096}) {
    const Mapping mapping(file.path(), size, true, true);
    CHECK(mapping.error() == -1);
    CHECK(mapping.data() == nullptr);
  }
}

TEST(a_file_that_is_not_there_is_not_mapped) {
  const TemporaryFile file("wren");
  file.remove();
  for (const std::size_t size : {0, 4}) {
    const Mapping mapping(file.path(), size, true, false);
    CHECK(mapping.error() == ENOENT);
    CHECK(mapping.data() == nullptr);
  }
}

#if defined(__unix__) || defined(__APPLE__)

TEST(a_file_that_becomes_shorter_is_cut) {
  for (const bool keep_open : kBoth) {
    const TemporaryFile file(std::string(10'000, 'x'));
    const Mapping mapping(file.path(), 10'000, keep_open, false);
    for (const std::size_t size : {9'999, 1, 0}) {
      file.resize(size);
      CHECK(mapping.is_cut());
    }
    for (const std::size_t size : {10'000, 10'001}) {
      file.resize(size);
      CHECK(!mapping.is_cut());
    }
  }
}

TEST(a_file_that_was_removed_stays_as_it_was) {
  for (const bool keep_open : kBoth) {
    const TemporaryFile file("wren");
    const Mapping mapping(file.path(), 4, keep_open, false);
    file.remove();
    CHECK(!mapping.is_cut());
    CHECK(text({mapping.data(), mapping.data() + 4}) == "wren");
  }
}

TEST(an_empty_file_cannot_be_cut) {
  for (const bool keep_open : kBoth) {
    const TemporaryFile file("");
    const Mapping mapping(file.path(), 0, keep_open, false);
    CHECK(mapping.error() == 0 && !mapping.is_cut());
  }
}

#endif

}  // namespace
}  // namespace covey::testing
