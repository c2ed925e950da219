#include "../rowcheck.h"

#include "support.h"

namespace covey {

void register_rowcheck(nb::module_& m) {
  m.attr("REACH_PLAIN") = static_cast<int>(Reach::plain);
  m.attr("REACH_MEMBERS") = static_cast<int>(Reach::members);
  m.attr("REACH_STREAMED") = static_cast<int>(Reach::streamed);

  nb::class_<RowCheck>(m, "RowCheck", "Whether the rows of an index can be true.")
      .def(
          "__init__",
          [](RowCheck* self, std::size_t stride, std::size_t shard, std::size_t length,
             std::size_t offset, std::size_t within, int reach, ArrayArg<std::uint64_t> records,
             ArrayArg<std::uint64_t> bytes) {
            if (reach < 0 || reach > 2) throw nb::value_error("reach must be 0, 1 or 2");
            if (records.shape(0) != bytes.shape(0)) throw nb::value_error("shards differ");
            RowTable layout;
            layout.stride = stride;
            layout.shard = shard;
            layout.length = length;
            layout.offset = offset;
            const bool has_within = reach != static_cast<int>(Reach::plain);
            const auto inside = [stride](std::size_t field, std::size_t size) {
              return size <= stride && field <= stride - size;
            };
            if (!inside(shard, 4) || !inside(length, 4) || !inside(offset, 8) ||
                (has_within && !inside(within, 8))) {
              throw nb::value_error("fields do not fit a row");
            }
            std::vector<ShardExtent> shards(records.shape(0));
            for (std::size_t i = 0; i < shards.size(); ++i) {
              shards[i] = {records.data()[i], bytes.data()[i]};
            }
            new (self) RowCheck(layout, within, static_cast<Reach>(reach), std::move(shards));
          },
          nb::arg("stride"), nb::arg("shard"), nb::arg("length"), nb::arg("offset"),
          nb::arg("within"), nb::arg("reach"), nb::arg("records"), nb::arg("bytes"),
          nb::sig("def __init__(self, stride: int, shard: int, length: int, offset: int, "
                  "within: int, reach: int, records: NDArray[uint64], bytes: NDArray[uint64]) "
                  "-> None"),
          "Of rows with these fields, and of shards with so many records and bytes each.")
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
          "Looks at the rows that follow.")
      .def("is_done", &RowCheck::is_done, "Whether all rows were there.");
}

}  // namespace covey
