#include "../image_header.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "../image_survey.h"
#include "records.h"

namespace covey {
namespace {

// The counts that are not 0, by their index as a string: the keys of JSON.
template <class Counts>
nb::dict counts_of(const Counts& counts) {
  nb::dict result;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] != 0) result[nb::str(std::to_string(i).c_str())] = counts[i];
  }
  return result;
}

nb::object size_of(const ImageStatistics::Size& size) {
  if (size == ImageStatistics::Size{}) return nb::none();
  return nb::make_tuple(size.first, size.second);
}

nb::dict to_dict(const ImageStatistics& statistics) {
  nb::dict formats;
  for (std::size_t i = 0; i < kImageFormats; ++i) {
    if (statistics.by_format[i] == 0) continue;
    formats[name_of(static_cast<ImageFormat>(i))] = statistics.by_format[i];
  }
  nb::dict result;
  result["formats"] = formats;
  result["channels"] = counts_of(statistics.by_channels);
  result["bits"] = counts_of(statistics.by_bits);
  result["oriented"] = statistics.oriented;
  result["unknown"] = statistics.unknown;
  result["smallest"] = size_of(statistics.smallest);
  result["largest"] = size_of(statistics.largest);
  return result;
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
  m.def(
      "jpeg_scans",
      [](nb::handle data, std::uint64_t pixels, std::uint64_t max_pixels) {
        const View view(data);
        return nb::make_tuple(count_jpeg_scans({view.data(), view.data() + view.size()}),
                              max_jpeg_scans(pixels, max_pixels));
      },
      nb::arg("data"), nb::arg("pixels"), nb::arg("max_pixels"),
      nb::sig("def jpeg_scans(data: Buffer, pixels: int, max_pixels: int) -> tuple[int, int]"),
      "Return the number of scans of a JPEG, and the maximum for an image of `pixels`.");
  m.def(
      "image_summary",
      [](nb::handle data) {
        const View view(data);
        ImageStatistics statistics;
        statistics.add({view.data(), view.data() + view.size()});
        return to_dict(statistics);
      },
      nb::arg("data"), nb::sig("def image_summary(data: Buffer) -> dict[str, Any]"),
      "Return the covey.schema.images.ImageSummary of one encoded image.");
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
            for (const ImageStatistics& each : survey.results()) results.append(to_dict(each));
            return results;
          },
          nb::sig("def results(self) -> list[dict[str, Any]]"),
          "Return the statistics of each key, as covey.schema.images.ImageSummary.");
}

}  // namespace covey
