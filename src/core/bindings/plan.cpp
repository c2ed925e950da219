#include "plan.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace covey {
namespace {

constexpr std::uint64_t kMost = std::uint64_t{1} << 62;

template <class T>
std::size_t items(const View& view) {
  check(view.size() % sizeof(T) == 0, "an array is not whole items");
  return view.size() / sizeof(T);
}

template <class T>
const T* as(const View& view) {
  return reinterpret_cast<const T*>(view.data());
}

std::vector<std::uint64_t> parse_quotas(nb::handle given, std::size_t classes,
                                        std::size_t per_batch) {
  if (given.is_none()) return {};
  const View view(given);
  check(items<std::uint64_t>(view) == classes, "one quota per class");
  std::vector<std::uint64_t> quotas(classes);
  std::memcpy(quotas.data(), view.data(), view.size());
  const std::uint64_t most = WeightedSchedule::kSpans * WeightedSchedule::span(classes, per_batch);
  std::uint64_t sum = 0;
  for (const std::uint64_t quota : quotas) {
    check(quota <= most, "a quota is too large");
    sum += quota;
    check(sum <= most * per_batch, "quotas are too large");
  }
  check(sum == most * per_batch, "quotas are too small");
  return quotas;
}

PyPlan balanced_plan(std::uint64_t seed, nb::handle labels, nb::handle keys, nb::handle first,
                     nb::handle records, nb::handle by_class, bool wide,
                     std::size_t classes_per_batch, std::size_t records_per_class) {
  std::vector<View> views;
  for (const nb::handle each : {labels, first, records, by_class}) views.emplace_back(each);
  ClassList classes;
  classes.count = items<std::int64_t>(views[0]);
  classes.labels = as<std::int64_t>(views[0]);
  classes.first = as<std::uint64_t>(views[1]);
  classes.records = as<std::uint64_t>(views[2]);
  classes.by_class = views[3].data();
  classes.wide = wide;
  if (!keys.is_none()) {
    views.emplace_back(keys);
    classes.keys = as<std::int64_t>(views.back());
    check(items<std::int64_t>(views.back()) == classes.count, "one item per class");
  }
  check(items<std::uint64_t>(views[1]) == classes.count &&
            items<std::uint64_t>(views[2]) == classes.count,
        "one item per class");
  check(classes.count < std::numeric_limits<std::uint32_t>::max(), "too many classes");
  check(classes_per_batch >= 1 && classes_per_batch <= classes.count, "too many classes a batch");
  check(records_per_class >= 1 && records_per_class < kMost, "too few records a class");
  const std::size_t all = wide ? items<std::uint64_t>(views[3]) : items<std::uint32_t>(views[3]);
  for (std::size_t i = 0; i < classes.count; ++i) {
    check(classes.records[i] >= 1 && classes.records[i] <= all &&
              classes.first[i] <= all - classes.records[i],
          "the records of a class are out of range");
  }
  auto plan =
      std::make_shared<const BalancedPlan>(seed, classes, classes_per_batch, records_per_class);
  return PyPlan(std::move(plan), std::move(views));
}

PyPlan epoch_plan(std::uint64_t seed, std::uint64_t records, std::size_t batch_size, int rest,
                  bool shuffled) {
  check(rest >= 0 && rest <= 2, "rest must be 0, 1 or 2");
  check(batch_size >= 1 && records >= 1 && records < kMost && batch_size < kMost,
        "records must be >= 1");
  check(static_cast<Rest>(rest) != Rest::drop || batch_size <= records, "there is no full batch");
  return PyPlan(std::make_shared<const EpochPlan>(seed, records, batch_size,
                                                  static_cast<Rest>(rest), shuffled),
                {});
}

// An array of rows.
nb::object rows(Buffer<std::int64_t>&& buffer, std::size_t count, std::size_t columns) {
  std::int64_t* const data = buffer.release();
  nb::capsule owner(data, [](void* memory) noexcept { std::free(memory); });
  return nb::cast(nb::ndarray<nb::numpy, std::int64_t, nb::ndim<2>>(data, {count, columns}, owner));
}

}  // namespace

std::uint64_t PyPlan::last_batch() const noexcept {
  return kMost / std::max<std::uint64_t>(plan_->units(), plan_->records_per_unit());
}

void PyPlan::check_step(std::uint64_t step, const Share& share) const {
  const std::uint64_t most = last_batch();
  const bool fits = share.world >= 1 && share.rank < share.world && share.world <= kMost &&
                    share.origin < most && step < (most - share.origin) / share.world;
  if (!fits) throw nb::index_error("there is no such step");
}

nb::tuple PyPlan::draw(std::uint64_t step, std::size_t count, const Share& share) const {
  check_step(step, share);
  check_step(count, share);
  check_step(step + count, share);  // no overflow: both are bounded
  const std::size_t units = plan_->units_of(share.batch(step));
  const auto [begin, end] = share.units(units);
  const std::size_t k = plan_->records_per_unit(), taken = end - begin;
  check(taken == 0 || count <= kMost / 8 / taken / k, "too many batches at once");
  Buffer<std::int64_t> ids, labels;
  ids.extend(count * taken * k);
  labels.extend(count * taken);
  bool alike = true;
  {
    const GilReleased released;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t batch = share.batch(step + i);
      alike = plan_->units_of(batch) == units;
      if (!alike) break;
      plan_->draw(batch, begin, end, ids.data() + i * taken * k, labels.data() + i * taken);
    }
  }
  check(alike, "batches have different lengths");
  if (plan_->has_faulted()) {
    const nb::object error = nb::module_::import_("covey.errors").attr("FileChangedError");
    PyErr_SetString(error.ptr(),
                    "the file of the index was truncated while it was mapped; open the dataset "
                    "again");
    throw nb::python_error();
  }
  nb::object named = nb::none();
  if (plan_->knows_labels()) named = rows(std::move(labels), count, taken);
  return nb::make_tuple(rows(std::move(ids), count, taken * k), named);
}

const BalancedPlan& PyPlan::balanced() const {
  const auto* const found = dynamic_cast<const BalancedPlan*>(plan_.get());
  check(found != nullptr, "this plan has no classes");
  return *found;
}

PyPlan PyPlan::reweighted(std::uint64_t batch, nb::handle quotas) const {
  check_step(batch, {});
  const BalancedPlan& plan = balanced();
  auto parsed = parse_quotas(quotas, plan.classes(), plan.units());
  PyPlan other = *this;
  other.plan_ = std::make_shared<const BalancedPlan>(plan.reweighted(batch, std::move(parsed)));
  return other;
}

Array<std::uint64_t> PyPlan::count(std::uint64_t batches) const {
  check_step(batches, {});
  const std::vector<std::uint64_t> found = balanced().count(batches);
  Buffer<std::uint64_t> visits;
  visits.append(found.data(), found.size());
  return to_numpy(std::move(visits));
}

void register_plan(nb::module_& m) {
  m.attr("PLAN_SPANS") = WeightedSchedule::kSpans;

  nb::class_<Share>(m, "Share", "The part of a plan that one of several ranks takes.")
      .def(
          "__init__",
          [](Share* self, std::uint64_t origin, std::uint64_t rank, std::uint64_t world,
             bool split) {
            check(rank < world, "there is no such rank");
            new (self) Share{origin, rank, world, split};
          },
          nb::arg("origin"), nb::arg("rank"), nb::arg("world"), nb::arg("split"),
          nb::sig("def __init__(self, origin: int, rank: int, world: int, split: bool) -> None"));

  nb::class_<PyPlan>(m, "Plan", "The records of each batch, as a function of its index.")
      .def("draw", &PyPlan::draw, nb::arg("step"), nb::arg("count"), nb::arg("share"),
           nb::sig("def draw(self, step: int, count: int, share: Share) -> "
                   "tuple[NDArray[int64], NDArray[int64] | None]"),
           "Return the records of `count` steps, one row each; and the labels of their classes, or "
           "None.")
      .def_prop_ro("last_batch", &PyPlan::last_batch, nb::sig("def last_batch(self, /) -> int"),
                   "The last batch that can be drawn.")
      .def("reweighted", &PyPlan::reweighted, nb::arg("batch"), nb::arg("quotas").none(),
           nb::sig("def reweighted(self, batch: int, quotas: NDArray[uint64] | None) -> Plan"),
           "Return the same plan up to `batch`, with other quotas from it on.")
      .def("count", &PyPlan::count, nb::arg("batches"),
           nb::sig("def count(self, batches: int) -> NDArray[uint64]"),
           "Return the number of the first batches that have each class.");

  m.def("balanced_plan", &balanced_plan, nb::arg("seed"), nb::arg("labels"), nb::arg("keys").none(),
        nb::arg("first"), nb::arg("records"), nb::arg("by_class"), nb::arg("wide"),
        nb::arg("classes_per_batch"), nb::arg("records_per_class"),
        nb::sig("def balanced_plan(seed: int, labels: NDArray[int64], keys: NDArray[int64] | None, "
                "first: NDArray[uint64], records: NDArray[uint64], by_class: NDArray[Any], "
                "wide: bool, classes_per_batch: int, records_per_class: int) -> Plan"),
        "Return a plan of batches with the same number of records of each of some classes.");
  m.def("epoch_plan", &epoch_plan, nb::arg("seed"), nb::arg("records"), nb::arg("batch_size"),
        nb::arg("rest"), nb::arg("shuffled"),
        nb::sig("def epoch_plan(seed: int, records: int, batch_size: int, rest: int, "
                "shuffled: bool) -> Plan"),
        "Return a plan of all records once per epoch; `rest` is 0 for a shorter last batch, 1 for "
        "none, 2 for one that is filled from the next epoch.");
}

}  // namespace covey
