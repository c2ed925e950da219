#include <nanobind/eval.h>

#include "support.h"

namespace covey {
namespace {

// A Python class, because an exception with attributes and keyword arguments needs no C++ then.
constexpr const char* kClass = R"(
class Fault(Exception):
    """Invalid bytes or values. The attributes are those of `struct Fault` in src/core/fault.h."""

    def __init__(self, code, row=0, offset=0, found=0, expected=0, column=0):
        super().__init__(code, row, offset, found, expected, column)
        self.code = code
        self.row = row
        self.offset = offset
        self.found = found
        self.expected = expected
        self.column = column
)";

// A reference that is never released: the type lives as long as the interpreter.
PyObject* fault_type = nullptr;

}  // namespace

void register_fault(nb::module_& m) {
  nb::dict scope;
  scope["__name__"] = m.attr("__name__");
  nb::exec(nb::str(kClass), scope);
  fault_type = nb::object(scope["Fault"]).release().ptr();
  m.attr("Fault") = nb::borrow(fault_type);
}

nb::object to_exception(const Fault& fault) {
  return nb::handle(fault_type)(fault_name(fault.code), fault.row, fault.offset, fault.found,
                                fault.expected, fault.column);
}

void raise_fault(const Fault& fault) {
  PyErr_SetObject(fault_type, to_exception(fault).ptr());
  throw nb::python_error();
}

}  // namespace covey
