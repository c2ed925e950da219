
#include "../decode.h"
#include "../frames.h"
#include "columns.h"
#include "support.h"

namespace covey {
namespace {

// Where records lie: bytes objects, or places in buffers.
struct Records {
  std::vector<Bytes> places;
  std::vector<View> views;
};

Records from_list(nb::list list) {
  Records records;
  records.places.reserve(list.size());
  records.views.reserve(list.size());
  for (nb::handle each : list) {
    records.views.emplace_back(each);
    const View& view = records.views.back();
    records.places.push_back({view.data(), view.data() + view.size()});
  }
  return records;
}

// `footer` is how many bytes must follow each record.
Records from_buffers(nb::list buffers, nb::handle sources, ArrayArg<std::uint64_t> offsets,
                     ArrayArg<std::uint64_t> lengths, std::size_t footer) {
  Records records;
  for (nb::handle each : buffers) records.views.emplace_back(each);
  const std::size_t count = offsets.shape(0);
  if (lengths.shape(0) != count) throw nb::value_error("offsets and lengths differ");
  const std::uint32_t* source = nullptr;
  ArrayArg<std::uint32_t> source_array;
  if (!sources.is_none()) {
    source_array = nb::cast<ArrayArg<std::uint32_t>>(sources);
    if (source_array.shape(0) != count) throw nb::value_error("offsets and sources differ");
    source = source_array.data();
  }
  records.places.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t which = source == nullptr ? 0 : source[i];
    const std::uint64_t offset = offsets.data()[i], length = lengths.data()[i];
    const std::size_t size = which < records.views.size() ? records.views[which].size() : 0;
    if (which >= records.views.size() || offset > size || length > size - offset ||
        footer > size - offset - length) {
      Fault fault;
      fault.code = FaultCode::out_of_bounds;
      fault.row = i;
      fault.offset = offset;
      fault.found = length;
      fault.expected = size;
      raise_if(fault);
    }
    const std::uint8_t* const begin = records.views[which].data() + offset;
    records.places[i] = {begin, begin + length};
  }
  return records;
}

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
    return run(from_buffers(buffers, sources, offsets, lengths, verify ? kFooterBytes : 0), verify,
               dense);
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
