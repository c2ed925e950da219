// A minimal test framework: TEST defines a test; CHECK reports a false condition and continues.
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

// Failed checks of the current test.
inline int failures = 0;

// Limits the output of a check in a loop.
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
