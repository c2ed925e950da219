#include "encoder.h"

#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

namespace covey {

void register_encoder(nb::module_& m) {
  nb::class_<ColumnSet>(m, "ColumnSet", "Columns that were checked, ready to be encoded.");

  nb::class_<PyEncoder>(m, "Encoder", "Examples to records.")
      .def(nb::init<std::vector<ColumnSpec>>(), nb::arg("columns"),
           nb::sig("def __init__(self, columns: Sequence[ColumnSpec]) -> None"))
      .def("encode_example", &PyEncoder::encode_example, nb::arg("example"), nb::arg("coerce"),
           nb::sig("def encode_example(self, example: dict[str, Any], "
                   "coerce: Callable[[int, Any], Any]) -> bytes"),
           "The record of one example.")
      .def("columns", &PyEncoder::columns, nb::arg("columns"), nb::arg("rows"),
           nb::sig("def columns(self, columns: list[Any], rows: int) -> ColumnSet"),
           "Checks columns of so many rows.")
      .def("encode", &PyEncoder::encode, nb::arg("columns"), nb::arg("begin"), nb::arg("end"),
           nb::arg("bytes"),
           nb::sig("def encode(self, columns: ColumnSet, begin: int, end: int, bytes: int) -> "
                   "tuple[NDArray[uint8], NDArray[uint64], NDArray[uint64]]"),
           "Frames of rows [begin, end), as many as begin within so many bytes: "
           "(data, offsets, lengths).")
      .def("encode_rows", &PyEncoder::encode_rows, nb::arg("columns"), nb::arg("rows"),
           nb::sig("def encode_rows(self, columns: ColumnSet, rows: NDArray[uint64]) -> "
                   "tuple[NDArray[uint8], NDArray[uint64], NDArray[uint64]]"),
           "Frames of these rows, in this order: (data, offsets, lengths).")
      .def("measure", &PyEncoder::measure, nb::arg("columns"),
           nb::sig("def measure(self, columns: ColumnSet) -> NDArray[uint64]"),
           "The lengths that the records of all rows will have.");
}

}  // namespace covey
