// The Python class of the encoder: single examples, or columns that are checked once and encoded in
// parts.
#pragma once

#include <memory>
#include <utility>

#include "cells.h"
#include "records.h"

namespace covey {

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

[[noreturn]] inline void bad_column(std::size_t column, FaultCode code) {
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

  // The same, appended to `frames` with its frame; `frames` is unchanged on failure. Adds to
  // `rounding`, which has an element per column, unless it is empty.
  void append_example(nb::dict example, nb::handle coerce, Frames& frames,
                      std::vector<Rounding>& rounding) {
    Lent scratch(*this);
    scratch->counts_rounding = !rounding.empty();
    for (std::size_t c = 0; c < rounding.size(); ++c) scratch->rounding[c] = {};
    const std::size_t size = fill(example, coerce, *scratch);
    encoder_.frame(scratch->cells.data(), scratch->sizes.data(), size, frames);
    for (std::size_t c = 0; c < rounding.size(); ++c) rounding[c].add(scratch->rounding[c]);
  }

  std::size_t column_count() const noexcept { return specs_.size(); }

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
      const GilReleased released;
      frames = encoder_.encode(set.columns, begin, end, bytes);
    }
    return to_tuple(std::move(frames));
  }

  nb::tuple encode_rows(const ColumnSet& set, ArrayArg<std::uint64_t> rows) const {
    check_columns(set);
    // A copy, because the caller may change the array after the check.
    const std::vector<std::uint64_t> order(rows.data(), rows.data() + rows.shape(0));
    for (const std::uint64_t row : order) {
      if (row >= set.rows) throw nb::index_error("rows out of range");
    }
    Frames frames;
    {
      const GilReleased released;
      frames = encoder_.encode_rows(set.columns, order.data(), order.size());
    }
    return to_tuple(std::move(frames));
  }

  Array<std::uint64_t> measure(const ColumnSet& set) const {
    check_columns(set);
    Buffer<std::uint64_t> lengths;
    {
      const GilReleased released;
      encoder_.measure_rows(set.columns, 0, set.rows, lengths.extend(set.rows));
    }
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

}  // namespace covey
