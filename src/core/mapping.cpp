#include "mapping.h"

#include <cerrno>

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#else
#define NOMINMAX
#include <windows.h>
#endif

namespace covey {

// What is mapped of an empty file.
constexpr std::uint8_t kNothing = 0;

#if defined(__unix__) || defined(__APPLE__)

Mapping::Mapping(const std::string& path, std::size_t size, bool keep_open, bool scattered)
    : path_(path), size_(size) {
  descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status;
  if (descriptor_ < 0 || fstat(descriptor_, &status) != 0) {
    error_ = errno;
    return;
  }
  device_ = static_cast<std::uint64_t>(status.st_dev);
  file_ = static_cast<std::uint64_t>(status.st_ino);
  if (static_cast<std::uint64_t>(status.st_size) != size) {
    error_ = -1;
    return;
  }
  if (size == 0) {
    data_ = &kNothing;
  } else {
    void* const mapped = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor_, 0);
    if (mapped == MAP_FAILED) {
      error_ = errno;
      return;
    }
    if (scattered) madvise(mapped, size, MADV_RANDOM);
    data_ = static_cast<const std::uint8_t*>(mapped);
  }
  if (!keep_open) {
    close(descriptor_);
    descriptor_ = -1;
  }
}

Mapping::~Mapping() {
  if (data_ != nullptr && size_ != 0) munmap(const_cast<std::uint8_t*>(data_), size_);
  if (descriptor_ >= 0) close(descriptor_);
}

bool Mapping::is_cut() const noexcept {
  if (size_ == 0) return false;
  if (descriptor_ >= 0) {
    // The quickest way to ask; nobody reads from where this leaves the descriptor.
    const off_t size = lseek(descriptor_, 0, SEEK_END);
    return size < 0 || static_cast<std::uint64_t>(size) < size_;
  }
  struct stat status;
  // A file that was removed or replaced stays as it was for those that have it mapped.
  if (stat(path_.c_str(), &status) != 0 || static_cast<std::uint64_t>(status.st_dev) != device_ ||
      static_cast<std::uint64_t>(status.st_ino) != file_) {
    return false;
  }
  return static_cast<std::uint64_t>(status.st_size) < size_;
}

#else

Mapping::Mapping(const std::string& path, std::size_t size, bool, bool) : path_(path), size_(size) {
  const int length = MultiByteToWideChar(CP_UTF8, 0, path.c_str(), -1, nullptr, 0);
  std::wstring wide(static_cast<std::size_t>(length), L'\0');
  MultiByteToWideChar(CP_UTF8, 0, path.c_str(), -1, wide.data(), length);
  const HANDLE file = CreateFileW(wide.c_str(), GENERIC_READ,
                                  FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, nullptr,
                                  OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
  if (file == INVALID_HANDLE_VALUE) {
    error_ = ENOENT;
    return;
  }
  LARGE_INTEGER found;
  if (!GetFileSizeEx(file, &found) || static_cast<std::uint64_t>(found.QuadPart) != size) {
    error_ = -1;
  } else if (size == 0) {
    data_ = &kNothing;
  } else {
    const HANDLE mapping = CreateFileMappingW(file, nullptr, PAGE_READONLY, 0, 0, nullptr);
    if (mapping != nullptr) {
      data_ = static_cast<const std::uint8_t*>(MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, size));
      CloseHandle(mapping);
    }
    if (data_ == nullptr) error_ = ENOMEM;
  }
  CloseHandle(file);
}

Mapping::~Mapping() {
  if (data_ != nullptr && size_ != 0) UnmapViewOfFile(data_);
}

// A file that is mapped cannot be cut there.
bool Mapping::is_cut() const noexcept { return false; }

#endif

}  // namespace covey
