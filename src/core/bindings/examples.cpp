#include "encoder.h"

namespace covey {
namespace {

// Collects encoded examples for a block.
class ExampleBuffer {
 public:
  ExampleBuffer(nb::object encoder, bool counts_rounding)
      : held_(encoder),
        encoder_(nb::cast<PyEncoder&>(encoder)),
        rounding_(counts_rounding ? encoder_.column_count() : 0) {}

  void append(nb::dict example, nb::handle coerce) {
    encoder_.append_example(example, coerce, frames_, rounding_);
  }

  // Encodes items of an iterator, each before the next is requested, until the buffer has `bytes`
  // bytes or `count` items were added. Items are dicts, or pairs of a key and a dict, whose keys
  // are appended to `keys`. Stops at an item that is neither, or that cannot be encoded; without
  // `coerce` no value is converted. Returns ("end" | "full" | "item", the item).
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
      // Either all items have keys, or none.
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

  nb::list rounding() const {
    nb::list found;
    for (const Rounding& each : rounding_) found.append(nb::make_tuple(each.rounded, each.total));
    return found;
  }

  nb::tuple take() {
    for (Rounding& each : rounding_) each = {};
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

  // Returns whether an example could be encoded; the Python side encodes it again for the error.
  bool append_or_not(nb::dict example, nb::handle coerce) {
    try {
      encoder_.append_example(example, coerce, frames_, rounding_);
      return true;
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;
      return false;
    }
  }

  nb::object held_;  // keeps the encoder alive
  PyEncoder& encoder_;
  std::vector<Rounding> rounding_;
  Frames frames_;
};

}  // namespace

void register_examples(nb::module_& m) {
  nb::class_<ExampleBuffer>(m, "ExampleBuffer", "A buffer of encoded examples.")
      .def(nb::init<nb::object, bool>(), nb::arg("encoder"), nb::arg("counts_rounding"),
           nb::sig("def __init__(self, encoder: Encoder, counts_rounding: bool) -> None"))
      .def("append", &ExampleBuffer::append, nb::arg("example"), nb::arg("coerce").none(),
           nb::sig("def append(self, example: dict[str, Any], "
                   "coerce: Callable[[int, Any], Any] | None) -> None"),
           "Encode and frame one example.")
      .def("extend", &ExampleBuffer::extend, nb::arg("iterator"), nb::arg("coerce").none(),
           nb::arg("keys"), nb::arg("bytes"), nb::arg("count"),
           nb::sig("def extend(self, iterator: Iterator[Any], "
                   "coerce: Callable[[int, Any], Any] | None, keys: list[Any], bytes: int, "
                   "count: int) -> tuple[str, Any]"),
           "Encode items of an iterator until the buffer has `bytes` bytes or `count` were added: "
           "('end', 'full' or 'item', the item that could not be encoded).")
      .def_prop_ro("rounding", &ExampleBuffer::rounding,
                   nb::sig("def rounding(self) -> list[tuple[int, int]]"),
                   "How many numbers of lists were rounded to float32, and how many there are, by "
                   "column; empty if they are not counted.")
      .def_prop_ro("bytes", &ExampleBuffer::bytes, "The bytes that are held.")
      .def("__len__", &ExampleBuffer::size, "How many examples are held.")
      .def("take", &ExampleBuffer::take,
           nb::sig("def take(self) -> "
                   "tuple[NDArray[uint8], NDArray[uint64], NDArray[uint64]]"),
           "Return the frames, (data, offsets, lengths), and clear the buffer.");
}

}  // namespace covey
