#include "../ahead.h"

#include <deque>
#include <memory>
#include <optional>

#include "../batcher.h"
#include "gather.h"
#include "plan.h"

#ifdef _WIN32
#include <process.h>
#define getpid _getpid
#else
#include <unistd.h>
#endif

namespace covey {
namespace {

using std::chrono::milliseconds;

// How long Python is kept from looking whether somebody has pressed a key.
constexpr milliseconds kPatience{50};

// Batches that somebody may still have, and that are looked after: what is kept for longer is left
// to whoever keeps it.
constexpr std::size_t kLent = 4;

// The arrays of one batch, which are used again when nobody has them any more.
struct Set {
  nb::tuple arrays;
  std::vector<std::uint8_t*> columns;

  // Whoever has a view of an array holds it, too.
  bool is_free() const {
    for (nb::handle array : arrays) {
      if (Py_REFCNT(array.ptr()) != 1) return false;
    }
    return true;
  }

  // Views: what somebody does to the shape of one is nothing to the next.
  nb::object views() const {
    const std::size_t size = arrays.size();
    nb::object result = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(size)));
    for (std::size_t i = 0; i < size; ++i) {
      PyObject* const view = PyObject_GetItem(arrays[i].ptr(), Py_Ellipsis);
      if (view == nullptr) throw nb::python_error();
      PyTuple_SET_ITEM(result.ptr(), static_cast<Py_ssize_t>(i), view);
    }
    return result;
  }
};

// Batches in order, made ahead by native threads, or now if there are none.
class PyAhead {
 public:
  PyAhead(const PyGather& gather, const PyDecoder& decoder, const PyPlan& plan, const Share& share,
          std::uint64_t steps, int check, std::ptrdiff_t label, bool add_labels, bool check_classes,
          nb::handle numbers, std::size_t threads, std::size_t depth, nb::callable allocate,
          bool recycle)
      : gather_(gather),
        steps_(steps),
        depth_(depth),
        allocate_(std::move(allocate)),
        recycle_(recycle),
        process_(getpid()) {
    plan.check_step(steps, share);
    if (depth < 1) throw nb::value_error("there must be room for a batch");
    if (label >= 0 && !decoder.is_one_int64(static_cast<std::size_t>(label))) {
      throw nb::value_error("the label must be a column of one int64");
    }
    Batcher::Options options;
    options.check = parse_check(check);
    options.label = label;
    options.add_labels = label < 0 && add_labels;
    options.check_classes = check_classes && plan.plan().knows_labels();
    if (!numbers.is_none()) {
      numbers_.emplace(numbers);
      options.numbers = reinterpret_cast<const std::int64_t*>(numbers_->data());
      options.count = numbers_->size() / sizeof(std::int64_t);
    }
    for (const Column& column : decoder.decoder().columns()) {
      const bool fixed = column.layout == Layout::fixed && column.element != Element::string;
      if (!fixed) throw nb::value_error("all columns must be fixed numbers");
      sizes_.push_back(column.count * element_size(column.element));
    }
    if (options.add_labels) sizes_.push_back(sizeof(std::int64_t));
    batcher_.emplace(plan.plan(), share, gather.tables(), decoder.decoder(), options);
    if (threads == 0) return;
    ahead_ = std::make_unique<Ahead>(
        [this](std::uint64_t step, std::size_t set) { return make(step, set); }, steps, threads);
    while (kept_ < depth_) ahead_->give(add());
  }
  PyAhead(const PyAhead&) = delete;
  ~PyAhead() { close(); }

  void close() {
    if (getpid() != process_) {
      (void)ahead_.release();  // its threads are those of another process
      return;
    }
    closed_ = true;
    if (ahead_ == nullptr) return;
    const GilReleased released;
    ahead_->stop();
  }

  // The next batch; None if it could not be made so.
  nb::object next() {
    check_open();
    if (taken_ == steps_) throw nb::index_error("there are no more batches");
    reclaim();
    const Ahead::Result result = ahead_ != nullptr ? take() : make_now();
    ++taken_;
    nb::object views = nb::none();
    if (result.done) {
      views = sets_[result.set].views();
      lent_.push_back(result.set);
    } else {
      give_back(result.set);
    }
    // As many are made as were asked for, while whoever has this one is at work.
    while (ahead_ != nullptr && kept_ < depth_) ahead_->give(add());
    return views;
  }

 private:
  void check_open() const {
    if (closed_) throw nb::value_error("these batches were closed");
  }

  bool make(std::uint64_t step, std::size_t set) const {
    const auto shards = gather_.shards();
    std::uint8_t* const* columns;
    {
      const std::lock_guard guard(lock_);  // of the list, which may grow meanwhile
      columns = sets_[set].columns.data();
    }
    return batcher_->make(step, *shards, columns);
  }

  Ahead::Result take() {
    std::optional<Ahead::Result> result = ahead_->poll();
    while (!result) {
      {
        const GilReleased released;
        result = ahead_->wait(kPatience);
      }
      if (!result && PyErr_CheckSignals() != 0) throw nb::python_error();
      if (!result) check_open();
    }
    --kept_;
    return *result;
  }

  Ahead::Result make_now() {
    std::size_t set;
    if (free_.empty()) {
      set = add();
    } else {
      set = free_.back();
      free_.pop_back();
    }
    --kept_;
    const GilReleased released;
    return {set, make(taken_, set)};
  }

  // Sets that nobody has any more are used again.
  void reclaim() {
    for (std::size_t i = lent_.size(); i-- > 0;) {
      const std::size_t set = lent_[i];
      if (!recycle_ && !sets_[set].is_free()) continue;
      lent_.erase(lent_.begin() + static_cast<std::ptrdiff_t>(i));
      give_back(set);
    }
    while (lent_.size() > kLent) {
      forget(lent_.front());
      lent_.pop_front();
    }
  }

  void give_back(std::size_t set) {
    ++kept_;
    if (ahead_ != nullptr) {
      ahead_->give(set);
    } else {
      free_.push_back(set);
    }
  }

  // A set that can be written into; it is kept by this.
  std::size_t add() {
    const auto arrays = nb::cast<nb::tuple>(allocate_(batcher_->rows()));
    if (arrays.size() != sizes_.size()) throw nb::value_error("one array per column");
    Set set{arrays, {}};
    for (std::size_t c = 0; c < sizes_.size(); ++c) {
      const View view(arrays[c], PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS);
      if (view.size() != sizes_[c] * batcher_->rows()) {
        throw nb::value_error("an array has the wrong size");
      }
      set.columns.push_back(view.data());
    }
    std::size_t number = sets_.size();
    {
      const std::lock_guard guard(lock_);
      if (forgotten_.empty()) {
        sets_.push_back(std::move(set));
      } else {
        number = forgotten_.back();
        forgotten_.pop_back();
        sets_[number] = std::move(set);
      }
    }
    ++kept_;
    return number;
  }

  void forget(std::size_t set) {
    Set none;
    const std::lock_guard guard(lock_);
    std::swap(sets_[set], none);
    forgotten_.push_back(set);
  }

  const PyGather& gather_;
  std::optional<Batcher> batcher_;
  std::optional<View> numbers_;
  std::vector<std::size_t> sizes_;  // of a row of each column
  std::uint64_t steps_;
  std::uint64_t taken_ = 0;
  std::size_t depth_;
  nb::callable allocate_;
  bool recycle_;
  bool closed_ = false;
  decltype(getpid()) process_;

  mutable std::mutex lock_;
  std::vector<Set> sets_;
  std::vector<std::size_t> forgotten_;  // numbers of sets that are none any more
  std::vector<std::size_t> free_;       // without threads: those that can be written into
  std::deque<std::size_t> lent_;
  std::size_t kept_ = 0;          // sets that can be written into, or are
  std::unique_ptr<Ahead> ahead_;  // the last: its threads use all of the above
};

}  // namespace

void register_ahead(nb::module_& m) {
  nb::class_<PyAhead>(m, "Ahead", "The batches of a plan, made ahead by native threads.")
      .def(nb::init<const PyGather&, const PyDecoder&, const PyPlan&, const Share&, std::uint64_t,
                    int, std::ptrdiff_t, bool, bool, nb::handle, std::size_t, std::size_t,
                    nb::callable, bool>(),
           nb::arg("gather"), nb::arg("decoder"), nb::arg("plan"), nb::arg("share"),
           nb::arg("steps"), nb::arg("check"), nb::arg("label"), nb::arg("add_labels"),
           nb::arg("check_classes"), nb::arg("numbers").none(), nb::arg("threads"),
           nb::arg("depth"), nb::arg("allocate"), nb::arg("recycle"), nb::keep_alive<1, 2>(),
           nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(),
           nb::sig("def __init__(self, gather: Gather, decoder: Decoder, plan: Plan, "
                   "share: Share, steps: int, check: int, label: int, add_labels: bool, "
                   "check_classes: bool, numbers: NDArray[int64] | None, threads: int, depth: int, "
                   "allocate: Callable[[int], tuple[NDArray[Any], ...]], recycle: bool) -> None"))
      .def("next", &PyAhead::next, nb::sig("def next(self) -> tuple[NDArray[Any], ...] | None"),
           "The columns of the next step, and its classes; None if it is a shorter one, or "
           "something is amiss.")
      .def("close", &PyAhead::close, nb::sig("def close(self) -> None"), "Ends the threads.");
}

}  // namespace covey
