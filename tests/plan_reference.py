"""The plan once more, written down as plainly as its design says it: the judge of the fast one.

Nothing is computed by itself here: rounds are laid out whole, from the first one on, and visits are
counted as they come. Only the numbers that make the shuffled orders are the same.
"""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np

from covey.classes import ClassTable
from covey.index import CLASS_DTYPE

WORD = 2**64 - 1
SHUFFLED = 32  # so many are really shuffled, more go through a network
TURNS = 10
SPANS = 2**16

# What a seed is the key of.
CLASSES, RECORDS, EPOCHS = 1, 2, 3


def classes_of(sizes, labels=None):
    """Classes of these sizes that all share the same records, so that a million cost nothing: an id
    is the number of an example in its class.
    """
    table = np.zeros(len(sizes), CLASS_DTYPE)
    table["label"] = range(len(sizes)) if labels is None else labels
    table["records"] = sizes
    return ClassTable(table, NUMBERS, None)


NUMBERS = np.arange(10**6, dtype=np.uint32)


# Shuffled orders.


def mix(word):
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
    return word ^ word >> 31


def derive(key, part):
    return mix((key + (part + 1) * 0x9E3779B97F4A7C15) & WORD)


def shuffled(key, size):
    """A few things in an order: the last is drawn first, each 64-bit word does for two."""
    order = list(range(size))
    drawn = range(size, 1, -1)
    for first in range(0, len(drawn), 2):
        word = derive(key, drawn[first])
        for half, count in zip((word >> 32, word & 0xFFFFFFFF), drawn[first : first + 2]):  # noqa: B905
            other = half * count >> 32
            order[count - 1], order[other] = order[other], order[count - 1]
    return order


def place(key, size, number):
    """What is at one place of an order, of any number of things."""
    if size <= SHUFFLED:
        return shuffled(key, size)[number]
    rows = math.isqrt(size - 1) + 1
    columns = -(-size // rows)
    keys = [derive(key, turn) for turn in range(TURNS)]
    while True:
        row, column = divmod(number, columns)
        for turn in range(0, TURNS, 2):
            row = (row + _amount(column, keys[turn], rows)) % rows
            column = (column + _amount(row, keys[turn + 1], columns)) % columns
        number = row * columns + column
        if number < size:
            return number


def _amount(by, key, size):
    word = (by + key) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 32) * 0x94D049BB133111EB & WORD
    return (word >> 32) * size >> 32


def order_of(key, size):
    if size <= SHUFFLED:
        return shuffled(key, size)
    return [place(key, size, number) for number in range(size)]


# Draws.


def rounds(key, size, take):
    """All rounds from the first one on, each in the order in which its things come."""
    before = []
    for number in itertools.count():
        order = order_of(derive(key, number), size)
        shared = number * size % take  # of the round before, in the draw that this one begins in
        if take <= size and shared:
            tail = set(before[-shared:])
            # False comes before True, and equals stay as they are.
            order[:take] = sorted(order[:take], key=tail.__contains__)
        before = order
        yield order


def draws(key, size, take):
    """All draws from the first one on: (thing, its round), `take` at a time."""
    stream = (
        (thing, number) for number, order in enumerate(rounds(key, size, take)) for thing in order
    )
    while True:
        yield list(itertools.islice(stream, take))


# Which classes a batch has.


def even(key, classes, per_batch):
    for drawn in draws(key, classes, per_batch):
        yield [thing for thing, _ in drawn]


def weighted(key, quotas, per_batch):
    """Span after span: classes in a shuffled order, each as often as it comes, dealt into rows of a
    place per batch, which are numbered in steps of about 0.618 of a row.
    """
    span = -(-len(quotas) // per_batch)
    step = next(
        step for step in itertools.count(span * 618 // 1000 + 1) if math.gcd(step, span) == 1
    )
    extras = [quota % SPANS for quota in quotas]
    starts = [sum(extras[:i]) % SPANS for i in range(len(extras))]
    for number in itertools.count():
        on_circle = int(f"{number % SPANS:016b}"[::-1], 2)
        span_key = derive(key, number)
        times = [(derive(span_key, len(quotas)) % span + i * step) % span for i in range(span)]
        dealt = []
        for thing in order_of(span_key, len(quotas)):
            has_more = (on_circle - starts[thing]) % SPANS < extras[thing]
            dealt += [thing] * (quotas[thing] // SPANS + has_more)
        batches = {
            time: [dealt[row * span + column] for row in range(per_batch)]
            for column, time in enumerate(times)
        }
        for time in range(span):
            yield batches[time]


def quotas_for(weights, per_batch):
    """How often classes should come in a cycle, exactly: by weight, no more than once a batch."""
    most = SPANS * -(-len(weights) // per_batch)
    ideal = [Fraction(0)] * len(weights)
    left, open_ = Fraction(most * per_batch), {i for i, each in enumerate(weights) if each > 0}
    while True:
        total = sum(Fraction(weights[i]) for i in open_)
        over = {i for i in open_ if Fraction(weights[i]) * left / total >= most}
        if not over:
            break
        for i in over:
            ideal[i] = Fraction(most)
        left -= most * len(over)
        open_ -= over
        if not open_:
            break
    for i in open_:
        ideal[i] = Fraction(weights[i]) * left / total
    return ideal


# Plans.


def balanced(seed, labels, sizes, per_batch, each, changes=()):
    """All batches from the first one on: [(label, [example, ...]), ...].

    Args:
        seed: Of the plan.
        labels: Of the classes.
        sizes: Of the classes.
        per_batch: Classes.
        each: Examples of a class.
        changes: (batch, quotas) from batches on; quotas may be None.
    """
    changes = {0: None, **dict(changes)}
    examples = [
        draws(derive(derive(seed, RECORDS), label & WORD), size, each)
        for label, size in zip(labels, sizes, strict=True)
    ]
    schedule = None
    for batch in itertools.count():
        if batch in changes:
            key, quotas = derive(derive(seed, CLASSES), batch), changes[batch]
            make = even(key, len(sizes), per_batch) if quotas is None else None
            schedule = make or weighted(key, quotas, per_batch)
        yield [
            (labels[which], [thing for thing, _ in next(examples[which])])
            for which in next(schedule)
        ]


def epochs(seed, records, batch_size, last, *, is_shuffled=True):
    """All batches of all epochs."""
    key = derive(seed, EPOCHS)
    if last == "fill" and is_shuffled:
        for drawn in draws(key, records, batch_size):
            yield [thing for thing, _ in drawn]
    left = []
    for epoch in itertools.count():
        order = order_of(derive(key, epoch), records) if is_shuffled else list(range(records))
        left += order
        while len(left) >= batch_size:
            yield left[:batch_size]
            left = left[batch_size:]
        if last == "short" and left:
            yield left
        if last != "fill":
            left = []


# Counting.


def counts_of(batches):
    """How often each class, and each example of a class, is in these batches."""
    classes, examples = Counter(), Counter()
    for batch in batches:
        for label, drawn in batch:
            classes[label] += 1
            examples.update((label, each) for each in drawn)
    return classes, examples
