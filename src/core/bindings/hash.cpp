#include "../hash.h"

#include "support.h"

namespace covey {
namespace {

// Keys of different types are different keys: 7 is not "7".
enum class Type : std::uint64_t { text = 1, bytes = 2, integer = 3 };

[[noreturn]] void bad_key(std::size_t row, FaultCode code) {
  raise_fault({.code = code, .row = row});
}

Hash128 hash_key(PyObject* key, std::size_t row, std::uint64_t seed) {
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
  // Also numpy's integers.
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

nb::tuple hash_keys(nb::handle keys, std::uint64_t seed) {
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
  return nb::make_tuple(to_numpy(std::move(high)), to_numpy(std::move(low)));
}

}  // namespace

void register_hash(nb::module_& m) {
  m.def("hash_keys", &hash_keys, nb::arg("keys"), nb::arg("seed"),
        nb::sig("def hash_keys(keys: Iterable[str | bytes | int], seed: int) -> "
                "tuple[NDArray[uint64], NDArray[uint64]]"),
        "The 128-bit hashes of keys: (high words, low words).");
}

}  // namespace covey
