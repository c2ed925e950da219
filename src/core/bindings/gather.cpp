#include "gather.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <functional>
#include <new>

namespace covey {
namespace {

// Records as bytes objects. `check` is called after the read and may replace its fault.
nb::list to_bytes(const std::vector<Bytes>& records, bool verify,
                  const std::function<Fault(const Fault&)>& check) {
  Fault fault;
  {
    const GilReleased released;
    for (std::size_t i = 0; verify && i < records.size() && !fault; ++i) {
      fault = verify_header(records[i].begin, records[i].size());
      if (!fault) fault = verify_data(records[i].begin, records[i].size());
      fault.row = i;
    }
  }
  nb::list result;
  for (std::size_t i = 0; !fault && i < records.size(); ++i) {
    const Bytes& record = records[i];
    result.append(nb::bytes(reinterpret_cast<const char*>(record.begin), record.size()));
  }
  raise_if(check(fault));
  return result;
}

std::shared_ptr<const Mapping> map(const ShardFile& file, bool keep_open, bool scattered) {
  Mapping::Options options;
  options.path = file.path;
  options.keep_open = keep_open;
  options.scattered = scattered;
  options.fingerprint = file.fingerprint;
  auto mapping = std::make_shared<const Mapping>(file.descriptor, file.size, options);
  if (mapping->error() > 0) {
    errno = mapping->error();
    const nb::bytes path(file.path.data(), file.path.size());
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path.ptr());
    throw nb::python_error();
  }
  if (mapping->error() != 0) {
    raise_fault({.code = FaultCode::changed, .offset = file.shard, .expected = file.size});
  }
  return mapping;
}

RowTables tables_of(nb::tuple given) {
  std::vector<RowTable> tables;
  std::size_t records = 0, shards = 0;
  for (nb::handle each : given) {
    RowTable table = nb::cast<const PyRowTable&>(each).table;
    table.first_record = records;
    table.first_shard = shards;
    records += table.count;
    shards += table.shards;
    tables.push_back(table);
  }
  return RowTables(std::move(tables));
}

}  // namespace

RowFields row_fields(nb::handle dtype) {
  RowFields result;
  RowTable& table = result.table;
  table.stride = nb::cast<std::size_t>(dtype.attr("itemsize"));
  const nb::object fields = dtype.attr("fields");
  check(table.stride > 0 && !fields.is_none(), "rows need a structured dtype");
  const auto find = [&](const char* name, std::size_t size) -> std::optional<std::size_t> {
    const nb::object field = fields.attr("get")(name);
    if (field.is_none()) return std::nullopt;
    check(nb::cast<std::size_t>(field[0].attr("itemsize")) == size, "a field has the wrong size");
    const auto offset = nb::cast<std::size_t>(field[1]);
    check(size <= table.stride && offset <= table.stride - size, "a field exceeds its row");
    return offset;
  };
  const auto shard = find("shard", 4), length = find("length", 4), offset = find("offset", 8);
  check(shard && length && offset, "a field is missing");
  table.shard = *shard;
  table.length = *length;
  table.offset = *offset;
  const auto label = find("label", 8);
  table.labelled = label.has_value();
  table.label = label.value_or(0);
  result.inner_offset = find("inner_offset", 8);
  return result;
}

PyGather::PyGather(nb::list tables) : held_(tables), tables_(tables_of(held_)) {
  shards_ = std::make_shared<const Mappings>(tables_.shards());
}

std::shared_ptr<const Mappings> PyGather::shards() const {
  const std::lock_guard guard(lock_);
  return shards_;
}

void PyGather::set_shards(const std::vector<ShardFile>& files, bool keep_open, bool scattered) {
  Mappings shards = *this->shards();
  for (const ShardFile& file : files) {
    if (file.shard >= shards.size()) throw nb::index_error("shard index out of range");
    shards[file.shard] = map(file, keep_open, scattered);
  }
  auto replacement = std::make_shared<const Mappings>(std::move(shards));
  const std::lock_guard guard(lock_);
  shards_.swap(replacement);
}

std::vector<std::size_t> PyGather::missing(ArrayArg<std::int64_t> ids) const {
  return tables_.missing(ids.data(), ids.shape(0), *shards());
}

nb::list PyGather::decode(const PyDecoder& decoder, ArrayArg<std::int64_t> ids, int check,
                          std::ptrdiff_t label, nb::list dense) const {
  const Check parsed = parse_check(check);
  if (label >= 0 && !decoder.is_one_int64(static_cast<std::size_t>(label))) {
    throw nb::value_error("the label must be a column of one int64");
  }
  const auto held = shards();
  Located located;
  raise_if(locate(ids, *held, located));
  const auto also = [&](const std::vector<ColumnOut>& out, Fault fault) -> Fault {
    if (!fault && label >= 0) {
      const void* const labels = out[static_cast<std::size_t>(label)].dense;
      fault =
          tables_.check_labels(ids.data(), ids.shape(0), static_cast<const std::int64_t*>(labels));
    }
    return tables_.check_read(located, *held, fault);
  };
  return decoder.run(located.records, parsed, dense, also);
}

nb::list PyGather::slice(ArrayArg<std::int64_t> ids, bool verify) const {
  const auto held = shards();
  Located located;
  raise_if(locate(ids, *held, located));
  return to_bytes(located.records, verify,
                  [&](const Fault& fault) { return tables_.check_read(located, *held, fault); });
}

Fault PyGather::locate(const ArrayArg<std::int64_t>& ids, const Mappings& shards,
                       Located& located) const {
  const GilReleased released;
  const Fault fault = tables_.locate(ids.data(), ids.shape(0), shards, located);
  const bool is_cause = fault.code == FaultCode::unmapped || fault.code == FaultCode::row;
  return !fault || is_cause ? fault : tables_.check_read(located, shards, fault);
}

void register_gather(nb::module_& m) {
  m.def(
      "read_records",
      [](nb::list buffers, nb::handle sources, ArrayArg<std::uint64_t> offsets,
         ArrayArg<std::uint64_t> lengths, bool verify) {
        const Records records =
            from_buffers(buffers, sources, offsets, lengths, kHeaderBytes, kFooterBytes);
        return to_bytes(records.bytes, verify, [](const Fault& fault) { return fault; });
      },
      nb::arg("buffers"), nb::arg("sources").none(), nb::arg("offsets"), nb::arg("lengths"),
      nb::arg("verify"),
      nb::sig("def read_records(buffers: list[Any], sources: NDArray[uint32] | None, "
              "offsets: NDArray[uint64], lengths: NDArray[uint64], verify: bool) -> list[bytes]"),
      "Return records that are stored in buffers, each in its frame, as bytes.");

  nb::class_<PyRowTable>(m, "RowTable", "The rows of the index of one split.")
      .def(
          "__init__",
          [](PyRowTable* self, nb::handle rows, std::size_t shards, bool single_stream) {
            const RowFields fields = row_fields(rows.attr("dtype"));
            RowTable table = fields.table;
            if (single_stream) {
              check(fields.inner_offset.has_value(), "rows need `inner_offset`");
              table.offset = *fields.inner_offset;
            }
            View view(rows);
            table.rows = view.data();
            table.count = view.size() / table.stride;
            table.shards = shards;
            new (self) PyRowTable{std::move(view), table};
          },
          nb::arg("rows"), nb::kw_only(), nb::arg("shards"), nb::arg("single_stream"),
          nb::sig("def __init__(self, rows: NDArray[Any], *, shards: int, single_stream: bool) -> None"),
          "`shards` is the number of shards. If `single_stream`, records are addressed by `inner_offset`, the "
          "position in the decompressed shard.");

  nb::class_<ShardFile>(m, "ShardFile", "An open file of a shard, to be mapped.")
      .def(
          "__init__",
          [](ShardFile* self, std::size_t shard, nb::bytes path, int descriptor, std::size_t size,
             std::optional<std::uint32_t> fingerprint) {
            new (self) ShardFile{shard, std::string(path.c_str(), path.size()), descriptor, size,
                                 fingerprint};
          },
          nb::kw_only(), nb::arg("shard"), nb::arg("path"), nb::arg("descriptor"), nb::arg("size"),
          nb::arg("fingerprint").none(),
          nb::sig("def __init__(self, *, shard: int, path: bytes, descriptor: int, size: int, "
                  "fingerprint: int | None) -> None"));

  nb::class_<PyGather>(m, "Gather", "Random access to the records of an index.")
      .def(nb::init<nb::list>(), nb::arg("tables"),
           nb::sig("def __init__(self, tables: list[RowTable]) -> None"))
      .def("set_shards", &PyGather::set_shards, nb::arg("files"), nb::kw_only(),
           nb::arg("keep_open"), nb::arg("scattered"),
           nb::sig("def set_shards(self, files: Sequence[ShardFile], *, keep_open: bool, "
                   "scattered: bool) -> None"),
           "Map the files of shards into memory.")
      .def(
          "missing",
          [](const PyGather& gather, ArrayArg<std::int64_t> ids) {
            nb::list shards;
            for (std::size_t each : gather.missing(ids)) shards.append(each);
            return shards;
          },
          nb::arg("ids"), nb::sig("def missing(self, ids: NDArray[int64]) -> list[int]"),
          "Return the shards of records that are not mapped.")
      .def("decode", &PyGather::decode, nb::arg("decoder"), nb::arg("ids"), nb::arg("check"),
           nb::arg("label"), nb::arg("dense"),
           nb::sig("def decode(self, decoder: Decoder, ids: NDArray[int64], check: int, "
                   "label: int, dense: list[NDArray[Any] | None]) -> list[GrownColumn | None]"),
           "Decode records like `Decoder.decode_buffers`; if `label` is not -1, compare that column "
           "with the rows.")
      .def("slice", &PyGather::slice, nb::arg("ids"), nb::arg("verify"),
           nb::sig("def slice(self, ids: NDArray[int64], verify: bool) -> list[bytes]"),
           "Return records as bytes.");
}

}  // namespace covey
