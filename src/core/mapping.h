// A file in memory, read-only, as long as somebody holds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace covey {

class Mapping {
 public:
  // Maps a file that has this size. On failure `error()` is a number of <cerrno>, or -1 if the file
  // has another size. With `keep_open` its descriptor is kept, which makes is_cut() faster. With
  // `scattered`, reading one page does not bring others from disk.
  Mapping(const std::string& path, std::size_t size, bool keep_open, bool scattered);
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  int error() const noexcept { return error_; }
  const std::uint8_t* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

  // Whether the file is shorter now: touching a map behind the end of its file kills the process.
  bool is_cut() const noexcept;

 private:
  std::string path_;
  std::size_t size_;
  const std::uint8_t* data_ = nullptr;
  int descriptor_ = -1;
  std::uint64_t device_ = 0, file_ = 0;  // which file it is, whatever has its path later
  int error_ = 0;
};

}  // namespace covey
