// The batches of a plan, prefetched by native threads.
#include "../prefetcher.h"

#include <unistd.h>

#include <deque>
#include <memory>

#include "../batcher.h"
#include "reading.h"

namespace covey {
namespace {

using std::chrono::milliseconds;

// How often a waiting consumer checks for signals, such as SIGINT.
constexpr milliseconds kSignalPollInterval{50};

// The number of returned batches that are tracked for reuse. The arrays of an older batch that is
// still referenced are left to their holder.
constexpr std::size_t kMaxLent = 4;

using Columns = nb::typed<nb::tuple, nb::any, nb::ellipsis>;
using Allocate = nb::typed<nb::callable, Columns(std::size_t)>;

// The arrays of one batch, reused when the caller holds no reference to them.
struct BufferSet {
  nb::tuple arrays;
  std::vector<std::uint8_t*> columns;
  std::vector<PendingImage> pending;

  // A view of an array holds a reference to it.
  bool is_free() const {
    for (nb::handle array : arrays) {
      if (Py_REFCNT(array.ptr()) != 1) return false;
    }
    return true;
  }

  // New views, so that a caller that reshapes one in place does not affect the next batch.
  nb::tuple views() const {
    const std::size_t size = arrays.size();
    nb::tuple result = nb::steal<nb::tuple>(PyTuple_New(static_cast<Py_ssize_t>(size)));
    for (std::size_t i = 0; i < size; ++i) {
      PyObject* const view = PyObject_GetItem(arrays[i].ptr(), Py_Ellipsis);
      if (view == nullptr) throw nb::python_error();
      PyTuple_SET_ITEM(result.ptr(), static_cast<Py_ssize_t>(i), view);
    }
    return result;
  }
};

using OptionalIds = std::optional<ArrayArg<std::int64_t>>;

// A column of the decoder, how its images are decoded, and the index of the array of each view.
using ImageArgument = std::tuple<std::size_t, const ImageSpec*, std::vector<std::size_t>>;

// Batches in the order of their steps, built by native threads, or on demand without threads.
class PyPrefetcher {
 public:
  PyPrefetcher(const PyGather& gather, const Decoder& decoder, const PyPlan& plan, const Rank& rank,
               std::uint64_t steps, int check, std::ptrdiff_t label, bool add_labels,
               bool check_classes, const OptionalIds& record_ids, const OptionalIds& class_ids,
               std::size_t threads, std::size_t depth, Allocate allocate, bool reuse_buffers,
               const std::vector<ImageArgument>& images, std::uint64_t seed, std::size_t parts)
      : gather_(gather),
        steps_(steps),
        has_threads_(threads > 0),
        depth_(has_threads_ ? depth : 1),
        parts_(threads == 0 ? 1 : parts),
        allocate_(std::move(allocate)),
        reuse_buffers_(reuse_buffers),
        record_ids_(record_ids),
        class_ids_(class_ids),
        process_(getpid()) {
    plan.check_step(steps, rank);
    covey::check(depth >= 1, "depth must be >= 1");
    covey::check(parts >= 1, "parts must be >= 1");
    check_label(decoder, label);
    Batcher::Options options;
    options.check = parse_check(check);
    options.label = label;
    options.add_labels = label < 0 && add_labels;
    options.check_classes = check_classes && plan.plan->knows_labels();
    if (record_ids) {
      options.record_ids = record_ids->data();
      options.count = record_ids->size();
    }
    if (class_ids) {
      options.class_ids = class_ids->data();
      const std::size_t records = record_ids ? options.count : gather.tables().records();
      covey::check(class_ids->size() == records, "one class per record");
    }
    const std::vector<Column>& columns = decoder.columns();
    std::size_t outputs = columns.size() + (options.add_labels ? 1 : 0);
    std::vector<bool> is_image(columns.size());
    for (const auto& [column, spec, views] : images) {
      covey::check(column < columns.size() && views.size() == spec->views && views[0] == column,
                   "an image column is invalid");
      for (std::size_t i = 1; i < views.size(); ++i) {
        covey::check(views[i] == outputs++, "further views must follow the other outputs");
      }
      is_image[column] = true;
      options.images.push_back({column, *spec, views});
    }
    options.seed = seed;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const bool is_string = columns[c].element == Element::string;
      const bool fixed = columns[c].layout == Layout::fixed && is_string == is_image[c];
      covey::check(fixed && (!is_string || columns[c].count == 1),
                   "all columns must be numbers of fixed shape or images");
    }
    batcher_.emplace(*plan.plan, rank, gather.tables(), decoder, options);
    prefetcher_ =
        std::make_unique<Prefetcher>([this](std::uint64_t step, std::size_t part,
                                            std::size_t set) { return make(step, part, set); },
                                     steps, threads, parts_);
    if (has_threads_) keep_depth();
  }
  PyPrefetcher(const PyPrefetcher&) = delete;
  ~PyPrefetcher() { close(); }

  void close() {
    if (getpid() != process_) {
      (void)prefetcher_.release();  // after a fork: its threads exist only in the parent
      return;
    }
    closed_ = true;
    without_gil([this] { prefetcher_->stop(); });
  }

  // The next batch; None if the caller must build it.
  std::optional<Columns> next() {
    check_open();
    if (taken_ == steps_) throw nb::index_error("all batches were returned");
    reclaim();
    keep_depth();
    const Prefetcher::Result result = take();
    ++taken_;
    std::optional<Columns> views;
    pending_ = std::move(sets_[result.set].pending);
    sets_[result.set].pending.clear();
    if (result.done) {
      views = sets_[result.set].views();
      lent_.push_back(result.set);
    } else {
      give_back(result.set);
    }
    if (has_threads_) keep_depth();
    return views;
  }

  // The (row, image column) pairs of the last batch that the caller must decode.
  std::vector<std::pair<std::size_t, std::size_t>> pending() const {
    std::vector<std::pair<std::size_t, std::size_t>> pairs;
    for (const PendingImage& each : pending_) pairs.emplace_back(each.row, each.image);
    return pairs;
  }

 private:
  void check_open() const { check(!closed_, "the prefetcher is closed"); }

  bool make(std::uint64_t step, std::size_t part, std::size_t set) {
    const auto shards = gather_.shards();
    std::uint8_t* const* columns;
    {
      const std::lock_guard guard(lock_);  // guards the vector, which may grow
      columns = sets_[set].columns.data();
    }
    std::vector<PendingImage> pending;
    const bool done = batcher_->make(step, {part, parts_}, *shards, columns, pending);
    if (!pending.empty()) {
      const std::lock_guard guard(lock_);
      auto& all = sets_[set].pending;
      all.insert(all.end(), pending.begin(), pending.end());
    }
    return done;
  }

  Prefetcher::Result take() {
    std::optional<Prefetcher::Result> result = prefetcher_->poll();
    while (!result) {
      result = without_gil([this] { return prefetcher_->wait(kSignalPollInterval); });
      if (!result && PyErr_CheckSignals() != 0) throw nb::python_error();
      if (!result) check_open();
    }
    --kept_;
    return *result;
  }

  // Reuses the sets that the caller released. Of those that it keeps, the arrays of the oldest are
  // left to it, and replaced.
  void reclaim() {
    for (std::size_t i = lent_.size(); i-- > 0;) {
      const std::size_t set = lent_[i];
      const bool replaces = i == 0 && lent_.size() > kMaxLent;
      if (!reuse_buffers_ && !sets_[set].is_free() && !replaces) continue;
      if (!reuse_buffers_ && !sets_[set].is_free()) {
        BufferSet other = allocate();
        const std::lock_guard guard(lock_);
        std::swap(sets_[set], other);
      }
      lent_.erase(lent_.begin() + static_cast<std::ptrdiff_t>(i));
      give_back(set);
    }
  }

  void give_back(std::size_t set) {
    ++kept_;
    prefetcher_->give(set);
  }

  // Keeps `depth` sets in circulation. Threads write them while the caller holds others; without
  // threads, the set that it released is written again, which is still in the cache.
  void keep_depth() {
    while (kept_ < depth_) {
      BufferSet set = allocate();
      {
        const std::lock_guard guard(lock_);
        sets_.push_back(std::move(set));
      }
      give_back(sets_.size() - 1);
    }
  }

  BufferSet allocate() const {
    const auto arrays = nb::cast<nb::tuple>(allocate_(batcher_->rows()));
    const std::vector<std::size_t>& sizes = batcher_->row_bytes();
    check(arrays.size() == sizes.size(), "one array per column");
    BufferSet set{arrays, {}, {}};
    for (std::size_t c = 0; c < sizes.size(); ++c) {
      const View view(arrays[c], PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS);
      check(view.size() == sizes[c] * batcher_->rows(), "an array has the wrong size");
      set.columns.push_back(view.data());
    }
    return set;
  }

  const PyGather& gather_;
  std::optional<Batcher> batcher_;
  const OptionalIds record_ids_, class_ids_;  // keep the memory alive
  std::uint64_t steps_;
  std::uint64_t taken_ = 0;
  bool has_threads_;
  std::size_t depth_;
  std::size_t parts_;
  nb::callable allocate_;
  bool reuse_buffers_;
  bool closed_ = false;
  decltype(getpid()) process_;

  mutable std::mutex lock_;
  std::vector<BufferSet> sets_;
  std::deque<std::size_t> lent_;
  std::vector<PendingImage> pending_;       // of the last batch
  std::size_t kept_ = 0;                    // sets that are writable or being written
  std::unique_ptr<Prefetcher> prefetcher_;  // last: its threads use the other members
};

}  // namespace

void register_prefetcher(nb::module_& m) {
  nb::class_<PyPrefetcher>(m, "Prefetcher", "The batches of a plan, prefetched by native threads.")
      .def(nb::init<const PyGather&, const Decoder&, const PyPlan&, const Rank&, std::uint64_t, int,
                    std::ptrdiff_t, bool, bool, const OptionalIds&, const OptionalIds&, std::size_t,
                    std::size_t, Allocate, bool, const std::vector<ImageArgument>&, std::uint64_t,
                    std::size_t>(),
           nb::arg("gather"), nb::arg("decoder"), nb::arg("plan"), nb::arg("rank"), nb::kw_only(),
           nb::arg("steps"), nb::arg("check"), nb::arg("label"), nb::arg("add_labels"),
           nb::arg("check_classes"), nb::arg("record_ids").none(), nb::arg("class_ids").none(),
           nb::arg("threads"), nb::arg("depth"), nb::arg("allocate"), nb::arg("reuse_buffers"),
           nb::arg("images"), nb::arg("seed"), nb::arg("parts"), nb::keep_alive<1, 2>(),
           nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def("next", &PyPrefetcher::next,
           "Return the columns of the next step, and its classes; None if the batch is shorter "
           "than the others or cannot be built: the caller then builds it.")
      .def_prop_ro("pending", &PyPrefetcher::pending,
                   "The (row, index in `images`) pairs of the last batch whose images the caller "
                   "must decode.")
      .def("close", &PyPrefetcher::close, "Stop the threads.");
}

}  // namespace covey
