#include <string>

#include "check.h"
#include "survey.h"
#include "wire_bytes.h"

namespace covey::testing {
namespace {

using namespace std::string_literals;

std::string gif(int height, int width) {
  const auto u16 = [](int value) { return memory_of(static_cast<std::uint16_t>(value)); };
  return "GIF89a"s + u16(width) + u16(height) + "\0\0\0"s;
}

std::string record(const std::string& image) {
  return example(entry("label", ints({1})) + entry("image", strings({image})));
}

TEST(image_survey_counts_the_images_of_its_keys) {
  ImageSurvey survey({"image", "other"});
  for (const auto& [height, width] : {std::pair(4, 6), {3, 8}, {2, 2}, {6, 4}}) {
    const Exact copy(record(gif(height, width)));
    survey.add(copy.bytes());
  }
  const Exact text(record("text"));
  survey.add(text.bytes());
  const ImageStatistics& found = survey.results()[0];
  CHECK(found.by_format[static_cast<std::size_t>(ImageFormat::gif)] == 4);
  CHECK(found.by_channels[3] == 4 && found.by_bits[8] == 4);
  CHECK(found.unknown == 1 && found.oriented == 0);
  CHECK(found.smallest == ImageStatistics::Size(2, 2));
  CHECK(found.largest == ImageStatistics::Size(6, 4));
  CHECK(survey.results()[1].largest == ImageStatistics::Size{});
}

TEST(image_survey_sizes_are_equal_only_if_all_images_have_one) {
  for (const auto& [height, width] : {std::pair(4, 6), {6, 4}, {3, 8}}) {
    ImageSurvey survey({"image"});
    const Exact first(record(gif(4, 6))), second(record(gif(height, width)));
    survey.add(first.bytes());
    survey.add(second.bytes());
    const ImageStatistics& found = survey.results()[0];
    CHECK((found.smallest == found.largest) == (height == 4));
  }
}

TEST(image_survey_hostile_records) {
  const std::string valid = record(gif(4, 6));
  for (std::size_t size = 0; size < valid.size(); ++size) {
    ImageSurvey survey({"image"});
    const Exact cut(valid.substr(0, size));
    survey.add(cut.bytes());
    CHECK(survey.results()[0].largest == ImageStatistics::Size{});
  }
  // A key without a list, with another list, and twice: the last one counts.
  for (const std::string& other : {""s, ints({1}), strings({}), strings({"text"})}) {
    ImageSurvey survey({"image"});
    const Exact twice(example(entry("image", strings({gif(4, 6)})) + entry("image", other)));
    survey.add(twice.bytes());
    const ImageStatistics& found = survey.results()[0];
    CHECK(found.largest == ImageStatistics::Size{});
    CHECK(found.unknown == (other == strings({"text"}) ? 1 : 0));
  }
}

}  // namespace
}  // namespace covey::testing
