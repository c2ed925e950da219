// Plans, and the order of record ids by class that they read.
#include <algorithm>
#include <limits>

#include "reading.h"

namespace covey {
namespace {

constexpr std::uint64_t kMost = std::uint64_t{1} << 62;

using Ids = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<2>>;

// Record ids of 4 or 8 bytes.
template <class... Access>
using IdArray = nb::ndarray<Access..., nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Array>
bool is_wide(const Array& ids) {
  check(ids.itemsize() == 4 || ids.itemsize() == 8, "record ids have 4 or 8 bytes");
  return ids.itemsize() == 8;
}

PyPlan balanced_plan(std::uint64_t seed, ArrayArg<std::int64_t> labels,
                     std::optional<ArrayArg<std::int64_t>> keys, ArrayArg<std::uint64_t> first,
                     ArrayArg<std::uint64_t> records, IdArray<nb::ro> by_class,
                     std::size_t classes_per_batch, std::size_t records_per_class) {
  ClassList classes;
  classes.count = labels.size();
  classes.labels = labels.data();
  classes.first = first.data();
  classes.records = records.data();
  classes.by_class = by_class.data();
  classes.wide = is_wide(by_class);
  if (keys) classes.keys = keys->data();
  check((!keys || keys->size() == classes.count) && first.size() == classes.count &&
            records.size() == classes.count,
        "one item per class");
  check(classes.count < std::numeric_limits<std::uint32_t>::max(), "too many classes");
  check(classes_per_batch >= 1 && classes_per_batch <= classes.count, "too many classes a batch");
  check(records_per_class >= 1 && records_per_class < kMost, "too few records a class");
  for (std::size_t i = 0; i < classes.count; ++i) {
    check(records(i) >= 1 && records(i) <= by_class.size() &&
              first(i) <= by_class.size() - records(i),
          "the records of a class are out of range");
  }
  return {std::make_shared<BalancedPlan>(seed, classes, classes_per_batch, records_per_class),
          nb::make_tuple(labels, keys, first, records, by_class)};
}

PyPlan epoch_plan(std::uint64_t seed, std::uint64_t records, std::size_t batch_size,
                  std::string_view remainder, bool shuffled) {
  constexpr std::string_view kRemainders[] = {"keep", "drop", "fill"};
  const auto parsed = parse<Remainder>(kRemainders, remainder, "unknown remainder");
  check(batch_size >= 1 && records >= 1 && records < kMost && batch_size < kMost,
        "records must be >= 1");
  check(parsed != Remainder::drop || batch_size <= records, "there is no full batch");
  return {std::make_shared<EpochPlan>(seed, records, batch_size, parsed, shuffled), nb::tuple()};
}

// An array of rows.
Ids rows(Buffer<std::int64_t>&& buffer, std::size_t count, std::size_t columns) {
  std::int64_t* const data = buffer.release();
  nb::capsule owner(data, [](void* memory) noexcept { std::free(memory); });
  return Ids(data, {count, columns}, owner);
}

std::pair<Ids, std::optional<Ids>> draw(const PyPlan& self, std::uint64_t step, std::size_t count,
                                        const Rank& rank) {
  self.check_step(step, rank);
  self.check_step(count, rank);
  self.check_step(step + count, rank);  // no overflow: both are bounded
  const Plan& plan = *self.plan;
  const std::size_t units = plan.units_of(rank.batch(step));
  const auto [begin, end] = rank.units(units);
  const std::size_t k = plan.records_per_unit(), taken = end - begin;
  check(taken == 0 || count <= kMost / 8 / taken / k, "too many batches at once");
  Buffer<std::int64_t> ids, labels;
  ids.extend(count * taken * k);
  labels.extend(count * taken);
  bool alike = true;
  {
    const GilReleased released;
    for (std::size_t i = 0; i < count && alike; ++i) {
      const std::uint64_t batch = rank.batch(step + i);
      alike = plan.units_of(batch) == units;
      if (alike)
        plan.draw(batch, begin, end, ids.data() + i * taken * k, labels.data() + i * taken);
    }
  }
  check(alike, "batches have different lengths");
  if (plan.has_faulted()) {
    const nb::object error = nb::module_::import_("covey.errors").attr("FileChangedError");
    PyErr_SetString(error.ptr(),
                    "the file of the index was truncated while it was mapped; open the dataset "
                    "again");
    throw nb::python_error();
  }
  std::optional<Ids> named;
  if (plan.knows_labels()) named = rows(std::move(labels), count, taken);
  return {rows(std::move(ids), count, taken * k), std::move(named)};
}

const BalancedPlan& balanced(const PyPlan& plan) {
  const auto* const found = dynamic_cast<const BalancedPlan*>(plan.plan.get());
  check(found != nullptr, "this plan has no classes");
  return *found;
}

PyPlan reweighted(const PyPlan& self, std::uint64_t batch,
                  std::optional<ArrayArg<std::uint64_t>> quotas) {
  self.check_step(batch, {});
  const BalancedPlan& plan = balanced(self);
  std::vector<std::uint64_t> parsed;
  if (quotas) {
    const std::size_t per_batch = plan.units();
    check(quotas->size() == plan.classes(), "one quota per class");
    parsed.assign(quotas->data(), quotas->data() + quotas->size());
    const std::uint64_t most =
        WeightedSchedule::kSpans * WeightedSchedule::span(plan.classes(), per_batch);
    std::uint64_t sum = 0;
    for (const std::uint64_t quota : parsed) {
      check(quota <= most, "a quota is too large");
      sum += quota;
      check(sum <= most * per_batch, "quotas are too large");
    }
    check(sum == most * per_batch, "quotas are too small");
  }
  return {std::make_shared<BalancedPlan>(plan.reweighted(batch, std::move(parsed))), self.held};
}

Array<std::uint64_t> count(const PyPlan& self, std::uint64_t batches) {
  self.check_step(batches, {});
  const std::vector<std::uint64_t> found = balanced(self).count(batches);
  Buffer<std::uint64_t> visits;
  visits.append(found.data(), found.size());
  return to_numpy(std::move(visits));
}

// Writes each record id to the next position of its class: a counting sort, one pass over many
// records.
template <class Number>
bool sort(const ArrayArg<std::uint32_t>& classes, std::uint64_t* next, std::size_t next_size,
          std::uint64_t first, Number* out, std::size_t room) {
  const std::uint32_t* const which = classes.data();
  for (std::size_t i = 0; i < classes.shape(0); ++i) {
    if (which[i] >= next_size || next[which[i]] >= room) return false;
    out[next[which[i]]++] = static_cast<Number>(first + i);
  }
  return true;
}

void sort_by_class(ArrayArg<std::uint32_t> which, IdArray<std::uint64_t> next, std::uint64_t first,
                   IdArray<> out) {
  void* const ids = out.data();
  const bool wide = is_wide(out);
  const bool fits = without_gil([&] {
    return wide ? sort(which, next.data(), next.size(), first, static_cast<std::uint64_t*>(ids),
                       out.size())
                : sort(which, next.data(), next.size(), first, static_cast<std::uint32_t*>(ids),
                       out.size());
  });
  check(fits, "there is no room for all records of a class");
}

}  // namespace

std::uint64_t PyPlan::last_batch() const noexcept {
  return kMost / std::max<std::uint64_t>(plan->units(), plan->records_per_unit());
}

void PyPlan::check_step(std::uint64_t step, const Rank& rank) const {
  const std::uint64_t most = last_batch();
  const bool fits = rank.world_size >= 1 && rank.rank < rank.world_size &&
                    rank.world_size <= kMost && rank.origin < most &&
                    step < (most - rank.origin) / rank.world_size;
  if (!fits) throw nb::index_error("there is no such step");
}

void register_plan(nb::module_& m) {
  m.attr("PLAN_SPANS") = WeightedSchedule::kSpans;

  nb::class_<Rank>(m, "Rank", "The part of a plan that one of several ranks takes.")
      .def(
          "__init__",
          [](Rank* self, std::uint64_t origin, std::uint64_t rank, std::uint64_t world_size,
             bool split) {
            check(rank < world_size, "there is no such rank");
            new (self) Rank{origin, rank, world_size, split};
          },
          nb::arg("origin"), nb::arg("rank"), nb::arg("world_size"), nb::arg("split"));

  nb::class_<PyPlan>(m, "Plan", "The records of each batch, as a function of its index.")
      .def("draw", &draw, nb::arg("step"), nb::arg("count"), nb::arg("rank"),
           "Return the records of `count` steps, one row each; and the labels of their classes, or "
           "None.")
      .def_prop_ro("last_batch", &PyPlan::last_batch, "The last batch that can be drawn.")
      .def("reweighted", &reweighted, nb::arg("batch"), nb::arg("quotas").none(),
           "Return the same plan up to `batch`, with other quotas from it on.")
      .def("count", &count, nb::arg("batches"),
           "Return the number of the first batches that have each class.");

  m.def("balanced_plan", &balanced_plan, nb::arg("seed"), nb::arg("labels"), nb::arg("keys").none(),
        nb::arg("first"), nb::arg("records"), nb::arg("by_class"), nb::arg("classes_per_batch"),
        nb::arg("records_per_class"),
        "Return a plan of batches with the same number of records of each of some classes.");
  m.def("epoch_plan", &epoch_plan, nb::arg("seed"), nb::arg("records"), nb::arg("batch_size"),
        nb::arg("remainder"), nb::arg("shuffled"),
        "Return a plan of all records once per epoch; `remainder` is 'keep' for a shorter last "
        "batch, 'drop' for none, 'fill' for one that is filled from the next epoch.");
  m.def("sort_by_class", &sort_by_class, nb::arg("which"), nb::arg("next"), nb::arg("first"),
        nb::arg("out"),
        "Write the record ids from `first` on, each to the next position of its class, and advance "
        "`next`.");
}

}  // namespace covey
