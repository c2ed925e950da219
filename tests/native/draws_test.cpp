#include "draws.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "check.h"

namespace covey::testing {
namespace {

using Things = std::vector<std::uint64_t>;

Things draw(const Draws& draws, std::uint64_t number, std::uint64_t take) {
  Things things(take);
  draws.draw(number, things.data(), nullptr);
  return things;
}

// The stream of rounds from the first on, by its definition in draws.h.
Things lay_out(std::uint64_t key, std::uint64_t size, std::uint64_t take, std::uint64_t rounds) {
  Things stream;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    Things order(size);
    Permutation(derive(key, round), size).fill(0, size, order.data());
    const std::uint64_t start = round * size;
    const std::uint64_t begin = start / take * take, end = begin + take;
    if (begin < start && end <= start + size && begin % size != 0) {
      const auto tail = stream.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto tail_end = tail + static_cast<std::ptrdiff_t>(size - begin % size);
      const auto head_end = order.begin() + static_cast<std::ptrdiff_t>(std::min(take, size));
      std::stable_partition(order.begin(), head_end, [&](std::uint64_t thing) {
        return std::find(tail, tail_end, thing) == tail_end;
      });
    }
    stream.insert(stream.end(), order.begin(), order.end());
  }
  return stream;
}

// The minimum and maximum number of occurrences of the items of a draw.
std::pair<std::uint64_t, std::uint64_t> repeats(const Things& things, std::uint64_t size) {
  Things times(size);
  for (const std::uint64_t thing : things) ++times.at(thing);
  const auto [least, most] = std::minmax_element(times.begin(), times.end());
  return {*least, *most};
}

TEST(draws_are_slices_of_the_stream) {
  for (std::uint64_t take = 1; take <= 9; ++take) {
    for (std::uint64_t size = 1; size <= 40; ++size) {
      const std::uint64_t count = 3 * size;  // draws, which are complete rounds
      const Things stream = lay_out(size, size, take, 3 * take);
      const Draws draws(size, size, take);
      for (std::uint64_t number = 0; number < count; ++number) {
        const auto expected = stream.begin() + static_cast<std::ptrdiff_t>(number * take);
        const Things found = draw(draws, number, take);
        CHECK(std::equal(found.begin(), found.end(), expected));
      }
    }
  }
}

TEST(draws_are_distinct) {
  for (std::uint64_t take = 1; take <= 12; ++take) {
    for (std::uint64_t size = 1; size <= 40; ++size) {
      const Draws draws(take, size, take);
      for (const std::uint64_t far : {std::uint64_t{0}, std::uint64_t{1} << 57}) {
        for (std::uint64_t number = far; number < far + 60; ++number) {
          const auto [least, most] = repeats(draw(draws, number, take), size);
          CHECK(least == take / size && most == (take + size - 1) / size);
        }
      }
    }
  }
}

TEST(draws_have_each_item_once_per_round) {
  for (std::uint64_t take = 1; take <= 9; ++take) {
    for (const std::uint64_t size : {1, 2, 3, 5, 8, 13, 16, 17, 18, 34, 77}) {
      const Draws draws(5, size, take);
      const std::uint64_t first = (std::uint64_t{1} << 50) * size;
      Things stream;
      for (std::uint64_t i = 0; i < size; ++i) {
        const Things things = draw(draws, first + i, take);
        stream.insert(stream.end(), things.begin(), things.end());
      }
      for (std::uint64_t round = 0; round < take; ++round) {
        const auto begin = stream.begin() + static_cast<std::ptrdiff_t>(round * size);
        const Things one(begin, begin + static_cast<std::ptrdiff_t>(size));
        CHECK(repeats(one, size) == (std::pair<std::uint64_t, std::uint64_t>{1, 1}));
      }
    }
  }
}

TEST(draws_return_the_rounds_of_their_items) {
  for (const auto& [size, take] : {std::pair<std::uint64_t, std::uint64_t>{7, 3}, {5, 4}, {3, 8}}) {
    const Draws draws(1, size, take);
    for (const std::uint64_t number :
         {std::uint64_t{0}, std::uint64_t{11}, std::uint64_t{1} << 50}) {
      Things things(take), rounds(take);
      draws.draw(number, things.data(), rounds.data());
      CHECK(things == draw(draws, number, take));
      for (std::uint64_t i = 0; i < take; ++i) CHECK(rounds[i] == (number * take + i) / size);
    }
  }
}

TEST(draws_return_the_first_items_of_a_round) {
  for (std::uint64_t take = 1; take <= 9; ++take) {
    for (std::uint64_t size = take; size <= 30; ++size) {
      const Things stream = lay_out(3, size, take, 20);
      for (std::uint64_t round = 0; round < 20; ++round) {
        for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, take, size}) {
          Things found(count);
          Draws(3, size, take).begin(round, count, found.data());
          const auto expected = stream.begin() + static_cast<std::ptrdiff_t>(round * size);
          CHECK(std::equal(found.begin(), found.end(), expected));
        }
      }
    }
  }
}

TEST(draws_of_other_keys_differ) {
  const Things one = draw(Draws(1, 1000, 8), 0, 8);
  CHECK(one != draw(Draws(2, 1000, 8), 0, 8));
  CHECK(one != draw(Draws(1, 1000, 8), 125, 8));  // where the next round begins
}

}  // namespace
}  // namespace covey::testing
