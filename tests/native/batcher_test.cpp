// Batches of plans, compared with records that are drawn, located and decoded one by one.
#include "batcher.h"

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "columns.h"
#include "encoded_images.h"
#include "image_decoder.h"
#include "rows.h"

namespace covey::testing {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::size_t kRecords = 60;
constexpr std::size_t kShards = 3;

std::int64_t label_of(std::size_t record) { return static_cast<std::int64_t>(record * 7 % 5) - 2; }

// Records of a number, three floats and a label, in some shards.
struct Flock {
  Flock() {
    std::vector<std::vector<Row>> rows(kShards);
    std::vector<std::string> bytes;
    for (std::size_t shard = 0; shard < kShards; ++shard) {
      std::vector<std::string> records;
      for (std::size_t i = shard; i < kRecords; i += kShards) records.push_back(record(i));
      bytes.push_back(framed(records, static_cast<std::uint32_t>(shard), rows[shard]));
    }
    for (std::size_t i = 0; i < kRecords; ++i) {
      Row row = rows[i % kShards][i / kShards];
      row.label = label_of(i);
      all.push_back(row);
    }
    for (const std::string& each : bytes) shards.add(each);
    set_rows(all);
    for (std::int64_t label = -2; label < 3; ++label) {
      labels.push_back(label);
      first.push_back(by_class.size());
      for (std::size_t i = 0; i < kRecords; ++i) {
        if (label_of(i) == label) by_class.push_back(static_cast<std::uint32_t>(i));
      }
      counts.push_back(by_class.size() - first.back());
    }
  }

  static std::string record(std::size_t i) {
    const auto number = static_cast<float>(i);
    return example(entry("n", ints({static_cast<std::int64_t>(i)})) +
                   entry("x", floats({number, number + 0.25F, -number})) +
                   entry("y", ints({label_of(i)})));
  }

  void set_rows(const std::vector<Row>& rows) {
    index = Index();
    tables = index.add(rows, kShards).tables();
  }

  BalancedPlan balanced(std::size_t classes, std::size_t each) const {
    const ClassList list{labels.size(), labels.data(),   first.data(),
                         counts.data(), by_class.data(), false};
    return BalancedPlan(7, list, classes, each);
  }

  Shards shards;
  Index index;
  RowTables tables{{}};
  std::vector<Row> all;
  std::vector<std::int64_t> labels;
  std::vector<std::uint64_t> first, counts;
  std::vector<std::uint32_t> by_class;
};

// Buffers with the exact size of a batch.
class Room {
 public:
  Room(const Decoder& decoder, std::size_t rows, bool add_labels) {
    for (const Column& column : decoder.columns()) {
      add(column.count * element_size(column.element) * rows);
    }
    if (add_labels) add(sizeof(std::int64_t) * rows);
  }

  std::uint8_t* const* columns() const { return columns_.data(); }

  template <class T>
  std::vector<T> as(std::size_t column) {
    std::vector<T> values(memory_[column].size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), memory_[column].data(), memory_[column].size());
    return values;
  }

 private:
  void add(std::size_t bytes) {
    columns_.push_back(memory_.emplace_back(std::string(bytes, '\xee')).data());
  }

  std::deque<Exact> memory_;
  std::vector<std::uint8_t*> columns_;
};

// Builds a batch in one part or in several; images are not pending.
bool make(const Batcher& batcher, std::uint64_t step, const Mappings& shards, const Room& room,
          std::size_t parts = 1) {
  std::vector<PendingImage> pending;
  bool made = true;
  for (std::size_t part = 0; part < parts; ++part) {
    made &= batcher.make(step, {part, parts}, shards, room.columns(), pending);
  }
  CHECK(pending.empty());
  return made;
}

const std::vector<Column>& columns() {
  static const std::vector<Column> all = {
      fixed("n", Element::int64), fixed("x", Element::float32, 3), fixed("y", Element::int64)};
  return all;
}

Ids draw(const Plan& plan, const Rank& share, std::uint64_t step) {
  const std::uint64_t batch = share.batch(step);
  const auto [begin, end] = share.units(plan.units_of(batch));
  Ids ids((end - begin) * plan.records_per_unit()), labels(end - begin);
  plan.draw(batch, begin, end, ids.data(), labels.data());
  return ids;
}

// Whether the buffers have exactly these records.
bool holds(Room& room, const Ids& ids, bool add_labels) {
  const auto n = room.as<std::int64_t>(0), y = room.as<std::int64_t>(2);
  const auto x = room.as<float>(1);
  bool same = n == ids && x.size() == 3 * ids.size() && y.size() == ids.size();
  for (std::size_t i = 0; same && i < ids.size(); ++i) {
    const auto number = static_cast<float>(ids[i]);
    same = x[3 * i] == number && x[3 * i + 1] == number + 0.25F && x[3 * i + 2] == -number &&
           y[i] == label_of(static_cast<std::size_t>(ids[i]));
  }
  return same && (!add_labels || room.as<std::int64_t>(3) == y);
}

std::vector<Rank> shares() {
  return {{0, 0, 1, true}, {5, 0, 1, false},  {0, 0, 2, true}, {3, 1, 2, true},
          {0, 2, 3, true}, {10, 4, 7, false}, {1, 0, 3, false}};
}

TEST(batches_are_the_records_of_the_plan) {
  const Flock flock;
  const Decoder decoder(columns());
  const BalancedPlan balanced = flock.balanced(4, 3);
  const EpochPlan shuffled(1, kRecords, 12, Remainder::keep, true);
  const EpochPlan filled(1, kRecords, 13, Remainder::fill, true);
  const EpochPlan dropped(1, kRecords, 11, Remainder::drop, false);
  const Plan* const plans[] = {&balanced, &shuffled, &filled, &dropped};
  for (const Plan* const plan : plans) {
    for (const Rank& share : shares()) {
      for (const bool add_labels : {false, true}) {
        Batcher::Options options;
        options.label = add_labels ? -1 : 2;
        options.add_labels = add_labels;
        options.check_classes = plan->knows_labels();
        const Batcher batcher(*plan, share, flock.tables, decoder, options);
        for (std::uint64_t step = 0; step < 30; ++step) {
          const Ids ids = draw(*plan, share, step);
          CHECK(batcher.rows() == ids.size());
          for (const std::size_t parts : {1, 2, 5, 40}) {  // some parts of 40 are empty
            Room room(decoder, batcher.rows(), add_labels);
            CHECK(make(batcher, step, flock.shards.mappings, room, parts));
            CHECK(holds(room, ids, add_labels));
          }
        }
      }
    }
  }
}

TEST(shorter_batch_is_not_assembled) {
  const Flock flock;
  const Decoder decoder(columns());
  const EpochPlan plan(1, kRecords, 16, Remainder::keep, true);  // 16, 16, 16, 12
  const Batcher batcher(plan, {}, flock.tables, decoder, {});
  for (std::uint64_t step = 0; step < 12; ++step) {
    Room room(decoder, batcher.rows(), false);
    CHECK(make(batcher, step, flock.shards.mappings, room) == (step % 4 != 3));
  }
}

TEST(batch_of_a_selection) {
  const Flock flock;
  const Decoder decoder(columns());
  Ids numbers;
  for (std::int64_t i = 0; i < 20; ++i) numbers.push_back(59 - 2 * i);
  const EpochPlan plan(9, 20, 6, Remainder::fill, true);
  Batcher::Options options;
  options.label = 2;
  options.record_ids = numbers.data();
  options.count = numbers.size();
  for (const std::size_t known : {numbers.size(), std::size_t{19}}) {
    options.count = known;
    const Batcher batcher(plan, {}, flock.tables, decoder, options);
    for (std::uint64_t step = 0; step < 40; ++step) {
      Ids ids = draw(plan, {}, step);
      bool all_known = true;
      for (std::int64_t& id : ids) {
        all_known &= static_cast<std::size_t>(id) < known;
        id = numbers[static_cast<std::size_t>(id)];
      }
      Room room(decoder, batcher.rows(), false);
      CHECK(make(batcher, step, flock.shards.mappings, room) == all_known);
      if (all_known) CHECK(holds(room, ids, false));
    }
  }
}

TEST(batch_of_other_class_ids) {
  const Flock flock;
  const Decoder decoder(columns());
  Ids numbers, class_ids;
  for (std::int64_t i = 0; i < 20; ++i) {
    numbers.push_back(59 - 2 * i);
    class_ids.push_back(1000 + i);
  }
  const EpochPlan plan(9, 20, 6, Remainder::fill, true);
  for (const bool add_labels : {false, true}) {
    Batcher::Options options;
    options.label = add_labels ? -1 : 2;
    options.add_labels = add_labels;
    options.record_ids = numbers.data();
    options.count = numbers.size();
    options.class_ids = class_ids.data();
    const Batcher batcher(plan, {}, flock.tables, decoder, options);
    for (std::uint64_t step = 0; step < 20; ++step) {
      for (const std::size_t parts : {1, 4}) {
        Room room(decoder, batcher.rows(), add_labels);
        CHECK(make(batcher, step, flock.shards.mappings, room, parts));
        Ids expected = draw(plan, {}, step);
        Ids records = expected;
        for (std::int64_t& id : expected) id = class_ids[static_cast<std::size_t>(id)];
        for (std::int64_t& id : records) id = numbers[static_cast<std::size_t>(id)];
        CHECK(room.as<std::int64_t>(add_labels ? 3 : 2) == expected);
        CHECK(room.as<std::int64_t>(0) == records);
      }
    }
  }
}

// The steps, each of one record, whose batches are not assembled.
std::vector<std::size_t> refused(const Flock& flock, const Mappings& shards,
                                 const Batcher::Options& options) {
  const Decoder decoder(columns());
  const EpochPlan plan(0, kRecords, 1, Remainder::drop, false);
  const Batcher batcher(plan, {}, flock.tables, decoder, options);
  std::vector<std::size_t> steps;
  for (std::size_t step = 0; step < kRecords; ++step) {
    Room room(decoder, 1, options.add_labels);
    if (!make(batcher, step, shards, room)) steps.push_back(step);
  }
  return steps;
}

using Steps = std::vector<std::size_t>;

TEST(invalid_rows_are_not_assembled) {
  Flock flock;
  Batcher::Options options;
  options.label = 2;
  CHECK(refused(flock, flock.shards.mappings, options).empty());
  // A shard that is not mapped.
  Mappings shards = flock.shards.mappings;
  shards[1] = nullptr;
  Steps expected;
  for (std::size_t i = 1; i < kRecords; i += kShards) expected.push_back(i);
  CHECK(refused(flock, shards, options) == expected);
  // Invalid rows: offset, length, shard, label.
  std::vector<Row> rows = flock.all;
  rows[3].offset += 1;
  rows[20].length -= 1;
  rows[33].shard = kShards;
  rows[50].label += 1;
  flock.set_rows(rows);
  CHECK(refused(flock, flock.shards.mappings, options) == Steps{3, 20, 33, 50});
  // Without a label column, labels are those of the index.
  options.label = -1;
  options.add_labels = true;
  CHECK(refused(flock, flock.shards.mappings, options) == Steps{3, 20, 33});
}

TEST(corrupt_and_truncated_shards_are_not_assembled) {
  Flock flock;
  const Row& row = flock.all[31];
  const TemporaryFile& file = flock.shards.file(row.shard);
  std::string bytes =
      text({flock.shards.mappings[row.shard]->data(),
            flock.shards.mappings[row.shard]->data() + flock.shards.mappings[row.shard]->size()});
  std::string corrupt = bytes;
  corrupt[row.offset + kHeaderBytes + row.length] ^= 1;  // in the checksum
  Shards shards;
  for (std::size_t shard = 0; shard < kShards; ++shard) {
    const Mapping& mapping = *flock.shards.mappings[shard];
    shards.add(shard == row.shard ? corrupt
                                  : text({mapping.data(), mapping.data() + mapping.size()}));
  }
  Batcher::Options options;
  options.label = 2;
  CHECK(refused(flock, shards.mappings, options) == Steps{31});
  options.check = Check::nothing;
  CHECK(refused(flock, shards.mappings, options).empty());
  file.resize(1);
  Steps expected;
  for (std::size_t i = row.shard; i < kRecords; i += kShards) expected.push_back(i);
  CHECK(refused(flock, flock.shards.mappings, options) == expected);
}

TEST(labels_of_records_match_the_plan) {
  Flock flock;
  std::swap(flock.by_class.front(), flock.by_class.back());  // a corrupt index
  const Decoder decoder(columns());
  const BalancedPlan plan = flock.balanced(2, 4);
  for (const bool add_labels : {false, true}) {
    Batcher::Options options;
    options.label = add_labels ? -1 : 2;
    options.add_labels = add_labels;
    for (const bool check : {false, true}) {
      options.check_classes = check;
      const Batcher batcher(plan, {}, flock.tables, decoder, options);
      int wrong = 0, refused = 0;
      for (std::uint64_t step = 0; step < 40; ++step) {
        const std::uint64_t batch = step;
        Ids ids(8), labels(2);
        plan.draw(batch, 0, 2, ids.data(), labels.data());
        bool fits = true;
        for (std::size_t i = 0; i < 8; ++i) {
          fits &= label_of(static_cast<std::size_t>(ids[i])) == labels[i / 4];
        }
        Room room(decoder, batcher.rows(), add_labels);
        const bool made = make(batcher, step, flock.shards.mappings, room);
        CHECK(made == (fits || !check));
        wrong += !fits;
        refused += !made;
      }
      CHECK(wrong > 0);
      CHECK(refused == (check ? wrong : 0));
    }
  }
}

TEST(threads_share_batchers) {
  const Flock flock;
  const Decoder decoder(columns());
  const BalancedPlan even = flock.balanced(3, 4);
  // The first class is in every batch, then the last one.
  const std::uint64_t most = WeightedSchedule::kSpans * WeightedSchedule::span(5, 3);
  const BalancedPlan first = even.reweighted(0, {most, most / 2, most / 2, most / 2, most / 2});
  const BalancedPlan last = first.reweighted(50, {most / 2, most / 2, most / 2, most / 2, most});
  Batcher::Options options;
  options.label = 2;
  options.check_classes = true;
  const std::uint64_t steps = 200;
  std::deque<Batcher> batchers;
  std::vector<std::vector<Ids>> expected;
  for (const BalancedPlan* const plan : {&even, &first, &last}) {
    batchers.emplace_back(*plan, Rank{}, flock.tables, decoder, options);
    expected.emplace_back();
    for (std::uint64_t step = 0; step < steps; ++step) {
      expected.back().push_back(draw(*plan, {}, step));
    }
  }
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint64_t step = thread % 2; step < steps; step += 2) {  // two threads per step
        for (std::size_t which = 0; which < batchers.size(); ++which) {
          Room room(decoder, batchers[which].rows(), false);
          const bool made = make(batchers[which], step, flock.shards.mappings, room);
          if (!made || !holds(room, expected[which][step], false)) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

// Records of an image and a label.
struct Album {
  explicit Album(const std::vector<std::string>& encoded) {
    std::vector<std::string> records;
    for (std::size_t i = 0; i < encoded.size(); ++i) {
      const std::string image = encoded[i] == "default" ? "" : entry("i", strings({encoded[i]}));
      records.push_back(example(image + entry("y", ints({static_cast<std::int64_t>(i)}))));
    }
    std::vector<Row> rows;
    shards.add(framed(records, 0, rows));
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].label = static_cast<std::int64_t>(i);
    tables = index.add(rows, 1).tables();
  }

  Shards shards;
  Index index;
  RowTables tables{{}};
};

TEST(batches_of_images) {
  std::vector<std::string> encoded;
  for (std::uint32_t i = 0; i < 4; ++i) {
    for (const std::string& image :
         {encode_jpeg({}, {20 + i, 33}, i), encode_png({}, {12, 15 + i}, i)}) {
      encoded.push_back(image.empty() ? "without a decoder" : image);
    }
  }
  encoded.insert(encoded.begin() + 3, "unsupported");
  encoded.push_back("default");
  encoded.push_back("");
  const std::size_t count = encoded.size();
  const Album album(encoded);
  std::vector<Column> columns = {fixed("i", Element::string), fixed("y", Element::int64)};
  columns[0].required = false;
  columns[0].default_strings = {encoded[0]};
  const Decoder decoder(columns);
  ImageSpec spec;
  spec.size = {9, 7};
  spec.crop = Crop::random;
  spec.flip = true;
  spec.views = 2;
  spec.max_pixels = 10'000;
  Batcher::Options options;
  options.label = 1;
  options.seed = 77;
  options.images = {{0, spec, {0, 2}}};
  for (const Rank& share : {Rank{0, 0, 1, true}, Rank{3, 1, 2, true}}) {
    // A batch of all ranks has every record once.
    const EpochPlan plan(5, count, count, Remainder::drop, true);
    const Batcher batcher(plan, share, album.tables, decoder, options);
    const std::size_t rows = batcher.rows();
    CHECK(batcher.row_bytes() == std::vector<std::size_t>{spec.bytes(), 8, spec.bytes()});
    for (std::uint64_t step = 0; step < 4; ++step) {
      const Ids ids = draw(plan, share, step);
      const std::size_t first = share.units(plan.units()).first * plan.records_per_unit();
      for (const std::size_t parts : {1, 2, 3, 30}) {
        std::deque<Exact> memory;
        std::vector<std::uint8_t*> out;
        for (const std::size_t bytes : batcher.row_bytes()) {
          out.push_back(memory.emplace_back(std::string(bytes * rows, '\xee')).data());
        }
        std::vector<PendingImage> pending;
        for (std::size_t part = 0; part < parts; ++part) {
          CHECK(batcher.make(step, {part, parts}, album.shards.mappings, out.data(), pending));
        }
        std::size_t next = 0;
        for (std::size_t row = 0; row < rows; ++row) {
          const std::string& image = encoded[static_cast<std::size_t>(ids[row])];
          const Exact data(image == "default" ? encoded[0] : image);
          Exact a(std::string(spec.bytes(), '\xee')), b(std::string(spec.bytes(), '\xee'));
          std::uint8_t* const views[] = {a.data(), b.data()};
          ImageDecoder fresh;
          const ImageFault fault =
              fresh.decode(spec, data.bytes(), {77, share.batch(step), first + row}, views);
          const bool is_pending = next < pending.size() && pending[next].row == row;
          CHECK(is_pending == (fault.code == ImageError::unsupported));
          if (is_pending) CHECK(pending[next++].image == 0);
          CHECK(std::memcmp(out[0] + row * spec.bytes(), a.data(), spec.bytes()) == 0);
          CHECK(std::memcmp(out[2] + row * spec.bytes(), b.data(), spec.bytes()) == 0);
        }
        CHECK(next == pending.size());
      }
    }
  }
}

TEST(batches_of_corrupt_images_are_not_assembled) {
  const std::string jpeg = encode_jpeg({}, {20, 30});
  if (jpeg.empty()) return;
  const Album album(
      {jpeg, jpeg.substr(0, jpeg.size() / 2), jpeg, encode_jpeg({}, {200, 300}), jpeg});
  const Decoder decoder({fixed("i", Element::string)});
  ImageSpec spec;
  spec.size = {20, 30};
  spec.max_pixels = 10'000;
  Batcher::Options options;
  options.images = {{0, spec, {0}}};
  const EpochPlan plan(0, 5, 1, Remainder::drop, false);
  const Batcher batcher(plan, {}, album.tables, decoder, options);
  for (std::uint64_t step = 0; step < 5; ++step) {
    Exact memory(std::string(spec.bytes(), '\0'));
    std::uint8_t* const out = memory.data();
    std::vector<PendingImage> pending;
    CHECK(batcher.make(step, {}, album.shards.mappings, &out, pending) == (step != 1 && step != 3));
    CHECK(pending.empty());
  }
}

// An optional column without a default has no image.
TEST(batches_without_located_images_are_not_assembled) {
  const Album album({"x", "y"});
  std::vector<Column> columns = {fixed("j", Element::string)};
  columns[0].required = false;  // and without a default
  const Decoder decoder(columns);
  ImageSpec spec;
  spec.size = {2, 2};
  Batcher::Options options;
  options.images = {{0, spec, {0}}};
  const EpochPlan plan(0, 2, 2, Remainder::drop, false);
  const Batcher batcher(plan, {}, album.tables, decoder, options);
  Exact memory(std::string(2 * spec.bytes(), '\0'));
  std::uint8_t* const out = memory.data();
  std::vector<PendingImage> pending;
  CHECK(!batcher.make(0, {}, album.shards.mappings, &out, pending));
}

}  // namespace
}  // namespace covey::testing
