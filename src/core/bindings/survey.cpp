#include "../survey.h"

#include "records.h"

namespace covey {
namespace {

nb::dict to_dict(const std::map<std::string, Seen>& keys) {
  nb::dict result;
  for (const auto& [key, seen] : keys) {
    PyObject* const name =
        PyUnicode_DecodeUTF8(key.data(), static_cast<Py_ssize_t>(key.size()), nullptr);
    if (name == nullptr) throw nb::python_error();
    nb::list by_kind, first_of_kind;
    for (std::size_t count : seen.by_kind) by_kind.append(count);
    for (std::size_t first : seen.first_of_kind) first_of_kind.append(first);
    const bool any = seen.least <= seen.most;
    result[nb::steal(name)] =
        nb::make_tuple(seen.records, nb::tuple(by_kind), nb::tuple(first_of_kind),
                       any ? seen.least : 0, seen.most);
  }
  return result;
}

}  // namespace

void register_survey(nb::module_& m) {
  nb::class_<Survey>(m, "Survey", "Statistics of records, from which a schema is inferred.")
      .def(nb::init<>())
      .def(
          "add",
          [](Survey& survey, nb::handle record) {
            const View view(record);
            raise_if(survey.add({view.data(), view.data() + view.size()}));
          },
          nb::arg("record"), nb::sig("def add(self, record: Buffer) -> None"), "Add a record.")
      .def(
          "add_records",
          [](Survey& survey, nb::handle data, ArrayArg<std::uint64_t> offsets,
             ArrayArg<std::uint64_t> lengths) {
            nb::list buffers;
            buffers.append(data);
            const Records records = from_buffers(buffers, nb::none(), offsets, lengths, 0, 0);
            Fault fault;
            {
              const GilReleased released;
              for (std::size_t i = 0; i < records.bytes.size() && !fault; ++i) {
                fault = survey.add(records.bytes[i]);
                fault.row = i;
              }
            }
            raise_if(fault);
          },
          nb::arg("data"), nb::arg("offsets"), nb::arg("lengths"),
          nb::sig("def add_records(self, data: Buffer, offsets: NDArray[uint64], "
                  "lengths: NDArray[uint64]) -> None"),
          "Add the records at these offsets.")
      .def_prop_ro("records", &Survey::records)
      .def(
          "context", [](const Survey& survey) { return to_dict(survey.context()); },
          nb::sig("def context(self) -> dict[str, SeenTuple]"),
          "Return by key: (records that have it, records by list type (none, bytes, floats, "
          "ints, one byte string that is an image of 8 bits, or of 16 bits), "
          "first record of each type, minimum and maximum number of values).")
      .def(
          "lists", [](const Survey& survey) { return to_dict(survey.lists()); },
          nb::sig("def lists(self) -> dict[str, SeenTuple]"),
          "Return the same for the feature lists of a SequenceExample, by step.");
}

}  // namespace covey
