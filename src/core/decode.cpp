#include "decode.h"

#include <algorithm>

#include "feature.h"
#include "frames.h"
#include "prefetch.h"

namespace covey {

// From this size on, the largest tensor of a record is copied while its checksum is computed, so
// that it is read from memory once.
constexpr std::size_t kFuseFrom = 8192;

// Records are scattered in memory: this many are prefetched.
constexpr std::size_t kAhead = 6;

// The state of one record: the locations of its columns, and its fault.
struct Decoder::Row {
  Bytes record;
  Fault fault;
  RecordLayout layout;
  LayoutCache cache;      // of earlier records
  std::size_t guess = 0;  // position of the next key, if records have their keys in the same order
  MergedValues merged;
  std::size_t copied = 0;  // a column that is already copied; the number of columns if none

  explicit Row(std::size_t columns) : layout(columns) {}

  bool there(std::size_t column) const noexcept { return layout.there[column] != 0; }
  Bytes place(std::size_t column) const noexcept { return layout.place[column]; }

  void begin(Bytes bytes, std::size_t number) {
    record = bytes;
    fault = {};
    fault.row = number;
    copied = layout.there.size();
  }

  void forget() {
    std::fill(layout.there.begin(), layout.there.end(), char{0});
    layout.values.clear();
    guess = 0;
    merged.clear();
  }

  void fail(Failure failure, std::size_t column, std::uint64_t found = 0,
            std::uint64_t expected = 0) noexcept {
    const bool inside = failure.at >= record.begin && failure.at <= record.end;
    fault.code = failure.code;
    // Merged values are stored outside the record.
    fault.offset = inside ? static_cast<std::size_t>(failure.at - record.begin) : record.size();
    fault.column = column;
    fault.found = found;
    fault.expected = expected;
  }
};

Decoder::Decoder(std::vector<Column> columns) : columns_(std::move(columns)) {
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    auto& map = columns_[i].layout == Layout::steps ? steps_ : context_;
    map.emplace(columns_[i].key, i);
    plain_.emplace_back(columns_[i]);
  }
}

// Finds the columns of a record.
Failure Decoder::locate(Row& row) const {
  if (row.cache.find(row.record, row.layout)) return {};
  row.forget();
  if (Failure failure = parse(row)) return failure;
  row.cache.learn(row.record, row.layout);
  return {};
}

Failure Decoder::parse(Row& row) const {
  const auto find = [&](bool is_list, Bytes key, Bytes value) -> Failure {
    row.layout.values.push_back(value);
    const std::string_view name = as_string(key);
    std::size_t column = row.guess;
    if (column >= columns_.size() || columns_[column].key != name ||
        (columns_[column].layout == Layout::steps) != is_list) {
      const auto& map = is_list ? steps_ : context_;
      const auto found = map.find(name);
      if (found == map.end()) return {};
      column = found->second;
    }
    row.layout.place[column] = value;  // a repeated key replaces the earlier value
    row.layout.there[column] = 1;
    row.guess = column + 1;
    return {};
  };
  const Failure failure = read_record(row.record, !steps_.empty(), row.merged, find);
  row.layout.whole = row.merged.empty();
  return failure;
}

// Verifies a record whose columns were located, and copies its largest tensor meanwhile.
Fault Decoder::verify_located(Row& row, std::vector<ColumnOut>& out) const {
  const Bytes record = row.record;
  Bytes largest;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    const Column& column = columns_[c];
    if (!row.there(c) || !column.raw() || column.layout != Layout::fixed) continue;
    Bytes value;
    if (find_raw(column, row.place(c), value).failure || value.size() <= largest.size()) continue;
    // Merged values are not a range of the record.
    if (value.begin < record.begin || value.end > record.end) continue;
    largest = value;
    row.copied = c;
  }
  if (row.copied == columns_.size()) return verify_data(record.begin, record.size());
  std::uint8_t* const place = out[row.copied].dense + row.fault.row * largest.size();
  return verify_and_copy(record.begin, record.size(), largest.begin, largest.size(), place);
}

// Verifies a record as far as required, and finds its columns.
void Decoder::open(Row& row, Check check, std::vector<ColumnOut>& out) const {
  const Bytes record = row.record;
  const std::size_t none = columns_.size();
  const auto damaged = [&](const Fault& damage) {
    if (damage) row.fail({damage.code, record.begin}, none, damage.found, damage.expected);
    return static_cast<bool>(damage);
  };
  const bool verify = check != Check::nothing;
  if (check == Check::frame && damaged(verify_header(record.begin, record.size()))) return;
  const bool fuse = verify && record.size() >= kFuseFrom;
  if (verify && !fuse && damaged(verify_data(record.begin, record.size()))) return;
  const Failure failure = locate(row);
  if (fuse) {
    // A wrong checksum takes precedence: it explains any other fault.
    if (failure) row.forget();
    if (damaged(verify_located(row, out))) return;
  }
  if (failure) row.fail(failure, none);
}

// Decodes one Feature; returns whether it has a valid list.
bool Decoder::read(Row& row, std::size_t c, Bytes feature, ColumnOut& out,
                   std::uint8_t* dense) const {
  const Column& column = columns_[c];
  const Outcome outcome = read_values(column, feature, out, dense);
  if (outcome.failure) {
    row.fail(outcome.failure, c, outcome.found, outcome.expected);
    return false;
  }
  if (outcome.kind == 0) return false;
  if (outcome.kind != static_cast<int>(column.wire)) {
    row.fail({FaultCode::kind, feature.begin}, c, static_cast<std::uint64_t>(outcome.kind),
             static_cast<std::uint64_t>(column.wire));
    return false;
  }
  const bool fits =
      column.exact ? outcome.count == column.count : outcome.count % column.count == 0;
  if (!fits) row.fail({FaultCode::count, feature.begin}, c, outcome.count, column.count);
  return fits;
}

void Decoder::read_column(Row& row, std::size_t c, ColumnOut& out) const {
  const Column& column = columns_[c];
  std::uint8_t* dense = out.dense;
  if (dense != nullptr) dense += row.fault.row * column.count * element_size(column.element);
  if (row.there(c) && plain_[c].read(row.place(c), dense)) return;
  if (!row.there(c) || !read(row, c, row.place(c), out, dense)) {
    if (row.fault) return;
    if (column.required) return row.fail({FaultCode::missing, row.record.end}, c);
    put_default(column, out, dense);
  }
  if (column.layout == Layout::variable) out.row_splits.push_back(values_so_far(column, out));
}

void Decoder::read_steps(Row& row, std::size_t c, ColumnOut& out) const {
  const Column& column = columns_[c];
  if (!row.there(c) && column.required) return row.fail({FaultCode::missing, row.record.end}, c);
  const Bytes list = row.there(c) ? row.place(c) : Bytes{};
  const Failure failure = each_bytes(list, 1, [&](Bytes step) -> Failure {
    if (!read(row, c, step, out, nullptr)) {
      // A step without a list has no values, which is a fault if a step must have some.
      if (!row.fault && column.exact && column.count != 0) {
        row.fail({FaultCode::count, step.begin}, c, 0, column.count);
      }
      if (row.fault) return {row.fault.code, step.begin};
    }
    out.step_splits.push_back(values_so_far(column, out));
    return {};
  });
  if (failure && !row.fault) row.fail(failure, c);
  if (failure) return;
  out.row_splits.push_back(static_cast<std::int64_t>(out.step_splits.size() - 1));
}

Fault Decoder::decode(const std::vector<Bytes>& records, Check check,
                      std::vector<ColumnOut>& out) const {
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    if (columns_[c].element == Element::string) out[c].offsets.push_back(0);
    if (columns_[c].layout != Layout::fixed) out[c].row_splits.push_back(0);
    if (columns_[c].layout == Layout::steps) out[c].step_splits.push_back(0);
  }
  Row row(columns_.size());
  for (std::size_t next = 0; next < records.size() + kAhead; ++next) {
    if (next < records.size()) {
      // Including the frame; prefetching an invalid address is harmless.
      prefetch(records[next].begin - kHeaderBytes, records[next].size() + kFrameBytes);
    }
    if (next < kAhead) continue;
    const std::size_t r = next - kAhead;
    row.begin(records[r], r);
    open(row, check, out);
    for (std::size_t c = 0; c < columns_.size() && !row.fault; ++c) {
      if (c == row.copied) continue;
      if (columns_[c].layout == Layout::steps) {
        read_steps(row, c, out[c]);
      } else {
        read_column(row, c, out[c]);
      }
    }
    if (row.fault) return row.fault;
  }
  return {};
}

}  // namespace covey
