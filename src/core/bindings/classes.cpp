// Sorts record ids by class: a counting sort, one pass over many records.
#include "support.h"

namespace covey {
namespace {

template <class T>
using ArrayOut = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Writes each record id to the next position of its class.
template <class Number>
bool sort(const ArrayArg<std::uint32_t>& which, const ArrayOut<std::uint64_t>& next,
          std::uint64_t first, Number* out, std::size_t room) {
  const std::uint32_t* const classes = which.data();
  std::uint64_t* const places = next.data();
  for (std::size_t i = 0; i < which.shape(0); ++i) {
    if (classes[i] >= next.shape(0) || places[classes[i]] >= room) return false;
    out[places[classes[i]]++] = static_cast<Number>(first + i);
  }
  return true;
}

}  // namespace

void register_classes(nb::module_& m) {
  m.def(
      "sort_by_class",
      [](ArrayArg<std::uint32_t> which, ArrayOut<std::uint64_t> next, std::uint64_t first,
         nb::handle out) {
        const View view(out, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS);
        const auto size = nb::cast<std::size_t>(out.attr("itemsize"));
        if (size != 4 && size != 8) throw nb::value_error("numbers have 4 or 8 bytes");
        void* const numbers = view.data();
        const std::size_t room = view.size() / size;
        bool fits;
        {
          const GilReleased released;
          fits = size == 4 ? sort(which, next, first, static_cast<std::uint32_t*>(numbers), room)
                           : sort(which, next, first, static_cast<std::uint64_t*>(numbers), room);
        }
        if (!fits) throw nb::value_error("there is no room for all records of a class");
      },
      nb::arg("which"), nb::arg("next"), nb::arg("first"), nb::arg("out"),
      nb::sig("def sort_by_class(which: NDArray[uint32], next: NDArray[uint64], first: int, "
              "out: NDArray[Any]) -> None"),
      "Write the record ids from `first` on, each to the next position of its class, and advance "
      "`next`.");
}

}  // namespace covey
