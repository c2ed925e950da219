#include "permutation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "check.h"

namespace covey::testing {
namespace {

using Order = std::vector<std::uint64_t>;

Order order_of(std::uint64_t key, std::uint64_t size) {
  const Permutation permutation(key, size);
  Order order(size);
  for (std::uint64_t i = 0; i < size; ++i) order[i] = permutation(i);
  return order;
}

bool has_each_once(Order order) {
  std::sort(order.begin(), order.end());
  for (std::uint64_t i = 0; i < order.size(); ++i) {
    if (order[i] != i) return false;
  }
  return true;
}

// Whether counts are uniform by a chi-squared test at the level 0.001, with the approximation of
// Wilson and Hilferty. Keys are fixed, so the result is too.
bool are_uniform(const std::vector<std::uint64_t>& counts) {
  const double cells = static_cast<double>(counts.size());
  const double mean = std::accumulate(counts.begin(), counts.end(), 0.0) / cells;
  double found = 0;
  for (const std::uint64_t count : counts) {
    found += (static_cast<double>(count) - mean) * (static_cast<double>(count) - mean) / mean;
  }
  const double freedom = cells - 1, spread = 2 / (9 * freedom);
  return found < freedom * std::pow(1 - spread + 3.09 * std::sqrt(spread), 3);
}

TEST(derive_published_numbers_of_splitmix64) {
  CHECK(derive(0, 0) == 0xe220a8397b1dcdafU);
  CHECK(derive(0, 1) == 0x6e789e6aa1b965f4U);
  CHECK(derive(0, 2) == 0x06c45d188009454fU);
  CHECK(derive(0, 3) == 0xf88bb8a8724c81ecU);
  CHECK(derive(5, ~std::uint64_t{0}) == mix(5));
}

// The values of tests/helpers/plan_reference.py.
TEST(permutation_golden_values) {
  CHECK(order_of(1, 5) == Order{0, 4, 1, 2, 3});
  const Order shuffled = order_of(7, 32), computed = order_of(7, 33);
  CHECK(Order(shuffled.begin(), shuffled.begin() + 8) == Order{22, 16, 10, 28, 26, 2, 24, 9});
  CHECK(Order(computed.begin(), computed.begin() + 8) == Order{5, 4, 11, 25, 0, 9, 10, 24});
  const Permutation thousand(7, 1000);
  CHECK(thousand(0) == 790 && thousand(1) == 309 && thousand(5) == 225);
  constexpr std::uint64_t kMost = (std::uint64_t{1} << 62) - 1;
  const Permutation largest(~std::uint64_t{0}, kMost);
  CHECK(largest(0) == 2643201750905387789 && largest(kMost - 1) == 656728810243817340);
  const Permutation square(3, (std::uint64_t{1} << 60) + 1);
  CHECK(square(0) == 459250365998044297 && square(1) == 723249300957105674);
}

TEST(permutation_has_each_number_once) {
  for (std::uint64_t size = 1; size <= 400; ++size) {
    for (const std::uint64_t key : {std::uint64_t{0}, size, ~size}) {
      CHECK(has_each_once(order_of(key, size)));
    }
  }
  // The grid is almost square: sizes around squares, and around the addition of a row.
  for (const std::uint64_t root : {31, 100, 181, 256}) {
    for (const std::uint64_t size : {root * root - 1, root * root, root * root + 1,
                                     root * (root + 1), root * (root + 1) + 1}) {
      CHECK(has_each_once(order_of(root, size)));
    }
  }
}

TEST(permutation_of_zero_items) {
  const Permutation nothing(1, 0);
  nothing.fill(0, 0, nullptr);
}

TEST(permutation_fill_equals_single_items) {
  for (const std::uint64_t size : {1, 2, 31, 32, 33, 40, 50, 97, 1000}) {
    const Order expected = order_of(size, size);
    const Permutation permutation(size, size);
    for (std::uint64_t first = 0; first < std::min<std::uint64_t>(size, 12); ++first) {
      for (const std::uint64_t count : {0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 1000}) {
        const std::uint64_t fits = std::min(count, size - first);
        Order found(fits + 1, 12345);
        permutation.fill(first, fits, found.data());
        CHECK(std::equal(found.begin(), found.end() - 1,
                         expected.begin() + static_cast<std::ptrdiff_t>(first)));
        CHECK(found.back() == 12345);
      }
    }
  }
}

TEST(permutation_of_large_sizes) {
  for (int bits = 20; bits <= 62; ++bits) {
    for (const std::uint64_t more : {-1, 0, 1}) {
      const std::uint64_t size = (std::uint64_t{1} << bits) + more;
      if (size > std::uint64_t{1} << 62) continue;
      Order found(3000);
      Permutation(size, size).fill(size - 3000, 3000, found.data());
      std::sort(found.begin(), found.end());
      CHECK(found.back() < size);
      CHECK(std::adjacent_find(found.begin(), found.end()) == found.end());
    }
  }
}

TEST(permutation_orders_are_uniform) {
  std::map<Order, std::uint64_t> seen;
  for (std::uint64_t key = 0; key < 120'000; ++key) ++seen[order_of(key, 5)];
  std::vector<std::uint64_t> counts;
  for (const auto& [order, count] : seen) counts.push_back(count);
  CHECK(counts.size() == 120);
  CHECK(are_uniform(counts));
}

TEST(permutation_pairs_are_uniform) {
  for (const std::uint64_t size : {20, 32, 33, 36, 37, 50}) {
    std::vector<std::uint64_t> first(size * (size - 1)), ends(size * (size - 1));
    for (std::uint64_t key = 0; key < 100'000; ++key) {
      const Permutation order(key, size);
      const auto cell = [&](std::uint64_t one, std::uint64_t other) {
        return one * (size - 1) + other - (other > one ? 1 : 0);
      };
      ++first[cell(order(0), order(1))];
      ++ends[cell(order(0), order(size - 1))];
    }
    CHECK(are_uniform(first));
    CHECK(are_uniform(ends));
  }
}

}  // namespace
}  // namespace covey::testing
