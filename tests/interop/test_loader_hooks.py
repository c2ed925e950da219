"""What is done with examples and batches on their way: transform=, batch_transform=, images."""

import io
import itertools
import threading
from contextlib import suppress

import numpy as np
import PIL.Image
import pytest
import torch
from loaded import COUNT, LABELS, X, bird, make, make_numbers, numbers_of, same, settles
from opened import opened
from written import write

from covey import CoveyError, Image
from covey.errors import ExampleError, FeatureError

THREADS = [0, 1, 3]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("hooks")


@pytest.fixture(scope="module")
def ds(directory):
    return make_numbers(directory / "numbers")


def first(loader):
    return next(iter(loader))


# transform


@pytest.mark.parametrize(
    "kind", ["numbers", "many", "nested", "ragged", "strings", "names", "files", "gzip", "where"]
)
def test_a_transform_gets_examples_as_the_dataset_gives_them(directory, kind):
    ds, seen = make(directory / f"as given {kind}", kind), []
    list(ds.sequential(50, transform=lambda each: seen.append(each) or each, threads=0))
    assert len(seen) == len(ds)
    for number in (0, 17, len(ds) - 1):
        assert same(dict(sorted(seen[number].items())), dict(sorted(ds[number].items())))


def test_a_transform_gets_the_features_that_are_asked_for(directory):
    ds, seen = make(directory / "asked", "many"), []

    def see(example):
        seen.append(set(example) - {"label"})
        return example

    for features in ("x", ["x", "flag"], None):
        list(ds.sequential(90, select=features, transform=see, threads=0))
    assert seen[0] == {"x"}
    assert seen[COUNT] == {"x", "flag"}
    assert seen[-1] == {"half", "x", "flag", "bytes"}


@pytest.mark.parametrize("threads", THREADS)
def test_what_a_transform_returns_takes_the_place_of_the_example(ds, threads):
    def batch(transform, **options):
        loader = ds.batches(3, 2, transform=transform, threads=threads, **options)
        return *first(loader), loader.plan.batch(0)

    x, y, ids = batch(lambda each: {**each, "x": each["x"] * 2})
    assert same(x, ds[ids]["x"] * 2)
    assert same(y, LABELS[ids])
    x, y, ids = batch(lambda each: {"a": each["x"][0], "b": int(each["x"][0, 0])})
    assert list(x) == ["a", "b"]
    assert same(x["a"], ds[ids]["x"][:, 0])
    assert x["b"].tolist() == ids.tolist()
    assert same(y, LABELS[ids])
    # Alone, it is x.
    assert same(batch(lambda each: {"sum": each["x"].sum()})[0], ds[ids]["x"].sum((1, 2)))
    assert same(batch(lambda each: each["x"][0, 0])[0], ds[ids]["x"][:, 0, 0])
    assert same(batch(lambda each: each["x"].astype(np.uint16))[0], ds[ids]["x"].astype(np.uint16))
    assert batch(lambda each: int(each["x"][0, 0]))[0].tolist() == ids.tolist()
    # Deep in it.
    x, _, _ = batch(lambda each: {"deep": {"er": each["x"]}, "n": 1})
    assert same(x, {"deep": {"er": ds[ids]["x"]}, "n": np.ones(6, np.int64)})


@pytest.mark.parametrize("threads", THREADS)
def test_what_is_no_array(ds, threads):
    def batch(transform):
        loader = ds.batches(3, 2, transform=transform, threads=threads)
        return first(loader)[0], loader.plan.batch(0).tolist()

    x, ids = batch(lambda each: f"n{each['x'][0, 0]:.0f}")
    assert x == [f"n{number}" for number in ids]
    x, ids = batch(lambda each: {"b": b"%d" % each["x"][0, 0], "n": 1})
    assert x["b"] == [b"%d" % number for number in ids]
    # Of different shapes: a list of arrays.
    x, ids = batch(lambda each: np.arange(int(each["x"][0, 0]) % 5))
    assert [each.tolist() for each in x] == [list(range(number % 5)) for number in ids]
    # As a pair of views of the same example.
    x, ids = batch(lambda each: (each["x"], each["x"] + 1))
    assert np.shape(x) in [(6, 2, 2, 3), (2, 6, 2, 3)]
    x, ids = batch(lambda each: torch.from_numpy(each["x"]) * 2)
    assert numbers_of(x) == [2 * number for number in ids]


def test_a_transform_that_gives_nothing_is_told_so(ds):
    with pytest.raises(FeatureError, match="transform returned None"):
        first(ds.batches(3, 2, transform=lambda each: None))


def test_other_keys_for_another_example(ds):
    def transform(example):
        number = int(example["x"][0, 0])
        return {"a": 1} if number % 2 else {"b": 1}

    with pytest.raises(FeatureError, match=r"transform returned .*'[ab]'.* for one example and"):
        first(ds.sequential(10, transform=transform))
    with pytest.raises(FeatureError, match="transform returned"):
        first(ds.sequential(10, transform=lambda each: 1 if each["x"][0, 0] % 2 else {"b": 1}))
    with pytest.raises(FeatureError, match="without the selected feature"):
        first(ds.sequential(10, select="x", transform=lambda each: {"z": 1}))


def test_a_transform_may_change_its_example(ds):
    def transform(example):
        example["x"] += 1
        del example["label"]
        return example

    expected = ds[:]["x"] + 1
    for _ in range(2):
        found = [x for x, _ in ds.sequential(50, transform=transform, threads=2)]
        assert same(np.concatenate(found), expected)
    assert same(ds[:]["x"] + 1, expected)


def test_the_class_is_that_of_the_index_whatever_a_transform_says(ds):
    loader = ds.batches(3, 2, as_dict=True, transform=lambda each: {**each, "label": -1})
    batch = first(loader)
    assert same(batch["label"], LABELS[loader.plan.batch(0)])
    x, y = first(ds.batches(3, 2, transform=lambda each: {"x": each["x"], "label": 5}))
    assert same(y, LABELS[loader.plan.batch(0)])
    assert x.shape == (6, 2, 3)


def test_dicts_of_what_a_transform_returns(ds):
    ids = ds.batches(3, 2).plan.batch(0)
    batch = first(ds.batches(3, 2, as_dict=True, transform=lambda each: {"z": each["x"]}))
    assert same(batch, {"z": ds[ids]["x"], "label": LABELS[ids]})
    batch = first(ds.batches(3, 2, as_dict=True, transform=lambda each: each["x"] * 2))
    assert same(batch, {"x": ds[ids]["x"] * 2, "label": LABELS[ids]})


# batch_transform


@pytest.mark.parametrize("threads", THREADS)
def test_a_batch_transform_gives_the_batch(ds, threads):
    def steps(**options):
        return ds.batches(3, 2, threads=threads, steps_per_epoch=4, **options)

    plain = list(steps())
    pairs = list(steps(batch_transform=lambda x, y: (x * 2, y + 1)))
    assert same(pairs, [(x * 2, y + 1) for x, y in plain])
    assert list(steps(batch_transform=lambda x, y: x.sum() + y.sum())) == [
        x.sum() + y.sum() for x, y in plain
    ]
    assert list(steps(batch_transform=lambda x, y: None)) == [None] * 4
    dicts = list(steps(as_dict=True, batch_transform=lambda batch: {**batch, "z": 1}))
    assert same(dicts, [{"x": x, "label": y, "z": 1} for x, y in plain])
    tensors = list(steps(batch_transform=lambda x, y: (torch.from_numpy(x), torch.from_numpy(y))))
    assert same([(x.numpy(), y.numpy()) for x, y in tensors], plain)


def test_a_batch_transform_without_classes(directory):
    write([{"x": n} for n in range(10)], directory / "unlabelled", shuffle=False)
    ds = opened(directory / "unlabelled")
    assert list(ds.sequential(4, batch_transform=lambda x: x.tolist())) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
    loader = ds.sequential(5, as_dict=True, batch_transform=sorted)
    assert list(loader) == [["x"], ["x"]]


def test_both_hooks(ds):
    loader = ds.batches(
        3,
        2,
        select="x",
        transform=lambda each: {"x": each["x"] + 1},
        batch_transform=lambda x, y: (x * 2, y),
    )
    x, _ = first(loader)
    assert same(x, (ds[loader.plan.batch(0)]["x"] + 1) * 2)


@pytest.mark.parametrize("hook", ["transform", "batch_transform"])
def test_hooks_are_called_by_the_loaders_threads(ds, hook):
    callers = set()

    def see(*args):
        callers.add(threading.current_thread())
        return args if len(args) > 1 else args[0]

    list(ds.batches(3, 2, threads=0, **{hook: see}).take(10))
    assert callers == {threading.main_thread()}
    callers.clear()
    list(ds.batches(3, 2, threads=3, **{hook: see}).take(50))
    assert threading.main_thread() not in callers
    assert 1 <= len(callers) <= 3


@pytest.mark.parametrize(("threads", "prefetch"), [(1, 1), (2, 2), (3, 7)])
def test_no_more_is_made_ahead_than_was_said(ds, threads, prefetch):
    lock, enough = threading.Lock(), threading.Event()
    made, taken, most = 0, 0, 0

    def count(x, y):
        nonlocal made, most
        with lock:
            made += 1
            most = max(most, made - taken)
            if made == prefetch:
                enough.set()
        return x, y

    loop = ds.batches(3, 2, threads=threads, prefetch=prefetch, batch_transform=count).take(60)
    next(loop)
    taken = 1
    assert enough.wait(20)  # without being asked for more
    for _ in loop:
        taken += 1
    assert made == taken == 60
    assert most <= prefetch + 1  # with the one that is waited for


# What goes wrong in a hook.


class RefusedError(Exception):
    pass


@pytest.mark.parametrize("threads", THREADS)
def test_an_example_that_is_refused(ds, threads):
    def transform(example):
        if example["x"][0, 0] == 77:
            raise RefusedError("not this one")
        return example

    loader = ds.shuffled(7, seed=4, transform=transform, threads=threads, prefetch=9)
    (step,) = (step for step in range(26) if 77 in loader.plan.batch(step))
    found = []
    with pytest.raises(RefusedError, match="not this one") as caught:
        for x, _ in loader:
            found.append(numbers_of(x))
    assert found == [loader.plan.batch(each).tolist() for each in range(step)]
    place = ds.place(77)
    assert place.name in str(caught.value.__notes__)
    assert f"record {place.record} " in str(caught.value.__notes__)
    assert loader.step == step
    with pytest.raises(RefusedError):  # the same again
        next(iter(loader))
    loader.seek(step + 1)
    assert len(list(loader)) == 25 - step


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("error", [RefusedError, StopIteration, SystemExit, KeyboardInterrupt])
def test_errors_of_hooks_do_not_end_the_epoch_in_silence(ds, threads, error):
    def fail(x, y):
        if LABELS[0] in y and 0 in numbers_of(x):
            raise error("told")
        return x, y

    before = threading.active_count()
    loader = ds.sequential(10, batch_transform=fail, threads=threads)
    loader.seek(18)  # the next epoch begins with what fails
    with pytest.raises((error, RuntimeError)):
        list(loader)
    assert loader.step == 18
    assert settles(threading.active_count, before)
    loader.seek(19)
    assert len(list(loader)) == 17


def test_an_error_of_a_batch_names_its_examples(ds):
    def fail(x, y):
        raise RefusedError

    for threads in THREADS:
        loader = ds.batches(3, 2, batch_transform=fail, threads=threads)
        loader.seek(1234)
        with pytest.raises(RefusedError) as caught:
            first(loader)
        ids = ", ".join(map(str, loader.plan.batch(1234)[:4]))
        assert f"[{ids}] and others" in str(caught.value.__notes__)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("name", ["close", "seek", "take"])
def test_a_hook_may_end_its_loop_or_is_refused(ds, threads, name):
    ends = {
        "close": lambda x, y: loader.close(),
        "seek": lambda x, y: loader.seek(3),
        "take": lambda x, y: loader.take(3),
    }
    before = threading.active_count()
    loader = ds.batches(3, 2, threads=threads, batch_transform=ends[name])
    with pytest.raises(CoveyError, match=r"loop was ended|hook of a loader"):
        for _ in loader.take(1000):
            pass
    loader.close()
    assert settles(threading.active_count, before)
    assert loader.step in (0, 3)


@pytest.mark.parametrize("threads", THREADS)
def test_a_hook_may_look_at_its_loader_and_change_weights(ds, threads):
    def look(x, y):
        with suppress(CoveyError):  # by a thread that is not the loop's it may be refused
            loader.set_class_weights({0: 2.0})
        return loader.plan.description["seed"], len(loader), y

    loader = ds.batches(3, 2, seed=5, threads=threads, batch_transform=look)
    assert [seed for seed, _, _ in loader.take(5)] == [5] * 5
    assert loader.step == 5


# Images.


def encode(pixels, format="png"):
    out = io.BytesIO()
    PIL.Image.fromarray(pixels.squeeze()).save(out, format)
    return out.getvalue()


def photo(number, height=6, width=4):
    """An image whose first pixel tells its number."""
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
    pixels[0, 0] = number
    return pixels


def classify(data, size):
    """What Pillow makes of it."""
    with PIL.Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.resize(size[::-1], PIL.Image.Resampling.BILINEAR))


@pytest.fixture(scope="module")
def photos(directory):
    """Images of one size, in classes that have names."""
    many = [{"image": photo(n), "label": bird(n)} for n in range(COUNT)]
    features = {"image": Image((6, 4, 3)), "label": "str"}
    write(many, directory / "photos", features=features, label="label", shuffle=False, shards=3)
    return opened(directory / "photos")


@pytest.fixture(scope="module")
def odd_photos(directory):
    """Images of many sizes, two in each example, as PNG and JPEG."""
    many = [
        {
            "front": encode(photo(n, 5 + n % 3, 4 + n % 4)),
            "views": {"back": encode(photo(n, 8, 9), "jpeg"), "n": n},
            "label": int(LABELS[n]),
        }
        for n in range(COUNT)
    ]
    features = {
        "front": Image((None, None, 3)),
        "views": {"back": Image((8, 9, 3), format="jpeg"), "n": "int64"},
        "label": "int64",
    }
    write(many, directory / "odd", features=features, label="label", shuffle=False)
    return opened(directory / "odd")


@pytest.mark.parametrize("threads", THREADS)
def test_images_are_pixels(photos, threads):
    loader = photos.batches(4, 2, threads=threads, seed=2)
    for step, (x, y) in enumerate(loader.take(20)):
        ids = loader.plan.batch(step)
        assert same(x, np.stack([photo(number) for number in ids]))
        assert same(y, photos.labels[ids])


@pytest.mark.parametrize("threads", THREADS)
def test_images_that_stay_encoded(photos, threads):
    loader = photos.sequential(50, threads=threads, decode_images=False)
    found = [bytes(each) for x, _ in loader for each in x]
    assert found == [encode(photo(number)) for number in range(COUNT)]


def test_images_of_many_sizes_are_a_list(odd_photos):
    loader = odd_photos.batches(4, 2, seed=1, threads=2)
    x, _ = first(loader)
    ids = loader.plan.batch(0)
    for number, image in zip(ids, x["front"], strict=True):
        assert same(image, photo(number, 5 + number % 3, 4 + number % 4))
    assert x["views"]["back"].shape == (8, 8, 9, 3)
    assert x["views"]["n"].tolist() == ids.tolist()


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("size", [(7, 3), (6, 6), (1, 1), (16, 9), 8])
def test_images_of_one_size(odd_photos, threads, size):
    height, width = (size, size) if isinstance(size, int) else size
    loader = odd_photos.batches(4, 2, seed=1, threads=threads, image_size=size)
    raw = odd_photos.batches(4, 2, seed=1, decode_images=False)
    for (x, _), (data, _) in zip(loader.take(5), raw.take(5), strict=True):
        for image, encoded in (
            (x["front"], data["front"]),
            (x["views"]["back"], data["views"]["back"]),
        ):
            assert (image.shape, image.dtype) == ((8, height, width, 3), np.uint8)
            assert all(
                same(one, classify(bytes(two), (height, width)))
                for one, two in zip(image, encoded, strict=True)
            )


def test_one_of_two_images(odd_photos):
    x, _ = first(odd_photos.batches(4, 2, select="views/back"))
    assert x.shape == (8, 8, 9, 3)
    x, _ = first(odd_photos.batches(4, 2, select=["front"], image_size=5))
    assert list(x) == ["front"]
    with pytest.raises(FeatureError, match="image_size"):
        odd_photos.batches(4, 2, select="views/n", image_size=5)
    with pytest.raises(FeatureError, match="image_size"):
        odd_photos.batches(4, 2, decode_images=False, image_size=5)
    x, _ = first(odd_photos.batches(4, 2, select="views/n"))
    assert x.dtype == np.int64


def test_a_transform_gets_pixels(photos, odd_photos):
    loader = photos.batches(4, 2, transform=lambda each: {"mean": each["image"].mean()})
    x, _ = first(loader)
    assert x.tolist() == [photo(number).mean() for number in loader.plan.batch(0)]
    loader = odd_photos.batches(4, 2, image_size=(5, 3), transform=lambda each: each["front"])
    assert first(loader)[0].shape == (8, 5, 3, 3)


def test_the_dataset_may_say_that_images_are_pixels(directory, photos):
    ds = opened(directory / "photos", decode_images=True)
    assert same(first(ds.sequential(50))[0], first(photos.sequential(50))[0])
    assert same(first(ds.sequential(50))[0], ds[:50]["image"])


@pytest.mark.parametrize("threads", THREADS)
def test_a_damaged_image(directory, threads):
    path = directory / f"corrupt {threads}"
    many = [{"image": encode(photo(n)), "label": n % 3} for n in range(60)]
    many[41]["image"] = many[41]["image"][:60]
    features = {"image": Image((6, 4, 3)), "label": "int64"}
    write(many, path, features=features, label="label", shuffle=False, shards=2)
    ds = opened(path)
    loader, place, before = ds.sequential(4, threads=threads), ds.place(41), 0
    with pytest.raises(ExampleError, match=f"record {place.record} .*'image'") as caught:
        for _ in loader:
            before += 1
    assert place.name in str(caught.value)
    assert before == loader.step == 10
    loader.seek(11)
    assert len(list(loader)) == 4


def test_images_in_mixed_company(directory):
    """An image and an array, in shards that are compressed."""
    many = [{"image": photo(n), "x": np.full((2, 3), n), "label": bird(n)} for n in range(COUNT)]
    features = {"image": Image((6, 4, 3)), "x": X, "label": "str"}
    write(many, directory / "mixed", features=features, label="label", shuffle=False,
          compression="GZIP")  # fmt: skip
    loader = opened(directory / "mixed").batches(5, 2, threads=2)
    for step, (x, _) in enumerate(itertools.islice(loader, 10)):
        ids = loader.plan.batch(step)
        assert numbers_of(x) == ids.tolist()
        assert same(x["image"], np.stack([photo(number) for number in ids]))
