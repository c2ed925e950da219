// Encoded images: headers, decoding, statistics; and the statistics of records.
#include <algorithm>
#include <map>
#include <string>

#include "../image_decoder.h"
#include "../survey.h"
#include "support.h"

namespace covey {
namespace {

// In the order of the enumerations.
constexpr std::string_view kCrops[] = {"none", "squash", "center", "random"};
constexpr const char* kCodes[] = {"",     "unsupported", "corrupt", "too_large",
                                  "size", "channels",    "memory",  "scans"};

using Size = std::pair<std::uint32_t, std::uint32_t>;
using Range = std::pair<double, double>;

void init(ImageSpec* self, Size size, std::size_t channels, std::string_view crop,
          std::uint64_t max_pixels, bool is_deep, bool as_stored, Range scale, Range ratio,
          bool flip, bool fast, bool orient, std::size_t views, Size required) {
  constexpr std::uint32_t kMaxSide = 1 << 16;
  check(size.first - 1 < kMaxSide && size.second - 1 < kMaxSide, "a side must be from 1 to 65536");
  check(channels >= 1 && channels <= 4, "channels must be from 1 to 4");
  check(views >= 1, "views must be >= 1");
  const auto is_range = [](const Range& range, double maximum) {
    return range.first > 0 && range.first <= range.second && range.second <= maximum;
  };
  check(is_range(scale, 1) && is_range(ratio, 1e9), "scale and ratio must be ranges above 0");
  new (self) ImageSpec{.size = {size.first, size.second},
                       .channels = channels,
                       .is_deep = is_deep,
                       .as_stored = as_stored,
                       .crop = parse<Crop>(kCrops, crop, "unknown crop"),
                       .scale = {scale.first, scale.second},
                       .ratio = {ratio.first, ratio.second},
                       .flip = flip,
                       .fast = fast,
                       .orient = orient,
                       .views = views,
                       .required = {required.first, required.second},
                       .max_pixels = max_pixels};
}

// The arrays of all views, each of `rows` images.
std::vector<View> outputs(const ImageSpec& spec, nb::list out, std::size_t rows) {
  check(out.size() == spec.views, "one array per view");
  std::vector<View> views;
  for (nb::handle each : out) {
    views.emplace_back(each, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS);
    check(views.back().size() == rows * spec.bytes(), "an array has the wrong size");
  }
  return views;
}

// (row, code, height, width, channels, message)
using Described = std::optional<
    std::tuple<std::size_t, const char*, std::uint32_t, std::uint32_t, std::size_t, std::string>>;

Described describe(std::size_t row, const ImageFault& fault) {
  if (!fault) return std::nullopt;
  return std::tuple(row, kCodes[static_cast<std::size_t>(fault.code)], fault.size.height,
                    fault.size.width, fault.channels, fault.message);
}

Described decode(const ImageSpec& spec, nb::handle values, ArrayArg<std::int64_t> offsets, List out,
                 std::uint64_t seed, std::uint64_t batch, std::uint64_t first_row,
                 std::size_t begin) {
  const View data(values);
  check(offsets.size() >= 1, "offsets must not be empty");
  const std::size_t rows = offsets.size() - 1;
  for (std::size_t i = 0; i < rows; ++i) {
    check(offsets(i) >= 0 && offsets(i) <= offsets(i + 1), "offsets must not decrease");
  }
  check(static_cast<std::uint64_t>(offsets(rows)) <= data.size(), "an offset is out of range");
  const std::vector<View> views = outputs(spec, out, rows);
  ImageFault fault;
  std::size_t row = begin;
  {
    const GilReleased released;
    std::vector<std::uint8_t*> to(spec.views);
    for (; row < rows; ++row) {
      for (std::size_t v = 0; v < to.size(); ++v) to[v] = views[v].data() + row * spec.bytes();
      const Bytes encoded{data.data() + offsets(row), data.data() + offsets(row + 1)};
      fault = ImageDecoder::of_thread().decode(spec, encoded, {seed, batch, first_row + row},
                                               to.data());
      if (fault) break;
    }
  }
  return describe(row, fault);
}

Described frame(const ImageSpec& spec, nb::handle pixels, Size size, List out, std::uint64_t seed,
                std::uint64_t batch, std::uint64_t row) {
  const View data(pixels, PyBUF_C_CONTIGUOUS);
  const ImageSize found{size.first, size.second};
  check(found.pixels() != 0, "the image is empty");
  check(data.size() == found.pixels() * spec.channels * (spec.is_deep ? 2 : 1),
        "the array has the wrong size");
  const std::vector<View> views = outputs(spec, out, 1);
  std::vector<std::uint8_t*> to;
  for (const View& view : views) to.push_back(view.data());
  return describe(row, without_gil([&] {
                    return ImageDecoder::of_thread().frame(spec, data.data(), found,
                                                           {seed, batch, row}, to.data());
                  }));
}

auto box(const ImageSpec& self, std::uint32_t height, std::uint32_t width, std::uint64_t seed,
         std::uint64_t batch, std::uint64_t row, std::size_t view) {
  check(height >= 1 && width >= 1, "height and width must be >= 1");
  const Framing framing = choose_framing(self, {height, width}, {seed, batch, row}, view);
  const Box& box = framing.box;
  return std::tuple(box.top, box.left, box.height, box.width, framing.is_flipped);
}

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

Dict to_dict(const ImageStatistics& statistics) {
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

Dict to_dict(const std::map<std::string, Seen>& keys) {
  const auto listed = [](const auto& counts) {
    nb::list list;
    for (std::size_t each : counts) list.append(each);
    return nb::tuple(list);
  };
  nb::dict result;
  for (const auto& [key, seen] : keys) {
    nb::object name =
        nb::steal(PyUnicode_DecodeUTF8(key.data(), static_cast<Py_ssize_t>(key.size()), nullptr));
    if (!name.is_valid()) throw nb::python_error();
    result[name] = nb::make_tuple(seen.records, listed(seen.by_kind), listed(seen.first_of_kind),
                                  std::min(seen.least, seen.most), seen.most);
  }
  return result;
}

template <class Statistics>
void add_records(Statistics& statistics, nb::handle data, ArrayArg<std::uint64_t> offsets,
                 ArrayArg<std::uint64_t> lengths) {
  nb::list buffers;
  buffers.append(data);
  const Records records = records_of(buffers, {}, offsets, lengths);
  raise_if(without_gil([&] {
    Fault fault;
    for (std::size_t i = 0; i < records.bytes.size() && !fault; ++i) {
      fault = statistics.add(records.bytes[i]);
      fault.row = i;
    }
    return fault;
  }));
}

}  // namespace

void register_images(nb::module_& m) {
  m.def(
      "image_header",
      [](nb::handle data) {
        std::optional<std::tuple<const char*, std::uint32_t, std::uint32_t, int, int, int>> found;
        if (const auto header = read_image_header(View(data).bytes())) {
          found = {name_of(header->format), header->height, header->width,
                   header->channels,        header->bits,   header->orientation};
        }
        return found;
      },
      nb::arg("data"),
      "Return (format, height, width, channels, bits, EXIF orientation) of an encoded image, or "
      "None if the bytes are not a JPEG, PNG, GIF, BMP or WebP image.");
  m.def(
      "jpeg_scans",
      [](nb::handle data, std::uint64_t pixels, std::uint64_t max_pixels) {
        return std::pair(count_jpeg_scans(View(data).bytes()), max_jpeg_scans(pixels, max_pixels));
      },
      nb::arg("data"), nb::arg("pixels"), nb::arg("max_pixels"),
      "Return the number of scans of a JPEG, and the maximum for an image of `pixels`.");
  m.def(
      "image_summary",
      [](nb::handle data) {
        ImageStatistics statistics;
        statistics.add(View(data).bytes());
        return to_dict(statistics);
      },
      nb::arg("data"), "Return the covey.schema.images.ImageSummary of one encoded image.");
  m.def(
      "image_decoders",
      [] {
        std::vector<const char*> decoders;
        for (const char* library : {jpeg_library(), png_library()}) {
          if (library != nullptr) decoders.push_back(library);
        }
        return decoders;
      },
      "Return the libraries that decode images in this build, with their versions.");

  const Range one(1, 1);
  nb::class_<ImageSpec>(m, "ImageSpec", "How encoded images become arrays of one shape.")
      .def("__init__", &init, nb::kw_only(), nb::arg("size"), nb::arg("channels"), nb::arg("crop"),
           nb::arg("max_pixels"), nb::arg("is_deep") = false, nb::arg("as_stored") = false,
           nb::arg("scale") = one, nb::arg("ratio") = one, nb::arg("flip") = false,
           nb::arg("fast") = false, nb::arg("orient") = false, nb::arg("views") = 1,
           nb::arg("required") = Size())
      .def("decode", &decode, nb::arg("values"), nb::arg("offsets"), nb::arg("out"),
           nb::arg("seed"), nb::arg("batch"), nb::arg("first_row"), nb::arg("begin") = 0,
           "Decode the images from `begin` on into one array per view. Return None, or for the "
           "first image that cannot be decoded (row, code, height, width, channels, message).")
      .def("frame", &frame, nb::arg("pixels"), nb::arg("size"), nb::arg("out"), nb::arg("seed"),
           nb::arg("batch"), nb::arg("row"),
           "Crop and resize pixels of another decoder, as `decode` does.")
      .def("box", &box, nb::arg("height"), nb::arg("width"), nb::arg("seed"), nb::arg("batch"),
           nb::arg("row"), nb::arg("view") = 0,
           "Return (top, left, height, width, is_flipped) of a view of an image.");

  nb::class_<ImageSurvey>(m, "ImageSurvey", "Statistics of the encoded images of records, by key.")
      .def(nb::init<std::vector<std::string>>(), nb::arg("keys"))
      .def("add_records", &add_records<ImageSurvey>, nb::arg("data"), nb::arg("offsets"),
           nb::arg("lengths"),
           "Add the records at these offsets; those that are not an Example are ignored.")
      .def(
          "results",
          [](const ImageSurvey& survey) {
            std::vector<Dict> results;
            for (const ImageStatistics& each : survey.results()) results.push_back(to_dict(each));
            return results;
          },
          "Return the statistics of each key, as covey.schema.images.ImageSummary.");

  nb::class_<Survey>(m, "Survey", "Statistics of records, from which a schema is inferred.")
      .def(nb::init<>())
      .def(
          "add",
          [](Survey& survey, nb::handle record) { raise_if(survey.add(View(record).bytes())); },
          nb::arg("record"), "Add a record.")
      .def("add_records", &add_records<Survey>, nb::arg("data"), nb::arg("offsets"),
           nb::arg("lengths"), "Add the records at these offsets.")
      .def_prop_ro("records", &Survey::records)
      .def(
          "context", [](const Survey& survey) { return to_dict(survey.context()); },
          "Return by key: (records that have it, records by list type (none, bytes, floats, "
          "ints, one byte string that is an image of 8 bits, or of 16 bits), "
          "first record of each type, minimum and maximum number of values).")
      .def(
          "lists", [](const Survey& survey) { return to_dict(survey.lists()); },
          "Return the same for the feature lists of a SequenceExample, by step.");
}

}  // namespace covey
