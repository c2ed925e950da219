#include "../rowcheck.h"

#include <new>

#include "gather.h"

namespace covey {

void register_rowcheck(nb::module_& m) {
  m.attr("ADDRESS_PLAIN") = static_cast<int>(AddressMode::plain);
  m.attr("ADDRESS_MEMBERS") = static_cast<int>(AddressMode::members);
  m.attr("ADDRESS_SINGLE_STREAM") = static_cast<int>(AddressMode::single_stream);

  nb::class_<RowCheck>(m, "RowCheck", "Consistency check of the rows of an index.")
      .def(
          "__init__",
          [](RowCheck* self, nb::handle dtype, int mode, ArrayArg<std::uint64_t> records,
             ArrayArg<std::uint64_t> bytes) {
            check(mode >= 0 && mode <= 2, "mode must be 0, 1 or 2");
            check(records.shape(0) == bytes.shape(0), "records and bytes differ in length");
            const RowFields fields = row_fields(dtype);
            check(fields.inner_offset || mode == static_cast<int>(AddressMode::plain),
                  "rows of compressed shards need `inner_offset`");
            std::vector<ShardExtent> shards(records.shape(0));
            for (std::size_t i = 0; i < shards.size(); ++i) {
              shards[i] = {records.data()[i], bytes.data()[i]};
            }
            new (self) RowCheck(fields.table, fields.inner_offset.value_or(0),
                                static_cast<AddressMode>(mode), std::move(shards));
          },
          nb::arg("dtype"), nb::kw_only(), nb::arg("mode"), nb::arg("records"), nb::arg("bytes"),
          nb::sig("def __init__(self, dtype: dtype[Any], *, mode: int, records: NDArray[uint64], "
                  "bytes: NDArray[uint64]) -> None"),
          "`dtype` is that of the rows; `records` and `bytes` are the sizes of the shards.")
      .def(
          "add",
          [](RowCheck& self, nb::handle rows) {
            const View view(rows);
            Fault fault;
            {
              const GilReleased released;
              fault = self.add(view.data(), view.size() / self.stride());
            }
            raise_if(fault);
          },
          nb::arg("rows"), nb::sig("def add(self, rows: Buffer) -> None"),
          "Check the next rows.")
      .def("is_done", &RowCheck::is_done, "Return whether every shard had all its rows.");
}

}  // namespace covey
