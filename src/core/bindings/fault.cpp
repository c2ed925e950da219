#include "support.h"

namespace covey {
namespace {

// Lives as long as the interpreter does.
PyObject* fault_type = nullptr;

}  // namespace

void register_fault(nb::module_& m) {
  fault_type =
      PyErr_NewExceptionWithDoc("covey._core.Fault",
                                "Bytes or values that are not what they should be; args are "
                                "(code, row, offset, found, expected, column).",
                                nullptr, nullptr);
  if (fault_type == nullptr) throw nb::python_error();
  m.attr("Fault") = nb::borrow(fault_type);
}

nb::tuple fault_args(const Fault& fault) {
  return nb::make_tuple(fault_name(fault.code), fault.row, fault.offset, fault.found,
                        fault.expected, fault.column);
}

void raise_fault(nb::handle args) {
  PyErr_SetObject(fault_type, args.ptr());
  throw nb::python_error();
}

}  // namespace covey
