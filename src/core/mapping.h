// Files in memory, read-only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "guard.h"

namespace covey {

// How the pages of a mapped file will be used.
enum class Access : std::uint8_t {
  normal,
  scattered,   // reading one page does not read ahead
  sequential,  // all pages are read from disk at once
};

// A part of an open file. Reads survive a file that is truncated: see guard.h.
class MappedBytes {
 public:
  // Maps `size` bytes from `offset` on. The descriptor is not needed afterwards. On failure
  // `error()` is a number of <cerrno>.
  MappedBytes(int descriptor, std::uint64_t offset, std::size_t size, Access access);
  MappedBytes(const MappedBytes&) = delete;
  MappedBytes& operator=(const MappedBytes&) = delete;
  ~MappedBytes();

  int error() const noexcept { return error_; }
  const std::uint8_t* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

  // Whether bytes that were read are zeros because they were no longer in the file. Never reset.
  bool is_faulted() const noexcept { return guard_.is_faulted(); }

 private:
  std::size_t size_;
  const std::uint8_t* data_ = nullptr;
  void* mapped_ = nullptr;  // from the beginning of a page
  std::size_t mapped_size_ = 0;
  int error_ = 0;
  GuardedRange guard_;
};

// The checksum of how a file begins and ends.
std::uint32_t fingerprint(const std::uint8_t* data, std::size_t size) noexcept;

// A whole shard.
class Mapping {
 public:
  struct Options {
    std::string path;        // where the file was; used if no descriptor is kept
    bool keep_open = false;  // keep a descriptor: then has_changed() is faster
    bool scattered = false;
    // What has_changed() compares if the modification time differs. Without, only the size counts:
    // covey itself writes to files of its cache.
    std::optional<std::uint32_t> fingerprint;
  };

  // Maps an open file that has this size. The descriptor stays the caller's. On failure `error()`
  // is a number of <cerrno>, or -1 if the file has another size.
  Mapping(int descriptor, std::size_t size, const Options& options);
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  int error() const noexcept { return error_; }
  const std::uint8_t* data() const noexcept { return bytes_.data(); }
  std::size_t size() const noexcept { return bytes_.size(); }
  bool is_faulted() const noexcept { return bytes_.is_faulted(); }

  // Whether the file was truncated or overwritten since it was mapped: its size is smaller, or its
  // modification time and its fingerprint are others. What was read before the call is of the old
  // file if not. A file that has changed stays so, and one that was replaced by another file stays
  // as it was.
  bool has_changed() const noexcept;

  // The same for a caller that asks very often: the system is asked at most once in some
  // milliseconds. `now` is a time in milliseconds.
  bool has_changed(std::int64_t now) const noexcept;

  // The time for has_changed(), in milliseconds.
  static std::int64_t now() noexcept;

 private:
  bool ask_system() const noexcept;

  MappedBytes bytes_;
  Options options_;
  int error_ = 0;
  int descriptor_ = -1;
  std::uint64_t device_ = 0, file_ = 0;            // which file it is, whatever its path is later
  mutable std::atomic<std::int64_t> modified_{0};  // in ns; 0 if it may be modified at that time
  mutable std::atomic<std::int64_t> last_asked_{-1};  // in ms
  mutable std::atomic<bool> changed_{false};
};

}  // namespace covey
