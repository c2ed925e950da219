"""Division of a source into two parts."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import covey
from covey.errors import DatasetError, FeatureError, SourceError
from covey.shuffle.keys import hash_keys
from covey.sources import LazyItems, Source
from covey.sources.hold_out import hold_out

NAMES = ("crow", "owl", "robin", "wren", "finch", "gull", "hawk", "ibis")
FEATURES = covey.Features({"image": covey.Tensor("bytes"), "label": "int64"})


def items(count):
    return [(f"bird-{n}", {"x": n, "label": NAMES[n % 8]}) for n in range(count)]


class Stream:
    """Items without random access."""

    def __init__(self, listed):
        self.listed = listed

    def __iter__(self):
        return iter(self.listed)


def listed(examples, **known):
    return Source("list", "birds", examples, **known)


def keys(source):
    return [key for key, _ in source.examples]


def labels(source):
    return {example["label"] for _, example in source.examples}


def held_out_keys(source, **options):
    return set(keys(hold_out(source, **options)[1]))


@pytest.fixture(params=[list, Stream], ids=["sequence", "stream"])
def make(request):
    return lambda examples, **known: listed(request.param(examples), **known)


# By key.


def test_every_example_is_in_one_part(make):
    remaining, held_out = hold_out(make(items(1000)), fraction=0.2)
    assert sorted(keys(remaining) + keys(held_out)) == sorted(key for key, _ in items(1000))
    assert (remaining.length, held_out.length) == (len(keys(remaining)), len(keys(held_out)))
    assert 150 < held_out.length < 250
    chosen = [held_out.position(n) for n in range(held_out.length)]
    assert [items(1000)[n][0] for n in chosen] == keys(held_out)


@given(
    names=st.sets(st.text(max_size=8) | st.integers(0, 2**40), min_size=40, max_size=60),
    count=st.integers(1, 39),
    fraction=st.floats(0.2, 0.8),
    by_class=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_side_does_not_depend_on_other_examples(names, count, fraction, by_class, random):
    names = sorted({str(name) for name in names} if by_class else names, key=repr)
    random.shuffle(names)

    def held_out(names):
        source = listed([(name, {"label": str(name)}) for name in names], label="label")
        size = {"class_fraction" if by_class else "fraction": fraction}
        try:
            return held_out_keys(source, **size)
        except DatasetError:  # a part is empty
            return None

    some, every = held_out(names[:count]), held_out(names)
    if some is not None and every is not None:
        assert some == every.intersection(names[:count])


def test_larger_fraction_holds_out_a_superset():
    source = listed(items(500))
    assert held_out_keys(source, fraction=0.1) < held_out_keys(source, fraction=0.3)


def test_sides_depend_on_the_seed_but_not_on_the_shuffled_order():
    source = listed(items(4000))
    first, second = (held_out_keys(source, fraction=0.5, seed=seed) for seed in (0, 1))
    assert 800 < len(first & second) < 1200
    hashes = hash_keys(sorted(first), 0)[0]
    assert 800 < (hashes < 2**63).sum() < 1200


def test_key_is_the_position_or_a_feature():
    rows = [{"x": n} for n in range(300)]
    plain = hold_out(listed(rows), fraction=0.3)[1]
    by_position = hold_out(listed(list(enumerate(rows))), fraction=0.3)[1]
    keyed = listed([(f"k{n}", each) for n, each in enumerate(rows)])
    by_feature = hold_out(keyed, fraction=0.3, key="x")[1]
    expected = list(plain.examples)
    for part in (by_position, by_feature):
        assert [example for _, example in part.examples] == expected


# By class.


def test_classes_are_in_one_part(make):
    remaining, held_out = hold_out(make(items(80)), classes=3, label="label")
    assert len(labels(held_out)) == 3
    assert labels(remaining) | labels(held_out) == set(NAMES)
    assert not labels(remaining) & labels(held_out)


def test_new_class_displaces_at_most_one():
    def held_out(names):
        source = listed([(n, {"label": name}) for n, name in enumerate(names)])
        return labels(hold_out(source, classes=10, label="label")[1])

    names = [f"class {n}" for n in range(100)]
    for more in range(20):
        assert len(held_out(names) - held_out([*names, f"new {more}"])) <= 1


def test_class_is_identified_by_name():
    def held_out(names):
        features = covey.Features({"label": covey.ClassLabel(names=names)})
        examples = [(n, {"label": n % 30}) for n in range(90)]
        source = listed(examples, features=features, label="label")
        return {names[number] for number in labels(hold_out(source, classes=7)[1])}

    names = tuple(f"class {n}" for n in range(30))
    assert held_out(names) == held_out(names[::-1])


def test_unlabelled_examples_remain():
    features = covey.Features({"label": covey.ClassLabel(names=("a", "b"))})
    examples = [(n, {"label": n % 3 - 1}) for n in range(30)]
    remaining, held_out = hold_out(listed(examples, features=features, label="label"), classes=1)
    assert -1 in labels(remaining)
    assert -1 not in labels(held_out)


# Columns and lazy items.


@pytest.mark.parametrize("size", [{"fraction": 0.4}, {"classes": 2}])
def test_columns_are_divided_like_items(size):
    columns = {
        "x": np.arange(200, dtype=np.float32).reshape(100, 2),
        "label": np.arange(100) % 5,
        "nested": {"text": [f"t{n}" for n in range(100)]},
    }
    rows = [(n, {"x": columns["x"][n], "label": n % 5}) for n in range(100)]
    by_column = hold_out(listed([], length=100, columns=columns, label="label"), **size)
    by_row = hold_out(listed(rows, label="label"), infer=False, **size)
    for part, expected in zip(by_column, by_row, strict=True):
        numbers = keys(expected)
        assert (part.columns["x"][:, 0] // 2).tolist() == numbers
        assert part.columns["nested"]["text"] == [f"t{n}" for n in numbers]
        assert part.length == len(numbers)


class Glyphs(LazyItems):
    """Items that count how often they are read."""

    def __init__(self, count):
        self.count = count
        self.reads = 0

    def __len__(self):
        return self.count

    def read(self, position):
        self.reads += 1
        return f"glyph-{position}", {"image": b"..." * position, "label": position % 4}


class PeekableGlyphs(Glyphs):
    def peek(self, position):
        return f"glyph-{position}", position % 4


def test_part_of_a_sequence_is_a_picklable_sequence():
    source = listed(Glyphs(50), features=FEATURES, label="label")
    _, held_out = hold_out(source, fraction=0.5)
    again = pickle.loads(pickle.dumps(held_out.examples))
    assert list(again) == list(held_out.examples)
    assert again[-1] == held_out.examples[held_out.length - 1]
    assert held_out.features == FEATURES


@pytest.mark.parametrize("size", [{"fraction": 0.5}, {"classes": 2}])
def test_peekable_items_are_not_read(size):
    sources = [
        listed(kind(50), features=FEATURES, label="label") for kind in (Glyphs, PeekableGlyphs)
    ]
    expected, found = (hold_out(each, **size)[1] for each in sources)
    assert [each.examples.reads for each in sources] == [50, 0]
    assert list(found.examples) == list(expected.examples)


def test_progress_counts_examples():
    seen = []
    hold_out(listed(items(5000)), fraction=0.5, progress=lambda *each: seen.append(each))
    assert sum(examples for examples, _ in seen) == 5000


# Features.


def test_features_are_inferred_from_all_examples(make):
    examples = [(n, {"x": 0.5, "y": [1] * (n % 3), "label": "ab"[n % 2]}) for n in range(9000)]
    examples[8000][1]["x"] = 2**25 + 1  # not exact in float32
    remaining, held_out = hold_out(make(examples), fraction=0.5, label="label")
    assert remaining.features == held_out.features
    assert remaining.features["x"].dtype == "float64"
    assert remaining.features["label"].names == ("a", "b")


@pytest.mark.parametrize("last", [7, 0.5])
def test_features_are_those_of_infer(last):
    examples = [*((n, {"x": 2**25 + 1}) for n in range(9000)), (9000, {"x": last})]
    expected = covey.Features.infer(example for _, example in examples)
    assert hold_out(listed(examples), fraction=0.5)[0].features == expected


def test_defaults_of_missing_features():
    examples = [(n, {"x": n} if n % 2 else {"x": n, "y": 1}) for n in range(50)]
    with pytest.raises(FeatureError) as caught:
        hold_out(listed(examples), fraction=0.5)
    assert caught.value.feature == "y"
    _, held_out = hold_out(listed(examples), fraction=0.5, defaults={"y": 0})
    assert held_out.features["y"].default == 0


# Errors.


def test_unreadable_items_are_raised_or_remain(make):
    examples = items(100)
    examples[3] = SourceError("broken", path="birds", line=4)
    examples[50][1].pop("label")
    examples[60][1]["x"] = "text"
    with pytest.raises(SourceError) as caught:
        hold_out(make(examples), fraction=0.5)
    assert (caught.value.path, caught.value.line) == ("birds", 4)
    remaining, held_out = hold_out(make(examples), fraction=0.5, label="label", on_error="skip")
    assert remaining.length + held_out.length == 100
    bad = [n for n, item in enumerate(remaining.examples) if isinstance(item, SourceError)]
    assert [remaining.position(n) for n in bad] == [3]
    assert remaining.features["x"].dtype == "int64"


def test_missing_label_names_the_example():
    with pytest.raises(FeatureError, match="is missing; there are 'x'") as caught:
        hold_out(listed([*items(10), ("last", {"x": 1})]), classes=2, label="label")
    assert (caught.value.example, caught.value.feature) == (10, "label")


@pytest.mark.parametrize(
    ("size", "option", "message"),
    [
        ({}, None, "nothing given; must be one of"),
        ({"fraction": 0.5, "classes": 1}, None, "fraction and classes given"),
        ({"fraction": 0}, "fraction", "fraction is 0; must be between 0 and 1"),
        ({"class_fraction": 1.5}, "class_fraction", "must be between"),
        ({"fraction": 1e-9}, "fraction", "0 of 20 examples would be held out"),
        ({"fraction": 1 - 1e-9}, "fraction", "20 of 20 examples would be held out"),
        ({"classes": 8, "label": "label"}, "classes", "8 of 8 classes would be held out"),
        ({"classes": 0, "label": "label"}, "classes", "0 of 8 classes would be held out"),
        ({"classes": 2}, "label", "no label feature is known"),
    ],
)
def test_invalid_arguments(size, option, message):
    with pytest.raises(DatasetError, match=message) as caught:
        hold_out(listed(items(20)), **size)
    assert caught.value.option == option


def test_stream_that_changes_between_passes():
    stream = Stream(items(20))
    remaining, _ = hold_out(listed(stream), fraction=0.5)
    stream.listed = items(21)
    with pytest.raises(SourceError, match="has 21 examples; it had 20 when it was divided"):
        list(remaining.examples)
