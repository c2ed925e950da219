// The encoder: single examples, or columns that are checked once and encoded in parts.
#include <nanobind/stl/unique_ptr.h>

#include <memory>

#include "columns.h"

namespace covey {
namespace {

// Checked columns. They refer to the memory of the Python objects in `held`.
struct ColumnSet {
  ColumnSet() = default;
  ColumnSet(const ColumnSet&) = delete;
  ColumnSet& operator=(const ColumnSet&) = delete;

  std::size_t rows = 0;
  const void* encoder = nullptr;  // the encoder that checked them
  std::vector<ColumnIn> columns;
  std::vector<View> views;
  std::vector<std::unique_ptr<std::vector<Bytes>>> strings;
  std::vector<std::unique_ptr<std::vector<std::int64_t>>> splits;
  std::vector<nb::object> held;
};

[[noreturn]] void bad_column(std::size_t column, FaultCode code) {
  raise_fault({.code = code, .column = column});
}

class PyEncoder {
 public:
  PyEncoder(const PyEncoder&) = delete;
  PyEncoder& operator=(const PyEncoder&) = delete;
  explicit PyEncoder(std::vector<ColumnSpec> specs)
      : specs_(std::move(specs)), encoder_(plain_columns(specs_)) {
    for (const ColumnSpec& spec : specs_) {
      const std::string& key = spec.column.key;
      PyObject* name = PyUnicode_FromStringAndSize(key.data(), static_cast<Py_ssize_t>(key.size()));
      if (name == nullptr) throw nb::python_error();
      PyUnicode_InternInPlace(&name);
      names_.push_back(nb::steal(name));
    }
  }

  // Encodes one example. A value that does not have the type of its column is passed to
  // coerce(column, value), which converts it or raises.
  nb::bytes encode_example(Dict example, nb::handle coerce) {
    Lent scratch(*this);
    const std::size_t size = fill(example, coerce, *scratch);
    nb::bytes record =
        nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
    if (!record.is_valid()) throw nb::python_error();
    encoder_.write(scratch->cells.data(), scratch->sizes.data(),
                   reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(record.ptr())));
    return record;
  }

  // The same, appended to `frames` with its frame; `frames` is unchanged on failure. Adds to
  // `rounding` and `ranges`, which have an element per column, unless they are empty.
  void append_example(nb::dict example, nb::handle coerce, Frames& frames,
                      std::vector<Rounding>& rounding, std::vector<IntegerRange>& ranges) {
    Lent scratch(*this);
    scratch->counts_rounding = !rounding.empty();
    for (std::size_t c = 0; c < rounding.size(); ++c) scratch->rounding[c] = {};
    const std::size_t size = fill(example, coerce, *scratch);
    encoder_.frame(scratch->cells.data(), scratch->sizes.data(), size, frames);
    for (std::size_t c = 0; c < rounding.size(); ++c) rounding[c].add(scratch->rounding[c]);
    for (std::size_t c = 0; c < ranges.size(); ++c) {
      ranges[c].add(scratch->cells[c], specs_[c].column.element);
    }
  }

  std::size_t column_count() const noexcept { return specs_.size(); }

  // Checks columns of `rows` rows. Each is None (absent) or (values, row_splits | None); values
  // are contiguous numbers, or a list of bytes and str, or (data, offsets) of strings.
  std::unique_ptr<ColumnSet> columns(List columns, std::size_t rows) const {
    check(columns.size() == specs_.size(), "one item per column");
    auto set = std::make_unique<ColumnSet>();
    set->rows = rows;
    set->encoder = this;
    for (std::size_t c = 0; c < specs_.size(); ++c) {
      set->columns.push_back(column(c, columns[c], *set));
    }
    return set;
  }

  FrameArrays encode(const ColumnSet& set, std::size_t begin, std::size_t end,
                     std::size_t bytes) const {
    if (begin > end || end > set.rows) throw nb::index_error("rows out of range");
    check_columns(set);
    Frames frames = without_gil([&] { return encoder_.encode(set.columns, begin, end, bytes); });
    return take(frames);
  }

  FrameArrays encode_rows(const ColumnSet& set, ArrayArg<std::uint64_t> rows) const {
    check_columns(set);
    // A copy, because the caller may change the array after the check.
    const std::vector<std::uint64_t> order(rows.data(), rows.data() + rows.shape(0));
    for (const std::uint64_t row : order) {
      if (row >= set.rows) throw nb::index_error("rows out of range");
    }
    Frames frames = without_gil(
        [&] { return encoder_.encode(set.columns, 0, order.size(), SIZE_MAX, order.data()); });
    return take(frames);
  }

  Array<std::uint64_t> measure(const ColumnSet& set) const {
    check_columns(set);
    Buffer<std::uint64_t> lengths;
    std::uint64_t* const out = lengths.extend(set.rows);
    without_gil([&] { encoder_.measure_rows(set.columns, 0, set.rows, out); });
    return to_numpy(std::move(lengths));
  }

 private:
  // Scratch memory, removed from the pool because coerce may call this encoder.
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
    const Accept accept = coerce.is_none() ? Accept::inferred : Accept::declared;
    Py_ssize_t used = 0;
    for (std::size_t c = 0; c < specs_.size(); ++c) {
      PyObject* const value = PyDict_GetItemWithError(example.ptr(), names_[c].ptr());
      if (value == nullptr) {
        if (PyErr_Occurred()) throw nb::python_error();
        if (specs_[c].column.required) bad_column(c, FaultCode::missing);
        scratch.cells[c].present = false;
        continue;
      }
      ++used;
      if (value == Py_None && !specs_[c].column.required) {
        scratch.cells[c].present = false;
        continue;
      }
      // coerce may change the dict, so the values are held until the record is written.
      scratch.held.push_back(nb::borrow(value));
      if (fill_cell(value, specs_[c], c, accept, scratch)) continue;
      if (coerce.is_none()) bad_column(c, FaultCode::inexact);
      nb::object canonical = coerce(c, nb::handle(value));
      scratch.held.push_back(canonical);
      if (!fill_cell(canonical.ptr(), specs_[c], c, Accept::canonical, scratch))
        bad_column(c, FaultCode::canonical);
    }
    if (used != PyDict_Size(example.ptr())) raise_fault({.code = FaultCode::extra});
    return encoder_.measure(scratch.cells.data(), scratch.sizes.data());
  }

  void check_columns(const ColumnSet& set) const {
    if (set.encoder != this) throw nb::value_error("columns of another encoder");
  }

  ColumnIn column(std::size_t c, nb::handle given, ColumnSet& set) const {
    const Column& column = specs_[c].column;
    ColumnIn in;
    if (given.is_none()) {
      if (column.required) bad_column(c, FaultCode::missing);
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
      if (set.views.back().size() % element_size(column.element) != 0)
        bad_column(c, FaultCode::size);
    }
    if (pair[1].is_none()) {
      if (column.layout != Layout::fixed) bad_column(c, FaultCode::splits);
      if (column.count != 0 ? values % column.count != 0 || values / column.count != set.rows
                            : values != 0) {
        bad_column(c, FaultCode::size);
      }
      return in;
    }
    auto splits = std::make_unique<std::vector<std::int64_t>>(numbers_of(c, pair[1]));
    if (splits->size() != set.rows + 1) bad_column(c, FaultCode::splits);
    check_splits(c, *splits, values, column.count);
    in.row_splits = splits->data();
    set.splits.push_back(std::move(splits));
    return in;
  }

  std::vector<Bytes> strings_of(std::size_t c, nb::handle given, ColumnSet& set) const {
    std::vector<Bytes> strings;
    if (nb::isinstance<nb::list>(given)) {
      // The caller may change the list, not the strings.
      nb::tuple held(nb::borrow<nb::list>(given));
      set.held.push_back(held);
      strings.resize(held.size());
      for (std::size_t i = 0; i < strings.size(); ++i) {
        if (!string_bytes(held[i].ptr(), false, strings[i])) bad_column(c, FaultCode::string);
      }
      return strings;
    }
    const auto pair = nb::cast<nb::tuple>(given);
    set.views.emplace_back(pair[0], PyBUF_C_CONTIGUOUS);
    const std::uint8_t* const data = set.views.back().data();
    const std::size_t size = set.views.back().size();
    const std::vector<std::int64_t> offsets = numbers_of(c, pair[1]);
    if (offsets.empty()) bad_column(c, FaultCode::splits);
    check_splits(c, offsets, size, 1);
    strings.resize(offsets.size() - 1);
    for (std::size_t i = 0; i < strings.size(); ++i) {
      strings[i] = {data + offsets[i], data + offsets[i + 1]};
    }
    return strings;
  }

  // A copy, because the caller may change the array after the check.
  static std::vector<std::int64_t> numbers_of(std::size_t c, nb::handle given) {
    const View view(given, PyBUF_C_CONTIGUOUS);
    if (view.size() % 8 != 0) bad_column(c, FaultCode::splits);
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
        bad_column(c, FaultCode::splits);
      }
      before = split;
    }
  }

  std::vector<ColumnSpec> specs_;
  Encoder encoder_;
  std::vector<nb::object> names_;
  std::vector<std::unique_ptr<Scratch>> pool_;
};

// Collects encoded examples for a block.
class ExampleBuffer {
 public:
  ExampleBuffer(PyEncoder& encoder, bool observes)
      : encoder_(encoder),
        rounding_(observes ? encoder.column_count() : 0),
        ranges_(rounding_.size()) {}

  void append(Dict example, nb::handle coerce) {
    encoder_.append_example(example, coerce, frames_, rounding_, ranges_);
  }

  // Encodes items of an iterator, each before the next is requested, until the buffer has `bytes`
  // bytes or `count` items were added. Items are dicts, or pairs of a key and a dict, whose keys
  // are appended to `keys`. Stops at an item that is neither, or that cannot be encoded; without
  // `coerce` no value is converted. Returns ("end" | "full" | "item", the item).
  std::pair<const char*, nb::object> extend(nb::handle iterator, nb::handle coerce, List keys,
                                            std::size_t bytes, std::size_t count) {
    while (frames_.data.size() < bytes && count-- > 0) {
      const nb::object item = nb::steal(PyIter_Next(iterator.ptr()));
      if (!item.is_valid()) {
        if (PyErr_Occurred()) throw nb::python_error();
        return {"end", nb::none()};
      }
      PyObject* example = item.ptr();
      const bool keyed = PyTuple_CheckExact(example) && PyTuple_GET_SIZE(example) == 2;
      if (keyed) example = PyTuple_GET_ITEM(example, 1);
      // Either all items have keys, or none.
      const bool alike = keys.size() == (keyed ? frames_.lengths.size() : 0);
      if (!alike || !PyDict_CheckExact(example) ||
          (keyed && !is_key(PyTuple_GET_ITEM(item.ptr(), 0))) ||
          !append_or_not(nb::borrow<nb::dict>(example), coerce)) {
        return {"item", item};
      }
      if (keyed) keys.append(nb::borrow(PyTuple_GET_ITEM(item.ptr(), 0)));
    }
    return {"full", nb::none()};
  }

  std::size_t size() const noexcept { return frames_.lengths.size(); }
  std::size_t bytes() const noexcept { return frames_.data.size(); }

  std::vector<std::pair<std::uint64_t, std::uint64_t>> rounding() const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
    for (const Rounding& each : rounding_) found.emplace_back(each.rounded, each.total);
    return found;
  }

  std::vector<std::pair<std::int64_t, std::uint64_t>> integer_ranges() const {
    std::vector<std::pair<std::int64_t, std::uint64_t>> found;
    for (const IntegerRange& each : ranges_) found.emplace_back(each.low, each.high);
    return found;
  }

  FrameArrays take() {
    for (Rounding& each : rounding_) each = {};
    return covey::take(frames_);
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

  // Returns whether an example could be encoded; the Python side encodes it again for the error.
  bool append_or_not(nb::dict example, nb::handle coerce) {
    try {
      encoder_.append_example(example, coerce, frames_, rounding_, ranges_);
      return true;
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;
      return false;
    }
  }

  PyEncoder& encoder_;
  std::vector<Rounding> rounding_;
  std::vector<IntegerRange> ranges_;
  Frames frames_;
};

}  // namespace

void register_encoder(nb::module_& m) {
  nb::class_<ColumnSet>(m, "ColumnSet", "Checked columns, ready to be encoded.");

  nb::class_<PyEncoder>(m, "Encoder", "Encoder of examples to records.")
      .def(nb::init<std::vector<ColumnSpec>>(), nb::arg("columns"))
      .def("encode_example", &PyEncoder::encode_example, nb::arg("example"), nb::arg("coerce"),
           "Return the record of one example. coerce(column, value) converts a value that does "
           "not have the type of its column, or raises.")
      .def("columns", &PyEncoder::columns, nb::arg("columns"), nb::arg("rows"),
           "Check columns of `rows` rows.")
      .def("encode", &PyEncoder::encode, nb::arg("columns"), nb::arg("begin"), nb::arg("end"),
           nb::arg("bytes"),
           "Return frames of the rows [begin, end), until they have `bytes` bytes: "
           "(data, offsets, lengths).")
      .def("encode_rows", &PyEncoder::encode_rows, nb::arg("columns"), nb::arg("rows"),
           "Return the frames of rows, in this order: (data, offsets, lengths).")
      .def("measure", &PyEncoder::measure, nb::arg("columns"),
           "Return the record lengths of all rows.");

  nb::class_<ExampleBuffer>(m, "ExampleBuffer", "A buffer of encoded examples.")
      .def(nb::init<PyEncoder&, bool>(), nb::arg("encoder"), nb::arg("observes"),
           nb::keep_alive<1, 2>())
      .def("append", &ExampleBuffer::append, nb::arg("example"), nb::arg("coerce").none(),
           "Encode and frame one example.")
      .def("extend", &ExampleBuffer::extend, nb::arg("iterator"), nb::arg("coerce").none(),
           nb::arg("keys"), nb::arg("bytes"), nb::arg("count"),
           "Encode items of an iterator until the buffer has `bytes` bytes or `count` were added: "
           "('end', 'full' or 'item', the item that could not be encoded).")
      .def_prop_ro("rounding", &ExampleBuffer::rounding,
                   "How many numbers of lists were rounded to float32, and how many there are, by "
                   "column; empty if the buffer does not observe numbers.")
      .def_prop_ro("integer_ranges", &ExampleBuffer::integer_ranges,
                   "The minimum and the maximum of 0 and all integers that were added, by column; "
                   "empty if the buffer does not observe numbers.")
      .def_prop_ro("bytes", &ExampleBuffer::bytes, "The bytes that are held.")
      .def("__len__", &ExampleBuffer::size, "How many examples are held.")
      .def("take", &ExampleBuffer::take,
           "Return the frames, (data, offsets, lengths), and clear the buffer.");
}

}  // namespace covey
