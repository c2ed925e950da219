"""Plans whose batches are stored in golden files: a seed must always yield the same batches."""

import json
from pathlib import Path

from plan_cases import class_table, make_plan

from covey.plan import BalancedPlan, SequentialPlan, ShuffledPlan

FOLDER = Path(__file__).parents[1] / "golden" / "plans"

FAR = [10**6, 10**12]

# Parameters of each plan, and the steps whose batches are stored.
PLANS = {
    # Draws that straddle rounds, of shuffled and of computed permutations.
    "even": {
        "sizes": [6, 9, 12, 40, 33, 7, 8, 100, 1000, 65],
        "args": [3, 4, 0],
        "steps": [*range(10), *FAR],
    },
    # P <= C < 2P - 1 and K <= n < 2K - 1: rounds depend on earlier ones.
    "tight": {"sizes": [5, 6, 7, 8, 5, 6, 7], "args": [5, 5, 1], "steps": [*range(10), *FAR]},
    # Fewer than K examples.
    "small": {"sizes": [1, 2, 3, 4, 5, 6], "args": [2, 4, 2**64 - 1], "steps": [*range(9), *FAR]},
    "labels": {
        "sizes": [3, 4, 5, 6],
        "labels": [-(2**63), -1, 0, 2**63 - 1],
        "args": [3, 2, 2**63],
        "steps": [*range(6), *FAR],
    },
    # Strings have class ids in sorted order.
    "names": {
        "examples": ["wren", "owl", "kite", "Wren", "öwl", "owl", "wren", "kite"] * 3,
        "args": [2, 2, 11],
        "steps": range(6),
    },
    "named": {
        "examples": ["wrens", "owls", "kites", "Wrens", "öwls", "owls", "wrens", "kites"] * 3,
        "args": [2, 2, 11],
        "steps": range(6),
    },
    "large": {"sizes": [10**6, 10**5, 10**4] * 60, "args": [8, 4, 7], "steps": [0, 1, 22, *FAR]},
    "chosen": {
        "sizes": [4, 10, 10, 2, 10, 10],
        "args": [3, 3, 5],
        "options": {
            "class_list": [5, 1, 2, 3, 0],
            "total_examples_per_class": 7,
            "small_classes": "drop",
            "steps_per_epoch": "classes",
        },
        "steps": [*range(8), *FAR],
    },
    "split": {"sizes": [9] * 11, "args": [7, 2, 3], "rank": [1, 3, "split"], "steps": range(6)},
    "independent": {
        "sizes": [9] * 11,
        "args": [7, 2, 3],
        "rank": [1, 3, "independent"],
        "steps": range(6),
    },
    "weighted": {
        "sizes": [4, 5, 6, 7, 8, 9, 40],
        "args": [3, 2, 4],
        "options": {"class_weights": [1, 0, 0.25, 3, 1.5, 20, 0.001]},
        "steps": [*range(9), *FAR],
    },
    "sqrt": {
        "sizes": [(7919 * i) % 500 + 4 for i in range(50)],
        "args": [6, 4, 6],
        "options": {"class_weights": "sqrt"},
        "steps": [*range(9), *FAR],
    },
    "size": {
        "sizes": [5, 500, 50, 5, 500, 50],
        "args": [2, 3, 8],
        "options": {"class_weights": "size", "steps_per_epoch": "classes"},
        "steps": [*range(9), *FAR],
    },
    "reweighted": {
        "sizes": [4, 5, 6, 7, 8, 9],
        "args": [2, 2, 9],
        "changes": [[3, [1, 2, 3, 4, 5, 6]], [7, None], [10, "sqrt"]],
        "steps": [*range(14), *FAR],
    },
    "shuffled-short": {"records": 50, "args": [8, 1], "steps": [*range(9), *FAR]},
    "shuffled-drop": {
        "records": 50, "args": [8, 1], "options": {"remainder": "drop"}, "steps": [*range(7), *FAR]
    },
    "shuffled-fill": {
        "records": 50, "args": [8, 1], "options": {"remainder": "fill"}, "steps": [*range(9), *FAR]
    },
    "shuffled-large": {"records": 10**13, "args": [4, 2**64 - 1], "steps": [0, 1, *FAR]},
    "sequential": {"records": 11, "args": [4], "steps": [*range(4), *FAR]},
}  # fmt: skip


def build(parameters):
    """Return the plan with these parameters."""
    args, options = parameters["args"], parameters.get("options", {})
    if "records" in parameters:
        kind = ShuffledPlan if len(args) == 2 else SequentialPlan
        return kind(parameters["records"], *args, **options)
    classes = parameters.get("examples")
    if classes is None:
        classes = class_table(parameters["sizes"], parameters.get("labels"))
    plan = make_plan(classes, *args, **options)
    for batch, weights in parameters.get("changes", ()):
        plan = plan.reweighted(weights, batch=batch)
    return plan.for_rank(*parameters["rank"]) if "rank" in parameters else plan


def read_golden(name):
    """Return the content of a golden file."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def describe(parameters):
    """Return the content of the golden file of a plan."""
    plan, steps = build(parameters), parameters["steps"]
    content = {
        "plan": {name: value for name, value in parameters.items() if name != "steps"},
        "description": plan.description,
        "steps_per_epoch": plan.steps_per_epoch,
        "batches": {step: plan.batch(step).tolist() for step in steps},
    }
    if isinstance(plan, BalancedPlan):
        content["classes"] = {step: plan.classes(step).tolist() for step in steps}
    return content


def write_files():
    """Write the missing files; existing ones must never change."""
    FOLDER.mkdir(exist_ok=True)
    for name, parameters in PLANS.items():
        path = FOLDER / f"{name}.json"
        if not path.exists():
            path.write_text(as_lines(describe(parameters)) + "\n")


def as_lines(content):
    """Return JSON with one line per batch."""
    parts = []
    for name, value in content.items():
        if name in ("batches", "classes"):
            rows = ",\n".join(f'    "{step}": {json.dumps(row)}' for step, row in value.items())
            parts.append(f'  "{name}": {{\n{rows}\n  }}')
        else:
            parts.append(f'  "{name}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}"


if __name__ == "__main__":
    write_files()
