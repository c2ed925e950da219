#include "encode.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "prefetch.h"

namespace covey {
namespace {

constexpr std::size_t kMostReserved = std::size_t{1} << 26;

constexpr std::size_t kRowsAhead = 3;

// Calls f(i-th value) for every value of an integer cell; uint64 is stored by its bits.
template <class F>
void each_int(Element element, const Cell& cell, F&& f) noexcept {
  with_type(element, [&](auto type) {
    // numpy's bool is a byte, 0 or 1.
    using T =
        std::conditional_t<std::is_same_v<decltype(type), bool>, std::uint8_t, decltype(type)>;
    if constexpr (!kIsFloat<T>) {
      for (std::size_t i = 0; i < cell.count; ++i) {
        f(static_cast<std::uint64_t>(load<T>(cell.numbers + i * sizeof(T))));
      }
    }
  });
}

float to_float(Element element, const std::uint8_t* place) noexcept {
  if (element == Element::float16) {
    return half_to_float(load<std::uint16_t>(place));
  }
  return static_cast<float>(load<double>(place));
}

std::size_t field_size(std::size_t content) noexcept {
  return 1 + varint_size(content) + content;  // every field number here is below 16
}

std::uint8_t* begin_field(std::uint8_t* out, std::uint32_t field, std::size_t content) noexcept {
  *out++ = static_cast<std::uint8_t>(make_tag(field, kLengthDelimited));
  return write_varint(out, content);
}

std::uint8_t* append(std::uint8_t* out, const void* data, std::size_t size) noexcept {
  if (size != 0) std::memcpy(out, data, size);
  return out + size;
}

// The size of the packed numbers, or of the string fields.
std::size_t content_size(const Column& column, const Cell& cell) noexcept {
  std::size_t size = 0;
  if (column.raw()) return field_size(cell.count * element_size(column.element));
  switch (column.wire) {
    case Wire::bytes:
      for (std::size_t i = 0; i < cell.count; ++i) size += field_size(cell.strings[i].size());
      return size;
    case Wire::floats:
      return 4 * cell.count;
    case Wire::ints:
      each_int(column.element, cell, [&](std::uint64_t v) { size += varint_size(v); });
      return size;
  }
  return size;
}

// Writes `size` bytes of varints, the size at the time of measuring. The values are in the caller's
// memory: if another thread has changed them, the record is wrong, but no byte is written outside
// it.
std::uint8_t* write_ints(const Column& column, const Cell& cell, std::uint8_t* out,
                         std::size_t size) noexcept {
  std::uint8_t* const end = out + size;
  each_int(column.element, cell, [&](std::uint64_t value) {
    const auto room = static_cast<std::size_t>(end - out);
    if (room >= kMostVarintBytes || varint_size(value) <= room) out = write_varint(out, value);
  });
  while (out != end) *out++ = 0;
  return end;
}

std::uint8_t* write_content(const Column& column, const Cell& cell, std::uint8_t* out,
                            std::size_t size) noexcept {
  if (column.raw()) {
    const std::size_t bytes = cell.count * element_size(column.element);
    return append(begin_field(out, 1, bytes), cell.numbers, bytes);
  }
  switch (column.wire) {
    case Wire::bytes:
      for (std::size_t i = 0; i < cell.count; ++i) {
        const Bytes string = cell.strings[i];
        out = append(begin_field(out, 1, string.size()), string.begin, string.size());
      }
      return out;
    case Wire::floats:
      if (column.element == Element::float32) return append(out, cell.numbers, 4 * cell.count);
      for (std::size_t i = 0; i < cell.count; ++i) {
        const std::size_t place = i * element_size(column.element);
        const float value = to_float(column.element, cell.numbers + place);
        out = append(out, &value, 4);
      }
      return out;
    case Wire::ints:
      return write_ints(column, cell, out, size);
  }
  return out;
}

// Rows usually have similar sizes: one allocation. The reservation is limited, because the first
// row may be the only long one.
void reserve(Frames& frames, std::size_t first, std::size_t rows, std::size_t bytes) {
  const std::size_t room = std::min(bytes, kMostReserved) / (first + kFrameBytes) + 1;
  const std::size_t likely = std::min(rows, room);
  frames.data.reserve(likely * (first + kFrameBytes) + likely * 16);
  frames.offsets.reserve(likely);
  frames.lengths.reserve(likely);
}

// Int64List and FloatList have one packed field; BytesList has a field per value.
bool is_packed(const Column& column) noexcept { return column.wire != Wire::bytes; }

std::size_t list_size(const Column& column, std::size_t content) noexcept {
  return is_packed(column) && content != 0 ? field_size(content) : content;
}

}  // namespace

Encoder::Encoder(std::vector<Column> columns) : columns_(std::move(columns)) {
  order_.resize(columns_.size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  std::sort(order_.begin(), order_.end(),
            [this](std::size_t a, std::size_t b) { return columns_[a].key < columns_[b].key; });
  for (const Column& column : columns_) {
    std::vector<std::uint8_t> key(field_size(column.key.size()));
    append(begin_field(key.data(), 1, column.key.size()), column.key.data(), column.key.size());
    key_.push_back(std::move(key));
  }
}

std::size_t Encoder::measure(const Cell* cells, std::size_t* sizes) const noexcept {
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    if (cells[c].present) sizes[c] = content_size(columns_[c], cells[c]);
  }
  return field_size(features_size(cells, sizes));
}

// The size of the map of all features.
std::size_t Encoder::features_size(const Cell* cells, const std::size_t* sizes) const noexcept {
  std::size_t features = 0;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    if (!cells[c].present) continue;
    const std::size_t feature = field_size(list_size(columns_[c], sizes[c]));
    features += field_size(key_[c].size() + field_size(feature));
  }
  return features;
}

void Encoder::write(const Cell* cells, const std::size_t* sizes, std::uint8_t* out) const noexcept {
  out = begin_field(out, 1, features_size(cells, sizes));
  for (const std::size_t c : order_) {
    if (!cells[c].present) continue;
    const Column& column = columns_[c];
    const std::size_t list = list_size(column, sizes[c]);
    const std::size_t feature = field_size(list);
    out = begin_field(out, 1, key_[c].size() + field_size(feature));
    out = append(out, key_[c].data(), key_[c].size());
    out = begin_field(out, 2, feature);
    out = begin_field(out, static_cast<std::uint32_t>(column.wire), list);
    if (is_packed(column) && sizes[c] != 0) out = begin_field(out, 1, sizes[c]);
    out = write_content(column, cells[c], out, sizes[c]);
  }
}

// Points cells at the values of one row.
void Encoder::fill(const std::vector<ColumnIn>& columns, std::size_t row,
                   Cell* cells) const noexcept {
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    const ColumnIn& column = columns[c];
    const bool fixed = column.row_splits == nullptr;
    const auto first =
        fixed ? row * columns_[c].count : static_cast<std::size_t>(column.row_splits[row]);
    Cell& cell = cells[c];
    cell.present = column.present;
    cell.count =
        fixed ? columns_[c].count : static_cast<std::size_t>(column.row_splits[row + 1]) - first;
    if (column.numbers != nullptr) {
      cell.numbers = column.numbers + first * element_size(columns_[c].element);
    }
    if (column.strings != nullptr) cell.strings = column.strings + first;
  }
}

void Encoder::frame(const Cell* cells, const std::size_t* sizes, std::size_t size,
                    Frames& frames) const {
  std::uint8_t* const frame = frames.data.extend(size + kFrameBytes);
  write_header(frame, size);
  write(cells, sizes, frame + kHeaderBytes);
  write_footer(frame + kHeaderBytes + size, frame + kHeaderBytes, size);
  frames.offsets.push_back(frames.data.size() - size - kFooterBytes);
  frames.lengths.push_back(size);
}

Frames Encoder::encode(const std::vector<ColumnIn>& columns, std::size_t begin, std::size_t end,
                       std::size_t bytes, const std::uint64_t* rows) const {
  Frames frames;
  std::vector<Cell> cells(columns_.size());
  std::vector<std::size_t> sizes(columns_.size());
  for (std::size_t i = begin; i < end && frames.data.size() < bytes; ++i) {
    // The rows are scattered in memory: prefetches a later one while this one is written.
    if (rows != nullptr && i + kRowsAhead < end) {
      fill(columns, rows[i + kRowsAhead], cells.data());
      for (std::size_t c = 0; c < columns_.size(); ++c) {
        const Cell& cell = cells[c];
        if (cell.numbers == nullptr || cell.strings != nullptr) continue;
        prefetch(cell.numbers, cell.count * element_size(columns_[c].element));
      }
    }
    fill(columns, rows == nullptr ? i : rows[i], cells.data());
    const std::size_t size = measure(cells.data(), sizes.data());
    if (i == begin) reserve(frames, size, end - begin, bytes);
    frame(cells.data(), sizes.data(), size, frames);
  }
  return frames;
}

void Encoder::measure_rows(const std::vector<ColumnIn>& columns, std::size_t begin, std::size_t end,
                           std::uint64_t* lengths) const {
  std::vector<Cell> cells(columns_.size());
  std::vector<std::size_t> sizes(columns_.size());
  for (std::size_t row = begin; row < end; ++row) {
    fill(columns, row, cells.data());
    *lengths++ = measure(cells.data(), sizes.data());
  }
}

}  // namespace covey
