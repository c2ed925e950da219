#include "guard.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace covey {

std::atomic<std::uint64_t> fault_count_{0};

// Nodes are reused and never freed, so that a signal handler can walk the list at any time.
struct GuardNode {
  std::atomic<std::uint32_t> version{0};  // odd while the node changes
  std::atomic<std::uintptr_t> begin{0}, end{0};
  std::atomic<bool> faulted{false};
  GuardNode* next = nullptr;       // of all nodes
  GuardNode* next_free = nullptr;  // guarded by `registry_lock`

  void set(std::uintptr_t from, std::uintptr_t to) noexcept {
    version.fetch_add(1, std::memory_order_acq_rel);
    begin.store(from, std::memory_order_relaxed);
    end.store(to, std::memory_order_relaxed);
    faulted.store(false, std::memory_order_relaxed);
    version.fetch_add(1, std::memory_order_release);
  }

  // False also if the node changes: then it is not the range that the caller reads from.
  bool contains(std::uintptr_t address, std::uintptr_t& from, std::uintptr_t& to) const noexcept {
    const std::uint32_t before = version.load(std::memory_order_acquire);
    from = begin.load(std::memory_order_relaxed);
    to = end.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    const bool stable = before % 2 == 0 && version.load(std::memory_order_relaxed) == before;
    return stable && address >= from && address < to;
  }
};

namespace {

std::atomic<GuardNode*> nodes{nullptr};
GuardNode* free_nodes = nullptr;
std::uintptr_t page_bytes = 4096;

// The action that other faults are passed to, and the first one: a handler that was installed
// after ours may pass faults back to us.
// They are replaced and never freed, since a handler may run at any time.
std::atomic<const struct sigaction*> next_action{nullptr}, first_action{nullptr};

// The stack frame of the handler that has called `next_action`, if there is one.
#if defined(__ELF__)
__attribute__((tls_model("initial-exec")))
#endif
thread_local std::uintptr_t chaining_frame = 0;

std::mutex& registry_lock() {
  // A child must not inherit the lock of a thread that it does not have.
  static std::mutex* const lock = [] {
    static std::mutex made;
    pthread_atfork([] { registry_lock().lock(); }, [] { registry_lock().unlock(); },
                   [] { registry_lock().unlock(); });
    return &made;
  }();
  return *lock;
}

bool map_zeros(std::uintptr_t begin, std::uintptr_t end) noexcept {
  int flags = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
  flags |= MAP_NORESERVE;
#endif
  void* const at = reinterpret_cast<void*>(begin);
  return mmap(at, end - begin, PROT_READ, flags, -1, 0) != MAP_FAILED;
}

bool repair(std::uintptr_t address) noexcept {
  for (GuardNode* node = nodes.load(std::memory_order_acquire); node != nullptr;
       node = node->next) {
    std::uintptr_t begin, end;
    if (!node->contains(address, begin, end)) continue;
    // The flag comes first: another thread may read the zeros as soon as they are mapped.
    node->faulted.store(true, std::memory_order_seq_cst);
    fault_count_.fetch_add(1, std::memory_order_seq_cst);
    // A file that is truncated has no later page either. With too many mappings only the whole
    // range can be replaced.
    return map_zeros(address / page_bytes * page_bytes, end) || map_zeros(begin, end);
  }
  return false;
}

// Performs the default action: at once if the signal was sent, or when the fault occurs again.
void perform_default(int signal, const siginfo_t* info) noexcept {
  struct sigaction action;
  std::memset(&action, 0, sizeof action);
  action.sa_handler = SIG_DFL;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
  if (info->si_code <= 0) raise(signal);
}

void pass_on(int signal, siginfo_t* info, void* context) noexcept {
  const struct sigaction* action = next_action.load(std::memory_order_acquire);
  char here = 0;
  const auto frame = reinterpret_cast<std::uintptr_t>(&here);
  const std::uintptr_t outer = chaining_frame;
  if (outer != 0 && frame < outer) {
    // `next_action` has returned the signal to us. faulthandler does so by raise(), to have the
    // default action performed.
    if (info->si_code <= 0) return perform_default(signal, info);
    action = first_action.load(std::memory_order_acquire);
  }
  if (action->sa_flags & SA_SIGINFO) {
    chaining_frame = frame;
    action->sa_sigaction(signal, info, context);
    chaining_frame = outer;
  } else if (action->sa_handler == SIG_IGN && info->si_code <= 0) {
    return;
  } else if (action->sa_handler == SIG_DFL || action->sa_handler == SIG_IGN) {
    perform_default(signal, info);
  } else {
    chaining_frame = frame;
    action->sa_handler(signal);
    chaining_frame = outer;
  }
}

void handle(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const bool by_access = info->si_code > 0;
  if (!by_access || !repair(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
    pass_on(signal, info, context);
  }
  errno = error;
}

bool is_enabled() {
  const char* const value = std::getenv("COVEY_SIGBUS_HANDLER");
  return value == nullptr || std::strcmp(value, "0") != 0;
}

// With the lock. A framework may have installed its own handler since: torch does in its workers.
void install() {
  struct sigaction current;
  if (sigaction(SIGBUS, nullptr, &current) != 0) return;
  if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == handle) return;
  struct sigaction ours;
  std::memset(&ours, 0, sizeof ours);
  ours.sa_sigaction = handle;
  // A signal that the next handler raises must arrive before that handler returns: see pass_on().
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&ours.sa_mask);
  const auto* const kept = new struct sigaction(current);
  next_action.store(kept, std::memory_order_release);
  if (first_action.load() == nullptr) first_action.store(kept, std::memory_order_release);
  sigaction(SIGBUS, &ours, nullptr);
}

}  // namespace

GuardedRange::GuardedRange(const void* begin, std::size_t size) {
  if (size == 0) return;
  static const bool enabled = is_enabled();
  if (!enabled) return;
  const std::lock_guard guard(registry_lock());
  page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  install();
  node_ = free_nodes;
  if (node_ != nullptr) {
    free_nodes = node_->next_free;
  } else {
    node_ = new GuardNode;
    node_->next = nodes.load(std::memory_order_relaxed);
    nodes.store(node_, std::memory_order_release);
  }
  const auto from = reinterpret_cast<std::uintptr_t>(begin);
  node_->set(from, (from + size + page_bytes - 1) / page_bytes * page_bytes);
}

GuardedRange& GuardedRange::operator=(GuardedRange&& other) noexcept {
  std::swap(node_, other.node_);
  return *this;
}

GuardedRange::~GuardedRange() {
  if (node_ == nullptr) return;
  const std::lock_guard guard(registry_lock());
  node_->set(0, 0);
  node_->next_free = free_nodes;
  free_nodes = node_;
}

bool GuardedRange::is_faulted() const noexcept {
  return fault_count() != 0 && node_ != nullptr && node_->faulted.load(std::memory_order_relaxed);
}

bool lies_in_fault(const void* address) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (const GuardNode* node = nodes.load(std::memory_order_acquire); node != nullptr;
       node = node->next) {
    std::uintptr_t begin, end;
    if (node->contains(at, begin, end)) return node->faulted.load(std::memory_order_acquire);
  }
  return false;
}

void release_pages() noexcept {
  // A range is unregistered, with the lock, before it is unmapped.
  const std::lock_guard guard(registry_lock());
  for (const GuardNode* node = nodes.load(std::memory_order_acquire); node != nullptr;
       node = node->next) {
    const std::uintptr_t begin = node->begin.load(std::memory_order_relaxed);
    const std::uintptr_t end = node->end.load(std::memory_order_relaxed);
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

}  // namespace covey
