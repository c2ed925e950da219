"""Invalid arguments of datasets and loaders: one table of calls, options and valid values."""

import numpy as np
import pytest
from loaded import CLASSES, COUNT
from opened import opened
from written import write

import covey
from covey import Ragged, Sparse, Tensor
from covey.adapters.image_format import ImageFormat
from covey.errors import CoveyError, FeatureError, UnknownClassError
from covey.plan import ShuffledPlan

FEATURES = {
    "x": Tensor("float32", (2, 3)),
    "tokens": Tensor("int64", (None,)),
    "frames": Tensor("float32", (None, 2)),
    "packed": Tensor("uint8", (None,), encoding="zlib"),
    "flags": Tensor("bool", (None,)),
    "words": Tensor("str", (None,)),
    "ragged": Ragged("int64"),
    "sparse": Sparse("float32", (4,)),
    "size": "int64",
    "label": "int64",
}


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    path = tmp_path_factory.mktemp("invalid") / "data"
    example = {"x": np.zeros((2, 3)), "tokens": [1], "frames": [[0, 1]], "packed": [1],
               "flags": [True], "words": ["a"], "ragged": [[1]], "sparse": [0, 1, 0, 0],
               "size": 1}  # fmt: skip
    many = [{**example, "label": number % CLASSES} for number in range(COUNT)]
    write(many, path, features=FEATURES, label="label", shuffle=False)
    with opened(path) as dataset:
        yield dataset


def balanced(**options):
    """Return a call of ``batches`` with another valid argument in place of each that is missing."""
    return lambda ds: ds.batches(
        options.pop("classes_per_batch", 2), options.pop("examples_per_class", 2), **options
    )


def each_loader(**options):
    return [
        lambda ds: ds.batches(4, 2, **options),
        lambda ds: ds.shuffled(4, **options),
        lambda ds: ds.sequential(4, **options),
    ]


# Options of all loaders: what is passed, the option that is invalid, and what is valid.
OPTIONS = [
    *(({"threads": each}, "threads", "an integer from 0 to 1024")
      for each in (-1, 1.5, True, "2", 10**6)),
    *(({"prefetch": each}, "prefetch", "an integer from 1 to ") for each in (0, -3, "all")),
    *(({"rank": each}, "rank", "") for each in (1, -1)),
    ({"world_size": 0}, "world_size", "an integer >= 1"),
    ({"mode": "both"}, "mode", "one of 'split', 'independent'"),
    *(({"select": each}, "select", "a name, or at least one name")
      for each in ([], 5, [5], iter(()), np.array([1]))),
    *(({"image_size": each}, "image_size", "") for each in (8, 0, (1, 2, 3), "large")),
    ({"crop": "left"}, "crop", "one of 'squash', 'center', 'random'"),
    ({"crop": "center"}, "crop", "'squash' without image_size="),
    ({"crop_scale": (0, 1)}, "crop_scale", "(minimum, maximum), both above 0, at most 1"),
    ({"crop_ratio": 2}, "crop_ratio", "(minimum, maximum), both above 0"),
    ({"flip": 1}, "flip", "True or False"),
    ({"flip": True}, "flip", "False"),  # without images
    ({"views": 2}, "views", "1 without crop='random' and flip=True"),
    ({"views": 17}, "views", "an integer from 1 to 16"),
    ({"decode": "quick"}, "decode", "one of 'exact', 'fast'"),
    *(({hook: 5}, hook, "a function") for hook in ("transform", "batch_transform", "augmenter")),
    ({"pad": 0, "select": "size"}, "pad", "None"),
    ({"pad": {}}, "pad", "None"),
    ({"pad": {1: 0}}, "pad", "a dict of feature names"),
    *(({"pad": each}, "pad", "a dict of the ragged features ")
      for each in ({"nothing": 0}, {"size": 0})),
    *(({"pad": 0, "select": "tokens", "pad_length": each}, "pad_length", "an integer from 1 to ")
      for each in (0, -1, "8", 2.5, True, 2**31, {"tokens": 0})),
    ({"pad": {"tokens": 0}, "pad_length": {"size": 3}}, "pad_length", "a dict of the ragged"),
    *(({**each, "pad_length": 3}, "pad_length", "omitted") for each in ({}, {"pad": False})),
    ({"pad": {"tokens": 0}, "truncate": True}, "truncate", "omitted"),
    ({"pad_lengths": False}, "pad_lengths", "omitted"),
    ({"pad": {"tokens": 0}, "pad_lengths": "no"}, "pad_lengths", "True or False"),
]  # fmt: skip

# Values of padded features, which the first batch compares with its rows.
PADDING = [
    *((each, "pad", "a value of int64")
      for each in ("0", 0.5, None.__class__, 2**70, {"tokens": True}, {"tokens": [0]})),
    *(({"packed": each}, "pad", "a value of uint8") for each in (-1, 256)),
    *(({"frames": each}, "pad", "a value of float32") for each in (1e39, [0], None)),
    ({"flags": 2}, "pad", "a value of bool"),
    ({"words": "none"}, "pad", "''"),
    *(({name: 0}, "pad", "") for name in ("ragged", "sparse")),
]  # fmt: skip

# Other calls.
CALLS = [
    *((lambda ds, pad=pad: ds.sequential(
        9, pad=pad, select=list(pad) if isinstance(pad, dict) else "tokens").batch(0),
       option, allowed) for pad, option, allowed in PADDING),
    *((balanced(seed=each), "seed", "an integer from 0 to ") for each in (-1, 2**64, 1.0)),
    (lambda ds: ds.shuffled(4, seed=-1), "seed", "an integer from 0 to "),
    (balanced(classes_per_batch=0), "classes_per_batch", "an integer "),
    (balanced(classes_per_batch=13), "classes_per_batch", "<= 12, the number of classes"),
    (balanced(examples_per_class=0), "examples_per_class", "an integer "),
    (balanced(class_list="1"), "class_list", "a list of classes"),
    (balanced(class_weights="cube"), "class_weights", "'sqrt', 'size', an array or a dict"),
    (balanced(class_weights=[1.0]), "the shape of class_weights", "(12,), one weight per class"),
    (balanced(class_weights={0: -1.0}), "the weight of class '0'", "a finite number >= 0"),
    (balanced(class_weights=[1.0] + [0.0] * 11), "classes_per_batch", "<= 1, the number of"),
    (balanced(small_classes="skip"), "small_classes", "one of 'repeat', 'drop', 'error'"),
    (balanced(steps_per_epoch="all"), "steps_per_epoch", "an integer, 'classes' or 'examples'"),
    (lambda ds: ds.shuffled(0), "batch_size", "an integer "),
    (lambda ds: ds.shuffled(COUNT + 1, remainder="drop"), "batch_size", "<= 180, the number of"),
    (lambda ds: ds.sequential(8, remainder="all"), "remainder", "one of 'keep', 'drop', 'fill'"),
    (lambda ds: ds.select([]).shuffled(4), "records", "an integer "),
    *((lambda ds, name=name, load=load, step=step: getattr(load(ds), name)(step), "step",
       "an integer from 0 to ")
      for load in (lambda ds: ds.batches(2, 2), lambda ds: ds.sequential(9, rank=1, world_size=3))
      for name in ("seek", "batch") for step in (-1, 1.5, True, 2**62, 10**30)),
    *((lambda ds, steps=steps: ds.batches(2, 2).take(steps), "steps", "an integer >= 0")
      for steps in (-1, 1.5, True)),
    (lambda ds: ShuffledPlan(9, 3).for_rank(2, 2), "rank", "below world_size, which is 2"),
    (lambda ds: ds.filter(), "filter()", "given with a function"),
    (lambda ds: ds.filter(select="x"), "filter()", "given with a function"),
    (lambda ds: ds.filter(classes=[1], select="x"), "select", "given with a function"),
    (lambda ds: ds.filter(["owl"]), "function", "a function of an example"),
    *((lambda ds, parts=parts: ds.split_classes(**parts), "parts", "fractions between 0.0 and 1.0")
      for parts in ({}, {"a": 0}, {"a": 0.0}, {"a": -1}, {"a": 1.5}, {"a": 0.7, "b": 0.7},
                    {"a": 0.5, "b": 10}, {"a": True}, {"a": "80%"}, {"a": float("nan")})),
    (lambda ds: ds.split_classes(a=61), "parts", ""),
    (lambda ds: ds.split_classes(a=0.5, seed=-1), "seed", "an integer from 0 to "),
    (lambda ds: ds.split_classes(a=0.5, labels=True), "labels", "'contiguous' or None"),
    (lambda ds: covey.open("nowhere", labels="dense"), "labels", "'contiguous' or None"),
    (lambda ds: covey.open("nowhere", on_error="ignore"), "on_error", "one of 'raise', 'skip'"),
    (lambda ds: ImageFormat(layout="CHW"), "layout", "one of 'NHWC', 'NCHW'"),
    (lambda ds: ImageFormat(dtype="int8"), "dtype", "one of 'float16', "),
    (lambda ds: ImageFormat(mean=[]), "mean", "finite numbers, one or one per channel"),
    (lambda ds: ImageFormat(dtype=object()), "dtype", "one of 'float16', "),
    (lambda ds: ImageFormat(mean="red"), "mean", "finite numbers, one or one per channel"),
    (lambda ds: ImageFormat(mean=[[1.0]]), "mean", "finite numbers, one or one per channel"),
    (lambda ds: ImageFormat(std=(1, -1, 1)), "std", "finite numbers above 0, one or one per"),
    (lambda ds: ImageFormat(std=float("inf")), "std", "finite numbers above 0, one or one per"),
    (lambda ds: ImageFormat(std=0), "std", "finite numbers above 0, one or one per channel"),
    (lambda ds: ImageFormat(mean=[0, 0]).coefficients("uint8", 3), "mean", "one value, or one"),
    (lambda ds: covey.show("birds"), "batch", "a batch of a loader"),
]  # fmt: skip

TABLE = [
    *((call, option, allowed) for options, option, allowed in OPTIONS
      for call in each_loader(**options)),
    *CALLS,
]  # fmt: skip


@pytest.mark.parametrize(("call", "option", "allowed"), TABLE)
def test_invalid_arguments(ds, call, option, allowed):
    with pytest.raises(CoveyError) as caught:
        call(ds)
    error = caught.value
    assert error.option == option
    assert error.allowed.startswith(allowed)
    if option is not None:
        assert option in str(error)


def test_names_that_do_not_exist(ds):
    for names in ("nothing", ["x", "nothing"]):
        with pytest.raises(FeatureError, match="nothing"):
            ds.batches(4, 2, select=names)
    with pytest.raises(FeatureError):
        ds.filter(lambda each: True, select="y")
    with pytest.raises(UnknownClassError):
        ds.filter(classes=["tern"])
    with pytest.raises(CoveyError, match="cannot be split over 5 ranks"):
        ds.batches(4, 2, world_size=5)


KEYWORDS = [
    (lambda ds: ds.batches(4, 2, thread=2), r"^batches\(\) got .* did you mean 'threads'\?"),
    (lambda ds: ds.batches(batch_size=32), r"batches\(8, 4\) has 32; shuffled\(32\) has 32"),
    (lambda ds: ds.shuffled(4, images=1), r"^shuffled\(\) got .*'images'"),
    (lambda ds: covey.metrics.recall_at_k(np.eye(2), [0, 0], k=1),
     r"^recall_at_k\(\) got .* did you mean 'ks'\?"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), KEYWORDS)
def test_unknown_keywords(ds, call, message):
    with pytest.raises(TypeError, match=message):
        call(ds)
