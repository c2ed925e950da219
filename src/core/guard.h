// Reads of mapped files that survive a file which is truncated while it is mapped.
//
// Access to a page behind the end of a mapped file raises SIGBUS, which by default terminates the
// process. A guarded range turns the signal into a flag: the handler maps zeros over the missing
// pages, marks the range as faulted and returns, so that the interrupted read continues. A reader
// checks the flag after each read, before it uses what it has read. Signals that are not caused by
// a guarded range go to the handler that was installed before.
//
// The handler is installed with the first range, and again with a later range if it was replaced
// in the meantime. COVEY_SIGBUS_HANDLER=0 in the environment disables it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace covey {

struct GuardNode;

// Registers a range of mapped memory as long as it lives.
class GuardedRange {
 public:
  GuardedRange() = default;
  GuardedRange(const void* begin, std::size_t size);
  GuardedRange(GuardedRange&& other) noexcept : node_(other.node_) { other.node_ = nullptr; }
  GuardedRange& operator=(GuardedRange&& other) noexcept;
  ~GuardedRange();

  // Whether a page of the range was missing when it was read. Never reset.
  bool is_faulted() const noexcept;

 private:
  GuardNode* node_ = nullptr;
};

// How many ranges have faulted in this process, ever. Reads before the call are complete.
extern std::atomic<std::uint64_t> fault_count_;
inline std::uint64_t fault_count() noexcept {
  std::atomic_thread_fence(std::memory_order_acquire);
  return fault_count_.load(std::memory_order_relaxed);
}

// Whether an address is in a range that has faulted.
bool lies_in_fault(const void* address) noexcept;

// Removes the pages of all guarded ranges from the memory of this process. They stay in the page
// cache, and are mapped again by the next read.
void release_pages() noexcept;

}  // namespace covey
