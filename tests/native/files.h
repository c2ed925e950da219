// Temporary files.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <system_error>

namespace covey::testing {

class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view bytes) {
    std::random_device random;
    const std::string name = "covey-" + std::to_string(random()) + std::to_string(random());
    path_ = std::filesystem::temp_directory_path() / name;
    write(bytes);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { remove(); }

  std::string path() const { return path_.string(); }

  void write(std::string_view bytes) const {
    std::ofstream file(path_, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  void resize(std::size_t size) const { std::filesystem::resize_file(path_, size); }
  void remove() const noexcept {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }

 private:
  std::filesystem::path path_;
};

// A descriptor of a file, closed at the end.
class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : descriptor_(open(path.c_str(), O_RDONLY)) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  int descriptor() const noexcept { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace covey::testing
