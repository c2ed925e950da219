#include "../crc32c.h"

#include <nanobind/stl/string.h>

#include <string>

#include "support.h"

namespace covey {

void register_crc32c(nb::module_& m) {
  m.def(
      "crc32c_implementations",
      [] {
        nb::list names;
        for (const Crc32cImplementation& each : crc32c_implementations()) names.append(each.name);
        return names;
      },
      nb::sig("def crc32c_implementations() -> list[str]"),
      "Return the names of the implementations this processor supports, the fastest first.");
  m.def(
      "crc32c",
      [](nb::handle data, std::uint32_t crc, const std::string& implementation) {
        const View view(data);
        for (const Crc32cImplementation& each : crc32c_implementations()) {
          if (implementation.empty() || implementation == each.name) {
            return each.extend(crc, view.data(), view.size());
          }
        }
        throw nb::value_error("no such implementation; see crc32c_implementations()");
      },
      nb::arg("data"), nb::arg("crc") = 0, nb::arg("implementation") = "",
      nb::sig("def crc32c(data: Buffer, crc: int = 0, implementation: str = '') -> int"),
      "Return the CRC-32C of `data`, continuing from `crc`.");
}

}  // namespace covey
