// Runs every test, or those whose name contains the first argument.
#include <cstring>
#include <exception>

#include "check.h"

int main(int argc, char** argv) {
  using namespace covey::testing;
  const char* const wanted = argc > 1 ? argv[1] : "";
  int passed = 0, failed = 0;
  for (const Test& test : tests()) {
    if (std::strstr(test.name, wanted) == nullptr) continue;
    failures = 0;
    try {
      test.run();
    } catch (const std::exception& error) {
      check(false, test.name, 0, error.what());
    }
    if (failures != 0) std::printf("FAILED %s: %d checks\n", test.name, failures);
    ++(failures == 0 ? passed : failed);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed != 0 ? 0 : 1;
}
