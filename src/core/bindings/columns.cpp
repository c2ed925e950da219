#include "columns.h"

#include <nanobind/stl/string.h>

namespace covey {
namespace {

// The largest message that protobuf itself can read; no column of one row can be longer.
constexpr std::size_t kMostBytes = std::size_t{1} << 31;

ColumnSpec column_spec(nb::tuple spec) {
  check(spec.size() == 12, "a column is a tuple of twelve");
  ColumnSpec result;
  Column& column = result.column;
  column.key = nb::cast<std::string>(spec[0]);
  const int wire = nb::cast<int>(spec[1]);
  const int element = nb::cast<int>(spec[2]);
  const int layout = nb::cast<int>(spec[3]);
  check(wire >= 1 && wire <= 3, "wire must be 1, 2 or 3");
  check(element >= 0 && element <= static_cast<int>(Element::string), "unknown element");
  check(layout >= 0 && layout <= 2, "layout must be 0, 1 or 2");
  column.wire = static_cast<Wire>(wire);
  column.element = static_cast<Element>(element);
  column.layout = static_cast<Layout>(layout);
  column.count = nb::cast<std::size_t>(spec[4]);
  column.required = nb::cast<bool>(spec[5]);

  const bool is_float = column.element == Element::float16 || column.element == Element::float32 ||
                        column.element == Element::float64;
  const bool is_string = column.element == Element::string;
  check(column.wire != Wire::floats || is_float, "a float list needs a float element");
  check(column.wire != Wire::ints || (!is_float && !is_string),
        "an int64 list needs an integer element");
  check(column.count <= kMostBytes / element_size(column.element), "a row is over 2 GiB");

  if (!spec[6].is_none()) {
    if (is_string) {
      for (nb::handle each : nb::cast<nb::list>(spec[6])) {
        const View view(each);
        column.default_strings.emplace_back(reinterpret_cast<const char*>(view.data()),
                                            view.size());
      }
    } else {
      const View view(spec[6]);
      column.default_values.assign(view.data(), view.data() + view.size());
    }
  }
  column.exact = column.layout != Layout::variable;
  for (nb::handle each : nb::cast<nb::tuple>(spec[7])) {
    result.shape.push_back(nb::cast<std::int64_t>(each));
    if (result.shape.back() < 0) column.exact = false;
  }
  check(column.exact || column.layout != Layout::fixed, "a fixed column has a whole shape");
  check(column.exact || column.count > 0, "a column of any length needs a count of 1 or more");
  if (!column.required && column.layout != Layout::steps) {
    const std::size_t size = is_string
                                 ? column.default_strings.size()
                                 : column.default_values.size() / element_size(column.element);
    check(column.default_values.size() % element_size(column.element) == 0,
          "the default is not whole elements");
    check(column.exact ? size == column.count : size % column.count == 0,
          "the default does not fit the shape");
  }

  result.minimum = nb::cast<std::int64_t>(spec[8]);
  result.maximum = nb::cast<std::int64_t>(spec[9]);
  result.bounded = nb::cast<bool>(spec[10]);
  column.text = nb::cast<bool>(spec[11]);
  return result;
}

}  // namespace

std::vector<ColumnSpec> column_specs(nb::handle specs) {
  std::vector<ColumnSpec> result;
  for (nb::handle each : nb::cast<nb::list>(specs)) {
    result.push_back(column_spec(nb::cast<nb::tuple>(each)));
  }
  return result;
}

std::vector<Column> plain_columns(const std::vector<ColumnSpec>& specs) {
  std::vector<Column> columns;
  columns.reserve(specs.size());
  for (const ColumnSpec& spec : specs) columns.push_back(spec.column);
  return columns;
}

}  // namespace covey
