#include <nanobind/stl/unique_ptr.h>

#include <cmath>
#include <memory>

#include "../encode.h"
#include "columns.h"
#include "places.h"

namespace covey {
namespace {

// Memory that one call of encode_example needs, kept for the next.
struct Scratch {
  explicit Scratch(std::size_t columns)
      : cells(columns), sizes(columns), numbers(columns), string(columns), strings(columns) {}

  std::vector<Cell> cells;
  std::vector<std::size_t> sizes;
  std::vector<std::uint64_t> numbers;       // scalars, by column
  std::vector<Bytes> string;                // single strings, by column
  std::vector<std::vector<Bytes>> strings;  // lists of them, by column
  std::vector<View> views;
  std::vector<nb::object> held;

  void release() {
    views.clear();
    held.clear();
  }
};

// Whether a buffer's format (one letter of the struct module) is the element's.
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

// The bytes of a str or bytes object; false for anything else.
bool string_bytes(PyObject* value, bool text, Bytes& out) {
  const char* data;
  Py_ssize_t size;
  if (PyUnicode_Check(value)) {
    data = PyUnicode_AsUTF8AndSize(value, &size);
    if (data == nullptr) {  // lone surrogates: let the Python side say so
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

// Fills `cell` from a value that is already as the column wants it; false if it is not. What the
// cell points to lives in `value` or in `scratch`.
bool fill_cell(PyObject* value, const ColumnSpec& spec, std::size_t c, bool canonical,
               Scratch& scratch) {
  const Column& column = spec.column;
  Cell& cell = scratch.cells[c];
  cell.present = true;
  if (column.element == Element::string) {
    // Checked Python values are bytes, whatever the column's text is.
    const bool text = column.text && !canonical;
    if (spec.shape.empty() && string_bytes(value, text, scratch.string[c])) {
      cell.strings = &scratch.string[c];
      cell.count = 1;
      return true;
    }
    if (!PyList_Check(value) || (spec.shape.size() != 1 && !canonical)) return false;
    // A copy of the list: whatever runs before the record is written may change the list.
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
    std::memcpy(&scratch.numbers[c], &number, 8);  // little-endian: narrower ones come first
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
    PyErr_Clear();  // not contiguous, or a dtype that has no format: the Python side knows more
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
  // A label's bounds are narrower than its type's; only the Python side checks those of arrays.
  if (!canonical && spec.bounded) return false;
  cell.numbers = view.data();
  cell.count = view.size() / element_size(column.element);
  scratch.views.push_back(std::move(view));
  return true;
}

// Columns that are checked once and encoded in pieces.
struct ColumnSet {
  ColumnSet() = default;
  ColumnSet(const ColumnSet&) = delete;
  ColumnSet& operator=(const ColumnSet&) = delete;

  std::size_t rows = 0;
  const void* encoder = nullptr;  // the one that checked them
  std::vector<ColumnIn> columns;
  std::vector<View> views;
  std::vector<std::unique_ptr<std::vector<Bytes>>> strings;
  std::vector<std::unique_ptr<std::vector<std::int64_t>>> splits;
  std::vector<nb::object> held;
};

[[noreturn]] void bad_column(std::size_t column, const char* what) {
  raise_fault(nb::make_tuple(what, 0, 0, 0, 0, column));
}

class PyEncoder {
 public:
  PyEncoder(const PyEncoder&) = delete;
  PyEncoder& operator=(const PyEncoder&) = delete;
  explicit PyEncoder(nb::list specs)
      : specs_(column_specs(specs)), encoder_(plain_columns(specs_)) {
    for (const ColumnSpec& spec : specs_) {
      const std::string& key = spec.column.key;
      PyObject* name = PyUnicode_FromStringAndSize(key.data(), static_cast<Py_ssize_t>(key.size()));
      if (name == nullptr) throw nb::python_error();
      PyUnicode_InternInPlace(&name);
      names_.push_back(nb::steal(name));
    }
  }

  // One example. A value that is not of the column's own type goes through coerce(column, value)
  // first, which converts it or says what is wrong with it.
  nb::object encode_example(nb::dict example, nb::handle coerce) {
    Lent scratch(*this);
    const std::size_t size = fill(example, coerce, *scratch);
    nb::object record =
        nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
    if (!record.is_valid()) throw nb::python_error();
    encoder_.write(scratch->cells.data(), scratch->sizes.data(),
                   reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(record.ptr())));
    return record;
  }

  // The same, framed, at the end of `frames`, which is as it was if this fails.
  void append_example(nb::dict example, nb::handle coerce, Frames& frames) {
    Lent scratch(*this);
    const std::size_t size = fill(example, coerce, *scratch);
    encoder_.frame(scratch->cells.data(), scratch->sizes.data(), size, frames);
  }

  // Checks columns of `rows` rows. Each is None (absent) or (values, row_splits | None); values
  // are contiguous numbers, or a list of bytes and str, or (data, offsets) of strings.
  std::unique_ptr<ColumnSet> columns(nb::list columns, std::size_t rows) const {
    if (columns.size() != specs_.size()) throw nb::value_error("one item per column");
    auto set = std::make_unique<ColumnSet>();
    set->rows = rows;
    set->encoder = this;
    for (std::size_t c = 0; c < specs_.size(); ++c) {
      set->columns.push_back(column(c, columns[c], *set));
    }
    return set;
  }

  nb::tuple encode(const ColumnSet& set, std::size_t begin, std::size_t end,
                   std::size_t bytes) const {
    if (begin > end || end > set.rows) throw nb::index_error("rows out of range");
    check_columns(set);
    Frames frames;
    {
      nb::gil_scoped_release release;
      frames = encoder_.encode(set.columns, begin, end, bytes);
    }
    return to_tuple(std::move(frames));
  }

  nb::tuple encode_rows(const ColumnSet& set, ArrayArg<std::uint64_t> rows) const {
    check_columns(set);
    // A copy, so that what was checked is what is used.
    const std::vector<std::uint64_t> order(rows.data(), rows.data() + rows.shape(0));
    for (const std::uint64_t row : order) {
      if (row >= set.rows) throw nb::index_error("rows out of range");
    }
    Frames frames;
    {
      nb::gil_scoped_release release;
      frames = encoder_.encode_rows(set.columns, order.data(), order.size());
    }
    return to_tuple(std::move(frames));
  }

  Array<std::uint64_t> measure(const ColumnSet& set) const {
    check_columns(set);
    Buffer<std::uint64_t> lengths;
    {
      nb::gil_scoped_release release;
      encoder_.measure_rows(set.columns, 0, set.rows, lengths.extend(set.rows));
    }
    return to_numpy(std::move(lengths));
  }

 private:
  // Scratch memory, taken out of the pool because coerce may call back into this encoder.
  class Lent {
   public:
    explicit Lent(PyEncoder& owner) : owner_(owner) {
      if (owner.pool_.empty()) {
        scratch_ = std::make_unique<Scratch>(owner.specs_.size());
      } else {
        scratch_ = std::move(owner.pool_.back());
        owner.pool_.pop_back();
      }
    }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;
    ~Lent() {
      scratch_->release();
      owner_.pool_.push_back(std::move(scratch_));
    }
    Scratch& operator*() const noexcept { return *scratch_; }
    Scratch* operator->() const noexcept { return scratch_.get(); }

   private:
    PyEncoder& owner_;
    std::unique_ptr<Scratch> scratch_;
  };

  // Points the cells at the values of an example, and returns the size of its record.
  std::size_t fill(nb::dict example, nb::handle coerce, Scratch& scratch) const {
    Py_ssize_t used = 0;
    for (std::size_t c = 0; c < specs_.size(); ++c) {
      PyObject* const value = PyDict_GetItemWithError(example.ptr(), names_[c].ptr());
      if (value == nullptr) {
        if (PyErr_Occurred()) throw nb::python_error();
        if (specs_[c].column.required) raise_fault(nb::make_tuple("missing", 0, 0, 0, 0, c));
        scratch.cells[c].present = false;
        continue;
      }
      ++used;
      if (value == Py_None && !specs_[c].column.required) {
        scratch.cells[c].present = false;
        continue;
      }
      // coerce may change the dict, so what cells point to is held until the record is made.
      scratch.held.push_back(nb::borrow(value));
      if (fill_cell(value, specs_[c], c, false, scratch)) continue;
      if (coerce.is_none()) bad_column(c, "inexact");
      nb::object canonical = coerce(c, nb::handle(value));
      scratch.held.push_back(canonical);
      if (!fill_cell(canonical.ptr(), specs_[c], c, true, scratch)) bad_column(c, "canonical");
    }
    if (used != PyDict_Size(example.ptr())) raise_fault(nb::make_tuple("extra", 0, 0, 0, 0, 0));
    return encoder_.measure(scratch.cells.data(), scratch.sizes.data());
  }

  void check_columns(const ColumnSet& set) const {
    if (set.encoder != this) throw nb::value_error("columns of another encoder");
  }

  ColumnIn column(std::size_t c, nb::handle given, ColumnSet& set) const {
    const Column& column = specs_[c].column;
    ColumnIn in;
    if (given.is_none()) {
      if (column.required) bad_column(c, "missing");
      in.present = false;
      return in;
    }
    const auto pair = nb::cast<nb::tuple>(given);
    std::size_t values;
    set.held.push_back(nb::borrow(pair));
    if (column.element == Element::string) {
      auto strings = std::make_unique<std::vector<Bytes>>(strings_of(c, pair[0], set));
      values = strings->size();
      in.strings = strings->data();
      set.strings.push_back(std::move(strings));
    } else {
      set.views.emplace_back(pair[0], PyBUF_C_CONTIGUOUS);
      in.numbers = set.views.back().data();
      values = set.views.back().size() / element_size(column.element);
      if (set.views.back().size() % element_size(column.element) != 0) bad_column(c, "size");
    }
    if (pair[1].is_none()) {
      if (column.layout != Layout::fixed) bad_column(c, "splits");
      if (column.count != 0 ? values % column.count != 0 || values / column.count != set.rows
                            : values != 0) {
        bad_column(c, "size");
      }
      return in;
    }
    auto splits = std::make_unique<std::vector<std::int64_t>>(numbers_of(c, pair[1]));
    if (splits->size() != set.rows + 1) bad_column(c, "splits");
    check_splits(c, *splits, values, column.count);
    in.row_splits = splits->data();
    set.splits.push_back(std::move(splits));
    return in;
  }

  std::vector<Bytes> strings_of(std::size_t c, nb::handle given, ColumnSet& set) const {
    std::vector<Bytes> strings;
    if (nb::isinstance<nb::list>(given)) {
      // The list may change under us, the strings in it not.
      nb::tuple held(nb::borrow<nb::list>(given));
      set.held.push_back(held);
      strings.resize(held.size());
      for (std::size_t i = 0; i < strings.size(); ++i) {
        if (!string_bytes(held[i].ptr(), false, strings[i])) bad_column(c, "string");
      }
      return strings;
    }
    const auto pair = nb::cast<nb::tuple>(given);
    set.views.emplace_back(pair[0], PyBUF_C_CONTIGUOUS);
    const std::uint8_t* const data = set.views.back().data();
    const std::size_t size = set.views.back().size();
    const std::vector<std::int64_t> offsets = numbers_of(c, pair[1]);
    if (offsets.empty()) bad_column(c, "splits");
    check_splits(c, offsets, size, 1);
    strings.resize(offsets.size() - 1);
    for (std::size_t i = 0; i < strings.size(); ++i) {
      strings[i] = {data + offsets[i], data + offsets[i + 1]};
    }
    return strings;
  }

  // A copy, so that what was checked is what is used.
  static std::vector<std::int64_t> numbers_of(std::size_t c, nb::handle given) {
    const View view(given, PyBUF_C_CONTIGUOUS);
    if (view.size() % 8 != 0) bad_column(c, "splits");
    std::vector<std::int64_t> numbers(view.size() / 8);
    if (!numbers.empty()) std::memcpy(numbers.data(), view.data(), view.size());
    return numbers;
  }

  static void check_splits(std::size_t c, const std::vector<std::int64_t>& splits,
                           std::size_t values, std::size_t multiple) {
    std::int64_t before = 0;
    for (const std::int64_t split : splits) {
      if (split < before || static_cast<std::size_t>(split) > values ||
          static_cast<std::size_t>(split - before) % multiple != 0) {
        bad_column(c, "splits");
      }
      before = split;
    }
  }

  std::vector<ColumnSpec> specs_;
  Encoder encoder_;
  std::vector<nb::object> names_;
  std::vector<std::unique_ptr<Scratch>> pool_;
};

// Examples on their way to a block, each encoded when it comes.
class ExampleBuffer {
 public:
  explicit ExampleBuffer(nb::object encoder)
      : held_(encoder), encoder_(nb::cast<PyEncoder&>(encoder)) {}

  void append(nb::dict example, nb::handle coerce) {
    encoder_.append_example(example, coerce, frames_);
  }

  // Takes items from an iterator, encoding each before it asks for the next, until `bytes` are
  // held, or `count` items more. They are dicts, or pairs of a key and a dict, whose keys go to
  // `keys`. Stops at an item that is neither, or has a value that is not of its column's own type
  // and cannot be converted, which without `coerce` none can: ("end" | "full" | "item", that item).
  nb::tuple extend(nb::handle iterator, nb::handle coerce, nb::list keys, std::size_t bytes,
                   std::size_t count) {
    while (frames_.data.size() < bytes && count-- > 0) {
      const nb::object item = nb::steal(PyIter_Next(iterator.ptr()));
      if (!item.is_valid()) {
        if (PyErr_Occurred()) throw nb::python_error();
        return nb::make_tuple("end", nb::none());
      }
      PyObject* example = item.ptr();
      const bool keyed = PyTuple_CheckExact(example) && PyTuple_GET_SIZE(example) == 2;
      if (keyed) example = PyTuple_GET_ITEM(example, 1);
      // Either all have keys, or none has.
      const bool alike = keys.size() == (keyed ? frames_.lengths.size() : 0);
      if (!alike || !PyDict_CheckExact(example) ||
          (keyed && !is_key(PyTuple_GET_ITEM(item.ptr(), 0))) ||
          !append_or_not(nb::borrow<nb::dict>(example), coerce)) {
        return nb::make_tuple("item", item);
      }
      if (keyed) keys.append(nb::borrow(PyTuple_GET_ITEM(item.ptr(), 0)));
    }
    return nb::make_tuple("full", nb::none());
  }

  std::size_t size() const noexcept { return frames_.lengths.size(); }
  std::size_t bytes() const noexcept { return frames_.data.size(); }

  nb::tuple take() {
    Frames frames = std::move(frames_);
    frames_ = Frames();
    return to_tuple(std::move(frames));
  }

 private:
  static bool is_key(PyObject* key) {
    if (PyBytes_CheckExact(key)) return true;
    if (PyUnicode_CheckExact(key)) {
      if (PyUnicode_AsUTF8AndSize(key, nullptr) != nullptr) return true;
      PyErr_Clear();
      return false;
    }
    if (!PyLong_CheckExact(key)) return false;
    int overflow;
    PyLong_AsLongLongAndOverflow(key, &overflow);
    return overflow == 0;
  }

  // Whether an example could be encoded; why not is found out by whoever looks at it next.
  bool append_or_not(nb::dict example, nb::handle coerce) {
    try {
      encoder_.append_example(example, coerce, frames_);
      return true;
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;
      return false;
    }
  }

  nb::object held_;  // keeps the encoder alive
  PyEncoder& encoder_;
  Frames frames_;
};

}  // namespace

void register_encoder(nb::module_& m) {
  nb::class_<ColumnSet>(m, "ColumnSet", "Columns that were checked, ready to be encoded.");

  nb::class_<PyEncoder>(m, "Encoder", "Examples to records.")
      .def(nb::init<nb::list>(), nb::arg("columns"),
           nb::sig("def __init__(self, columns: list[ColumnTuple]) -> None"))
      .def("encode_example", &PyEncoder::encode_example, nb::arg("example"), nb::arg("coerce"),
           nb::sig("def encode_example(self, example: dict[str, Any], "
                   "coerce: Callable[[int, Any], Any]) -> bytes"),
           "The record of one example.")
      .def("columns", &PyEncoder::columns, nb::arg("columns"), nb::arg("rows"),
           nb::sig("def columns(self, columns: list[Any], rows: int) -> ColumnSet"),
           "Checks columns of so many rows.")
      .def("encode", &PyEncoder::encode, nb::arg("columns"), nb::arg("begin"), nb::arg("end"),
           nb::arg("bytes"),
           nb::sig("def encode(self, columns: ColumnSet, begin: int, end: int, bytes: int) -> "
                   "tuple[NDArray[uint8], NDArray[uint64], NDArray[uint64]]"),
           "Frames of rows [begin, end), as many as begin within so many bytes: "
           "(data, offsets, lengths).")
      .def("encode_rows", &PyEncoder::encode_rows, nb::arg("columns"), nb::arg("rows"),
           nb::sig("def encode_rows(self, columns: ColumnSet, rows: NDArray[uint64]) -> "
                   "tuple[NDArray[uint8], NDArray[uint64], NDArray[uint64]]"),
           "Frames of these rows, in this order: (data, offsets, lengths).")
      .def("measure", &PyEncoder::measure, nb::arg("columns"),
           nb::sig("def measure(self, columns: ColumnSet) -> NDArray[uint64]"),
           "The lengths that the records of all rows will have.");

  nb::class_<ExampleBuffer>(m, "ExampleBuffer", "Examples on their way to a block.")
      .def(nb::init<nb::object>(), nb::arg("encoder"),
           nb::sig("def __init__(self, encoder: Encoder) -> None"))
      .def("append", &ExampleBuffer::append, nb::arg("example"), nb::arg("coerce").none(),
           nb::sig("def append(self, example: dict[str, Any], "
                   "coerce: Callable[[int, Any], Any] | None) -> None"),
           "Encodes and frames one example.")
      .def("extend", &ExampleBuffer::extend, nb::arg("iterator"), nb::arg("coerce").none(),
           nb::arg("keys"), nb::arg("bytes"), nb::arg("count"),
           nb::sig("def extend(self, iterator: Iterator[Any], "
                   "coerce: Callable[[int, Any], Any] | None, keys: list[Any], bytes: int, "
                   "count: int) -> tuple[str, Any]"),
           "Takes items from an iterator, up to so many bytes held or items: ('end', 'full' or "
           "'item', the item that it stopped at).")
      .def_prop_ro("bytes", &ExampleBuffer::bytes, "The bytes that are held.")
      .def("__len__", &ExampleBuffer::size, "How many examples are held.")
      .def("take", &ExampleBuffer::take,
           nb::sig("def take(self) -> "
                   "tuple[NDArray[uint8], NDArray[uint64], NDArray[uint64]]"),
           "Hands over what is held, (data, offsets, lengths), and begins anew.");
}

}  // namespace covey
