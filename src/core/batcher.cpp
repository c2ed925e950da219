#include "batcher.h"

#include <algorithm>
#include <utility>

#include "image_decoder.h"

namespace covey {
namespace {

// Scratch memory of a thread, reused for every batch.
struct Scratch {
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> labels;     // of units
  std::vector<std::int64_t> class_ids;  // of records, if they are not those of the index
  Located located;
  std::vector<ColumnOut> out;
  std::vector<std::vector<Bytes>> encoded;  // of each image column
  std::vector<std::uint8_t*> views;
};

Scratch& scratch_of_thread() {
  static thread_local Scratch scratch;
  return scratch;
}

bool lies_in(Bytes value, Bytes range) noexcept {
  return value.begin >= range.begin && value.end <= range.end;
}

}  // namespace

Batcher::Batcher(const Plan& plan, const Rank& rank, const RowTables& tables,
                 const Decoder& decoder, Options options)
    : plan_(plan), rank_(rank), tables_(tables), decoder_(decoder), options_(std::move(options)) {
  for (const Column& column : decoder_.columns()) {
    row_bytes_.push_back(column.count * element_size(column.element));
  }
  if (options_.add_labels) row_bytes_.push_back(sizeof(std::int64_t));
  for (const ImageColumn& image : options_.images) {
    for (const std::size_t output : image.outputs) {
      row_bytes_.resize(std::max(row_bytes_.size(), output + 1));
      row_bytes_[output] = image.spec.bytes();
    }
  }
}

bool Batcher::make(std::uint64_t step, Part part, const Mappings& shards,
                   std::uint8_t* const* columns, std::vector<PendingImage>& pending) const {
  Scratch& scratch = scratch_of_thread();
  const std::uint64_t batch = rank_.batch(step);
  if (plan_.units_of(batch) != plan_.units()) return false;
  const auto [begin, end] = rank_.units(plan_.units());
  const std::size_t all = rows(), count = decoder_.columns().size();
  const std::size_t first = all * part.index / part.count;
  const std::size_t rows = all * (part.index + 1) / part.count - first;
  scratch.ids.resize(all);
  scratch.labels.resize(end - begin);
  plan_.draw(batch, begin, end, scratch.ids.data(), scratch.labels.data());
  std::int64_t* const ids = scratch.ids.data() + first;
  scratch.class_ids.resize(options_.class_ids == nullptr ? 0 : rows);
  if (!look_up(ids, rows, scratch.class_ids.data())) return false;
  if (tables_.locate(ids, rows, shards, scratch.located)) return false;
  const auto output = [&](std::size_t c) { return columns[c] + first * row_bytes_[c]; };
  scratch.out.clear();
  scratch.out.resize(count);
  for (std::size_t c = 0; c < count; ++c) scratch.out[c].dense = output(c);
  scratch.encoded.resize(options_.images.size());
  for (std::size_t i = 0; i < options_.images.size(); ++i) {
    scratch.encoded[i].clear();
    ColumnOut& out = scratch.out[options_.images[i].column];
    out.dense = nullptr;
    out.located = &scratch.encoded[i];
  }
  const std::vector<Bytes>& records = scratch.located.records;
  if (decoder_.decode(records, options_.check, scratch.out)) return false;

  std::int64_t* labels = nullptr;
  if (options_.label >= 0) {
    labels = reinterpret_cast<std::int64_t*>(output(static_cast<std::size_t>(options_.label)));
    if (tables_.check_labels(ids, rows, labels)) return false;
  } else if (options_.add_labels) {
    labels = reinterpret_cast<std::int64_t*>(output(count));
    tables_.read_labels(ids, rows, labels);
  }
  if (labels != nullptr) std::copy(scratch.class_ids.begin(), scratch.class_ids.end(), labels);
  if (options_.check_classes && labels != nullptr &&
      !check_classes(scratch.labels.data(), labels, first, rows)) {
    return false;
  }
  const std::size_t first_row = begin * plan_.records_per_unit() + first;
  if (!decode_images(records, batch, first, first_row, columns, pending)) return false;
  return !plan_.has_faulted() && !tables_.check_read(scratch.located, shards, {});
}

bool Batcher::decode_images(const std::vector<Bytes>& records, std::uint64_t batch,
                            std::size_t first, std::size_t first_row, std::uint8_t* const* columns,
                            std::vector<PendingImage>& pending) const {
  Scratch& scratch = scratch_of_thread();
  for (std::size_t i = 0; i < options_.images.size(); ++i) {
    const ImageColumn& image = options_.images[i];
    const Column& column = decoder_.columns()[image.column];
    Bytes fallback;
    if (!column.default_strings.empty()) {
      const std::string& text = column.default_strings[0];
      fallback.begin = reinterpret_cast<const std::uint8_t*>(text.data());
      fallback.end = fallback.begin + text.size();
    }
    if (scratch.encoded[i].size() != records.size()) return false;
    scratch.views.resize(image.spec.views);
    for (std::size_t row = 0; row < records.size(); ++row) {
      const Bytes encoded = scratch.encoded[i][row];
      if (!lies_in(encoded, records[row]) && !lies_in(encoded, fallback)) return false;
      for (std::size_t v = 0; v < scratch.views.size(); ++v) {
        scratch.views[v] = columns[image.outputs[v]] + (first + row) * image.spec.bytes();
      }
      const ImageFault fault = ImageDecoder::of_thread().decode(
          image.spec, encoded, {options_.seed, batch, first_row + row}, scratch.views.data());
      if (fault.code == ImageError::unsupported) {
        pending.push_back({first + row, i});
      } else if (fault) {
        return false;
      }
    }
  }
  return true;
}

bool Batcher::look_up(std::int64_t* ids, std::size_t rows, std::int64_t* class_ids) const noexcept {
  const bool renumbered = options_.record_ids != nullptr;
  const std::uint64_t all = renumbered ? options_.count : tables_.records();
  for (std::size_t i = 0; i < rows; ++i) {
    if (static_cast<std::uint64_t>(ids[i]) >= all) return false;
    if (options_.class_ids != nullptr) class_ids[i] = options_.class_ids[ids[i]];
    if (renumbered) ids[i] = options_.record_ids[ids[i]];
  }
  return true;
}

bool Batcher::check_classes(const std::int64_t* planned, const std::int64_t* labels,
                            std::size_t first, std::size_t rows) const noexcept {
  const std::size_t each = plan_.records_per_unit();
  bool same = true;
  for (std::size_t i = 0; i < rows; ++i) same &= labels[i] == planned[(first + i) / each];
  return same;
}

}  // namespace covey
