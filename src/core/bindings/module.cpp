// covey._core: the exception and small functions of the native module, and its other parts.
#include <nanobind/eval.h>

#include <string>

#include "../crc32c.h"
#include "../decimal.h"
#include "../hash.h"
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

void register_fault(nb::module_& m) {
  nb::dict scope;
  scope["__name__"] = m.attr("__name__");
  nb::exec(nb::str(kClass), scope);
  fault_type = nb::object(scope["Fault"]).release().ptr();
  m.attr("Fault") = nb::borrow(fault_type);
}

std::vector<const char*> crc32c_names() {
  std::vector<const char*> names;
  for (const Crc32cImplementation& each : crc32c_implementations()) names.push_back(each.name);
  return names;
}

std::uint32_t crc32c_of(nb::handle data, std::uint32_t crc, const std::string& implementation) {
  const View view(data);
  for (const Crc32cImplementation& each : crc32c_implementations()) {
    if (implementation.empty() || implementation == each.name) {
      return each.extend(crc, view.data(), view.size());
    }
  }
  throw nb::value_error("no such implementation; see crc32c_implementations()");
}

[[noreturn]] void bad_key(std::size_t row, FaultCode code) {
  raise_fault({.code = code, .row = row});
}

Hash128 hash_key(PyObject* key, std::size_t row, std::uint64_t seed) {
  // Keys of different types differ: 7 is not "7".
  enum class Type : std::uint64_t { text = 1, bytes = 2, integer = 3 };
  const auto hash = [seed](Type type, const void* data, Py_ssize_t size) {
    const auto* const begin = static_cast<const std::uint8_t*>(data);
    return siphash128({begin, begin + size}, seed, static_cast<std::uint64_t>(type));
  };
  if (PyUnicode_Check(key)) {
    Py_ssize_t size;
    const char* const data = PyUnicode_AsUTF8AndSize(key, &size);
    if (data == nullptr) {
      PyErr_Clear();
      bad_key(row, FaultCode::utf8);
    }
    return hash(Type::text, data, size);
  }
  if (PyBytes_Check(key)) return hash(Type::bytes, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key));
  // Also numpy integers.
  const nb::object index = nb::steal(PyNumber_Index(key));
  if (!index.is_valid()) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
    PyErr_Clear();
    bad_key(row, FaultCode::type);
  }
  int overflow;
  const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) bad_key(row, FaultCode::range);
  return hash(Type::integer, &number, sizeof number);
}

std::pair<Array<std::uint64_t>, Array<std::uint64_t>> hash_keys(nb::handle keys,
                                                                std::uint64_t seed) {
  const nb::object listed = nb::steal(PySequence_Tuple(keys.ptr()));
  if (!listed.is_valid()) throw nb::python_error();
  const auto count = static_cast<std::size_t>(PyTuple_GET_SIZE(listed.ptr()));
  Buffer<std::uint64_t> high, low;
  high.reserve(count);
  low.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    PyObject* const key = PyTuple_GET_ITEM(listed.ptr(), static_cast<Py_ssize_t>(i));
    const Hash128 hash = hash_key(key, i, seed);
    high.push_back(hash.high);
    low.push_back(hash.low);
  }
  return {to_numpy(std::move(high)), to_numpy(std::move(low))};
}

// Applies a function to every number of an array.
template <class Out, class In>
Array<Out> map(const ArrayArg<In>& values, Out (*f)(In)) {
  Buffer<Out> found;
  Out* out = found.extend(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) *out++ = f(values(i));
  return to_numpy(std::move(found));
}

}  // namespace

nb::object to_exception(const Fault& fault) {
  return nb::handle(fault_type)(fault_name(fault.code), fault.row, fault.offset, fault.found,
                                fault.expected, fault.column);
}

void raise_fault(const Fault& fault) {
  PyErr_SetObject(fault_type, to_exception(fault).ptr());
  throw nb::python_error();
}

}  // namespace covey

NB_MODULE(_core, m) {
  using namespace covey;
  m.doc() = "The hot loops of covey: checksums, frames, and tf.train.Example by the column.";
  // Objects may outlive the module at process exit, for example in a traceback.
  nb::set_leak_warnings(false);
  register_fault(m);
  m.def("crc32c_implementations", &crc32c_names,
        "Return the names of the implementations this processor supports, the fastest first.");
  m.def("crc32c", &crc32c_of, nb::arg("data"), nb::arg("crc") = 0, nb::arg("implementation") = "",
        "Return the CRC-32C of `data`, continuing from `crc`.");
  m.def("hash_keys", &hash_keys, nb::arg("keys"), nb::arg("seed"),
        "Return the 128-bit hashes of keys, str, bytes or int: (high words, low words).");
  m.def("is_same_in_float32", &is_same_in_float32, nb::arg("value"),
        "Whether a number has the same shortest decimal form as the float32 nearest to it.");
  m.def(
      "are_same_in_float32",
      [](ArrayArg<double> values) {
        return map<std::uint8_t, double>(
            values, [](double each) { return std::uint8_t{is_same_in_float32(each)}; });
      },
      nb::arg("values"), "Return 1 for each number that is_same_in_float32, and 0 for others.");
  m.def(
      "widen_by_decimal",
      [](ArrayArg<float> values) {
        return map<double, float>(values, [](float each) { return widen_by_decimal(each); });
      },
      nb::arg("values"),
      "Return the numbers that the shortest decimal forms of float32 values denote.");
  register_frames(m);
  register_columns(m);
  register_encoder(m);
  register_reading(m);
  register_plan(m);
  register_prefetcher(m);
  register_images(m);
}
