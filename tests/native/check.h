// As much of a test framework as these tests need: TEST names a statement about the core, CHECK
// says where one does not hold, and goes on.
#pragma once

#include <cstdio>
#include <vector>

namespace covey::testing {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

// Checks that did not hold, in the test that runs.
inline int failures = 0;

// A check within a loop should not print a thousand lines.
inline constexpr int kPrintedFailures = 10;

struct Registration {
  Registration(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

inline void check(bool holds, const char* file, int line, const char* text) {
  if (holds) return;
  if (++failures <= kPrintedFailures) std::printf("%s:%d: %s\n", file, line, text);
}

}  // namespace covey::testing

// Variadic, because commas within braces separate the arguments of a macro.
#define CHECK(...) \
  ::covey::testing::check(static_cast<bool>(__VA_ARGS__), __FILE__, __LINE__, #__VA_ARGS__)

#define TEST(name)                                                           \
  static void name();                                                        \
  static const ::covey::testing::Registration register_##name(#name, &name); \
  static void name()
