#include "mapping.h"

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "check.h"
#include "files.h"
#include "wire_bytes.h"

namespace covey::testing {
namespace {

constexpr bool kBoth[] = {false, true};

bool has_changed_now(const Mapping& mapping) {
  int budget = 1;
  return mapping.has_changed(Mapping::now(), budget);
}

std::uint32_t fingerprint_of(const std::string& bytes) {
  return fingerprint(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

std::unique_ptr<const Mapping> map_shard(const TemporaryFile& file, std::size_t size,
                                         const std::string* content = nullptr,
                                         bool scattered = false) {
  Mapping::Options options;
  options.path = file.path();
  options.scattered = scattered;
  if (content != nullptr) options.fingerprint = fingerprint_of(*content);
  const OpenFile open(file.path());
  return std::make_unique<const Mapping>(open.descriptor(), size, options);
}

std::string pattern(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * i >> 3);
  return bytes;
}

TEST(mapping_has_the_bytes_of_the_file) {
  for (const std::size_t size : {0, 1, 4095, 4096, 4097, 100'000}) {
    const std::string bytes = pattern(size);
    const TemporaryFile file(bytes);
    for (const bool scattered : kBoth) {
      const auto mapping = map_shard(file, size, &bytes, scattered);
      CHECK(mapping->error() == 0);
      CHECK(mapping->data() != nullptr && mapping->size() == size);
      CHECK(text({mapping->data(), mapping->data() + size}) == bytes);
      CHECK(!mapping->has_changed() && !has_changed_now(*mapping));
    }
  }
}

TEST(mapping_from_any_offset) {
  const std::string bytes = pattern(20'000);
  const TemporaryFile file(bytes);
  const OpenFile open(file.path());
  for (const std::size_t begin : {0, 1, 4095, 4096, 4097, 19'999, 20'000}) {
    for (const Access access : {Access::normal, Access::scattered, Access::sequential}) {
      const MappedBytes mapped(open.descriptor(), begin, bytes.size() - begin, access);
      CHECK(mapped.error() == 0 && !mapped.is_faulted());
      CHECK(text({mapped.data(), mapped.data() + mapped.size()}) == bytes.substr(begin));
    }
  }
}

TEST(mapping_of_another_size_fails) {
  const TemporaryFile file("wren");
  for (const std::size_t size : {0, 3, 5, 4096}) CHECK(map_shard(file, size)->error() == -1);
}

TEST(mapping_of_another_file_fails) {
  const std::string bytes = pattern(10'000), other = pattern(9'999) + "?";
  const TemporaryFile file(bytes);
  CHECK(map_shard(file, bytes.size(), &bytes)->error() == 0);
  CHECK(map_shard(file, bytes.size(), &other)->error() == -1);
}

TEST(mapping_fails_at_the_limit) {
  const TemporaryFile file("wren");
  const OpenFile open(file.path());
  Mapping::Options options;
  const Mapping first(open.descriptor(), 4, options);
  options.limit = 2;
  const Mapping second(open.descriptor(), 4, options);
  CHECK(second.error() == 0);
  CHECK(Mapping(open.descriptor(), 4, options).error() == ENOMEM);
}

TEST(state_of_a_file) {
  for (const std::size_t size : {0, 1, 4096, 4097, 10'000}) {
    const std::string bytes = pattern(size);
    const TemporaryFile file(bytes);
    const auto state = file_state(file.path());
    CHECK(state && state->size == size && state->fingerprint == fingerprint_of(bytes));
    file.remove();
    CHECK(!file_state(file.path()));
  }
  CHECK(!file_state("/") && open_file("/no such file") < 0);
}

TEST(budget_of_questions) {
  const std::string bytes = pattern(10'000);
  const TemporaryFile file(bytes);
  const auto mapping = map_shard(file, bytes.size(), &bytes);
  file.resize(1);
  int budget = 0;
  CHECK(!mapping->has_changed(Mapping::now(), budget));
  budget = 2;
  CHECK(mapping->has_changed(Mapping::now(), budget) && budget == 1);
}

TEST(mapping_of_an_invalid_descriptor_fails) {
  for (const std::size_t size : {0, 4}) CHECK(Mapping(-1, size, {}).error() == EBADF);
}

// Sets the modification time of a file to some seconds ago.
void age(const TemporaryFile& file, int seconds) {
  const auto now = std::filesystem::file_time_type::clock::now();
  std::filesystem::last_write_time(file.path(), now - std::chrono::seconds(seconds));
}

// Overwrites a file in place.
void overwrite(const TemporaryFile& file, const std::string& bytes) {
  std::fstream stream(file.path(), std::ios::binary | std::ios::in | std::ios::out);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

TEST(truncated_file_has_changed) {
  const std::string bytes(10'000, 'x');
  const TemporaryFile file(bytes);
  const auto mapping = map_shard(file, 10'000, &bytes);
  for (const std::size_t size : {9'999, 1, 0}) {
    file.resize(size);
    CHECK(has_changed_now(*mapping) && mapping->has_changed());
  }
  file.resize(10'000);  // with zeros
  CHECK(mapping->has_changed());
}

TEST(overwritten_file_has_changed) {
  for (const int seconds : {0, 100}) {  // recent, and long ago
    const std::string bytes = pattern(10'000);
    const TemporaryFile file(bytes);
    age(file, seconds);
    const auto mapping = map_shard(file, bytes.size(), &bytes);
    CHECK(!mapping->has_changed());
    std::string other = bytes;
    other.back() ^= 1;
    overwrite(file, other);
    CHECK(mapping->has_changed());
    CHECK(!mapping->is_faulted());
  }
}

TEST(touched_or_extended_file_has_not_changed) {
  const std::string bytes = pattern(10'000);
  const TemporaryFile file(bytes);
  age(file, 100);
  const auto mapping = map_shard(file, bytes.size(), &bytes);
  for (const int seconds : {50, 0}) {
    age(file, seconds);
    CHECK(!mapping->has_changed());
  }
  file.resize(10'001);
  CHECK(!mapping->has_changed());
}

TEST(without_a_fingerprint_the_size_is_compared) {
  const std::string bytes = pattern(10'000);
  const TemporaryFile file(bytes);
  const auto mapping = map_shard(file, bytes.size());
  overwrite(file, std::string(10'000, 'x'));
  CHECK(!mapping->has_changed());
  file.resize(1);
  CHECK(mapping->has_changed());
}

TEST(removed_file_stays_mapped) {
  const std::string bytes = "wren";
  const TemporaryFile file(bytes);
  const auto mapping = map_shard(file, 4, &bytes);
  file.remove();
  CHECK(!mapping->has_changed());
  file.write("crow");  // another file at its path
  CHECK(!mapping->has_changed());
  CHECK(text({mapping->data(), mapping->data() + 4}) == "wren");
}

TEST(empty_file_has_not_changed) {
  const std::string bytes;
  const TemporaryFile file(bytes);
  const auto mapping = map_shard(file, 0, &bytes);
  CHECK(mapping->error() == 0 && !mapping->has_changed());
}

}  // namespace
}  // namespace covey::testing
