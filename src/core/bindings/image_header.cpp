#include "../image_header.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "../image_survey.h"
#include "records.h"

namespace covey {
namespace {

// The counts that are not 0, by their index.
template <class Counts>
nb::dict counts_of(const Counts& counts) {
  nb::dict result;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] != 0) result[nb::int_(i)] = counts[i];
  }
  return result;
}

nb::object size_of(const ImageStatistics::Size& size) {
  if (size == ImageStatistics::Size{}) return nb::none();
  return nb::make_tuple(size.first, size.second);
}

nb::tuple to_tuple(const ImageStatistics& statistics) {
  nb::dict formats;
  for (std::size_t i = 0; i < kImageFormats; ++i) {
    if (statistics.by_format[i] == 0) continue;
    formats[name_of(static_cast<ImageFormat>(i))] = statistics.by_format[i];
  }
  return nb::make_tuple(formats, counts_of(statistics.by_channels), counts_of(statistics.by_bits),
                        statistics.oriented, statistics.unknown, size_of(statistics.smallest),
                        size_of(statistics.largest));
}

}  // namespace

void register_image_header(nb::module_& m) {
  m.def(
      "image_header",
      [](nb::handle data) -> nb::object {
        const View view(data);
        const auto header = read_image_header({view.data(), view.data() + view.size()});
        if (!header) return nb::none();
        return nb::make_tuple(name_of(header->format), header->height, header->width,
                              header->channels, header->bits, header->orientation);
      },
      nb::arg("data"),
      nb::sig("def image_header(data: Buffer) -> tuple[str, int, int, int, int, int] | None"),
      "Return (format, height, width, channels, bits, EXIF orientation) of an encoded image, or "
      "None if the bytes are not a JPEG, PNG, GIF, BMP or WebP image.");
  nb::class_<ImageSurvey>(m, "ImageSurvey", "Statistics of the encoded images of records, by key.")
      .def(nb::init<std::vector<std::string>>(), nb::arg("keys"),
           nb::sig("def __init__(self, keys: Sequence[str]) -> None"))
      .def(
          "add_records",
          [](ImageSurvey& survey, nb::handle data, ArrayArg<std::uint64_t> offsets,
             ArrayArg<std::uint64_t> lengths) {
            nb::list buffers;
            buffers.append(data);
            const Records records = from_buffers(buffers, nb::none(), offsets, lengths, 0, 0);
            const GilReleased released;
            for (const Bytes& record : records.bytes) survey.add(record);
          },
          nb::arg("data"), nb::arg("offsets"), nb::arg("lengths"),
          nb::sig("def add_records(self, data: Buffer, offsets: NDArray[uint64], "
                  "lengths: NDArray[uint64]) -> None"),
          "Add the records at these offsets; those that are not an Example are ignored.")
      .def(
          "results",
          [](const ImageSurvey& survey) {
            nb::list results;
            for (const ImageStatistics& each : survey.results()) results.append(to_tuple(each));
            return results;
          },
          nb::sig("def results(self) -> list[ImageTuple]"), "Return the statistics of each key.");
}

}  // namespace covey
