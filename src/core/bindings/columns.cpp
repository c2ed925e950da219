#include "columns.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <limits>
#include <new>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "../decimal.h"
#include "../image_header.h"

namespace covey {
namespace {

using Bounds = std::pair<std::int64_t, std::int64_t>;
using Image = std::tuple<std::int64_t, std::int64_t, bool>;

// The largest message that protobuf can read, hence the largest value of a row.
constexpr std::size_t kMaxBytes = std::size_t{1} << 31;

constexpr std::array<std::pair<std::string_view, Element>, 14> kElements{{
    {"int8", Element::int8},
    {"int16", Element::int16},
    {"int32", Element::int32},
    {"int64", Element::int64},
    {"uint8", Element::uint8},
    {"uint16", Element::uint16},
    {"uint32", Element::uint32},
    {"uint64", Element::uint64},
    {"bool", Element::boolean},
    {"float16", Element::float16},
    {"float32", Element::float32},
    {"float64", Element::float64},
    {"str", Element::string},
    {"bytes", Element::string},
}};
constexpr std::array<std::pair<std::string_view, Wire>, 3> kWires{
    {{"bytes", Wire::bytes}, {"floats", Wire::floats}, {"ints", Wire::ints}}};
constexpr std::array<std::pair<std::string_view, Layout>, 3> kLayouts{
    {{"fixed", Layout::fixed}, {"variable", Layout::variable}, {"steps", Layout::steps}}};

template <class Table>
auto find(const Table& table, std::string_view name, const char* message) {
  for (const auto& [known, value] : table) {
    if (known == name) return value;
  }
  throw nb::value_error(message);
}

// The integers of a type that an int64 can hold.
Bounds limits(Element element) {
  const auto of = [](auto value) -> Bounds {
    using Limits = std::numeric_limits<decltype(value)>;
    return {Limits::min(), Limits::max()};
  };
  switch (element) {
    case Element::int8:
      return of(std::int8_t{});
    case Element::int16:
      return of(std::int16_t{});
    case Element::int32:
      return of(std::int32_t{});
    case Element::uint8:
      return of(std::uint8_t{});
    case Element::uint16:
      return of(std::uint16_t{});
    case Element::uint32:
      return of(std::uint32_t{});
    case Element::uint64:
      return {0, std::numeric_limits<std::int64_t>::max()};
    default:
      return of(std::int64_t{});
  }
}

void read_default(nb::handle given, Column& column) {
  if (column.element == Element::string) {
    for (nb::handle each : nb::cast<nb::list>(given)) {
      const View view(each);
      column.default_strings.emplace_back(reinterpret_cast<const char*>(view.data()), view.size());
    }
  } else {
    const View view(given);
    column.default_values.assign(view.data(), view.data() + view.size());
  }
}

void init(ColumnSpec* self, std::string key, std::string_view dtype, std::string_view wire,
          std::string_view layout, std::size_t count, bool required, nb::handle fallback,
          std::vector<std::int64_t> shape, std::optional<Bounds> bounds,
          std::optional<Image> image) {
  ColumnSpec result;
  Column& column = result.column;
  column.key = std::move(key);
  column.element = find(kElements, dtype, "unknown dtype");
  column.wire = find(kWires, wire, "unknown wire type");
  column.layout = find(kLayouts, layout, "unknown layout");
  column.count = count;
  column.required = required;
  column.text = dtype == "str";

  const std::size_t width = element_size(column.element);
  const bool is_float = dtype.starts_with("float");
  const bool is_string = column.element == Element::string;
  check(column.wire != Wire::floats || is_float, "a float list needs a float dtype");
  check(column.wire != Wire::ints || (!is_float && !is_string),
        "an int64 list needs an integer dtype");
  check(count <= kMaxBytes / width, "a row is over 2 GiB");

  if (!fallback.is_none()) read_default(fallback, column);
  result.shape = std::move(shape);
  column.exact = column.layout != Layout::variable;
  for (const std::int64_t size : result.shape) {
    if (size < 0) column.exact = false;
  }
  check(column.exact || column.layout != Layout::fixed, "a fixed column needs a known shape");
  check(column.exact || count > 0, "a column of variable length needs a count >= 1");
  if (!required && column.layout != Layout::steps) {
    const std::size_t size =
        is_string ? column.default_strings.size() : column.default_values.size() / width;
    check(column.default_values.size() % width == 0,
          "the size of the default is not a multiple of the element size");
    check(column.exact ? size == count : size % count == 0, "the default does not fit the shape");
  }

  result.bounded = bounds.has_value();
  std::tie(result.minimum, result.maximum) = bounds.value_or(limits(column.element));
  if (image) {
    const auto [height, width, deep] = *image;
    check(is_string && !column.text && result.shape.empty(), "an image is a single byte string");
    result.image = ImageCheck{height, width, deep};
  }
  new (self) ColumnSpec(std::move(result));
}

Array<std::uint8_t> are_same_in_float32(ArrayArg<double> values) {
  Buffer<std::uint8_t> found;
  std::uint8_t* out = found.extend(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) *out++ = is_same_in_float32(values(i));
  return to_numpy(std::move(found));
}

Array<double> widen_all_by_decimal(ArrayArg<float> values) {
  Buffer<double> found;
  double* out = found.extend(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) *out++ = widen_by_decimal(values(i));
  return to_numpy(std::move(found));
}

}  // namespace

bool ImageCheck::takes(Bytes value) const noexcept {
  const std::optional<ImageHeader> header = read_image_header(value);
  if (!header || (header->bits == 16) != deep) return false;
  if (height < 0 && width < 0) return true;
  // The orientation may exchange height and width.
  return header->orientation == 1 && (height < 0 || header->height == height) &&
         (width < 0 || header->width == width);
}

std::vector<Column> plain_columns(const std::vector<ColumnSpec>& specs) {
  std::vector<Column> columns;
  columns.reserve(specs.size());
  for (const ColumnSpec& spec : specs) columns.push_back(spec.column);
  return columns;
}

void register_columns(nb::module_& m) {
  nb::class_<ColumnSpec>(m, "ColumnSpec", "One key of an Example: how it is stored and decoded.")
      .def(
          "__init__", &init, nb::kw_only(), nb::arg("key"), nb::arg("dtype"), nb::arg("wire"),
          nb::arg("layout"), nb::arg("count"), nb::arg("required"), nb::arg("default").none(),
          nb::arg("shape"), nb::arg("bounds").none(), nb::arg("image").none() = nb::none(),
          nb::sig("def __init__(self, *, key: str, dtype: str, wire: str, layout: str, "
                  "count: int, required: bool, default: Any, shape: Sequence[int], "
                  "bounds: tuple[int, int] | None, "
                  "image: tuple[int, int, bool] | None = None) -> None"),
          "`shape` has -1 for an unknown dimension; `bounds` are those of the integers if narrower "
          "than the dtype's; `image` is (height, width, whether it has 16 bits) of encoded "
          "images.");
  m.def("is_same_in_float32", &is_same_in_float32, nb::arg("value"),
        "Whether a number has the same shortest decimal form as the float32 nearest to it.");
  m.def("are_same_in_float32", &are_same_in_float32, nb::arg("values"),
        nb::sig("def are_same_in_float32(values: NDArray[float64]) -> NDArray[uint8]"),
        "Return 1 for each number that is_same_in_float32, and 0 for others.");
  m.def("widen_by_decimal", &widen_all_by_decimal, nb::arg("values"),
        nb::sig("def widen_by_decimal(values: NDArray[float32]) -> NDArray[float64]"),
        "Return the numbers that the shortest decimal forms of float32 values denote.");
}

}  // namespace covey
