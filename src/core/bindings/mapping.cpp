#include "../mapping.h"

#include <cerrno>
#include <memory>

#include "support.h"

namespace covey {
namespace {

using Bytes1d = nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>;

Bytes1d map_file(int descriptor, std::uint64_t begin, std::uint64_t end, bool sequential) {
  check(begin <= end, "begin is greater than end");
  const Access access = sequential ? Access::sequential : Access::normal;
  std::unique_ptr<MappedBytes> mapped;
  {
    const GilReleased released;
    mapped = std::make_unique<MappedBytes>(descriptor, begin, end - begin, access);
  }
  if (mapped->error() != 0) {
    errno = mapped->error();
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  const MappedBytes* const kept = mapped.release();
  nb::capsule owner(kept, [](void* memory) noexcept { delete static_cast<MappedBytes*>(memory); });
  return Bytes1d(kept->data(), {kept->size()}, owner);
}

}  // namespace

void register_mapping(nb::module_& m) {
  m.def("map_file", &map_file, nb::arg("descriptor"), nb::arg("begin"), nb::arg("end"),
        nb::arg("sequential"),
        nb::sig("def map_file(descriptor: int, begin: int, end: int, sequential: bool) -> "
                "NDArray[uint8]"),
        "Map a part of an open file into memory, read-only. If the file is truncated while it is "
        "mapped, missing bytes read as zeros and has_faulted() is true.");
  m.def(
      "has_faulted",
      [](nb::handle data) {
        if (fault_count() == 0) return false;
        const View view(data, PyBUF_STRIDES);
        return lies_in_fault(view.data());
      },
      nb::arg("data"), nb::sig("def has_faulted(data: Buffer) -> bool"),
      "Return whether memory of map_file() was read after its file was truncated. To be called "
      "after the read.");
  m.def(
      "release_pages",
      [] {
        const GilReleased released;
        release_pages();
      },
      "Remove the pages of all mapped files from the memory of this process; the next read maps "
      "them again.");
}

}  // namespace covey
