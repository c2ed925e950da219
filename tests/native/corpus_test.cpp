// Replays the corpus of the fuzz target.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "check.h"
#include "wire_bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace covey::testing {
namespace {

TEST(fuzzing_corpus) {
  std::vector<std::filesystem::path> seeds;
  for (const auto& file : std::filesystem::directory_iterator(COVEY_CORPUS)) {
    seeds.push_back(file.path());
  }
  std::sort(seeds.begin(), seeds.end());
  CHECK(!seeds.empty());
  for (const std::filesystem::path& seed : seeds) {
    std::ifstream file(seed, std::ios::binary);
    const Exact data(std::string(std::istreambuf_iterator<char>(file), {}));
    CHECK(LLVMFuzzerTestOneInput(data.bytes().begin, data.size()) == 0);
  }
}

}  // namespace
}  // namespace covey::testing
