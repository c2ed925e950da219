#include "mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "crc32c.h"

namespace covey {
namespace {

// The contents of an empty file.
constexpr std::uint8_t kNothing = 0;

constexpr std::size_t kFingerprintBytes = 4096;

// How many shards are mapped.
std::atomic<std::size_t> mapped_shards{0};

// A file that is modified twice within this time may have the same modification time.
constexpr std::int64_t kTimeGranularity = 1'000'000'000;  // ns
constexpr std::int64_t kAskInterval = 50;                 // ms

std::int64_t modification_time(const struct stat& status) noexcept {
#ifdef __APPLE__
  const timespec& time = status.st_mtimespec;
#else
  const timespec& time = status.st_mtim;
#endif
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// A modification time that detects a later modification; 0 if it is too recent for that.
std::int64_t settled(std::int64_t modified) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const std::int64_t age =
      static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec - modified;
  return age > -kTimeGranularity && age < kTimeGranularity ? 0 : modified;
}

// The checksum of the first and the last bytes of an open file; none if it cannot be read.
std::optional<std::uint32_t> fingerprint_of(int descriptor, std::uint64_t size) noexcept {
  std::uint8_t bytes[kFingerprintBytes];
  const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(size, sizeof bytes));
  const auto all = static_cast<ssize_t>(part);
  if (pread(descriptor, bytes, part, 0) != all) return std::nullopt;
  const std::uint32_t crc = crc32c(bytes, part);
  if (pread(descriptor, bytes, part, static_cast<off_t>(size - part)) != all) return std::nullopt;
  return crc32c_extend(crc, bytes, part);
}
}  // namespace

std::uint32_t fingerprint(const std::uint8_t* data, std::size_t size) noexcept {
  const std::size_t part = std::min(size, kFingerprintBytes);
  return crc32c_extend(crc32c(data, part), data + size - part, part);
}

int open_file(const std::string& path) noexcept {
  return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

MappedBytes::MappedBytes(int descriptor, std::uint64_t offset, std::size_t size, Access access)
    : size_(size) {
  if (size == 0) {
    data_ = &kNothing;
    return;
  }
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::size_t before = offset % page;
  int flags = MAP_SHARED;
#ifdef MAP_POPULATE
  if (access == Access::sequential) flags |= MAP_POPULATE;
#endif
  mapped_size_ = before + size;
  mapped_ = mmap(nullptr, mapped_size_, PROT_READ, flags, descriptor,
                 static_cast<off_t>(offset - before));
  if (mapped_ == MAP_FAILED) {
    mapped_ = nullptr;
    error_ = errno;
    return;
  }
  guard_ = GuardedRange(mapped_, mapped_size_);
  if (access == Access::scattered) madvise(mapped_, mapped_size_, MADV_RANDOM);
  data_ = static_cast<const std::uint8_t*>(mapped_) + before;
}

MappedBytes::~MappedBytes() {
  guard_ = GuardedRange();  // before the addresses can be reused
  if (mapped_ != nullptr) munmap(mapped_, mapped_size_);
}

std::optional<FileState> file_state(const std::string& path) noexcept {
  const int descriptor = open_file(path);
  if (descriptor < 0) return std::nullopt;
  struct stat status;
  std::optional<FileState> found;
  if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) {
    const auto size = static_cast<std::uint64_t>(status.st_size);
    const auto crc = fingerprint_of(descriptor, size);
    if (crc) found = {size, status.st_ino, modification_time(status), *crc};
  }
  close(descriptor);
  return found;
}

Mapping::Mapping(int descriptor, std::size_t size, const Options& options)
    : bytes_(descriptor, 0, size, options.scattered ? Access::scattered : Access::normal),
      options_(options),
      error_(bytes_.error()) {
  const bool is_allowed = mapped_shards.fetch_add(1) < options.limit;
  struct stat status;
  if (fstat(descriptor, &status) != 0) {
    error_ = errno;
  } else if (!S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) != size) {
    error_ = -1;
  } else if (!is_allowed) {
    error_ = ENOMEM;
  } else if (error_ == 0 && options_.fingerprint &&
             fingerprint_of(descriptor, size) != options_.fingerprint) {
    error_ = -1;
  }
  if (error_ != 0) return;
  device_ = static_cast<std::uint64_t>(status.st_dev);
  file_ = static_cast<std::uint64_t>(status.st_ino);
  modified_ = settled(modification_time(status));
}

Mapping::~Mapping() { mapped_shards.fetch_sub(1); }

std::int64_t Mapping::now() noexcept {
  timespec time;
#ifdef CLOCK_MONOTONIC_COARSE
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
#else
  clock_gettime(CLOCK_MONOTONIC, &time);
#endif
  return static_cast<std::int64_t>(time.tv_sec) * 1000 + time.tv_nsec / 1'000'000;
}

bool Mapping::has_changed() const noexcept {
  if (is_faulted() || changed_.load(std::memory_order_relaxed)) return true;
  if (size() == 0 || (!ask_system() && !is_faulted())) return false;
  changed_.store(true, std::memory_order_relaxed);
  return true;
}

bool Mapping::has_changed(std::int64_t now, int& budget) const noexcept {
  if (is_faulted() || changed_.load(std::memory_order_relaxed)) return true;
  if (budget <= 0 || now - last_asked_.load(std::memory_order_relaxed) < kAskInterval) return false;
  --budget;
  last_asked_.store(now, std::memory_order_relaxed);
  return has_changed();
}

bool Mapping::ask_system() const noexcept {
  struct stat status;
  if (stat(options_.path.c_str(), &status) != 0 ||
      static_cast<std::uint64_t>(status.st_dev) != device_ ||
      static_cast<std::uint64_t>(status.st_ino) != file_) {
    return false;  // another file at its path
  }
  if (static_cast<std::uint64_t>(status.st_size) < size()) return true;
  const std::int64_t modified = modification_time(status);
  if (!options_.fingerprint || modified == modified_.load(std::memory_order_relaxed)) return false;
  if (fingerprint(data(), size()) != *options_.fingerprint) return true;
  modified_.store(settled(modified), std::memory_order_relaxed);
  return false;
}

}  // namespace covey
