#include "gather.h"

#include <cerrno>
#include <functional>

namespace covey {
namespace {

// Records as bytes; `check` replaces the fault, if there is one, after they were read.
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

std::shared_ptr<const Mapping> map(nb::tuple fields, bool keep_open, bool scattered) {
  const nb::bytes path = nb::cast<nb::bytes>(fields[1]);
  const auto size = nb::cast<std::size_t>(fields[3]);
  Mapping::Options options;
  options.path = std::string(path.c_str(), path.size());
  options.keep_open = keep_open;
  options.scattered = scattered;
  if (!fields[4].is_none()) options.fingerprint = nb::cast<std::uint32_t>(fields[4]);
  auto mapping = std::make_shared<const Mapping>(nb::cast<int>(fields[2]), size, options);
  if (mapping->error() > 0) {
    errno = mapping->error();
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, fields[1].ptr());
    throw nb::python_error();
  }
  if (mapping->error() != 0) {
    Fault fault;
    fault.code = FaultCode::changed;
    fault.offset = nb::cast<std::size_t>(fields[0]);
    fault.expected = size;
    raise_if(fault);
  }
  return mapping;
}

bool inside(std::size_t field, std::size_t size, const RowTable& table) {
  return size <= table.stride && field <= table.stride - size;
}

}  // namespace

PyGather::PyGather(nb::list tables) : tables_(parse(tables)) {
  shards_ = std::make_shared<const Mappings>(tables_.shards());
}

std::shared_ptr<const Mappings> PyGather::shards() const {
  const std::lock_guard guard(lock_);
  return shards_;
}

void PyGather::set_shards(nb::list given, bool keep_open, bool scattered) {
  Mappings shards = *this->shards();
  for (nb::handle each : given) {
    const auto fields = nb::cast<nb::tuple>(each);
    const auto number = nb::cast<std::size_t>(fields[0]);
    if (number >= shards.size()) throw nb::index_error("there is no such shard");
    shards[number] = fields[1].is_none() ? nullptr : map(fields, keep_open, scattered);
  }
  auto others = std::make_shared<const Mappings>(std::move(shards));
  const std::lock_guard guard(lock_);
  shards_.swap(others);
}

std::vector<std::size_t> PyGather::missing(ArrayArg<std::int64_t> ids) const {
  return tables_.missing(ids.data(), ids.shape(0), *shards());
}

nb::list PyGather::decode(const PyDecoder& decoder, ArrayArg<std::int64_t> ids, int check,
                          std::ptrdiff_t label, nb::list dense) const {
  const Check wanted = parse_check(check);
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
  return decoder.run(located.records, wanted, dense, also);
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

RowTables PyGather::parse(nb::list given) {
  std::vector<RowTable> tables;
  std::size_t records = 0, shards = 0;
  for (nb::handle each : given) {
    const auto fields = nb::cast<nb::tuple>(each);
    if (fields.size() != 8) throw nb::value_error("a table has eight fields");
    const auto number = [&](int i) { return nb::cast<std::size_t>(fields[i]); };
    views_.emplace_back(fields[0]);
    RowTable table;
    table.rows = views_.back().data();
    table.count = number(1);
    table.stride = number(2);
    table.shard = number(3);
    table.length = number(4);
    table.offset = number(5);
    const auto label = nb::cast<std::ptrdiff_t>(fields[6]);
    table.labelled = label >= 0;
    table.label = table.labelled ? static_cast<std::size_t>(label) : 0;
    table.shards = number(7);
    table.first_record = records;
    table.first_shard = shards;
    records += table.count;
    shards += table.shards;
    const bool fits = table.stride > 0 && views_.back().size() / table.stride >= table.count &&
                      inside(table.shard, 4, table) && inside(table.length, 4, table) &&
                      inside(table.offset, 8, table) && inside(table.label, 8, table);
    if (!fits) throw nb::value_error("rows do not fit their buffer");
    tables.push_back(table);
  }
  return RowTables(std::move(tables));
}

void register_gather(nb::module_& m) {
  m.def(
      "read_records",
      [](nb::list buffers, nb::handle sources, ArrayArg<std::uint64_t> offsets,
         ArrayArg<std::uint64_t> lengths, bool verify) {
        const Records records =
            from_buffers(buffers, sources, offsets, lengths, kHeaderBytes, kFooterBytes);
        return to_bytes(records.places, verify, [](const Fault& fault) { return fault; });
      },
      nb::arg("buffers"), nb::arg("sources").none(), nb::arg("offsets"), nb::arg("lengths"),
      nb::arg("verify"),
      nb::sig("def read_records(buffers: list[Any], sources: NDArray[uint32] | None, "
              "offsets: NDArray[uint64], lengths: NDArray[uint64], verify: bool) -> list[bytes]"),
      "Records that lie in buffers, each in its frame, as bytes.");

  nb::class_<PyGather>(m, "Gather", "The records of an index, by their numbers.")
      .def(nb::init<nb::list>(), nb::arg("tables"),
           nb::sig("def __init__(self, "
                   "tables: list[tuple[Any, int, int, int, int, int, int, int]]) -> None"))
      .def("set_shards", &PyGather::set_shards, nb::arg("shards"), nb::arg("keep_open"),
           nb::arg("scattered"),
           nb::sig("def set_shards(self, shards: list[tuple[int, bytes | None, int, int, "
                   "int | None]], keep_open: bool, scattered: bool) -> None"),
           "Maps the open files of shards, (number, path, descriptor, size, fingerprint), or "
           "unmaps them (path is None).")
      .def(
          "missing",
          [](const PyGather& gather, ArrayArg<std::int64_t> ids) {
            nb::list numbers;
            for (std::size_t each : gather.missing(ids)) numbers.append(each);
            return numbers;
          },
          nb::arg("ids"), nb::sig("def missing(self, ids: NDArray[int64]) -> list[int]"),
          "The shards of records that were not given yet.")
      .def("decode", &PyGather::decode, nb::arg("decoder"), nb::arg("ids"), nb::arg("check"),
           nb::arg("label"), nb::arg("dense"),
           nb::sig("def decode(self, decoder: Decoder, ids: NDArray[int64], check: int, "
                   "label: int, dense: list[NDArray[Any] | None]) -> list[GrownColumn | None]"),
           "Decodes records as `Decoder.decode_places` does, and compares column `label`, if not "
           "-1, with the rows.")
      .def("slice", &PyGather::slice, nb::arg("ids"), nb::arg("verify"),
           nb::sig("def slice(self, ids: NDArray[int64], verify: bool) -> list[bytes]"),
           "Records as bytes.");
}

}  // namespace covey
