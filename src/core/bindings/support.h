// Shared by the bindings. Only this directory uses Python: it checks arguments, releases the GIL,
// calls the core, and returns numpy arrays without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <utility>

#include "../buffer.h"
#include "../fault.h"
#include "../wire.h"

namespace nb = nanobind;

namespace covey {

void register_crc32c(nb::module_& m);
void register_frames(nb::module_& m);
void register_hash(nb::module_& m);
void register_image_header(nb::module_& m);
void register_images(nb::module_& m);
void register_mapping(nb::module_& m);
void register_columns(nb::module_& m);
void register_encoder(nb::module_& m);
void register_examples(nb::module_& m);
void register_decoder(nb::module_& m);
void register_gather(nb::module_& m);
void register_plan(nb::module_& m);
void register_prefetcher(nb::module_& m);
void register_rowcheck(nb::module_& m);
void register_classes(nb::module_& m);
void register_survey(nb::module_& m);

// The exception `covey._core.Fault`, with the fields of the struct as attributes.
void register_fault(nb::module_& m);
nb::object to_exception(const Fault& fault);
[[noreturn]] void raise_fault(const Fault& fault);
inline void raise_if(const Fault& fault) {
  if (fault) raise_fault(fault);
}

// A precondition of the Python caller.
inline void check(bool condition, const char* message) {
  if (!condition) throw nb::value_error(message);
}

// Releases the GIL during its lifetime.
//
// At interpreter exit, Python before 3.14 ends a daemon thread that acquires the GIL by unwinding
// its stack, which terminates a C++ process. Such a thread sleeps here until the process ends.
class GilReleased {
 public:
  GilReleased() noexcept : state_(PyEval_SaveThread()) {}
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;
  ~GilReleased() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }

 private:
  PyThreadState* state_;
};

// A bytes-like object, held during the lifetime of the view.
class View {
 public:
  explicit View(nb::handle object, int flags = PyBUF_SIMPLE) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, flags) != 0) throw nb::python_error();
  }
  // Takes ownership of a buffer. The struct may be moved, so that pointers into it (a shape of
  // bytes is one) must be read before.
  explicit View(const Py_buffer& buffer) noexcept : buffer_(buffer) {}
  View(View&& other) noexcept : buffer_(std::exchange(other.buffer_, Py_buffer{})) {}
  View& operator=(View&&) = delete;
  ~View() {
    if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
  }

  std::uint8_t* data() const noexcept { return static_cast<std::uint8_t*>(buffer_.buf); }
  std::size_t size() const noexcept { return static_cast<std::size_t>(buffer_.len); }

 private:
  Py_buffer buffer_{};
};

template <class T>
using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// A one-dimensional array argument; other objects raise TypeError.
template <class T>
using ArrayArg = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Checks the offsets of consecutive strings in a buffer of `size` bytes; returns their number.
inline std::size_t check_offsets(const ArrayArg<std::int64_t>& offsets, std::size_t size) {
  check(offsets.size() >= 1, "offsets must not be empty");
  const std::size_t rows = offsets.size() - 1;
  for (std::size_t i = 0; i < rows; ++i) {
    check(offsets(i) >= 0 && offsets(i) <= offsets(i + 1), "offsets must not decrease");
  }
  check(static_cast<std::uint64_t>(offsets(rows)) <= size, "an offset is out of range");
  return rows;
}

template <class T>
Array<T> to_numpy(Buffer<T>&& buffer) {
  const std::size_t size = buffer.size();
  T* const data = buffer.release();
  nb::capsule owner(data, [](void* memory) noexcept { std::free(memory); });
  return Array<T>(data, {size}, owner);
}

}  // namespace covey
