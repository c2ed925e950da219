// Frames and records in buffers, and mapped files.
#include <cerrno>
#include <memory>

#include "../mapping.h"
#include "support.h"

namespace covey {
namespace {

// Collects framed records for a file.
class FrameBuffer {
 public:
  explicit FrameBuffer(std::size_t reserve) : reserve_(reserve) {}

  std::size_t append(nb::handle record) {
    if (frames.data.size() == 0) frames.data.reserve(reserve_);
    if (PyBytes_CheckExact(record.ptr())) {  // the common case, without the buffer protocol
      frame(reinterpret_cast<const std::uint8_t*>(PyBytes_AS_STRING(record.ptr())),
            static_cast<std::size_t>(PyBytes_GET_SIZE(record.ptr())));
    } else {
      const View view(record);
      frame(view.data(), view.size());
    }
    return frames.data.size();
  }

  Frames frames;

 private:
  void frame(const std::uint8_t* data, std::size_t size) {
    frames.offsets.push_back(frames.data.size() + kHeaderBytes);
    frames.lengths.push_back(size);
    append_frame(frames.data, data, size);
  }

  std::size_t reserve_;
};

auto scan(nb::handle data, std::size_t limit, int verify) {
  check(verify >= 0 && verify <= static_cast<int>(Verify::all), "verify must be 0, 1 or 2");
  const View view(data);
  Scan found = without_gil(
      [&] { return scan_frames(view.data(), view.size(), limit, static_cast<Verify>(verify)); });
  nb::typed<nb::object, nb::any> fault = found.fault ? to_exception(found.fault) : nb::none();
  return std::tuple(to_numpy(std::move(found.offsets)), to_numpy(std::move(found.lengths)),
                    found.consumed, found.needed, std::move(fault));
}

FrameArrays copy(List buffers, const Sources& sources, ArrayArg<std::uint64_t> offsets,
                 ArrayArg<std::uint64_t> lengths) {
  const Records records =
      records_of(buffers, sources, offsets, lengths, kHeaderBytes, kFooterBytes);
  Frames frames = without_gil([&] { return copy_frames(records.bytes); });
  return take(frames);
}

using Bytes1d = nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>;

Bytes1d map_file(int descriptor, std::uint64_t begin, std::uint64_t end, bool sequential) {
  check(begin <= end, "begin is greater than end");
  const Access access = sequential ? Access::sequential : Access::normal;
  auto mapped = without_gil(
      [&] { return std::make_unique<MappedBytes>(descriptor, begin, end - begin, access); });
  if (mapped->error() != 0) {
    errno = mapped->error();
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  const MappedBytes* const kept = mapped.release();
  nb::capsule owner(kept, [](void* memory) noexcept { delete static_cast<MappedBytes*>(memory); });
  return Bytes1d(kept->data(), {kept->size()}, owner);
}

auto file_states(const std::vector<nb::bytes>& paths) {
  using State = std::tuple<std::uint64_t, std::int64_t, std::uint64_t, std::uint32_t>;
  std::vector<std::string> names;
  for (const nb::bytes& each : paths) names.emplace_back(each.c_str(), each.size());
  return without_gil([&] {
    std::vector<std::optional<State>> states;
    for (const std::string& name : names) {
      const auto found = file_state(name);
      states.emplace_back();
      if (found) states.back() = {found->size, found->modified, found->inode, found->fingerprint};
    }
    return states;
  });
}

}  // namespace

Records records_of(nb::list buffers, const Sources& sources, const ArrayArg<std::uint64_t>& offsets,
                   const ArrayArg<std::uint64_t>& lengths, std::size_t header, std::size_t footer) {
  Records records;
  for (nb::handle each : buffers) records.views.emplace_back(each);
  const std::size_t count = offsets.shape(0);
  check(lengths.shape(0) == count, "offsets and lengths differ");
  check(!sources || sources->shape(0) == count, "offsets and sources differ");
  records.bytes.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t which = sources ? sources->data()[i] : 0;
    const std::uint64_t offset = offsets.data()[i], length = lengths.data()[i];
    const std::size_t size = which < records.views.size() ? records.views[which].size() : 0;
    if (which >= records.views.size() || offset < header || offset > size ||
        length > size - offset || footer > size - offset - length) {
      raise_fault({.code = FaultCode::out_of_bounds,
                   .row = i,
                   .offset = offset,
                   .found = length,
                   .expected = size});
    }
    const std::uint8_t* const begin = records.views[which].data() + offset;
    records.bytes[i] = {begin, begin + length};
  }
  return records;
}

void register_frames(nb::module_& m) {
  m.attr("VERIFY_NOTHING") = static_cast<int>(Verify::nothing);
  m.attr("VERIFY_LENGTHS") = static_cast<int>(Verify::lengths);
  m.attr("VERIFY_ALL") = static_cast<int>(Verify::all);

  m.def("scan_frames", &scan, nb::arg("data"), nb::arg("limit"), nb::arg("verify"),
        "Find the complete frames in `data`, up to the first corrupt one: "
        "(offsets, lengths, bytes consumed, bytes of an incomplete last frame, fault).");
  m.def(
      "find_frame",
      [](nb::handle data, std::size_t begin, std::size_t end, std::uint64_t most, bool ended) {
        const View view(data);
        const Found found = without_gil(
            [&] { return find_frame(view.data(), view.size(), begin, end, most, ended); });
        return std::pair(found.position, found.needed);
      },
      nb::arg("data"), nb::arg("begin"), nb::arg("end"), nb::arg("most"), nb::arg("ended"),
      "Find a valid frame from `begin` on, of at most `most` bytes of data: (its offset, or the "
      "end of `data`; the bytes required from there to decide, or 0). Before `end`, only a frame "
      "from which valid frames lead to `end` or to the end of the file.");
  m.def(
      "find_end",
      [](nb::handle data, bool ended) {
        const View view(data);
        return without_gil([&] { return find_end(view.data(), view.size(), ended); });
      },
      nb::arg("data"), nb::arg("ended"),
      "Return the end of the frame at the start of `data` if only its header is corrupt, or 0.");
  m.def(
      "slice_records",
      [](nb::handle data, ArrayArg<std::uint64_t> offsets, ArrayArg<std::uint64_t> lengths) {
        nb::list buffers;
        buffers.append(data);
        const Records records = records_of(buffers, {}, offsets, lengths);
        return to_bytes(records.bytes, false, [](const Fault& fault) { return fault; });
      },
      nb::arg("data"), nb::arg("offsets"), nb::arg("lengths"),
      "Return the records at these offsets, as bytes.");
  m.def(
      "read_records",
      [](List buffers, const Sources& sources, ArrayArg<std::uint64_t> offsets,
         ArrayArg<std::uint64_t> lengths, bool verify) {
        const Records records =
            records_of(buffers, sources, offsets, lengths, kHeaderBytes, kFooterBytes);
        return to_bytes(records.bytes, verify, [](const Fault& fault) { return fault; });
      },
      nb::arg("buffers"), nb::arg("sources").none(), nb::arg("offsets"), nb::arg("lengths"),
      nb::arg("verify"), "Return records that are stored in buffers, each in its frame, as bytes.");
  m.def("copy_frames", &copy, nb::arg("buffers"), nb::arg("sources").none(), nb::arg("offsets"),
        nb::arg("lengths"),
        "Copy records, each with its frame, from buffers in this order: "
        "(data, offsets, lengths).");

  nb::class_<FrameBuffer>(m, "FrameBuffer", "A buffer of framed records.")
      .def(nb::init<std::size_t>(), nb::arg("reserve"))
      .def("append", &FrameBuffer::append, nb::arg("record"),
           "Frame one record, and return the size of the buffer.")
      .def(
          "__len__", [](const FrameBuffer& self) { return self.frames.lengths.size(); },
          "How many records are held.")
      .def(
          "take", [](FrameBuffer& self) { return take(self.frames); },
          "Return the frames, (data, offsets, lengths), and clear the buffer.");

  m.def("file_states", &file_states, nb::arg("paths"),
        "Return the size, modification time in ns, inode and fingerprint of each file; None for "
        "one that is missing, not regular or cannot be read.");
  m.def("map_file", &map_file, nb::arg("descriptor"), nb::arg("begin"), nb::arg("end"),
        nb::arg("sequential"),
        "Map a part of an open file into memory, read-only. If the file is truncated while it is "
        "mapped, missing bytes read as zeros and has_faulted() is true.");
  m.def(
      "has_faulted",
      [](nb::handle data) {
        if (fault_count() == 0) return false;
        return lies_in_fault(View(data, PyBUF_STRIDES).data());
      },
      nb::arg("data"),
      "Return whether memory of map_file() was read after its file was truncated. To be called "
      "after the read.");
  m.def(
      "release_pages", [] { without_gil([] { release_pages(); }); },
      "Remove the pages of all mapped files from the memory of this process; the next read maps "
      "them again.");
}

}  // namespace covey
