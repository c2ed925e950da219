#include "decoder.h"

#include <nanobind/stl/vector.h>

namespace covey {
namespace {

// The arrays that a layout does not have were never begun.
nb::object maybe(Buffer<std::int64_t>& buffer) {
  if (buffer.size() == 0) return nb::none();
  return nb::cast(to_numpy(std::move(buffer)));
}

Fault nothing_more(const std::vector<ColumnOut>&, const Fault& fault) { return fault; }

}  // namespace

Check parse_check(int check) {
  if (check < 0 || check > 2) throw nb::value_error("check must be 0, 1 or 2");
  return static_cast<Check>(check);
}

PyDecoder::PyDecoder(const std::vector<ColumnSpec>& specs) : decoder_(plain_columns(specs)) {}

nb::list PyDecoder::decode(nb::list records, nb::list dense) const {
  const Records found = from_list(records);
  return run(found.bytes, Check::nothing, dense, nothing_more);
}

nb::list PyDecoder::decode_buffers(nb::list buffers, nb::handle sources,
                                  ArrayArg<std::uint64_t> offsets, ArrayArg<std::uint64_t> lengths,
                                  int check, nb::list dense) const {
  const Check wanted = parse_check(check);
  const std::size_t header = wanted == Check::frame ? kHeaderBytes : 0;
  const std::size_t footer = wanted == Check::nothing ? 0 : kFooterBytes;
  const Records found = from_buffers(buffers, sources, offsets, lengths, header, footer);
  return run(found.bytes, wanted, dense, nothing_more);
}

bool PyDecoder::is_one_int64(std::size_t column) const noexcept {
  if (column >= decoder_.columns().size()) return false;
  const Column& found = decoder_.columns()[column];
  return found.layout == Layout::fixed && found.element == Element::int64 && found.count == 1;
}

std::vector<View> PyDecoder::prepare(std::size_t rows, nb::list dense,
                                     std::vector<ColumnOut>& out) const {
  const std::vector<Column>& columns = decoder_.columns();
  if (dense.size() != columns.size()) throw nb::value_error("one item per column");
  std::vector<View> views;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const bool wants = columns[c].layout == Layout::fixed && columns[c].element != Element::string;
    if (!wants) continue;
    views.emplace_back(dense[c], PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS);
    // count * size is below 2^31 and there are fewer records than bytes: no overflow.
    const std::size_t row = columns[c].count * element_size(columns[c].element);
    if (views.back().size() != row * rows) {
      throw nb::value_error("a dense column has the wrong size");
    }
    out[c].dense = views.back().data();
  }
  return views;
}

nb::list PyDecoder::grown(std::vector<ColumnOut>& out) {
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

void register_decoder(nb::module_& m) {
  m.attr("CHECK_NOTHING") = static_cast<int>(Check::nothing);
  m.attr("CHECK_DATA") = static_cast<int>(Check::data);
  m.attr("CHECK_FRAME") = static_cast<int>(Check::frame);

  nb::class_<PyDecoder>(m, "Decoder", "Records to columns.")
      .def(nb::init<const std::vector<ColumnSpec>&>(), nb::arg("columns"),
           nb::sig("def __init__(self, columns: Sequence[ColumnSpec]) -> None"))
      .def("decode", &PyDecoder::decode, nb::arg("records"), nb::arg("dense"),
           nb::sig("def decode(self, records: list[bytes], dense: list[NDArray[Any] | None]) -> "
                   "list[GrownColumn | None]"),
           "Decodes records: fixed numbers into the given arrays, the rest into the returned "
           "(values, offsets, row_splits, step_splits).")
      .def("decode_buffers", &PyDecoder::decode_buffers, nb::arg("buffers"),
           nb::arg("sources").none(), nb::arg("offsets"), nb::arg("lengths"), nb::arg("check"),
           nb::arg("dense"),
           nb::sig("def decode_buffers(self, buffers: list[Any], "
                   "sources: NDArray[uint32] | None, offsets: NDArray[uint64], "
                   "lengths: NDArray[uint64], check: int, "
                   "dense: list[NDArray[Any] | None]) -> list[GrownColumn | None]"),
           "The same for records that lie in buffers, of whose frames as much is checked as "
           "`check` says.");
}

}  // namespace covey
