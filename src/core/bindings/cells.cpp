#include "cells.h"

#include <cmath>
#include <cstring>

namespace covey {
namespace {

// Whether the format of a buffer (a letter of the struct module) is that of the element.
bool is_format(const char* format, std::size_t itemsize, Element element) {
  if (format == nullptr) format = "B";
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == '\0' || format[1] != '\0' || itemsize != element_size(element)) return false;
  switch (element) {
    case Element::int8:
    case Element::int16:
    case Element::int32:
    case Element::int64:
      return std::strchr("bhilq", format[0]) != nullptr;
    case Element::uint8:
    case Element::uint16:
    case Element::uint32:
    case Element::uint64:
      return std::strchr("BHILQ", format[0]) != nullptr;
    case Element::boolean:
      return format[0] == '?';
    case Element::float16:
    case Element::float32:
    case Element::float64:
      return std::strchr("efd", format[0]) != nullptr;
    case Element::string:
      break;
  }
  return false;
}

}  // namespace

bool string_bytes(PyObject* value, bool text, Bytes& out) {
  const char* data;
  Py_ssize_t size;
  if (PyUnicode_Check(value)) {
    data = PyUnicode_AsUTF8AndSize(value, &size);
    if (data == nullptr) {  // a lone surrogate: the Python side raises
      PyErr_Clear();
      return false;
    }
  } else if (PyBytes_Check(value) && !text) {
    data = PyBytes_AS_STRING(value);
    size = PyBytes_GET_SIZE(value);
  } else {
    return false;
  }
  out.begin = reinterpret_cast<const std::uint8_t*>(data);
  out.end = out.begin + size;
  return true;
}

bool fill_cell(PyObject* value, const ColumnSpec& spec, std::size_t c, bool canonical,
               Scratch& scratch) {
  const Column& column = spec.column;
  Cell& cell = scratch.cells[c];
  cell.present = true;
  if (column.element == Element::string) {
    // Converted values are bytes, also for str columns.
    const bool text = column.text && !canonical;
    if (spec.shape.empty() && string_bytes(value, text, scratch.string[c])) {
      if (spec.image && !canonical &&
          (!PyBytes_Check(value) || !spec.image->takes(scratch.string[c]))) {
        return false;  // a path, or an image that the Python side must check
      }
      cell.strings = &scratch.string[c];
      cell.count = 1;
      return true;
    }
    if (!PyList_Check(value) || (spec.shape.size() != 1 && !canonical)) return false;
    // A copy: callbacks may change the list before the record is written.
    nb::object held = nb::steal(PyList_AsTuple(value));
    if (!held.is_valid()) throw nb::python_error();
    scratch.held.push_back(held);
    std::vector<Bytes>& strings = scratch.strings[c];
    strings.resize(static_cast<std::size_t>(PyTuple_GET_SIZE(held.ptr())));
    for (std::size_t i = 0; i < strings.size(); ++i) {
      PyObject* const each = PyTuple_GET_ITEM(held.ptr(), static_cast<Py_ssize_t>(i));
      if (!string_bytes(each, text, strings[i])) return false;
    }
    cell.strings = strings.data();
    cell.count = strings.size();
    return column.layout == Layout::fixed ? cell.count == column.count
                                          : cell.count % column.count == 0;
  }

  cell.numbers = reinterpret_cast<const std::uint8_t*>(&scratch.numbers[c]);
  cell.count = 1;
  if (spec.shape.empty() && PyLong_Check(value)) {
    if (column.element == Element::boolean ? !PyBool_Check(value) : column.wire != Wire::ints) {
      return false;
    }
    int overflow;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0 || number < spec.minimum || number > spec.maximum) return false;
    std::memcpy(&scratch.numbers[c], &number,
                8);  // little-endian: also the bytes of narrower types
    return true;
  }
  if (spec.shape.empty() && PyFloat_Check(value)) {
    const double number = PyFloat_AS_DOUBLE(value);
    if (column.element == Element::float64) {
      std::memcpy(&scratch.numbers[c], &number, 8);
      return true;
    }
    if (column.element != Element::float32) return false;
    const auto narrow = static_cast<float>(number);
    if (std::isinf(narrow) && !std::isinf(number)) return false;  // too large for a float32
    std::memcpy(&scratch.numbers[c], &narrow, 4);
    return true;
  }

  if (!PyObject_CheckBuffer(value)) return false;
  Py_buffer buffer;
  if (PyObject_GetBuffer(value, &buffer, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
    PyErr_Clear();  // not contiguous, or a dtype without a format: the Python side converts it
    return false;
  }
  View view(buffer);
  if (!is_format(buffer.format, static_cast<std::size_t>(buffer.itemsize), column.element) ||
      static_cast<std::size_t>(buffer.ndim) != spec.shape.size()) {
    return false;
  }
  for (std::size_t d = 0; d < spec.shape.size(); ++d) {
    if (spec.shape[d] >= 0 && buffer.shape[d] != spec.shape[d]) return false;
  }
  // The bounds of a label are narrower than its type's; only the Python side checks them in arrays.
  if (!canonical && spec.bounded) return false;
  cell.numbers = view.data();
  cell.count = view.size() / element_size(column.element);
  scratch.views.push_back(std::move(view));
  return true;
}

}  // namespace covey
