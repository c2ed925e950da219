// Random access to rows of an array in memory: numpy's `x[ids]` with prefetching.
#include "../rows.h"

#include "support.h"

namespace covey {

void register_rows(nb::module_& m) {
  m.def(
      "take_rows",
      [](nb::handle rows, std::size_t row_bytes, ArrayArg<std::int64_t> numbers, nb::handle out) {
        const View from(rows, PyBUF_C_CONTIGUOUS);
        const View to(out, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS);
        const std::size_t count = numbers.shape(0);
        check(row_bytes >= 1 && from.size() % row_bytes == 0, "rows are not whole");
        check(to.size() / row_bytes == count && to.size() % row_bytes == 0, "one row per number");
        const std::size_t there = from.size() / row_bytes;
        const std::int64_t* const ids = numbers.data();
        for (std::size_t i = 0; i < count; ++i) {
          if (ids[i] < 0 || static_cast<std::uint64_t>(ids[i]) >= there) {
            throw nb::index_error("there is no such row");
          }
        }
        const GilReleased released;
        take_rows(from.data(), row_bytes, ids, count, to.data());
      },
      nb::arg("rows"), nb::arg("row_bytes"), nb::arg("numbers"), nb::arg("out"),
      nb::sig("def take_rows(rows: Buffer, row_bytes: int, numbers: NDArray[int64], "
              "out: NDArray[Any]) -> None"),
      "Copy the rows at these indexes to `out`.");
}

}  // namespace covey
