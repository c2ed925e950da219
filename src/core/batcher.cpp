#include "batcher.h"

#include <vector>

namespace covey {
namespace {

// What a thread needs for every batch, and keeps from one to the next.
struct Scratch {
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> labels;  // of units
  Located located;
  std::vector<ColumnOut> out;
};

}  // namespace

bool Batcher::make(std::uint64_t step, const Mappings& shards, std::uint8_t* const* columns) const {
  static thread_local Scratch scratch;
  const std::uint64_t batch = share_.batch(step);
  if (plan_.units_of(batch) != plan_.units()) return false;
  const auto [begin, end] = share_.units(plan_.units());
  const std::size_t rows = this->rows(), count = decoder_.columns().size();
  scratch.ids.resize(rows);
  scratch.labels.resize(end - begin);
  plan_.draw(batch, begin, end, scratch.ids.data(), scratch.labels.data());
  if (!look_up(scratch.ids.data(), rows)) return false;
  if (tables_.locate(scratch.ids.data(), rows, shards, scratch.located)) return false;
  scratch.out.resize(count);
  for (std::size_t c = 0; c < count; ++c) scratch.out[c].dense = columns[c];
  if (decoder_.decode(scratch.located.records, options_.check, scratch.out)) return false;

  std::int64_t* labels = nullptr;
  if (options_.label >= 0) {
    labels = reinterpret_cast<std::int64_t*>(columns[options_.label]);
    if (tables_.check_labels(scratch.ids.data(), rows, labels)) return false;
  } else if (options_.add_labels) {
    labels = reinterpret_cast<std::int64_t*>(columns[count]);
    tables_.read_labels(scratch.ids.data(), rows, labels);
  }
  if (options_.check_classes && labels != nullptr &&
      !check_classes(scratch.labels.data(), labels, rows)) {
    return false;
  }
  return !plan_.has_faulted() && !tables_.check_read(scratch.located, shards, {});
}

bool Batcher::look_up(std::int64_t* ids, std::size_t rows) const noexcept {
  const bool renumbered = options_.record_ids != nullptr;
  const std::uint64_t all = renumbered ? options_.count : tables_.records();
  for (std::size_t i = 0; i < rows; ++i) {
    if (static_cast<std::uint64_t>(ids[i]) >= all) return false;
    if (renumbered) ids[i] = options_.record_ids[ids[i]];
  }
  return true;
}

bool Batcher::check_classes(const std::int64_t* planned, const std::int64_t* labels,
                            std::size_t rows) const noexcept {
  const std::size_t each = plan_.records_per_unit();
  bool same = true;
  for (std::size_t i = 0; i < rows; ++i) same &= labels[i] == planned[i / each];
  return same;
}

}  // namespace covey
