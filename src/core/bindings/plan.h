// The Python class of plans.
#pragma once

#include <memory>
#include <vector>

#include "../plan.h"
#include "support.h"

namespace covey {

class PyPlan {
 public:
  PyPlan(std::shared_ptr<const Plan> plan, std::vector<View> views)
      : plan_(std::move(plan)), views_(std::make_shared<std::vector<View>>(std::move(views))) {}

  const Plan& plan() const noexcept { return *plan_; }

  // (ids, labels) of `count` steps, one row each.
  nb::tuple draw(std::uint64_t step, std::size_t count, const Share& share) const;
  PyPlan reweighted(std::uint64_t batch, nb::handle quotas) const;
  Array<std::uint64_t> count(std::uint64_t batches) const;

  std::uint64_t last_batch() const noexcept;

  // Checks that products with the step do not overflow.
  void check_step(std::uint64_t step, const Share& share) const;

 private:
  const BalancedPlan& balanced() const;

  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<std::vector<View>> views_;  // memory that the plan refers to
};

}  // namespace covey
