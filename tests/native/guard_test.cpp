#include "guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "files.h"
#include "mapping.h"

namespace covey::testing {
namespace {

constexpr std::size_t kSize = 64 * 4096;

std::unique_ptr<MappedBytes> map_whole(const TemporaryFile& file) {
  const OpenFile open(file.path());
  return std::make_unique<MappedBytes>(open.descriptor(), 0, kSize, Access::normal);
}

std::size_t sum(const MappedBytes& mapped) {
  std::size_t total = 0;
  for (std::size_t i = 0; i < mapped.size(); ++i) total += mapped.data()[i];
  return total;
}

// Runs a function in a forked child; the exit status, or minus the signal that ended it.
int run_in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// A page after the end of a file, mapped without a guard.
const volatile char* unguarded_page(const TemporaryFile& file) {
  const OpenFile open(file.path());
  void* const mapped = mmap(nullptr, kSize, PROT_READ, MAP_SHARED, open.descriptor(), 0);
  file.resize(0);
  return static_cast<const volatile char*>(mapped);
}

void set_action(void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action;
  std::memset(&action, 0, sizeof action);
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

struct sigaction earlier;

// A handler that calls the previous handler, as that of another library.
void call_earlier(int signal, siginfo_t* info, void* context) {
  earlier.sa_sigaction(signal, info, context);
}

// A handler that restores the previous handler and raises the signal, as faulthandler does.
void raise_earlier(int signal, siginfo_t*, void*) {
  sigaction(SIGBUS, &earlier, nullptr);
  raise(signal);
}

void exit_7(int, siginfo_t*, void*) { _exit(7); }

TEST(truncated_file_reads_as_zeros_and_is_marked) {
  const TemporaryFile file(std::string(kSize, '\1'));
  const auto mapped = map_whole(file);
  const TemporaryFile other_file(std::string(kSize, '\1'));
  const auto other = map_whole(other_file);
  CHECK(sum(*mapped) == kSize && !mapped->is_faulted());
  file.resize(10 * 4096);
  CHECK(sum(*mapped) == 10 * 4096);
  CHECK(mapped->is_faulted() && fault_count() > 0);
  CHECK(lies_in_fault(mapped->data()) && lies_in_fault(mapped->data() + kSize - 1));
  CHECK(!lies_in_fault(mapped.get()));
  // The mark stays if the file grows again; other ranges are not marked.
  file.resize(kSize);
  CHECK(mapped->is_faulted());
  CHECK(sum(*other) == kSize && !other->is_faulted() && !lies_in_fault(other->data()));
}

TEST(reused_range_is_not_marked) {
  for (int round = 0; round < 3; ++round) {
    const TemporaryFile file(std::string(kSize, '\1'));
    const auto mapped = map_whole(file);
    CHECK(!mapped->is_faulted() && !lies_in_fault(mapped->data()));
    file.resize(0);
    CHECK(sum(*mapped) == 0 && mapped->is_faulted());
  }
}

TEST(threads_read_a_truncated_file) {
  for (int round = 0; round < 20; ++round) {
    const TemporaryFile file(std::string(kSize, '\1'));
    const auto mapped = map_whole(file);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int pass = 0; pass < 200; ++pass) {
          const std::size_t total = sum(*mapped);
          if (total != kSize && !mapped->is_faulted()) ++wrong;
        }
      });
    }
    file.resize(0);
    for (std::thread& each : threads) each.join();
    CHECK(wrong == 0 && mapped->is_faulted());
  }
}

TEST(child_process_reads_a_truncated_file) {
  const TemporaryFile file(std::string(kSize, '\1'));
  const auto mapped = map_whole(file);
  std::atomic<bool> stop{false};
  std::thread busy([&] {  // may hold the lock of the registry at the moment of the fork
    const TemporaryFile other(std::string(kSize, '\1'));
    while (!stop) map_whole(other);
  });
  for (int round = 0; round < 20; ++round) {
    CHECK(run_in_child([&] {
            const auto again = map_whole(file);
            file.resize(0);
            return sum(*mapped) + sum(*again) == 0 && mapped->is_faulted() && again->is_faulted()
                       ? 0
                       : 1;
          }) == 0);
    file.resize(kSize);
    file.write(std::string(kSize, '\1'));
  }
  stop = true;
  busy.join();
  CHECK(!mapped->is_faulted());  // the fault of the child does not mark the parent
}

TEST(other_faults_are_forwarded_to_the_previous_handler) {
  const TemporaryFile file(std::string(kSize, '\1')), other(std::string(kSize, '\1'));
  const auto begin = [&](void (*handler)(int, siginfo_t*, void*)) {
    if (handler == nullptr) {
      signal(SIGBUS, SIG_DFL);
    } else {
      set_action(handler);
    }
    return map_whole(other);  // installs the guard
  };
  const auto access = [&] { return *unguarded_page(file) == 'x' ? 3 : 4; };
  CHECK(run_in_child([&] {
          const auto mapped = begin(nullptr);
          return access();
        }) == -SIGBUS);
  CHECK(run_in_child([&] {
          const auto mapped = begin(exit_7);
          return access();
        }) == 7);
  // A signal that is sent is not an access to a guarded range either.
  CHECK(run_in_child([&] {
          const auto mapped = begin(nullptr);
          raise(SIGBUS);
          return 4;
        }) == -SIGBUS);
  CHECK(run_in_child([&] {
          const auto mapped = begin(exit_7);
          raise(SIGBUS);
          return 4;
        }) == 7);
  CHECK(run_in_child([&] {
          signal(SIGBUS, SIG_IGN);
          const auto mapped = map_whole(other);
          raise(SIGBUS);
          return 5;
        }) == 5);
}

TEST(later_handler_is_replaced_with_the_next_range) {
  const TemporaryFile file(std::string(kSize, '\1')), other(std::string(kSize, '\1'));
  for (const auto later : {exit_7, call_earlier, raise_earlier}) {
    const auto survives = [&] {
      signal(SIGBUS, SIG_DFL);
      const auto first = map_whole(other);
      sigaction(SIGBUS, nullptr, &earlier);
      set_action(later);
      const auto mapped = map_whole(other);
      other.resize(0);
      return sum(*mapped) == 0 && mapped->is_faulted();
    };
    CHECK(run_in_child([&] { return survives() ? 0 : 1; }) == 0);
    // Each handler forwards faults to the other one. The chain ends in the first action, which is
    // that of the sanitizer (exit status 1) if there is one.
    const int ended = run_in_child([&] { return survives() ? *unguarded_page(file) : 2; });
    CHECK(later == exit_7 ? ended == 7 : ended == -SIGBUS || ended == 1);
    file.resize(kSize);
    other.write(std::string(kSize, '\1'));
  }
}

TEST(environment_disables_the_guard) {
  // The variable is read once: an earlier test may have done so in this process.
  const char* const program = std::getenv("COVEY_GUARD_TEST");
  if (program != nullptr) {
    signal(SIGBUS, SIG_DFL);
    const TemporaryFile file(std::string(kSize, '\1'));
    const auto mapped = map_whole(file);
    file.resize(0);
    _exit(sum(*mapped) == 0 ? 9 : 8);
  }
  for (const char* const value : {"0", "1"}) {
    const int ended = run_in_child([&] {
      setenv("COVEY_GUARD_TEST", "1", 1);
      setenv("COVEY_SIGBUS_HANDLER", value, 1);
      execl("/proc/self/exe", "native_tests", "environment_disables_the_guard", nullptr);
      return 1;
    });
    CHECK(ended == (*value == '0' ? -SIGBUS : 9));
  }
}

}  // namespace
}  // namespace covey::testing
