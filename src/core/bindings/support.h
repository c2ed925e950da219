// Shared by the bindings. Only this directory uses Python: it checks arguments, releases the GIL,
// calls the core, and returns numpy arrays without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <optional>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "../frames.h"

namespace nb = nanobind;

namespace covey {

void register_frames(nb::module_& m);
void register_columns(nb::module_& m);
void register_encoder(nb::module_& m);
void register_reading(nb::module_& m);
void register_plan(nb::module_& m);
void register_prefetcher(nb::module_& m);
void register_images(nb::module_& m);

// The exception `covey._core.Fault`, with the fields of the struct as attributes.
nb::object to_exception(const Fault& fault);
[[noreturn]] void raise_fault(const Fault& fault);
inline void raise_if(const Fault& fault) {
  if (fault) raise_fault(fault);
}

// A precondition of the Python caller.
inline void check(bool condition, const char* message) {
  if (!condition) throw nb::value_error(message);
}

// The value of an enumeration whose values, from `first` on, have these names.
template <class Enum, std::size_t N>
Enum parse(const std::string_view (&names)[N], std::string_view name, const char* what,
           int first = 0) {
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == name) return static_cast<Enum>(static_cast<int>(i) + first);
  }
  throw nb::value_error(what);
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

// Returns the result of `f`, which is called without the GIL.
template <class F>
auto without_gil(F&& f) {
  const GilReleased released;
  return f();
}

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
  Bytes bytes() const noexcept { return {data(), data() + size()}; }

 private:
  Py_buffer buffer_{};
};

// Types of arguments and results, from which nanobind generates the signatures.
using List = nb::typed<nb::list, nb::any>;
using Dict = nb::typed<nb::dict, nb::str, nb::any>;
template <class T>
using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// A one-dimensional array argument; other objects raise TypeError.
template <class T>
using ArrayArg = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
Array<T> to_numpy(Buffer<T>&& buffer) {
  const std::size_t size = buffer.size();
  T* const data = buffer.release();
  nb::capsule owner(data, [](void* memory) noexcept { std::free(memory); });
  return Array<T>(data, {size}, owner);
}

// (data, offsets, lengths)
using FrameArrays = std::tuple<Array<std::uint8_t>, Array<std::uint64_t>, Array<std::uint64_t>>;

// The frames, which are then empty.
inline FrameArrays take(Frames& frames) {
  Frames taken = std::exchange(frames, {});
  return {to_numpy(std::move(taken.data)), to_numpy(std::move(taken.offsets)),
          to_numpy(std::move(taken.lengths))};
}

// Records that Python passes.
struct Records {
  std::vector<Bytes> bytes;
  std::vector<View> views;  // keep the memory alive
};

using Sources = std::optional<ArrayArg<std::uint32_t>>;

// Ranges of buffers, of which `sources` has the index (default: the first). Checks that each is
// inside its buffer, with `header` bytes before and `footer` after it.
Records records_of(nb::list buffers, const Sources& sources, const ArrayArg<std::uint64_t>& offsets,
                   const ArrayArg<std::uint64_t>& lengths, std::size_t header = 0,
                   std::size_t footer = 0);

// Records as bytes objects. If `verify`, their frames are verified first. `check` is called after
// the read and may replace its fault.
template <class CheckRead>
nb::typed<nb::list, nb::bytes> to_bytes(const std::vector<Bytes>& records, bool verify,
                                        CheckRead&& check) {
  Fault fault;
  if (verify) {
    const GilReleased released;
    for (std::size_t i = 0; i < records.size() && !fault; ++i) {
      fault = verify_header(records[i].begin, records[i].size());
      if (!fault) fault = verify_data(records[i].begin, records[i].size());
      fault.row = i;
    }
  }
  const std::size_t count = fault ? 0 : records.size();
  nb::list result = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!result.is_valid()) throw nb::python_error();
  for (std::size_t i = 0; i < count; ++i) {
    nb::bytes record(records[i].begin, records[i].size());
    PyList_SET_ITEM(result.ptr(), static_cast<Py_ssize_t>(i), record.release().ptr());
  }
  raise_if(check(fault));
  return result;
}

}  // namespace covey
