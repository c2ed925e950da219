// Replays the corpora of the fuzz targets.
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
extern "C" int replay_image(const std::uint8_t* data, std::size_t size);

namespace covey::testing {
namespace {

void replay(const char* corpus, int (*target)(const std::uint8_t*, std::size_t)) {
  std::vector<std::filesystem::path> seeds;
  for (const auto& file : std::filesystem::directory_iterator(corpus)) {
    seeds.push_back(file.path());
  }
  std::sort(seeds.begin(), seeds.end());
  CHECK(!seeds.empty());
  for (const std::filesystem::path& seed : seeds) {
    std::ifstream file(seed, std::ios::binary);
    const Exact data(std::string(std::istreambuf_iterator<char>(file), {}));
    CHECK(target(data.bytes().begin, data.size()) == 0);
  }
}

TEST(fuzzing_corpus) { replay(COVEY_CORPUS, LLVMFuzzerTestOneInput); }

TEST(fuzzing_corpus_of_images) { replay(COVEY_IMAGE_CORPUS, replay_image); }

}  // namespace
}  // namespace covey::testing
