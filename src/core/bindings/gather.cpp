#include "gather.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

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

// Maps a file; `error()` of the result is -1 also if the file cannot be opened.
std::shared_ptr<const Mapping> map_file(const ShardFile& file, const Mapping::Options& options) {
  const int descriptor = file.descriptor < 0 ? open_file(file.path) : file.descriptor;
  if (descriptor < 0) return nullptr;
  auto mapping = std::make_shared<const Mapping>(descriptor, file.size, options);
  if (file.descriptor < 0) close(descriptor);
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

void PyGather::map(const std::vector<ShardFile>& files, bool scattered, std::size_t limit) {
  const std::size_t count = tables_.shards();
  std::vector<std::shared_ptr<const Mapping>> mapped;
  int error = 0;
  {
    const GilReleased released;
    for (const ShardFile& file : files) {
      auto mapping = map_file(file, {file.path, scattered, file.fingerprint, limit});
      error = mapping == nullptr ? -1 : mapping->error();
      if (error != 0) break;
      mapped.push_back(std::move(mapping));
    }
    const std::lock_guard guard(lock_);
    Mappings shards = *shards_;
    for (std::size_t i = 0; i < mapped.size(); ++i) {
      if (files[i].shard < count) shards[files[i].shard] = std::move(mapped[i]);
    }
    shards_ = std::make_shared<const Mappings>(std::move(shards));
  }
  if (error == 0) return;
  const ShardFile& failed = files[mapped.size()];
  if (error < 0) {
    raise_fault({.code = FaultCode::changed, .offset = failed.shard, .expected = failed.size});
  }
  errno = error;
  const nb::bytes path(failed.path.data(), failed.path.size());
  PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path.ptr());
  throw nb::python_error();
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
      "file_states",
      [](nb::list paths) {
        std::vector<std::string> names;
        for (nb::handle each : paths) {
          const nb::bytes path = nb::cast<nb::bytes>(each);
          names.emplace_back(path.c_str(), path.size());
        }
        std::vector<std::optional<FileState>> states;
        {
          const GilReleased released;
          for (const std::string& name : names) states.push_back(file_state(name));
        }
        nb::list result;
        for (const std::optional<FileState>& each : states) {
          if (each) {
            result.append(
                nb::make_tuple(each->size, each->modified, each->inode, each->fingerprint));
          } else {
            result.append(nb::none());
          }
        }
        return result;
      },
      nb::arg("paths"),
      nb::sig("def file_states(paths: list[bytes]) -> list[tuple[int, int, int, int] | None]"),
      "Return the size, modification time in ns, inode and fingerprint of each file; None for one "
      "that is missing, not regular or cannot be read.");
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
          [](PyRowTable* self, nb::handle rows, std::size_t shards) {
            RowTable table = row_fields(rows.attr("dtype")).table;
            View view(rows);
            table.rows = view.data();
            table.count = view.size() / table.stride;
            table.shards = shards;
            new (self) PyRowTable{std::move(view), table};
          },
          nb::arg("rows"), nb::kw_only(), nb::arg("shards"),
          nb::sig("def __init__(self, rows: NDArray[Any], *, shards: int) -> None"),
          "`shards` is the number of shards.");

  nb::class_<ShardFile>(m, "ShardFile", "The file of a shard, to be mapped.")
      .def(
          "__init__",
          [](ShardFile* self, std::size_t shard, nb::bytes path, std::size_t size,
             std::optional<std::uint32_t> fingerprint, int descriptor) {
            new (self) ShardFile{shard, std::string(path.c_str(), path.size()), size, descriptor,
                                 fingerprint};
          },
          nb::arg("shard"), nb::arg("path"), nb::arg("size"), nb::arg("fingerprint").none(),
          nb::arg("descriptor") = -1,
          nb::sig("def __init__(self, shard: int, path: bytes, size: int, "
                  "fingerprint: int | None, descriptor: int = -1) -> None"),
          "`descriptor` refers to the open file, if it is open.");

  nb::class_<PyGather>(m, "Gather", "Random access to the records of an index.")
      .def(nb::init<nb::list>(), nb::arg("tables"),
           nb::sig("def __init__(self, tables: list[RowTable]) -> None"))
      .def(
          "map", &PyGather::map, nb::arg("files"), nb::kw_only(), nb::arg("scattered"),
          nb::arg("limit"),
          nb::sig("def map(self, files: Sequence[ShardFile], *, scattered: bool, limit: int) -> "
                  "None"),
          "Map the files of shards into memory. Raises Fault(\"changed\", offset=shard) for a file "
          "that cannot be opened or has another size or fingerprint, and OSError for one that "
          "cannot be mapped, with ENOMEM if `limit` shards are mapped in this process.")
      .def(
          "missing",
          [](const PyGather& gather, ArrayArg<std::int64_t> ids) {
            nb::list shards;
            for (std::size_t each : gather.missing(ids)) shards.append(each);
            return shards;
          },
          nb::arg("ids"), nb::sig("def missing(self, ids: NDArray[int64]) -> list[int]"),
          "Return the shards of records that are not mapped.")
      .def(
          "decode", &PyGather::decode, nb::arg("decoder"), nb::arg("ids"), nb::arg("check"),
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
