// Decoding of records, and their location by an index.
#include "reading.h"

#include <unistd.h>

#include <cerrno>

#include "columns.h"

namespace covey {
namespace {

// Arrays that a layout does not use are empty.
nb::object maybe(Buffer<std::int64_t>& buffer) {
  if (buffer.size() == 0) return nb::none();
  return nb::cast(to_numpy(std::move(buffer)));
}

// Decodes records whose memory the caller keeps alive; `dense` has an array for every column of
// numbers of fixed shape. Then `also(out, fault)`, without the GIL, may replace the fault.
template <class Also>
std::vector<Grown> decode(const Decoder& decoder, const std::vector<Bytes>& records, Check check,
                          nb::list dense, Also also) {
  const std::vector<Column>& columns = decoder.columns();
  covey::check(dense.size() == columns.size(), "one item per column");
  std::vector<ColumnOut> out(columns.size());
  std::vector<View> views;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (columns[c].layout != Layout::fixed || columns[c].element == Element::string) continue;
    views.emplace_back(dense[c], PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS);
    // count * size is below 2^31 and there are fewer records than bytes: no overflow.
    const std::size_t row = columns[c].count * element_size(columns[c].element);
    covey::check(views.back().size() == row * records.size(), "a dense column has the wrong size");
    out[c].dense = views.back().data();
  }
  raise_if(without_gil([&] { return also(out, decoder.decode(records, check, out)); }));
  std::vector<Grown> result;
  for (ColumnOut& column : out) {
    result.emplace_back();
    if (column.dense != nullptr) continue;
    result.back().emplace(nb::cast(to_numpy(std::move(column.values))), maybe(column.offsets),
                          maybe(column.row_splits), maybe(column.step_splits));
  }
  return result;
}

std::vector<Grown> decode_list(const Decoder& self, List records, List dense) {
  std::vector<Bytes> found;
  std::vector<View> views;
  for (nb::handle each : records) {
    views.emplace_back(each);
    found.push_back(views.back().bytes());
  }
  return decode(self, found, Check::nothing, dense,
                [](const auto&, const Fault& fault) { return fault; });
}

std::vector<Grown> decode_buffers(const Decoder& self, List buffers, const Sources& sources,
                                  ArrayArg<std::uint64_t> offsets, ArrayArg<std::uint64_t> lengths,
                                  int check, List dense) {
  const Check wanted = parse_check(check);
  const std::size_t header = wanted == Check::frame ? kHeaderBytes : 0;
  const std::size_t footer = wanted == Check::nothing ? 0 : kFooterBytes;
  const Records found = records_of(buffers, sources, offsets, lengths, header, footer);
  return decode(self, found.bytes, wanted, dense,
                [](const auto&, const Fault& fault) { return fault; });
}

// The rows of one split.
struct PyRowTable {
  View view;
  RowTable table;
};

// The byte offsets of the fields of index rows, from their numpy dtype; and of `inner_offset`, if
// the rows have it.
std::pair<RowTable, std::optional<std::size_t>> row_fields(nb::handle dtype) {
  RowTable table;
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
  return {table, find("inner_offset", 8)};
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

// Maps a file; null if it cannot be opened.
std::shared_ptr<const Mapping> map_file(const ShardFile& file, const Mapping::Options& options) {
  const int descriptor = file.descriptor < 0 ? open_file(file.path) : file.descriptor;
  if (descriptor < 0) return nullptr;
  auto mapping = std::make_shared<const Mapping>(descriptor, file.size, options);
  if (file.descriptor < 0) close(descriptor);
  return mapping;
}

}  // namespace

PyGather::PyGather(nb::list tables)
    : held_(tables),
      tables_(tables_of(held_)),
      shards_(std::make_shared<const Mappings>(tables_.shards())) {}

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

std::vector<Grown> PyGather::decode(const Decoder& decoder, ArrayArg<std::int64_t> ids, int check,
                                    std::ptrdiff_t label, List dense) const {
  const Check parsed = parse_check(check);
  check_label(decoder, label);
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
  return covey::decode(decoder, located.records, parsed, dense, also);
}

nb::typed<nb::list, nb::bytes> PyGather::slice(ArrayArg<std::int64_t> ids, bool verify) const {
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

void register_reading(nb::module_& m) {
  m.attr("CHECK_NOTHING") = static_cast<int>(Check::nothing);
  m.attr("CHECK_DATA") = static_cast<int>(Check::data);
  m.attr("CHECK_FRAME") = static_cast<int>(Check::frame);
  m.attr("ADDRESS_PLAIN") = static_cast<int>(AddressMode::plain);
  m.attr("ADDRESS_MEMBERS") = static_cast<int>(AddressMode::members);
  m.attr("ADDRESS_SINGLE_STREAM") = static_cast<int>(AddressMode::single_stream);

  nb::class_<Decoder>(m, "Decoder", "Records to columns.")
      .def(
          "__init__",
          [](Decoder* self, const std::vector<ColumnSpec>& columns) {
            new (self) Decoder(plain_columns(columns));
          },
          nb::arg("columns"))
      .def("decode", &decode_list, nb::arg("records"), nb::arg("dense"),
           "Decode records: numbers of fixed shape into the given arrays, the others into the "
           "returned (values, offsets, row_splits, step_splits).")
      .def("decode_buffers", &decode_buffers, nb::arg("buffers"), nb::arg("sources").none(),
           nb::arg("offsets"), nb::arg("lengths"), nb::arg("check"), nb::arg("dense"),
           "Decode records that are stored in buffers; `check` is the part of their frames to "
           "verify.");

  nb::class_<PyRowTable>(m, "RowTable", "The rows of the index of one split.")
      .def(
          "__init__",
          [](PyRowTable* self, nb::handle rows, std::size_t shards) {
            RowTable table = row_fields(rows.attr("dtype")).first;
            View view(rows);
            table.rows = view.data();
            table.count = view.size() / table.stride;
            table.shards = shards;
            new (self) PyRowTable{std::move(view), table};
          },
          nb::arg("rows"), nb::kw_only(), nb::arg("shards"), "`shards` is the number of shards.");

  nb::class_<ShardFile>(m, "ShardFile", "The file of a shard, to be mapped.")
      .def(
          "__init__",
          [](ShardFile* self, std::size_t shard, nb::bytes path, std::size_t size,
             std::optional<std::uint32_t> fingerprint, int descriptor) {
            new (self) ShardFile{shard, std::string(path.c_str(), path.size()), size, descriptor,
                                 fingerprint};
          },
          nb::arg("shard"), nb::arg("path"), nb::arg("size"), nb::arg("fingerprint").none(),
          nb::arg("descriptor") = -1, "`descriptor` refers to the open file, if it is open.");

  nb::class_<PyGather>(m, "Gather", "Random access to the records of an index.")
      .def(nb::init<List>(), nb::arg("tables"))
      .def("map", &PyGather::map, nb::arg("files"), nb::kw_only(), nb::arg("scattered"),
           nb::arg("limit"),
           "Map the files of shards into memory. Raises Fault(\"changed\", offset=shard) for a "
           "file that cannot be opened or has another size or fingerprint, and OSError for one "
           "that cannot be mapped, with ENOMEM if `limit` shards are mapped in this process.")
      .def("missing", &PyGather::missing, nb::arg("ids"),
           "Return the shards of records that are not mapped.")
      .def("decode", &PyGather::decode, nb::arg("decoder"), nb::arg("ids"), nb::arg("check"),
           nb::arg("label"), nb::arg("dense"),
           "Decode records like `Decoder.decode_buffers`; if `label` is not -1, compare that "
           "column with the rows.")
      .def("slice", &PyGather::slice, nb::arg("ids"), nb::arg("verify"),
           "Return records as bytes.");

  nb::class_<RowCheck>(m, "RowCheck", "Consistency check of the rows of an index.")
      .def(
          "__init__",
          [](RowCheck* self, nb::handle dtype, int mode, ArrayArg<std::uint64_t> records,
             ArrayArg<std::uint64_t> bytes) {
            check(mode >= 0 && mode <= 2, "mode must be 0, 1 or 2");
            check(records.shape(0) == bytes.shape(0), "records and bytes differ in length");
            const auto [table, inner_offset] = row_fields(dtype);
            check(inner_offset || mode == static_cast<int>(AddressMode::plain),
                  "rows of compressed shards need `inner_offset`");
            std::vector<ShardExtent> shards(records.shape(0));
            for (std::size_t i = 0; i < shards.size(); ++i) {
              shards[i] = {records.data()[i], bytes.data()[i]};
            }
            new (self) RowCheck(table, inner_offset.value_or(0), static_cast<AddressMode>(mode),
                                std::move(shards));
          },
          nb::arg("dtype"), nb::kw_only(), nb::arg("mode"), nb::arg("records"), nb::arg("bytes"),
          "`records` and `bytes` are the sizes of the shards.")
      .def(
          "add",
          [](RowCheck& self, nb::handle rows) {
            const View view(rows);
            raise_if(
                without_gil([&] { return self.add(view.data(), view.size() / self.stride()); }));
          },
          nb::arg("rows"), "Check the next rows.")
      .def("is_done", &RowCheck::is_done, "Return whether every shard had all its rows.");
}

}  // namespace covey
