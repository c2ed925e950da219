
#include "../decode.h"
#include "../frames.h"
#include "columns.h"
#include "places.h"

namespace covey {
namespace {

// The arrays that a layout does not have were never begun.
nb::object maybe(Buffer<std::int64_t>& buffer) {
  if (buffer.size() == 0) return nb::none();
  return nb::cast(to_numpy(std::move(buffer)));
}

class PyDecoder {
 public:
  explicit PyDecoder(nb::list specs) : decoder_(plain_columns(column_specs(specs))) {}

  nb::list decode(nb::list records, nb::list dense) const {
    return run(from_list(records), false, dense);
  }

  nb::list decode_places(nb::list buffers, nb::handle sources, ArrayArg<std::uint64_t> offsets,
                         ArrayArg<std::uint64_t> lengths, bool verify, nb::list dense) const {
    const std::size_t footer = verify ? kFooterBytes : 0;
    return run(from_buffers(buffers, sources, offsets, lengths, 0, footer), verify, dense);
  }

 private:
  nb::list run(const Records& records, bool verify, nb::list dense) const {
    const std::vector<Column>& columns = decoder_.columns();
    if (dense.size() != columns.size()) throw nb::value_error("one item per column");
    std::vector<ColumnOut> out(columns.size());
    std::vector<View> views;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const bool wants =
          columns[c].layout == Layout::fixed && columns[c].element != Element::string;
      if (!wants) continue;
      views.emplace_back(dense[c], PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS);
      // count * size is below 2^31 and there are fewer records than bytes: no overflow.
      const std::size_t row = columns[c].count * element_size(columns[c].element);
      if (views.back().size() != row * records.places.size()) {
        throw nb::value_error("a dense column has the wrong size");
      }
      out[c].dense = views.back().data();
    }
    Fault fault;
    {
      nb::gil_scoped_release release;
      fault = decoder_.decode(records.places, verify, out);
    }
    raise_if(fault);
    nb::list result;
    for (ColumnOut& column : out) {
      if (column.dense != nullptr) {
        result.append(nb::none());
        continue;
      }
      result.append(nb::make_tuple(to_numpy(std::move(column.values)), maybe(column.offsets),
                                   maybe(column.row_splits), maybe(column.step_splits)));
    }
    return result;
  }

  Decoder decoder_;
};

}  // namespace

void register_decoder(nb::module_& m) {
  nb::class_<PyDecoder>(m, "Decoder", "Records to columns.")
      .def(nb::init<nb::list>(), nb::arg("columns"),
           nb::sig("def __init__(self, columns: list[ColumnTuple]) -> None"))
      .def("decode", &PyDecoder::decode, nb::arg("records"), nb::arg("dense"),
           nb::sig("def decode(self, records: list[bytes], dense: list[NDArray[Any] | None]) -> "
                   "list[GrownColumn | None]"),
           "Decodes records: fixed numbers into the given arrays, the rest into the returned "
           "(values, offsets, row_splits, step_splits).")
      .def("decode_places", &PyDecoder::decode_places, nb::arg("buffers"),
           nb::arg("sources").none(), nb::arg("offsets"), nb::arg("lengths"), nb::arg("verify"),
           nb::arg("dense"),
           nb::sig("def decode_places(self, buffers: list[Any], "
                   "sources: NDArray[uint32] | None, offsets: NDArray[uint64], "
                   "lengths: NDArray[uint64], verify: bool, "
                   "dense: list[NDArray[Any] | None]) -> list[GrownColumn | None]"),
           "The same for records that lie in buffers, with their frames' checksums if `verify`.");
}

}  // namespace covey
