#include "encoder.h"

#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

namespace covey {

void register_encoder(nb::module_& m) {
  nb::class_<ColumnSet>(m, "ColumnSet", "Checked columns, ready to be encoded.");

  nb::class_<PyEncoder>(m, "Encoder", "Encoder of examples to records.")
      .def(nb::init<std::vector<ColumnSpec>>(), nb::arg("columns"),
           nb::sig("def __init__(self, columns: Sequence[ColumnSpec]) -> None"))
      .def("encode_example", &PyEncoder::encode_example, nb::arg("example"), nb::arg("coerce"),
           nb::sig("def encode_example(self, example: dict[str, Any], "
                   "coerce: Callable[[int, Any], Any]) -> bytes"),
           "Return the record of one example.")
      .def("columns", &PyEncoder::columns, nb::arg("columns"), nb::arg("rows"),
           nb::sig("def columns(self, columns: list[Any], rows: int) -> ColumnSet"),
           "Check columns of `rows` rows.")
      .def("encode", &PyEncoder::encode, nb::arg("columns"), nb::arg("begin"), nb::arg("end"),
           nb::arg("bytes"),
           nb::sig("def encode(self, columns: ColumnSet, begin: int, end: int, bytes: int) -> "
                   "tuple[NDArray[uint8], NDArray[uint64], NDArray[uint64]]"),
           "Return frames of the rows [begin, end), until they have `bytes` bytes: "
           "(data, offsets, lengths).")
      .def("encode_rows", &PyEncoder::encode_rows, nb::arg("columns"), nb::arg("rows"),
           nb::sig("def encode_rows(self, columns: ColumnSet, rows: NDArray[uint64]) -> "
                   "tuple[NDArray[uint8], NDArray[uint64], NDArray[uint64]]"),
           "Return the frames of rows, in this order: (data, offsets, lengths).")
      .def("measure", &PyEncoder::measure, nb::arg("columns"),
           nb::sig("def measure(self, columns: ColumnSet) -> NDArray[uint64]"),
           "Return the record lengths of all rows.");
}

}  // namespace covey
