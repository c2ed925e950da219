// A growable array of plain values. Unlike std::vector it leaves new elements uninitialised and can
// release its memory, so that a decoded column becomes a numpy array without a copy.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace covey {

template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  T& operator[](std::size_t i) noexcept { return data_[i]; }
  const T& operator[](std::size_t i) const noexcept { return data_[i]; }
  T& back() noexcept { return data_[size_ - 1]; }

  void reserve(std::size_t capacity) {
    if (capacity > capacity_) reallocate(capacity);
  }

  void push_back(T value) {
    if (size_ == capacity_) grow(1);
    data_[size_++] = value;
  }

  // Appends `count` uninitialised elements, and returns a pointer to them.
  T* extend(std::size_t count) {
    if (count > capacity_ - size_) grow(count);
    T* const begin = data_ + size_;
    size_ += count;
    return begin;
  }

  void append(const T* values, std::size_t count) {
    if (count != 0) std::memcpy(extend(count), values, count * sizeof(T));
  }

  void truncate(std::size_t size) noexcept { size_ = size; }

  // Releases the memory; the caller frees it with std::free. Never null.
  T* release() {
    if (data_ == nullptr) reallocate(1);
    size_ = capacity_ = 0;
    return std::exchange(data_, nullptr);
  }

 private:
  void grow(std::size_t count) {
    if (count > kLimit - size_) throw std::bad_alloc();
    const std::size_t needed = size_ + count;
    const std::size_t doubled = capacity_ < kLimit / 2 ? 2 * capacity_ : kLimit;
    reallocate(needed > doubled ? needed : doubled < 16 ? 16 : doubled);
  }

  void reallocate(std::size_t capacity) {
    if (capacity > kLimit) throw std::bad_alloc();
    void* const moved = std::realloc(data_, capacity * sizeof(T));
    if (moved == nullptr) throw std::bad_alloc();
    data_ = static_cast<T*>(moved);
    capacity_ = capacity;
  }

  static constexpr std::size_t kLimit = static_cast<std::size_t>(-1) / 2 / sizeof(T);

  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace covey
