"""The plan once more, written down as plainly as its design says it: the judge of the fast one.

Nothing is computed by itself here: rounds are laid out whole, from the first one on, and visits are
counted as they come. Only the numbers that make the shuffled orders are the same.
"""

import itertools
import math
from collections import Counter
from fractions import Fraction

WORD = 2**64 - 1
SHUFFLED = 32  # so many are really shuffled, more go through a network
TURNS = 10
SPANS, BLOCKS = 2**16, 2**10  # of a cycle

# What a seed is the key of.
CLASSES, RECORDS, EPOCHS = 1, 2, 3


# Shuffled orders.


def mix(word):
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
    return word ^ word >> 31


def derive(key, part):
    return mix((key + (part + 1) * 0x9E3779B97F4A7C15) & WORD)


def shuffled(key, size):
    """A few things in an order: the remainder is drawn first, each 64-bit word does for two."""
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
    """All rounds from the first one on, each in the order in which its things come.

    In a round in which a draw ends that began in an earlier one, those come first that are not in
    the tail of that one; only the first `take` of a round change places.
    """
    laid = []
    for number in itertools.count():
        order, start = order_of(derive(key, number), size), number * size
        end = start // take * take + take  # of the draw that has the first of this round
        begin = end - take
        if begin < start and end <= start + size and begin % size:
            tail = set(laid[begin // size][begin % size :])
            # False comes before True, and equals stay as they are.
            order[:take] = sorted(order[:take], key=tail.__contains__)
        laid.append(order)
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
    count = len(quotas)
    span = -(-count // per_batch)
    step = next(
        step for step in itertools.count(span * 618 // 1000 + 1) if math.gcd(step, span) == 1
    )
    by_block = deal(order_of(derive(key, BLOCKS), count), quotas, BLOCKS)
    for number in itertools.count():
        block, in_block = divmod(number, SPANS // BLOCKS)
        if in_block == 0:
            order = order_of(derive(derive(key, BLOCKS + 1), block), count)
            by_span = deal(order, by_block[block % BLOCKS], SPANS // BLOCKS)
        span_key = derive(derive(key, BLOCKS + 2), number)
        dealt = [
            thing for thing in order_of(span_key, count) for _ in range(by_span[in_block][thing])
        ]
        first = derive(span_key, count) % span
        batches = {(first + column * step) % span: dealt[column::span] for column in range(span)}
        for time in range(span):
            yield batches[time]


def deal(order, often, places):
    """Things that come so often, dealt to places round a circle, one thing behind the other; the
    places are numbered with their bits reversed.
    """
    got = [[each // places for each in often] for _ in range(places)]
    at = 0
    for thing in order:
        for _ in range(often[thing] % places):
            got[at % places][thing] += 1
            at += 1
    bits = places.bit_length() - 1
    return [got[int(f"{number:0{bits}b}"[::-1], 2)] for number in range(places)]


def shares_of(weights, per_batch):
    """How often classes should come in a cycle, exactly: by weight, no more than once a batch; what
    one cannot take goes to the others.
    """
    most = SPANS * -(-len(weights) // per_batch)
    shares = [Fraction(0)] * len(weights)
    left = Fraction(most * per_batch)
    heaviest = sorted((i for i, each in enumerate(weights) if each > 0), key=lambda i: -weights[i])
    for at, i in enumerate(heaviest):
        complete = sum(Fraction(weights[j]) for j in heaviest[at:])
        shares[i] = min(Fraction(most), left * Fraction(weights[i]) / complete)
        left -= shares[i]
    return shares


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


def epochs(seed, records, batch_size, remainder, *, is_shuffled=True):
    """All batches of all epochs."""
    key = derive(seed, EPOCHS)
    if remainder == "fill" and is_shuffled:
        for drawn in draws(key, records, batch_size):
            yield [thing for thing, _ in drawn]
    left = []
    for epoch in itertools.count():
        order = order_of(derive(key, epoch), records) if is_shuffled else list(range(records))
        left += order
        while len(left) >= batch_size:
            yield left[:batch_size]
            left = left[batch_size:]
        if remainder == "keep" and left:
            yield left
        if remainder != "fill":
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
