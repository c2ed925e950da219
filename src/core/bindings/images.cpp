#include "images.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <new>
#include <string_view>

#include "../crop.h"
#include "../image_decoder.h"

namespace covey {
namespace {

constexpr std::array<std::pair<std::string_view, Crop>, 4> kCrops{{{"none", Crop::none},
                                                                   {"squash", Crop::squash},
                                                                   {"center", Crop::center},
                                                                   {"random", Crop::random}}};
constexpr std::array<const char*, 8> kCodes{"",     "unsupported", "corrupt", "too_large",
                                            "size", "channels",    "memory",  "scans"};

void init(PyImageSpec* self, std::pair<std::uint32_t, std::uint32_t> size, std::size_t channels,
          std::string_view crop, std::uint64_t max_pixels, bool is_deep, bool as_stored,
          std::pair<double, double> scale, std::pair<double, double> ratio, bool flip, bool fast,
          bool orient, std::size_t views, std::pair<std::uint32_t, std::uint32_t> required) {
  constexpr std::uint32_t kMaxSide = 1 << 16;
  check(size.first - 1 < kMaxSide && size.second - 1 < kMaxSide, "a side must be from 1 to 65536");
  check(channels >= 1 && channels <= 4, "channels must be from 1 to 4");
  check(views >= 1, "views must be >= 1");
  ImageSpec spec;
  spec.size = {size.first, size.second};
  spec.channels = channels;
  spec.is_deep = is_deep;
  spec.as_stored = as_stored;
  bool is_known = false;
  for (const auto& [name, value] : kCrops) {
    if (name != crop) continue;
    spec.crop = value;
    is_known = true;
  }
  check(is_known, "unknown crop");
  const auto is_range = [](const std::pair<double, double>& range, double maximum) {
    return range.first > 0 && range.first <= range.second && range.second <= maximum;
  };
  check(is_range(scale, 1) && is_range(ratio, 1e9), "scale and ratio must be ranges above 0");
  spec.scale = {scale.first, scale.second};
  spec.ratio = {ratio.first, ratio.second};
  spec.flip = flip;
  spec.fast = fast;
  spec.orient = orient;
  spec.views = views;
  spec.required = {required.first, required.second};
  spec.max_pixels = max_pixels;
  new (self) PyImageSpec{spec};
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

nb::object describe(std::size_t row, const ImageFault& fault) {
  if (!fault) return nb::none();
  return nb::make_tuple(row, kCodes[static_cast<std::size_t>(fault.code)], fault.size.height,
                        fault.size.width, fault.channels, fault.message);
}

nb::object decode(const PyImageSpec& self, nb::handle values, ArrayArg<std::int64_t> offsets,
                  nb::list out, std::uint64_t seed, std::uint64_t batch, std::uint64_t first_row,
                  std::size_t begin) {
  const ImageSpec& spec = self.spec;
  const View data(values);
  const std::size_t rows = check_offsets(offsets, data.size());
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

nb::object frame(const PyImageSpec& self, nb::handle pixels,
                 std::pair<std::uint32_t, std::uint32_t> size, nb::list out, std::uint64_t seed,
                 std::uint64_t batch, std::uint64_t row) {
  const ImageSpec& spec = self.spec;
  const View data(pixels, PyBUF_C_CONTIGUOUS);
  const ImageSize found{size.first, size.second};
  check(found.pixels() != 0, "the image is empty");
  check(data.size() == found.pixels() * spec.channels * (spec.is_deep ? 2 : 1),
        "the array has the wrong size");
  const std::vector<View> views = outputs(spec, out, 1);
  std::vector<std::uint8_t*> to;
  for (const View& view : views) to.push_back(view.data());
  ImageFault fault;
  {
    const GilReleased released;
    fault =
        ImageDecoder::of_thread().frame(spec, data.data(), found, {seed, batch, row}, to.data());
  }
  return describe(row, fault);
}

nb::tuple box(const PyImageSpec& self, std::uint32_t height, std::uint32_t width,
              std::uint64_t seed, std::uint64_t batch, std::uint64_t row, std::size_t view) {
  check(height >= 1 && width >= 1, "height and width must be >= 1");
  const Framing framing = choose_framing(self.spec, {height, width}, {seed, batch, row}, view);
  const Box& box = framing.box;
  return nb::make_tuple(box.top, box.left, box.height, box.width, framing.is_flipped);
}

}  // namespace

void register_images(nb::module_& m) {
  m.def(
      "image_decoders",
      [] {
        nb::list decoders;
        for (const char* library : {jpeg_library(), png_library()}) {
          if (library != nullptr) decoders.append(library);
        }
        return decoders;
      },
      nb::sig("def image_decoders() -> list[str]"),
      "Return the libraries that decode images in this build, with their versions.");

  nb::class_<PyImageSpec>(m, "ImageSpec", "How encoded images become arrays of one shape.")
      .def("__init__", &init, nb::kw_only(), nb::arg("size"), nb::arg("channels"), nb::arg("crop"),
           nb::arg("max_pixels"), nb::arg("is_deep") = false, nb::arg("as_stored") = false,
           nb::arg("scale") = std::pair(1.0, 1.0), nb::arg("ratio") = std::pair(1.0, 1.0),
           nb::arg("flip") = false, nb::arg("fast") = false, nb::arg("orient") = false,
           nb::arg("views") = 1, nb::arg("required") = std::pair(0, 0),
           nb::sig("def __init__(self, *, size: tuple[int, int], channels: int, crop: str, "
                   "max_pixels: int, is_deep: bool = False, as_stored: bool = False, "
                   "scale: tuple[float, float] = (1.0, 1.0), "
                   "ratio: tuple[float, float] = (1.0, 1.0), flip: bool = False, "
                   "fast: bool = False, orient: bool = False, views: int = 1, "
                   "required: tuple[int, int] = (0, 0)) -> None"))
      .def("decode", &decode, nb::arg("values"), nb::arg("offsets"), nb::arg("out"),
           nb::arg("seed"), nb::arg("batch"), nb::arg("first_row"), nb::arg("begin") = 0,
           nb::sig("def decode(self, values: Buffer, offsets: NDArray[int64], "
                   "out: list[NDArray[Any]], seed: int, batch: int, first_row: int, "
                   "begin: int = 0) -> tuple[int, str, int, int, int, str] | None"),
           "Decode the images from `begin` on into one array per view. Return None, or for the "
           "first image that cannot be decoded (row, code, height, width, channels, message).")
      .def("frame", &frame, nb::arg("pixels"), nb::arg("size"), nb::arg("out"), nb::arg("seed"),
           nb::arg("batch"), nb::arg("row"),
           nb::sig("def frame(self, pixels: Buffer, size: tuple[int, int], "
                   "out: list[NDArray[Any]], seed: int, batch: int, row: int) -> "
                   "tuple[int, str, int, int, int, str] | None"),
           "Crop and resize pixels of another decoder, as `decode` does.")
      .def("box", &box, nb::arg("height"), nb::arg("width"), nb::arg("seed"), nb::arg("batch"),
           nb::arg("row"), nb::arg("view") = 0,
           nb::sig("def box(self, height: int, width: int, seed: int, batch: int, row: int, "
                   "view: int = 0) -> tuple[int, int, int, int, bool]"),
           "Return (top, left, height, width, is_flipped) of a view of an image.");
}

}  // namespace covey
