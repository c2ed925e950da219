#include "../frames.h"

#include "records.h"

namespace covey {
namespace {

// Records on their way to a file, framed one at a time.
class FrameBuffer {
 public:
  explicit FrameBuffer(std::size_t reserve) : reserve_(reserve) {}

  std::size_t append(nb::handle record) {
    if (frames_.data.size() == 0) frames_.data.reserve(reserve_);
    if (PyBytes_CheckExact(record.ptr())) {  // the usual case, without the buffer protocol
      frame(reinterpret_cast<const std::uint8_t*>(PyBytes_AS_STRING(record.ptr())),
            static_cast<std::size_t>(PyBytes_GET_SIZE(record.ptr())));
    } else {
      const View view(record);
      frame(view.data(), view.size());
    }
    return frames_.data.size();
  }

  std::size_t size() const noexcept { return frames_.lengths.size(); }

  nb::tuple take() {
    Frames frames = std::move(frames_);
    frames_ = Frames();
    return to_tuple(std::move(frames));
  }

 private:
  void frame(const std::uint8_t* data, std::size_t size) {
    frames_.offsets.push_back(frames_.data.size() + kHeaderBytes);
    frames_.lengths.push_back(size);
    append_frame(frames_.data, data, size);
  }

  std::size_t reserve_;
  Frames frames_;
};

nb::tuple scan(nb::handle data, std::size_t limit, int verify) {
  if (verify < 0 || verify > 2) throw nb::value_error("verify must be 0, 1 or 2");
  const View view(data);
  Scan found;
  {
    const GilReleased released;
    found = scan_frames(view.data(), view.size(), limit, static_cast<Verify>(verify));
  }
  nb::object fault = found.fault ? to_exception(found.fault) : nb::none();
  return nb::make_tuple(to_numpy(std::move(found.offsets)), to_numpy(std::move(found.lengths)),
                        found.consumed, found.needed, fault);
}

nb::tuple find(nb::handle data, std::size_t begin, std::size_t end, std::uint64_t most,
               bool ended) {
  const View view(data);
  Found found;
  {
    const GilReleased released;
    found = find_frame(view.data(), view.size(), begin, end, most, ended);
  }
  return nb::make_tuple(found.position, found.needed);
}

std::size_t end_of_frame(nb::handle data, bool ended) {
  const View view(data);
  const GilReleased released;
  return find_end(view.data(), view.size(), ended);
}

nb::tuple copy(nb::list buffers, nb::handle sources, ArrayArg<std::uint64_t> offsets,
               ArrayArg<std::uint64_t> lengths) {
  const Records records =
      from_buffers(buffers, sources, offsets, lengths, kHeaderBytes, kFooterBytes);
  Frames frames;
  {
    const GilReleased released;
    frames = copy_frames(records.bytes);
  }
  return to_tuple(std::move(frames));
}

nb::list slice(nb::handle data, ArrayArg<std::uint64_t> offsets, ArrayArg<std::uint64_t> lengths) {
  const View view(data);
  if (offsets.shape(0) != lengths.shape(0)) throw nb::value_error("offsets and lengths differ");
  const std::size_t count = offsets.shape(0);
  nb::list records = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!records.is_valid()) throw nb::python_error();
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t offset = offsets.data()[i], length = lengths.data()[i];
    if (offset > view.size() || length > view.size() - offset) {
      raise_fault({.code = FaultCode::out_of_bounds,
                   .row = i,
                   .offset = offset,
                   .found = length,
                   .expected = view.size()});
    }
    PyObject* const record = PyBytes_FromStringAndSize(
        reinterpret_cast<const char*>(view.data()) + offset, static_cast<Py_ssize_t>(length));
    if (record == nullptr) throw nb::python_error();
    PyList_SET_ITEM(records.ptr(), static_cast<Py_ssize_t>(i), record);
  }
  return records;
}

}  // namespace

void register_frames(nb::module_& m) {
  m.attr("VERIFY_NOTHING") = static_cast<int>(Verify::nothing);
  m.attr("VERIFY_LENGTHS") = static_cast<int>(Verify::lengths);
  m.attr("VERIFY_ALL") = static_cast<int>(Verify::all);

  m.def("scan_frames", &scan, nb::arg("data"), nb::arg("limit"), nb::arg("verify"),
        nb::sig("def scan_frames(data: Buffer, limit: int, verify: int) -> "
                "tuple[NDArray[uint64], NDArray[uint64], int, int, Fault | None]"),
        "The frames that lie wholly within `data`, up to the first that is damaged: "
        "(offsets, lengths, bytes consumed, bytes that the next frame needs, fault).");
  m.def("find_frame", &find, nb::arg("data"), nb::arg("begin"), nb::arg("end"), nb::arg("most"),
        nb::arg("ended"),
        nb::sig("def find_frame(data: Buffer, begin: int, end: int, most: int, ended: bool) -> "
                "tuple[int, int]"),
        "The place from `begin` on where a sound frame of at most `most` bytes of data stands, or "
        "the end of `data`; and how many bytes must be seen from there on to tell, 0 if none. "
        "Before `end`, only a frame from which others lead to `end` or to the end of the file.");
  m.def("find_end", &end_of_frame, nb::arg("data"), nb::arg("ended"),
        nb::sig("def find_end(data: Buffer, ended: bool) -> int"),
        "Where the frame that `data` begins with ends, if only its header is damaged, or 0.");
  m.def("slice_records", &slice, nb::arg("data"), nb::arg("offsets"), nb::arg("lengths"),
        nb::sig("def slice_records(data: Buffer, offsets: NDArray[uint64], "
                "lengths: NDArray[uint64]) -> list[bytes]"),
        "The records at these places, as bytes.");

  m.def("copy_frames", &copy, nb::arg("buffers"), nb::arg("sources").none(), nb::arg("offsets"),
        nb::arg("lengths"),
        nb::sig("def copy_frames(buffers: list[Any], sources: NDArray[uint32] | None, "
                "offsets: NDArray[uint64], lengths: NDArray[uint64]) -> "
                "tuple[NDArray[uint8], NDArray[uint64], NDArray[uint64]]"),
        "Records that lie in buffers, each in its frame, brought into this order: "
        "(data, offsets, lengths).");

  nb::class_<FrameBuffer>(m, "FrameBuffer", "Records on their way to a file.")
      .def(nb::init<std::size_t>(), nb::arg("reserve"))
      .def("append", &FrameBuffer::append, nb::arg("record"),
           nb::sig("def append(self, record: Buffer) -> int"),
           "Frames one record, and returns the bytes held now.")
      .def("__len__", &FrameBuffer::size, "How many records are held.")
      .def("take", &FrameBuffer::take,
           nb::sig("def take(self) -> "
                   "tuple[NDArray[uint8], NDArray[uint64], NDArray[uint64]]"),
           "Hands over what is held, (data, offsets, lengths), and begins anew.");
}

}  // namespace covey
