"""Which records a batch has: a pure function of a seed and a step.

Whatever is planned can be planned again, from any step on, by any number of ranks: nothing is
remembered, everything is computed. A plan never touches a file.
"""

from covey.plan.balanced import BalancedPlan
from covey.plan.base import Mode, Plan
from covey.plan.coverage import Coverage
from covey.plan.epochs import SequentialPlan, ShuffledPlan

__all__ = ["BalancedPlan", "Coverage", "Mode", "Plan", "SequentialPlan", "ShuffledPlan"]
