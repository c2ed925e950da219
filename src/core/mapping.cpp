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

}  // namespace

std::uint32_t fingerprint(const std::uint8_t* data, std::size_t size) noexcept {
  const std::size_t part = std::min(size, kFingerprintBytes);
  return crc32c_extend(crc32c(data, part), data + size - part, part);
}

namespace {

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

}  // namespace

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

Mapping::Mapping(int descriptor, std::size_t size, const Options& options)
    : bytes_(descriptor, 0, size, options.scattered ? Access::scattered : Access::normal),
      options_(options),
      error_(bytes_.error()) {
  struct stat status;
  if (error_ != 0) return;
  if (fstat(descriptor, &status) != 0) {
    error_ = errno;
    return;
  }
  if (static_cast<std::uint64_t>(status.st_size) != size) {
    error_ = -1;
    return;
  }
  device_ = static_cast<std::uint64_t>(status.st_dev);
  file_ = static_cast<std::uint64_t>(status.st_ino);
  modified_ = settled(modification_time(status));
  // Without a descriptor has_changed() is slower.
  if (options.keep_open) descriptor_ = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
}

Mapping::~Mapping() {
  if (descriptor_ >= 0) close(descriptor_);
}

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

bool Mapping::has_changed(std::int64_t now) const noexcept {
  if (is_faulted() || changed_.load(std::memory_order_relaxed)) return true;
  if (now - last_asked_.load(std::memory_order_relaxed) < kAskInterval) return false;
  last_asked_.store(now, std::memory_order_relaxed);
  return has_changed();
}

bool Mapping::ask_system() const noexcept {
  struct stat status;
  if (descriptor_ >= 0) {
    if (fstat(descriptor_, &status) != 0) return true;
  } else if (stat(options_.path.c_str(), &status) != 0 ||
             static_cast<std::uint64_t>(status.st_dev) != device_ ||
             static_cast<std::uint64_t>(status.st_ino) != file_) {
    return false;
  }
  if (static_cast<std::uint64_t>(status.st_size) < size()) return true;
  const std::int64_t modified = modification_time(status);
  if (!options_.fingerprint || modified == modified_.load(std::memory_order_relaxed)) return false;
  if (fingerprint(data(), size()) != *options_.fingerprint) return true;
  modified_.store(settled(modified), std::memory_order_relaxed);
  return false;
}

}  // namespace covey
