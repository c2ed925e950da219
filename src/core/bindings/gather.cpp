#include "../gather.h"

#include <memory>

#include "decoder.h"

namespace covey {
namespace {

// A shard that Python has mapped.
struct Mapped {
  View view;
};

// The shards that are there. It never changes: whoever reads from it holds it, and another takes
// its place meanwhile.
struct Shards {
  std::vector<std::shared_ptr<Mapped>> owners;
  std::vector<ShardBytes> bytes;
};

// The records of an index, by their numbers. The GIL guards `shards_`.
class Gather {
 public:
  // From tuples (rows, count, stride, shard, length, offset, label or -1, shards).
  explicit Gather(nb::list tables) : tables_(parse(tables)) {
    Shards none;
    none.owners.resize(tables_.shards());
    none.bytes.resize(tables_.shards());
    shards_ = std::make_shared<const Shards>(std::move(none));
  }

  // From tuples (number, bytes or None, descriptor).
  void set_shards(nb::list given) {
    Shards shards = *shards_;
    for (nb::handle each : given) {
      const auto fields = nb::cast<nb::tuple>(each);
      const auto number = nb::cast<std::size_t>(fields[0]);
      if (number >= shards.bytes.size()) throw nb::index_error("there is no such shard");
      shards.owners[number] = nullptr;
      shards.bytes[number] = {};
      if (fields[1].is_none()) continue;
      const auto mapped = std::make_shared<Mapped>(Mapped{View(fields[1])});
      shards.owners[number] = mapped;
      shards.bytes[number] = {mapped->view.data(), mapped->view.size(), nb::cast<int>(fields[2])};
    }
    shards_ = std::make_shared<const Shards>(std::move(shards));
  }

  Gather(const Gather&) = delete;

  std::vector<std::size_t> missing(ArrayArg<std::int64_t> ids) const {
    return tables_.missing(ids.data(), ids.shape(0), shards_->bytes);
  }

  nb::list decode(const PyDecoder& decoder, ArrayArg<std::int64_t> ids, int check,
                  std::ptrdiff_t label, nb::list dense) const {
    const Check wanted = parse_check(check);
    const auto held = shards_;
    std::vector<Bytes> records;
    raise_if(tables_.locate(ids.data(), ids.shape(0), held->bytes, records));
    return decoder.run(records, wanted, dense, [&](const std::vector<ColumnOut>& out) -> Fault {
      const auto column = static_cast<std::size_t>(label);
      if (label < 0 || column >= out.size() || out[column].dense == nullptr) return {};
      const void* const labels = out[column].dense;
      return tables_.check_labels(ids.data(), ids.shape(0),
                                  static_cast<const std::int64_t*>(labels));
    });
  }

  nb::list slice(ArrayArg<std::int64_t> ids, bool verify) const {
    const auto held = shards_;
    std::vector<Bytes> records;
    raise_if(tables_.locate(ids.data(), ids.shape(0), held->bytes, records));
    Fault fault;
    {
      nb::gil_scoped_release release;
      for (std::size_t i = 0; verify && i < records.size() && !fault; ++i) {
        fault = verify_header(records[i].begin, records[i].size());
        if (!fault) fault = verify_data(records[i].begin, records[i].size());
        fault.row = i;
      }
    }
    raise_if(fault);
    nb::list result;
    for (const Bytes& record : records) {
      result.append(nb::bytes(reinterpret_cast<const char*>(record.begin), record.size()));
    }
    return result;
  }

 private:
  RowTables parse(nb::list given) {
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

  static bool inside(std::size_t field, std::size_t size, const RowTable& table) {
    return size <= table.stride && field <= table.stride - size;
  }

  std::vector<View> views_;
  RowTables tables_;
  std::shared_ptr<const Shards> shards_;
};

}  // namespace

void register_gather(nb::module_& m) {
  nb::class_<Gather>(m, "Gather", "The records of an index, by their numbers.")
      .def(nb::init<nb::list>(), nb::arg("tables"),
           nb::sig("def __init__(self, "
                   "tables: list[tuple[Any, int, int, int, int, int, int, int]]) -> None"))
      .def("set_shards", &Gather::set_shards, nb::arg("shards"),
           nb::sig("def set_shards(self, shards: list[tuple[int, Buffer | None, int]]) -> None"),
           "Gives the bytes of shards, by number, or takes them away (None); with the descriptor "
           "of each file, or -1, whose size is checked before they are read.")
      .def(
          "missing",
          [](const Gather& gather, ArrayArg<std::int64_t> ids) {
            nb::list numbers;
            for (std::size_t each : gather.missing(ids)) numbers.append(each);
            return numbers;
          },
          nb::arg("ids"), nb::sig("def missing(self, ids: NDArray[int64]) -> list[int]"),
          "The shards of records that were not given yet.")
      .def("decode", &Gather::decode, nb::arg("decoder"), nb::arg("ids"), nb::arg("check"),
           nb::arg("label"), nb::arg("dense"),
           nb::sig("def decode(self, decoder: Decoder, ids: NDArray[int64], check: int, "
                   "label: int, dense: list[NDArray[Any] | None]) -> list[GrownColumn | None]"),
           "Decodes records as `Decoder.decode_places` does, and compares column `label`, if not "
           "-1, with the rows.")
      .def("slice", &Gather::slice, nb::arg("ids"), nb::arg("verify"),
           nb::sig("def slice(self, ids: NDArray[int64], verify: bool) -> list[bytes]"),
           "Records as bytes.");
}

}  // namespace covey
