// Read-only memory maps of files.
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
  scattered,   // reading a page does not prefetch others
  sequential,  // all pages are prefetched
};

// A range of an open file. Reads survive the truncation of the file: see guard.h.
class MappedBytes {
 public:
  // Maps `size` bytes at `offset`. The descriptor can be closed afterwards. On failure `error()` is
  // a value of errno.
  MappedBytes(int descriptor, std::uint64_t offset, std::size_t size, Access access);
  MappedBytes(const MappedBytes&) = delete;
  MappedBytes& operator=(const MappedBytes&) = delete;
  ~MappedBytes();

  int error() const noexcept { return error_; }
  const std::uint8_t* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

  // Whether bytes were read as zeros because they were no longer in the file. Never reset.
  bool is_faulted() const noexcept { return guard_.is_faulted(); }

 private:
  std::size_t size_;
  const std::uint8_t* data_ = nullptr;
  void* mapped_ = nullptr;  // start of the first page
  std::size_t mapped_size_ = 0;
  int error_ = 0;
  GuardedRange guard_;
};

// The checksum of the first and the last bytes of a file.
std::uint32_t fingerprint(const std::uint8_t* data, std::size_t size) noexcept;

// Opens a file to read from it; opening a FIFO does not wait. Negative on failure.
int open_file(const std::string& path) noexcept;

// The state of a regular file.
struct FileState {
  std::uint64_t size, inode;
  std::int64_t modified;  // in ns
  std::uint32_t fingerprint;
};

// The state of the file at a path; none if it is missing, not regular or cannot be read.
std::optional<FileState> file_state(const std::string& path) noexcept;

// A whole shard.
class Mapping {
 public:
  struct Options {
    std::string path;  // asked for its state by has_changed()
    bool scattered = false;
    // Compared when the file is mapped, and by has_changed() if the modification time differs.
    // Without it only the size is compared: covey itself writes to the files of its cache.
    std::optional<std::uint32_t> fingerprint;
    std::size_t limit = SIZE_MAX;  // of the shards that are mapped in this process
  };

  // Maps an open file of this size. The caller keeps the descriptor. On failure `error()` is a
  // value of errno, ENOMEM at the limit, or -1 if the file has another size or fingerprint.
  Mapping(int descriptor, std::size_t size, const Options& options);
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  int error() const noexcept { return error_; }
  const std::uint8_t* data() const noexcept { return bytes_.data(); }
  std::size_t size() const noexcept { return bytes_.size(); }
  bool is_faulted() const noexcept { return bytes_.is_faulted(); }

  // Whether the file was truncated or overwritten since it was mapped: its size is smaller, or its
  // modification time and its fingerprint differ. If not, everything read before the call is from
  // the original file. The result stays true; replacing the file at its path does not matter.
  bool has_changed() const noexcept;

  // The same for frequent calls: asks the system at most once in some milliseconds, and only if
  // `budget`, which it decrements, is positive. `now` is a time in milliseconds.
  bool has_changed(std::int64_t now, int& budget) const noexcept;

  // The time for has_changed(), in milliseconds.
  static std::int64_t now() noexcept;

 private:
  bool ask_system() const noexcept;

  MappedBytes bytes_;
  Options options_;
  int error_ = 0;
  std::uint64_t device_ = 0, file_ = 0;  // identity of the file, independent of its path
  mutable std::atomic<std::int64_t> modified_{
      0};  // in ns; 0 if it may still change within that tick
  mutable std::atomic<std::int64_t> last_asked_{-1};  // in ms
  mutable std::atomic<bool> changed_{false};
};

}  // namespace covey
