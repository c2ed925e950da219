// Decodes JPEGs of equal size with libjpeg-turbo, in threads that share nothing but a counter.
//
// bare_jpeg FILE THREADS BATCH reused|fresh: the files are in FILE, each after its length and its
// class as two u32. Follows the protocol of sides.py. "fresh" allocates memory for each batch.
#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <span>
#include <thread>
#include <vector>

// After <cstdio>: the header uses FILE.
// clang-format off
#include <jpeglib.h>
// clang-format on

namespace {

struct ErrorManager {
  jpeg_error_mgr base;
  jmp_buf target;
};

class Decompressor {
 public:
  Decompressor() {
    info_.err = jpeg_std_error(&error_.base);
    error_.base.error_exit = [](j_common_ptr info) {
      std::longjmp(reinterpret_cast<ErrorManager*>(info->err)->target, 1);
    };
    jpeg_create_decompress(&info_);
  }
  ~Decompressor() { jpeg_destroy_decompress(&info_); }
  Decompressor(const Decompressor&) = delete;

  bool header(std::span<const unsigned char> data, size_t& bytes) {
    if (setjmp(error_.target)) return false;
    jpeg_mem_src(&info_, data.data(), data.size());
    jpeg_read_header(&info_, TRUE);
    bytes = size_t{info_.image_width} * info_.image_height * 3;
    jpeg_abort_decompress(&info_);
    return true;
  }

  bool decode(std::span<const unsigned char> data, unsigned char* out) {
    if (setjmp(error_.target)) {
      jpeg_abort_decompress(&info_);
      return false;
    }
    jpeg_mem_src(&info_, data.data(), data.size());
    jpeg_read_header(&info_, TRUE);
    info_.out_color_space = JCS_RGB;
    jpeg_start_decompress(&info_);
    const size_t row_bytes = size_t{info_.output_width} * 3;
    JSAMPROW rows[16];
    while (info_.output_scanline < info_.output_height) {
      unsigned char* first = out + info_.output_scanline * row_bytes;
      for (size_t i = 0; i < 16; ++i) rows[i] = first + i * row_bytes;
      const auto left = info_.output_height - info_.output_scanline;
      jpeg_read_scanlines(&info_, rows, left < 16 ? left : 16);
    }
    jpeg_finish_decompress(&info_);
    return true;
  }

 private:
  jpeg_decompress_struct info_;
  ErrorManager error_;
};

class Loop {
 public:
  Loop(std::vector<std::span<const unsigned char>> images, size_t image_bytes, size_t threads,
       size_t batch, bool fresh)
      : images_(std::move(images)),
        image_bytes_(image_bytes),
        batch_(batch),
        fresh_(fresh),
        workers_(threads) {
    for (auto& worker : workers_) worker.memory = allocate();
  }

  double run(size_t batches) {
    const auto start = std::chrono::steady_clock::now();
    const size_t end = next_ + batches * batch_;
    std::vector<std::thread> threads;
    for (auto& worker : workers_) threads.emplace_back([&] { work(worker, end); });
    for (auto& thread : threads) thread.join();
    next_ = end;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  struct Worker {
    Decompressor decompressor;
    std::unique_ptr<unsigned char[]> memory;
    size_t row = 0;
  };

  std::unique_ptr<unsigned char[]> allocate() const {
    return std::make_unique_for_overwrite<unsigned char[]>(batch_ * image_bytes_);
  }

  void work(Worker& worker, size_t end) {
    for (size_t i = next_++; i < end; i = next_++) {
      if (worker.row == batch_) {
        worker.row = 0;
        if (fresh_) {
          worker.memory.reset();
          worker.memory = allocate();
        }
      }
      unsigned char* out = worker.memory.get() + worker.row++ * image_bytes_;
      if (!worker.decompressor.decode(images_[i % images_.size()], out)) std::abort();
    }
  }

  std::vector<std::span<const unsigned char>> images_;
  size_t image_bytes_;
  size_t batch_;
  bool fresh_;
  std::vector<Worker> workers_;
  std::atomic<size_t> next_{0};
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) return 2;
  mallopt(M_MMAP_THRESHOLD, 1 << 20);  // Fixed; glibc would raise it and keep freed batches.
  const int file = open(arguments[1], O_RDONLY);
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0) return 2;
  const auto bytes = static_cast<size_t>(status.st_size);
  void* map = mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
  if (map == MAP_FAILED) return 2;
  const auto* data = static_cast<const unsigned char*>(map);
  std::vector<std::span<const unsigned char>> images;
  for (size_t at = 0; at < bytes;) {
    uint32_t size;
    std::memcpy(&size, data + at, sizeof size);
    images.emplace_back(data + at + 8, size);
    at += 8 + size;
  }
  size_t image_bytes = 0;
  if (images.empty() || !Decompressor().header(images[0], image_bytes)) return 2;
  Loop loop(images, image_bytes, std::strtoul(arguments[2], nullptr, 10),
            std::strtoul(arguments[3], nullptr, 10), !std::strcmp(arguments[4], "fresh"));
  loop.run(2);
  std::printf("ready libjpeg-turbo %d.%d.%d\n", LIBJPEG_TURBO_VERSION_NUMBER / 1'000'000,
              LIBJPEG_TURBO_VERSION_NUMBER / 1000 % 1000, LIBJPEG_TURBO_VERSION_NUMBER % 1000);
  std::fflush(stdout);
  size_t drain, batches;
  while (std::cin >> drain >> batches) {
    loop.run(drain);
    std::printf("%.6f\n", loop.run(batches));
    std::fflush(stdout);
  }
}
