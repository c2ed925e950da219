#include "columns.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "../decimal.h"
#include "../image_header.h"

namespace covey {
namespace {

using Bounds = std::pair<std::int64_t, std::int64_t>;
using Image = std::tuple<std::int64_t, std::int64_t, bool>;

// The largest message that protobuf can read, hence the largest value of a row.
constexpr std::size_t kMaxBytes = std::size_t{1} << 31;

// In the order of the enumerations.
constexpr std::string_view kElements[] = {"int8",    "int16",   "int32",  "int64", "uint8",
                                          "uint16",  "uint32",  "uint64", "bool",  "float16",
                                          "float32", "float64", "bytes"};
constexpr std::string_view kWires[] = {"bytes", "floats", "ints"};
constexpr std::string_view kLayouts[] = {"fixed", "variable", "steps"};

// The integers of a type that an int64 can hold.
Bounds limits(Element element) {
  return with_type(element, [](auto type) -> Bounds {
    using T = decltype(type);
    using Wide = std::numeric_limits<std::int64_t>;
    if constexpr (kIsFloat<T> || sizeof(T) == 8) {
      return {std::is_unsigned_v<T> ? 0 : Wide::min(), Wide::max()};
    } else {
      return {std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
    }
  });
}

void read_default(nb::handle given, Column& column) {
  if (column.element == Element::string) {
    for (nb::handle each : nb::cast<nb::list>(given)) {
      const View view(each);
      column.default_strings.emplace_back(reinterpret_cast<const char*>(view.data()), view.size());
    }
  } else {
    const View view(given);
    column.default_values.assign(view.data(), view.data() + view.size());
  }
}

void init(ColumnSpec* self, std::string key, std::string_view dtype, std::string_view wire,
          std::string_view layout, std::size_t count, bool required, nb::handle fallback,
          std::vector<std::int64_t> shape, std::optional<Bounds> bounds,
          std::optional<Image> image) {
  ColumnSpec result;
  Column& column = result.column;
  column.key = std::move(key);
  column.text = dtype == "str";
  column.element = parse<Element>(kElements, column.text ? "bytes" : dtype, "unknown dtype");
  column.wire = parse<Wire>(kWires, wire, "unknown wire type", static_cast<int>(Wire::bytes));
  column.layout = parse<Layout>(kLayouts, layout, "unknown layout");
  column.count = count;
  column.required = required;

  const std::size_t width = element_size(column.element);
  const bool is_float = dtype.starts_with("float");
  const bool is_string = column.element == Element::string;
  check(column.wire != Wire::floats || is_float, "a float list needs a float dtype");
  check(column.wire != Wire::ints || (!is_float && !is_string),
        "an int64 list needs an integer dtype");
  check(count <= kMaxBytes / width, "a row is over 2 GiB");

  if (!fallback.is_none()) read_default(fallback, column);
  result.shape = std::move(shape);
  column.exact = column.layout != Layout::variable;
  for (const std::int64_t size : result.shape) {
    if (size < 0) column.exact = false;
  }
  check(column.exact || column.layout != Layout::fixed, "a fixed column needs a known shape");
  check(column.exact || count > 0, "a column of variable length needs a count >= 1");
  if (!required && column.layout != Layout::steps) {
    const std::size_t size =
        is_string ? column.default_strings.size() : column.default_values.size() / width;
    check(column.default_values.size() % width == 0,
          "the size of the default is not a multiple of the element size");
    check(column.exact ? size == count : size % count == 0, "the default does not fit the shape");
  }

  result.bounded = bounds.has_value();
  std::tie(result.minimum, result.maximum) = bounds.value_or(limits(column.element));
  if (image) {
    const auto [height, width, deep] = *image;
    check(is_string && !column.text && result.shape.empty(), "an image is a single byte string");
    result.image = ImageCheck{height, width, deep};
  }
  new (self) ColumnSpec(std::move(result));
}

// Whether the format of a buffer (a letter of the struct module) matches the element.
bool is_format(const char* format, std::size_t itemsize, Element element) {
  if (format == nullptr) format = "B";
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == '\0' || format[1] != '\0' || itemsize != element_size(element)) return false;
  return with_type(element, [&](auto type) {
    using T = decltype(type);
    const char* const letters = std::is_same_v<T, bool> ? "?"
                                : kIsFloat<T>           ? "efd"
                                : std::is_unsigned_v<T> ? "BHILQ"
                                                        : "bhilq";
    return std::strchr(letters, format[0]) != nullptr;
  });
}

// Integers up to this magnitude are exact in the element.
constexpr long long kMaxExactFloat32 = 1LL << 24;
constexpr long long kMaxExactFloat64 = 1LL << 53;

// Whether lists of Python numbers are stored in such a column without a conversion by Python.
bool takes_lists(Element element, Accept accept) noexcept {
  switch (element) {
    case Element::int64:
    case Element::uint64:
    case Element::boolean:
    case Element::float32:
    case Element::float64:
      return true;
    case Element::float16:
    case Element::string:
      return false;
    default:  // a list of integers is inferred as int64
      return accept == Accept::declared;
  }
}

// Whether a column holds Python floats that float32 holds as well, while types are inferred: they
// are stored as float32, but are not an array's.
bool is_decimal(const ColumnSpec& spec, Accept accept) noexcept {
  const Column& column = spec.column;
  return accept == Accept::inferred && spec.shape.empty() && column.wire == Wire::floats &&
         column.element == Element::float64;
}

// Writes a Python number in the memory layout of the column; returns false if it does not fit.
bool put_number(PyObject* value, const ColumnSpec& spec, Accept accept,
                std::uint8_t* out) noexcept {
  const Element element = spec.column.element;
  if (element == Element::boolean) {
    if (!PyBool_Check(value)) return false;
    *out = value == Py_True;
    return true;
  }
  if (element == Element::float16) return false;  // the Python side converts it
  const bool floats = element == Element::float32 || element == Element::float64;
  double number;
  if (PyLong_Check(value)) {
    int overflow;
    const long long integer = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) return false;
    if (!floats) {
      if (integer < spec.minimum || integer > spec.maximum) return false;
      // Little-endian: the first bytes are the value of narrower types.
      std::memcpy(out, &integer, element_size(element));
      return true;
    }
    const bool narrow = element == Element::float32 || is_decimal(spec, accept);
    const long long most = narrow ? kMaxExactFloat32 : kMaxExactFloat64;
    // Inference must see negative integers: no dtype fits them and integers above 2^63.
    const long long least = accept == Accept::inferred ? 0 : -most;
    if (integer < least || integer > most) return false;
    number = static_cast<double>(integer);
  } else if (PyFloat_Check(value) && floats) {
    number = PyFloat_AS_DOUBLE(value);
    if (accept == Accept::inferred && spec.shape.empty()) {
      // Beside scalars of numpy's float32, inference must see scalars of Python.
      if (element == Element::float32) return false;
      if (is_decimal(spec, accept) && !is_same_in_float32(number)) return false;
    }
  } else {
    return false;
  }
  if (element == Element::float64) {
    std::memcpy(out, &number, 8);
    return true;
  }
  const auto narrow = static_cast<float>(number);
  if (std::isinf(narrow) && !std::isinf(number)) return false;  // too large for a float32
  std::memcpy(out, &narrow, 4);
  return true;
}

// Whether float32 rounds a Python number.
bool is_rounded(PyObject* value) noexcept {
  if (!PyFloat_Check(value)) return false;
  const double number = PyFloat_AS_DOUBLE(value);
  return number != static_cast<float>(number) && !is_same_in_float32(number);
}

// Appends the numbers of nested lists or tuples. `sizes` are the lengths of the lists at each
// level, -1 if none was seen; returns false if they differ, or if a value does not fit.
bool append_list(PyObject* value, const ColumnSpec& spec, Accept accept,
                 std::vector<std::int64_t>& sizes, std::size_t level,
                 std::vector<std::uint8_t>& out, Rounding* rounding) {
  if (!PyList_CheckExact(value) && !PyTuple_CheckExact(value)) return false;
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
  if (sizes[level] < 0) sizes[level] = size;
  if (sizes[level] != size) return false;
  PyObject** const items = PySequence_Fast_ITEMS(value);
  if (level + 1 < sizes.size()) {
    // An empty list says nothing about the levels below it: the Python side decides.
    if (size == 0) return false;
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (!append_list(items[i], spec, accept, sizes, level + 1, out, rounding)) return false;
    }
    return true;
  }
  const std::size_t width = element_size(spec.column.element);
  const std::size_t begin = out.size();
  out.resize(begin + static_cast<std::size_t>(size) * width);
  std::uint8_t* to = out.data() + begin;
  for (Py_ssize_t i = 0; i < size; ++i, to += width) {
    if (!put_number(items[i], spec, accept, to)) return false;
    if (rounding != nullptr) rounding->rounded += is_rounded(items[i]);
  }
  if (rounding != nullptr) rounding->total += static_cast<std::size_t>(size);
  return true;
}

}  // namespace

void IntegerRange::add(const Cell& cell, Element element) noexcept {
  if (!cell.present || element == Element::string) return;
  with_type(element, [&](auto type) {
    using T = decltype(type);
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      T least = 0, most = 0;
      for (std::size_t i = 0; i < cell.count; ++i) {
        T number;
        std::memcpy(&number, cell.numbers + i * sizeof(T), sizeof(T));
        least = std::min(least, number);
        most = std::max(most, number);
      }
      low = std::min(low, static_cast<std::int64_t>(least));
      high = std::max(high, static_cast<std::uint64_t>(most));
    }
  });
}

bool ImageCheck::takes(Bytes value) const noexcept {
  const std::optional<ImageHeader> header = read_image_header(value);
  if (!header || (header->bits == 16) != deep) return false;
  if (height < 0 && width < 0) return true;
  // The orientation may exchange height and width.
  return header->orientation == 1 && (height < 0 || header->height == height) &&
         (width < 0 || header->width == width);
}

std::vector<Column> plain_columns(const std::vector<ColumnSpec>& specs) {
  std::vector<Column> columns;
  columns.reserve(specs.size());
  for (const ColumnSpec& spec : specs) columns.push_back(spec.column);
  return columns;
}

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

bool fill_cell(PyObject* value, const ColumnSpec& spec, std::size_t c, Accept accept,
               Scratch& scratch) {
  const Column& column = spec.column;
  const bool canonical = accept == Accept::canonical;
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
  if (spec.shape.empty() && (PyLong_Check(value) || PyFloat_Check(value))) {
    if (scratch.counts_rounding) scratch.rounding[c] = {};
    if (!put_number(value, spec, accept, reinterpret_cast<std::uint8_t*>(&scratch.numbers[c]))) {
      return false;
    }
    if (scratch.counts_rounding && column.element == Element::float32) {
      scratch.rounding[c] = {is_rounded(value), 1};
    }
    return true;
  }
  if (!spec.shape.empty() && (PyList_CheckExact(value) || PyTuple_CheckExact(value))) {
    if (!takes_lists(column.element, accept)) return false;
    std::vector<std::uint8_t>& numbers = scratch.lists[c];
    numbers.clear();
    scratch.list_shape = spec.shape;
    Rounding* rounding = nullptr;
    // The default of an optional column, a tuple, may be filled in later: it is not counted.
    const bool is_given = column.required || PyList_CheckExact(value);
    if (scratch.counts_rounding && is_given && column.element == Element::float32) {
      rounding = &scratch.rounding[c];
      *rounding = {};
    }
    if (!append_list(value, spec, accept, scratch.list_shape, 0, numbers, rounding)) return false;
    cell.numbers = numbers.data();
    cell.count = numbers.size() / element_size(column.element);
    return true;
  }

  if (!PyObject_CheckBuffer(value) || is_decimal(spec, accept)) return false;
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

void register_columns(nb::module_& m) {
  nb::class_<ColumnSpec>(m, "ColumnSpec", "One key of an Example: how it is stored and decoded.")
      .def(
          "__init__", &init, nb::kw_only(), nb::arg("key"), nb::arg("dtype"), nb::arg("wire"),
          nb::arg("layout"), nb::arg("count"), nb::arg("required"), nb::arg("default").none(),
          nb::arg("shape"), nb::arg("bounds").none(), nb::arg("image").none(),
          "`shape` has -1 for an unknown dimension; `bounds` are those of the integers if narrower "
          "than the dtype's; `image` is (height, width, whether it has 16 bits) of encoded "
          "images.");
}

}  // namespace covey
