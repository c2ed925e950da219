"""A reference implementation of the plans, without random access.

It generates complete rounds from the first one on, and counts visits one by one. Only the keyed
permutations are computed as in the native core.
"""

import itertools
import math
from collections import Counter
from fractions import Fraction

WORD = 2**64 - 1
MAX_SHUFFLED = 32  # larger permutations are computed by a Feistel network
NETWORK_ROUNDS = 10
SPANS, BLOCKS = 2**16, 2**10  # per cycle of the weighted schedule

# Keys that are derived from a seed.
CLASSES, RECORDS, EPOCHS = 1, 2, 3


# Keyed permutations.


def mix(word):
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
    return word ^ word >> 31


def derive(key, part):
    return mix((key + (part + 1) * 0x9E3779B97F4A7C15) & WORD)


def shuffled(key, size):
    """Return a shuffled list: one 64-bit word yields two indices."""
    order = list(range(size))
    drawn = range(size, 1, -1)
    for first in range(0, len(drawn), 2):
        word = derive(key, drawn[first])
        for half, count in zip((word >> 32, word & 0xFFFFFFFF), drawn[first : first + 2]):  # noqa: B905
            other = half * count >> 32
            order[count - 1], order[other] = order[other], order[count - 1]
    return order


def permuted(key, size, number):
    """Return one item of a permutation of any size."""
    if size <= MAX_SHUFFLED:
        return shuffled(key, size)[number]
    rows = math.isqrt(size - 1) + 1
    columns = -(-size // rows)
    keys = [derive(key, number) for number in range(NETWORK_ROUNDS)]
    while True:
        row, column = divmod(number, columns)
        for i in range(0, NETWORK_ROUNDS, 2):
            row = (row + _shift(column, keys[i], rows)) % rows
            column = (column + _shift(row, keys[i + 1], columns)) % columns
        number = row * columns + column
        if number < size:
            return number


def _shift(by, key, size):
    word = (by + key) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 32) * 0x94D049BB133111EB & WORD
    return (word >> 32) * size >> 32


def permutation(key, size):
    if size <= MAX_SHUFFLED:
        return shuffled(key, size)
    return [permuted(key, size, number) for number in range(size)]


# Draws.


def rounds(key, size, take):
    """Yield the items of each round, in order.

    If a draw straddles two rounds, the first `take` items of the second one are reordered: items
    that are not in the tail of the first one come first.
    """
    previous = []
    for number in itertools.count():
        order, start = permutation(derive(key, number), size), number * size
        end = start // take * take + take  # of the draw that contains the first item of this round
        begin = end - take
        if begin < start and end <= start + size and begin % size:
            tail = set(previous[begin // size][begin % size :])
            order[:take] = sorted(order[:take], key=tail.__contains__)  # a stable sort
        previous.append(order)
        yield order


def draws(key, size, take):
    """Yield the items of each draw."""
    stream = itertools.chain.from_iterable(rounds(key, size, take))
    while True:
        yield list(itertools.islice(stream, take))


# Schedules: the classes of each batch.


def weighted(key, quotas, per_batch):
    """Yield the classes of each batch, span by span.

    The visits of a span, in a shuffled order of the classes, are dealt to its batches; batches are
    numbered in steps of about 0.618 of a span.
    """
    count = len(quotas)
    span = -(-count // per_batch)
    step = next(
        step for step in itertools.count(span * 618 // 1000 + 1) if math.gcd(step, span) == 1
    )
    by_block = deal(permutation(derive(key, BLOCKS), count), quotas, BLOCKS)
    for number in itertools.count():
        block, in_block = divmod(number, SPANS // BLOCKS)
        if in_block == 0:
            order = permutation(derive(derive(key, BLOCKS + 1), block), count)
            by_span = deal(order, by_block[block % BLOCKS], SPANS // BLOCKS)
        span_key = derive(derive(key, BLOCKS + 2), number)
        visits = by_span[in_block]
        dealt = [each for each in permutation(span_key, count) for _ in range(visits[each])]
        first = derive(span_key, count) % span
        batches = {(first + column * step) % span: dealt[column::span] for column in range(span)}
        for time in range(span):
            yield batches[time]


def deal(order, counts, parts):
    """Deal `counts` of each item to parts in turn; the order of the parts is bit-reversed."""
    dealt = [[count // parts for count in counts] for _ in range(parts)]
    position = 0
    for item in order:
        for _ in range(counts[item] % parts):
            dealt[position % parts][item] += 1
            position += 1
    bits = parts.bit_length() - 1
    return [dealt[int(f"{number:0{bits}b}"[::-1], 2)] for number in range(parts)]


def shares_of(weights, per_batch):
    """Return the exact number of visits of each class in a cycle.

    They are proportional to the weights, but at most one per batch; the excess goes to the others.
    """
    limit = SPANS * -(-len(weights) // per_batch)
    shares = [Fraction(0)] * len(weights)
    left = Fraction(limit * per_batch)
    heaviest = sorted((i for i, each in enumerate(weights) if each > 0), key=lambda i: -weights[i])
    for at, i in enumerate(heaviest):
        rest = sum(Fraction(weights[j]) for j in heaviest[at:])
        shares[i] = min(Fraction(limit), left * Fraction(weights[i]) / rest)
        left -= shares[i]
    return shares


# Plans.


def balanced(seed, labels, sizes, per_batch, per_class, changes=()):
    """Yield the batches of a balanced plan: [(label, [example, ...]), ...].

    Args:
        seed: Seed of the plan.
        labels: Class ids.
        sizes: Number of examples of each class.
        per_batch: Classes per batch.
        per_class: Examples per class.
        changes: Pairs (first batch, quotas); None for equal quotas.
    """
    changes = {0: None, **dict(changes)}
    examples = [
        draws(derive(derive(seed, RECORDS), label & WORD), size, per_class)
        for label, size in zip(labels, sizes, strict=True)
    ]
    schedule = None
    for batch in itertools.count():
        if batch in changes:
            key, quotas = derive(derive(seed, CLASSES), batch), changes[batch]
            if quotas is None:
                schedule = draws(key, len(sizes), per_batch)
            else:
                schedule = weighted(key, quotas, per_batch)
        yield [(labels[which], next(examples[which])) for which in next(schedule)]


def epochs(seed, records, batch_size, remainder, *, is_shuffled=True):
    """Yield the batches of a plan without classes."""
    key = derive(seed, EPOCHS)
    if remainder == "fill" and is_shuffled:
        yield from draws(key, records, batch_size)
    left = []
    for epoch in itertools.count():
        order = permutation(derive(key, epoch), records) if is_shuffled else list(range(records))
        left += order
        while len(left) >= batch_size:
            yield left[:batch_size]
            left = left[batch_size:]
        if remainder == "keep" and left:
            yield left
        if remainder != "fill":
            left = []


# Counts.


def count(batches):
    """Return how often each class, and each example of a class, occurs in `batches`."""
    classes, examples = Counter(), Counter()
    for batch in batches:
        for label, drawn in batch:
            classes[label] += 1
            examples.update((label, example) for example in drawn)
    return classes, examples
