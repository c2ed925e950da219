"""Dividing a source in two."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import covey
from covey.shuffle.keys import hash_keys
from covey.sources import LazyItems, Source
from covey.sources.hold_out import Peekable, hold_out

NAMES = ("crow", "owl", "robin", "wren", "finch", "gull", "hawk", "ibis")


def items(count, first=0):
    return [(f"bird-{n}", {"x": n, "label": NAMES[n % 8]}) for n in range(first, first + count)]


class Stream:
    """Items that can be gone through as often as one likes, but not asked for."""

    def __init__(self, listed):
        self.listed = listed

    def __iter__(self):
        return iter(self.listed)


def keys(source):
    return [key for key, _ in source.examples]


def labels(source):
    return {example["label"] for _, example in source.examples}


@pytest.fixture(params=[list, Stream], ids=["sequence", "stream"])
def make(request):
    return lambda listed, **known: Source("list", "birds", request.param(listed), **known)


# By the hash of the key.


def test_every_example_is_on_one_side(make):
    stays, held_out = hold_out(make(items(1000)), fraction=0.2)
    assert sorted(keys(stays) + keys(held_out)) == sorted(key for key, _ in items(1000))
    assert (stays.length, held_out.length) == (len(keys(stays)), len(keys(held_out)))
    assert 150 < held_out.length < 250


@given(
    st.sets(st.text(max_size=8) | st.integers(0, 2**40), min_size=40, max_size=60),
    st.integers(1, 39),
    st.floats(0.2, 0.8),
    st.randoms(use_true_random=False),
)
def test_sides_do_not_depend_on_what_else_there_is(names, count, fraction, random):
    names = sorted(names, key=repr)
    random.shuffle(names)

    def held_out(names):
        try:
            parts = hold_out(
                Source("list", "x", [(name, {"x": 1}) for name in names]), fraction=fraction
            )
        except covey.errors.DatasetError:  # a side is empty
            return None
        return set(keys(parts[1]))

    some, all_of_them = held_out(names[:count]), held_out(names)
    if some is not None and all_of_them is not None:
        assert some == all_of_them.intersection(names[:count])


def test_a_larger_fraction_holds_out_the_same_and_more():
    source = Source("list", "birds", items(500))
    tenth, third = (set(keys(hold_out(source, fraction=each)[1])) for each in (0.1, 0.3))
    assert tenth < third


def test_another_seed_divides_otherwise():
    source = Source("list", "birds", items(500))
    first, second = (set(keys(hold_out(source, fraction=0.5, seed=each)[1])) for each in (0, 1))
    assert 80 < len(first & second) < 170


def test_the_shuffled_order_tells_nothing_about_the_sides():
    _, held_out = hold_out(Source("list", "birds", items(4000)), fraction=0.5)
    first_half = sorted(zip(hash_keys(keys(held_out), 0)[0].tolist(), keys(held_out), strict=True))
    assert 800 < sum(high < 2**63 for high, _ in first_half) < 1200


def test_examples_without_keys_go_by_their_number():
    plain = Source("list", "birds", [{"x": n} for n in range(300)])
    numbered = Source("list", "birds", [(n, {"x": n}) for n in range(300)])
    first, second = (hold_out(each, fraction=0.3)[1] for each in (plain, numbered))
    assert list(first.examples) == [example for _, example in second.examples]


def test_a_feature_as_the_key():
    source = Source("list", "birds", items(300))
    renamed = Source("list", "birds", [(f"other-{key}", each) for key, each in items(300)])
    first, second = (hold_out(each, fraction=0.3, key="x")[1] for each in (source, renamed))
    assert [each for _, each in first.examples] == [each for _, each in second.examples]


# By class.


def test_held_out_classes_are_seen_on_one_side_only(make):
    stays, held_out = hold_out(make(items(80)), classes=3, label="label")
    assert len(labels(held_out)) == 3
    assert labels(stays) | labels(held_out) == set(NAMES)
    assert not labels(stays) & labels(held_out)


@given(st.sets(st.text(max_size=6), min_size=20, max_size=40), st.floats(0.2, 0.8))
def test_a_share_of_classes_does_not_depend_on_the_others(names, fraction):
    names = sorted(names)

    def held_out(names):
        try:
            listed = [(n, {"label": name}) for n, name in enumerate(names)]
            parts = hold_out(Source("list", "x", listed), class_fraction=fraction, label="label")
        except covey.errors.DatasetError:
            return None
        return labels(parts[1])

    some, all_of_them = held_out(names[::2]), held_out(names)
    if some is not None and all_of_them is not None:
        assert some == all_of_them.intersection(names[::2])


def test_a_new_class_displaces_one_at_most():
    def held_out(names):
        listed = [(n, {"label": name}) for n, name in enumerate(names)]
        return labels(hold_out(Source("list", "x", listed), classes=10, label="label")[1])

    names = [f"class {n}" for n in range(100)]
    for more in range(20):
        assert len(held_out(names) - held_out([*names, f"new {more}"])) <= 1


def test_a_class_goes_by_its_name_however_it_is_numbered():
    names = tuple(f"class {n}" for n in range(30))

    def held_out(names):
        features = covey.Features({"label": covey.ClassLabel(names=names)})
        listed = [(n, {"label": n % 30}) for n in range(90)]
        source = Source("list", "x", listed, features=features, label="label")
        return {names[number] for number in labels(hold_out(source, classes=7)[1])}

    assert held_out(names) == held_out(names[::-1])


def test_unlabelled_examples_stay():
    features = covey.Features({"label": covey.ClassLabel(names=("a", "b"))})
    listed = [(n, {"label": n % 3 - 1}) for n in range(30)]
    source = Source("list", "x", listed, features=features, label="label")
    stays, held_out = hold_out(source, classes=1)
    assert -1 in labels(stays)
    assert -1 not in labels(held_out)


# Columns.


def test_columns_are_divided_like_rows():
    columns = {
        "x": np.arange(200, dtype=np.float32).reshape(100, 2),
        "label": np.arange(100) % 5,
        "nested": {"text": [f"t{n}" for n in range(100)]},
    }
    complete = Source("list", "x", [], length=100, columns=columns, label="label")
    rows = [(n, {"x": n}) for n in range(100)]
    for wish in ({"fraction": 0.4}, {"classes": 2}):
        stays, held_out = hold_out(complete, **wish)
        both = np.concatenate([stays.columns["x"], held_out.columns["x"]])
        assert sorted(both[:, 0]) == columns["x"][:, 0].tolist()
        assert held_out.columns["nested"]["text"] == [
            f"t{int(x) // 2}" for x in held_out.columns["x"][:, 0]
        ]
        assert len(held_out.columns["label"]) == held_out.length
    assert set(stays.columns["label"].tolist()).isdisjoint(held_out.columns["label"].tolist())
    by_row = hold_out(Source("list", "x", rows), fraction=0.4)[1]
    by_column = hold_out(complete, fraction=0.4)[1]
    assert keys(by_row) == (by_column.columns["x"][:, 0] // 2).tolist()


# What is lazy stays lazy.


class Glyphs(LazyItems):
    """Items that count how often they are read."""

    def __init__(self, count):
        self.count = count
        self.reads = 0

    def __len__(self):
        return self.count

    def read(self, number):
        self.reads += 1
        return f"glyph-{number}", {"image": b"..." * number, "label": number % 4}


class GlancedGlyphs(Glyphs):
    def peek(self, number):
        return f"glyph-{number}", number % 4


FEATURES = covey.Features({"image": covey.Tensor("bytes"), "label": "int64"})


def test_a_part_of_a_sequence_can_be_pickled():
    source = Source("list", "x", Glyphs(50), features=FEATURES, label="label")
    _, held_out = hold_out(source, fraction=0.5)
    again = pickle.loads(pickle.dumps(held_out.examples))
    assert len(again) == held_out.length
    assert list(again) == list(held_out.examples)
    assert again[-1] == held_out.examples[held_out.length - 1]


def test_items_that_can_be_glanced_at_are_not_read():
    assert isinstance(GlancedGlyphs(1), Peekable)
    for wish in ({"fraction": 0.5}, {"classes": 2}):
        read, glanced = (
            Source("list", "x", kind(50), features=FEATURES, label="label")
            for kind in (Glyphs, GlancedGlyphs)
        )
        expected, found = (hold_out(each, **wish)[1] for each in (read, glanced))
        assert (read.examples.reads, glanced.examples.reads) == (50, 0)
        assert list(found.examples) == list(expected.examples)


def test_progress_counts_the_examples():
    seen = []
    hold_out(
        Source("list", "x", items(5000)), fraction=0.5, progress=lambda *each: seen.append(each)
    )
    assert sum(examples for examples, _ in seen) == 5000


# Both sides have the same features.


def test_features_come_from_all_examples(make):
    listed = [(n, {"x": 2**20 if n else 0.5, "y": [1] * (n % 3), "label": "ab"[n % 2]})
              for n in range(9000)]  # fmt: skip
    listed[8000][1]["x"] = 2**25 + 1  # no float32 holds it
    stays, held_out = hold_out(make(listed), fraction=0.5, label="label")
    assert stays.features == held_out.features
    assert stays.features["x"].dtype == "float64"
    assert stays.features["label"].names == ("a", "b")


def test_large_integers_that_were_passed_over_count():
    listed = [(n, {"x": 2**25 + 1}) for n in range(9000)]
    listed.append((9000, {"x": 0.5}))
    assert hold_out(Source("list", "x", listed), fraction=0.5)[0].features["x"].dtype == "float64"


def test_features_are_those_that_infer_finds():
    listed = items(5000)
    stays, _ = hold_out(Source("list", "x", listed), fraction=0.5)
    assert stays.features == covey.Features.infer(example for _, example in listed)


def test_features_of_a_source_that_knows_them_are_kept():
    source = Source("list", "x", Glyphs(50), features=FEATURES, label="label")
    assert hold_out(source, fraction=0.5)[0].features == FEATURES


def test_defaults_for_what_is_missing():
    listed = [(n, {"x": n} if n % 2 else {"x": n, "y": 1}) for n in range(50)]
    source = Source("list", "x", listed)
    with pytest.raises(covey.errors.FeatureError, match="give it a default"):
        hold_out(source, fraction=0.5)
    assert hold_out(source, fraction=0.5, defaults={"y": 0})[1].features["y"].default == 0


# What is wrong.


def test_bad_items_are_raised_or_stay(make):
    listed = items(100)
    listed[3] = covey.errors.SourceError("birds:4: broken", name="birds", line=4)
    listed[50][1].pop("label")
    listed[60][1]["x"] = "text"
    with pytest.raises(covey.errors.SourceError, match="birds:4"):
        hold_out(make(listed), fraction=0.5)
    stays, held_out = hold_out(make(listed), fraction=0.5, label="label", on_error="skip")
    assert stays.length + held_out.length == 100
    bad = [n for n, item in enumerate(stays.examples) if isinstance(item, covey.errors.SourceError)]
    assert [stays.number(n) for n in bad] == [3]
    assert stays.features["x"].dtype == "int64"


def test_an_example_without_the_label_is_named():
    listed = [*items(10), ("last", {"x": 1})]
    with pytest.raises(covey.errors.FeatureError, match="example 10 has no 'label'; it has x"):
        hold_out(Source("list", "birds", listed), classes=2, label="label")


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({}, "give one of"),
        ({"fraction": 0.5, "classes": 1}, "give one of"),
        ({"fraction": 0}, "fraction is 0; must be between 0 and 1"),
        ({"class_fraction": 1.5}, "class_fraction is 1.5"),
        ({"fraction": 1e-9}, "birds: with the fraction 1e-09, nothing is held out of 20"),
        ({"fraction": 1 - 1e-9}, "nothing stays of 20"),
        ({"classes": 8, "label": "label"}, "8 of 8 classes cannot be held out"),
        ({"classes": 0, "label": "label"}, "0 of 8 classes cannot be held out"),
        ({"classes": 2}, "nothing tells the class"),
    ],
)
def test_impossible_wishes(wish, message):
    with pytest.raises(covey.errors.DatasetError, match=message):
        hold_out(Source("list", "birds", items(20)), **wish)


def test_a_stream_that_changes_between_passes():
    stream = Stream(items(20))
    stays, _ = hold_out(Source("list", "birds", stream), fraction=0.5)
    stream.listed = items(21)
    with pytest.raises(
        covey.errors.SourceError, match="birds: it had 20 examples a moment ago and has 21"
    ):
        list(stays.examples)
