"""Plans: the record ids of a batch, as a pure function of the seed and the step.

A plan stores no history and reads no file: any step can be computed at any time, for any number of
ranks.
"""

from covey.plan.balanced import BalancedPlan, Mode, Plan
from covey.plan.epochs import SequentialPlan, ShuffledPlan
from covey.plan.weights import Coverage

__all__ = ["BalancedPlan", "Coverage", "Mode", "Plan", "SequentialPlan", "ShuffledPlan"]
