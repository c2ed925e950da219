"""Batches of images, of remote datasets, of tensors, and of labels from pandas."""

import itertools
import multiprocessing
import os
import pickle
import warnings
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from loaded import (
    COUNT,
    LABELS,
    X,
    check_batches,
    class_name,
    copy_batch,
    digest,
    numbers_of,
    same,
)
from opened import opened, put
from pictures import (
    DECODERS,
    as_12_bits,
    decoding_with,
    draw,
    encode,
    exif_orientation,
    pillow,
    png,
)
from written import write

from covey import Features, Image, RecordWriter
from covey.adapters import as_array, convert
from covey.errors import ExampleError, FeatureError, ImageSizeError, SkippedRecordsWarning
from covey.loader.prefetch import NativeProducer, start_producer
from covey.plan import BalancedPlan
from covey.reading import Gatherer
from covey.schema.pixels import ImageColumn, ImageOptions
from covey.storage import open_storage

THREADS = [0, 3]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("images")


@pytest.fixture(params=DECODERS)
def decoder(request):
    with decoding_with(request.param):
        yield request.param


def first(loader):
    return next(iter(loader))


def test_batches_of_a_remote_dataset(made):
    check_batches(made("remote"))


def test_labels_from_pandas():
    birds = ["owl", "wren", "owl", "kite", "wren", "kite"]
    expected = BalancedPlan(birds, 2, 2, seed=3).batches(0, 20)
    for dtype in (None, "category", "object"):
        found = BalancedPlan(pd.Series(birds, dtype=dtype), 2, 2, seed=3).batches(0, 20)
        assert (found == expected).all()
    for labels in (pd.Series([5, 7, 5, 6, 7, 6], dtype="object"), pd.array([5, 6, 7] * 2, "Int64")):
        assert BalancedPlan(labels, 2, 2).labels.tolist() == [5, 6, 7]


def test_hooks_that_return_tensors(ds):
    loader = ds.batches(3, 2, transform=lambda each: torch.from_numpy(each["x"]) * 2)
    assert numbers_of(first(loader)[0]) == [2 * number for number in loader.plan.batch(0)]
    loader = ds.batches(
        3, 2, batch_transform=lambda x, y: (torch.from_numpy(x), torch.from_numpy(y))
    )
    x, y = first(loader)
    assert same((x.numpy(), y.numpy()), first(ds.batches(3, 2)))


# Images of one size.


def photo(number, height=6, width=4):
    """Return an image whose first pixel is its number."""
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
    pixels[0, 0] = number
    return pixels


@pytest.fixture(scope="module")
def photos(directory):
    """Return images of one size, in classes with names, beside arrays."""
    many = [
        {"image": photo(n), "x": np.full((2, 3), n), "label": class_name(n)} for n in range(COUNT)
    ]
    features = {"image": Image((6, 4, 3)), "x": X, "label": "str"}
    write(many, directory / "photos", features=features, label="label", shuffle=False, shards=3)
    return opened(directory / "photos")


@pytest.mark.parametrize("threads", THREADS)
def test_images_are_decoded(photos, threads, decoder):
    loader = photos.batches(4, 2, threads=threads, seed=2, select=["image", "x"])
    for step, (x, y) in enumerate(loader.take(20)):
        ids = loader.plan.batch(step)
        assert same(x["image"], np.stack([photo(number) for number in ids]))
        assert numbers_of(x) == ids.tolist()
        assert same(y, photos.labels[ids])


def test_images_are_decoded_on_request(directory, photos):
    options = {"select": "image"}
    loader = photos.sequential(50, threads=3, decode_images=False, **options)
    found = [bytes(each) for x, _ in loader for each in x]
    assert found == [encode(photo(number), "png") for number in range(COUNT)]
    loader = photos.batches(4, 2, transform=lambda each: {"mean": each["image"].mean()}, **options)
    assert first(loader)[0].tolist() == [photo(n).mean() for n in loader.plan.batch(0)]
    ds = opened(directory / "photos", decode_images=True)
    assert same(first(ds.sequential(50, **options))[0], ds[:50]["image"])


# Images of different sizes and formats.

KINDS = {
    "jpeg": ["jpeg"],
    "png": ["png"],
    "webp": ["webp"],
    "mixed": ["jpeg"] * 14 + ["gif"] + ["png"] * 14 + ["webp"],
}
NATIVE = ("jpeg", "png", "mixed")


def shape_of(number):
    return 30 + number % 7, 40 + number % 5, 3


def picture(number, kinds):
    """Return an encoded image."""
    return encode(draw(shape_of(number), number), KINDS[kinds][number % len(KINDS[kinds])])


@pytest.fixture(scope="module")
def pictures(directory):
    """Return a function from kinds of images to a dataset of them."""

    @cache
    def make(kinds):
        many = [{"image": picture(n, kinds), "label": int(LABELS[n])} for n in range(COUNT)]
        features = {"image": Image(), "label": "int64"}
        write(many, directory / kinds, features=features, label="label", shuffle=False, shards=3)
        return opened(directory / kinds)

    return make


@pytest.mark.parametrize("options", [{}, {"crop": "random", "flip": True, "views": 2}], ids=str)
@pytest.mark.parametrize("kinds", ["mixed", "webp"])
def test_batches_equal_the_crops_of_pillow(pictures, kinds, options, decoder):
    loader = pictures(kinds).batches(4, 3, seed=5, threads=2, image_size=(16, 12), **options)
    made = ImageColumn("image", Image(), ImageOptions(image_size=(16, 12), **options), (16, 12, 3))
    for step, (x, y) in enumerate(loader.take(3)):
        ids = loader.plan.batch(step)
        assert y.tolist() == LABELS[ids].tolist()
        views = x if options.get("views", 1) > 1 else (x,)
        assert isinstance(views, tuple)
        for view, (row, number) in itertools.product(range(len(views)), enumerate(ids)):
            *box, flipped = made.spec.box(*shape_of(number)[:2], 5, step, row, view)
            expected = pillow(picture(number, kinds), box=box, size=(16, 12), flipped=flipped)
            assert views[view].dtype == np.uint8
            assert np.abs(views[view][row].astype(int) - expected).max() <= 1


def is_native(loader):
    """Return whether the native core builds the batches."""
    producer = start_producer(loader.format, loader.plan, 0, steps=4, options=loader.options)
    with closing(producer):
        return isinstance(producer, NativeProducer)


@pytest.mark.parametrize("kinds", KINDS)
def test_native_core_builds_batches_of_images(pictures, kinds):
    loader = pictures(kinds).batches(4, 3, image_size=16, crop="random", threads=2)
    with decoding_with("native"):
        assert is_native(loader) == (kinds in NATIVE)
    with decoding_with("Pillow"):
        assert not is_native(loader)


OPTIONS = {"image_size": (16, 12), "crop": "random", "flip": True, "views": 2, "seed": 5}


def batches_of(loader, steps=6):
    return [copy_batch(batch) for batch in loader.take(steps)]


@pytest.fixture(scope="module")
def expected_batches(pictures):
    """Return the batches that the calling thread builds."""
    return batches_of(pictures("mixed").batches(4, 3, threads=0, **OPTIONS))


SAME = {
    "one thread": {"threads": 1},
    "threads": {"threads": 3},
    "reused buffers": {"threads": 3, "reuse_buffers": True},
    "hook": {"threads": 3, "batch_transform": lambda x, y: (x, y)},
    "hook in the calling thread": {"threads": 0, "batch_transform": lambda x, y: (x, y)},
}


@pytest.mark.parametrize("case", SAME)
def test_random_crops_do_not_depend_on_threads_and_hooks(pictures, expected_batches, case):
    loader = pictures("mixed").batches(4, 3, **SAME[case], **OPTIONS)
    assert is_native(loader) == ("hook" not in case)
    assert same(batches_of(loader), expected_batches)


@pytest.mark.parametrize("case", SAME)
@pytest.mark.parametrize("ranks", [2, 4])
def test_random_crops_do_not_depend_on_ranks(pictures, expected_batches, ranks, case):
    options = {**SAME[case], **OPTIONS, "world_size": ranks}
    parts = [
        batches_of(pictures("mixed").batches(4, 3, rank=rank, **options)) for rank in range(ranks)
    ]
    for step, (x, y) in enumerate(expected_batches):
        for view in range(2):
            assert same(np.concatenate([part[step][0][view] for part in parts]), x[view])
        assert same(np.concatenate([part[step][1] for part in parts]), y)


def test_random_crops_do_not_depend_on_the_decoder(pictures, expected_batches):
    with decoding_with("Pillow"):
        found = batches_of(pictures("mixed").batches(4, 3, threads=2, **OPTIONS))
    for (x, y), (expected, classes) in zip(found, expected_batches, strict=True):
        assert same(y, classes)
        assert np.abs(np.stack(x).astype(int) - np.stack(expected)).max() <= 1


@pytest.mark.parametrize("threads", THREADS)
def test_resume_and_random_access(pictures, expected_batches, threads):
    loader = pictures("mixed").batches(4, 3, threads=threads, **OPTIONS)
    assert same(batches_of(loader, 2), expected_batches[:2])
    other = pictures("mixed").batches(4, 3, threads=threads, **OPTIONS)
    other.load_state_dict(loader.state_dict())
    assert same(batches_of(other, 4), expected_batches[2:])
    for step in (5, 0, 3):
        assert same(loader.batch(step), expected_batches[step])
    loader.seek(1)
    assert same(batches_of(loader, 5), expected_batches[1:])
    copy = pickle.loads(pickle.dumps(other))
    assert same(batches_of(copy, 4), batches_of(other, 4))


def test_workers_of_torch(directory, pictures, run):
    pictures("mixed")
    found = run(digests_of_torch, str(directory / "mixed"))
    assert found == digests(directory / "mixed", 4)


def digests_of_torch(path):
    with opened(path) as ds, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # on few cores
        warnings.filterwarnings("ignore", "num_workers=")  # without a hook
        loader = ds.batches(4, 3, threads=0, **OPTIONS)
        batches = itertools.islice(loader.to_torch(num_workers=2), 4)
        return [digest(convert(batch, as_array)) for batch in batches]


def digests(path, steps=6):
    """Return hashes of batches."""
    with opened(path) as ds:
        return [digest(batch) for batch in ds.batches(4, 3, threads=2, **OPTIONS).take(steps)]


def test_forked_processes(directory, pictures, run):
    """A child decodes with threads of its own while those of the parent run."""
    pictures("mixed")
    found, child = run(fork_while_loading, str(directory / "mixed"))
    assert found == child == digests(directory / "mixed")


def fork_while_loading(path):
    with opened(path) as ds:
        loader = ds.batches(4, 3, threads=2, **OPTIONS)
        found = [digest(next(iter(loader)))]
        results = multiprocessing.get_context("fork").Queue()
        child = multiprocessing.get_context("fork").Process(
            target=lambda: results.put(digests(path))
        )
        child.start()
        found += [digest(batch) for batch in loader.take(5)]
        other = results.get(timeout=60)
        child.join()
        return found, other


def test_batches_that_are_held_are_not_overwritten(pictures):
    options = {"image_size": (16, 12), "crop": "random", "seed": 5}
    for ds, threads in itertools.product((pictures("mixed"), pictures("webp")), THREADS):
        held = list(ds.batches(4, 3, threads=threads, **options).take(50))
        again = ds.batches(4, 3, threads=0, **options)
        assert all(same(one, two) for one, two in zip(held, again.take(50), strict=True))
        for step in range(12):  # abandoned iterators
            iterator = iter(ds.batches(4, 3, threads=threads, **OPTIONS))
            for _ in range(step % 3):
                next(iterator)
            del iterator


@pytest.mark.parametrize("threads", [0, 1, 8])
@pytest.mark.parametrize("batch", [(1, 1), (5, 1), (1, 5), (11, 5)])
def test_batches_of_any_number_of_rows(pictures, threads, batch):
    """Threads build parts of a batch, which are not all of the same size."""
    options = {"image_size": (9, 7), "crop": "random", "seed": 3}
    loader = pictures("mixed").batches(*batch, threads=threads, **options)
    hooks = {"batch_transform": lambda x, y: (x, y)}
    expected = pictures("mixed").batches(*batch, threads=0, **options, **hooks)
    assert all(same(*pair) for pair in zip(loader.take(5), expected.take(5), strict=True))


def test_shorter_last_batch(pictures):
    for size, threads in itertools.product((7, 64, COUNT + 1), THREADS):
        loader = pictures("mixed").sequential(size, threads=threads, image_size=(16, 12))
        found = np.concatenate([x.copy() for x, _ in loader])
        assert len(found) == COUNT
        for number in (0, COUNT // 2, COUNT - 1):
            expected = pillow(picture(number, "mixed"), size=(16, 12))
            assert np.abs(found[number].astype(int) - expected).max() <= 1


# Sizes.


@contextmanager
def without_summary(ds):
    """Return a dataset whose index has no summary of the images, like that of another writer."""
    (table,) = ds._gatherer.tables
    metadata = replace(table.index.metadata, images=None)
    gatherer = Gatherer([replace(table, index=replace(table.index, metadata=metadata))])
    with ds._with(gatherer=gatherer) as other:
        yield other


def test_the_index_knows_that_sizes_differ(pictures):
    ds = pictures("mixed")
    for load in (ds.sequential, ds.shuffled, ds.batches):
        with pytest.raises(ImageSizeError) as raised:
            load(4)
        error = raised.value
        assert (error.option, error.feature, error.found) == ("image_size", "image", None)
        assert "30 x 40, 36 x 44" in str(error)
        load(4, image_size=8)
        load(4, image_size="ragged")
        load(4, decode_images=False)
    # Of selections, the batch that has different sizes raises the error.
    with pytest.raises(ImageSizeError):
        list((ds + ds).sequential(4))
    with pytest.raises(ImageSizeError):
        list(ds.where(label=ds.classes.labels[:2].tolist()).sequential(4))


def test_a_transform_that_resizes_images_is_told_how(pictures):
    def resize(example):
        return {"image": example["image"][:8, :8]}

    ds, options = pictures("png"), {"select": "image", "transform": resize}
    with without_summary(ds) as unknown:
        for each in (ds, unknown):
            with pytest.raises(ImageSizeError) as raised:
                first(each.sequential(4, **options))
            assert "image_size='ragged'" in raised.value.remedy
    x, _ = first(ds.sequential(4, image_size="ragged", **options))
    assert x.shape == (4, 8, 8, 3)


def test_parts_whose_images_have_one_size(tmp_path):
    many = [{"image": encode(draw((8, 9 + n % 3, 3), n)), "label": n % 3} for n in range(60)]
    write(many, tmp_path, features={"image": Image(), "label": "int64"}, label="label")
    with opened(tmp_path) as ds:
        assert first(ds.where(label=1).batches(1, 4))[0].shape == (4, 8, 10, 3)
        assert first(ds.batches(1, 4, class_list=[2]))[0].shape == (4, 8, 11, 3)
        with pytest.raises(ImageSizeError):
            list(ds.batches(1, 4, class_list=[1, 2]).take(2))


def test_rotated_images_of_one_size(tmp_path):
    turned = png(draw((9, 8, 3)), exif=exif_orientation(6))
    many = [{"image": turned if n % 2 else encode(draw((8, 9, 3), n))} for n in range(8)]
    for oriented in (False, True):
        write(many, tmp_path / str(oriented), features={"image": Image(exif_orientation=oriented)})
        with opened(tmp_path / str(oriented)) as ds:
            if oriented:
                assert first(ds.sequential(8)).shape == (8, 8, 9, 3)
            else:
                with pytest.raises(ImageSizeError):
                    ds.sequential(8)


HOOKED = [{}, {"batch_transform": lambda x, y: (x, y)}]


@pytest.mark.parametrize("hooks", HOOKED)
@pytest.mark.parametrize("threads", THREADS)
def test_first_batch_with_another_size(tmp_path, threads, hooks, decoder):
    many = [{"image": encode(draw((8, 9, 3), n)), "label": n % 3} for n in range(60)]
    many[41]["image"] = encode(draw((9, 8, 3)))
    write(many, tmp_path, features={"image": Image(), "label": "int64"}, label="label",
          shuffle=False)  # fmt: skip
    with opened(tmp_path) as whole, without_summary(whole) as ds:
        loader = ds.sequential(4, threads=threads, **hooks)
        found = []
        with pytest.raises(ImageSizeError) as raised:
            found += (x.shape for x, _ in loader)
        error = raised.value
        assert loader.step == 10
        assert (error.option, error.feature, error.found) == ("image_size", "image", None)
        assert "8 x 9, 9 x 8" in str(error)
        assert not isinstance(error, ExampleError)  # not the fault of one record
        loader.seek(11)
        assert [x.shape for x, _ in loader] == [(4, 8, 9, 3)] * 4


@pytest.mark.parametrize("threads", THREADS)
def test_sides_that_are_too_long(tmp_path, threads):
    many = [{"image": encode(draw((1, 70_000, 1)), "png")}] * 3
    write(many, tmp_path, features={"image": Image()})
    with opened(tmp_path) as ds:
        assert first(ds.sequential(3, threads=threads, image_size=8)).shape == (3, 8, 8, 3)
        with pytest.raises(FeatureError, match=r"1 x 70,000 pixels; sides .* 65,536") as raised:
            first(ds.sequential(3, threads=threads))
        assert raised.value.feature == "image"
        with pytest.raises(ExampleError, match=r"record 0 .* 1 x 70,000 pixels"):
            first(ds.sequential(3, threads=threads, image_size="ragged"))


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("hooks", HOOKED)
def test_ragged_images_are_a_list(photos, pictures, threads, hooks, decoder):
    loader = pictures("mixed").batches(4, 2, image_size="ragged", threads=threads, seed=1, **hooks)
    for step, (x, _) in enumerate(loader.take(3)):
        assert isinstance(x, list)
        for number, image in zip(loader.plan.batch(step), x, strict=True):
            assert same(image, np.ascontiguousarray(pillow(picture(number, "mixed"))))
    x, _ = first(
        photos.batches(4, 2, image_size="ragged", threads=threads, select="image", **hooks)
    )
    assert isinstance(x, list)
    assert {each.shape for each in x} == {(6, 4, 3)}


def test_ragged_images_are_flipped(pictures):
    loader = pictures("jpeg").batches(4, 2, image_size="ragged", flip=True, views=2, seed=1)
    (one, two), _ = first(loader)
    assert (type(one), type(two)) == (list, list)
    states = set()
    for left, right in zip(one, two, strict=True):
        mirrored = (left == right[:, ::-1]).all()
        assert mirrored or (left == right).all()
        states.add(bool(mirrored))
    assert states == {False, True}


# Options.


@pytest.mark.parametrize(
    "options",
    [
        {"image_size": 8},
        {"image_size": 8, "crop": "center"},
        {"flip": True},
        {"flip": True, "views": 2},
        {"decode": "fast"},
        {"image_size": "ragged"},
    ],
)
def test_options_of_images_require_images(ds, photos, options):
    for load in (
        lambda: ds.batches(4, 2, **options),
        lambda: photos.batches(4, 2, decode_images=False, **options),
    ):
        with pytest.raises(FeatureError) as raised:
            load()
        assert raised.value.option in options


def test_views_and_transform(pictures):
    with pytest.raises(FeatureError) as raised:
        pictures("jpeg").batches(4, 2, transform=lambda each: each, **OPTIONS)
    assert raised.value.option == "views"
    assert "batch_transform" in raised.value.remedy


def test_views_as_dict(pictures, expected_batches):
    ds = pictures("mixed")
    for threads in THREADS:
        loader = ds.batches(4, 3, as_dict=True, threads=threads, **OPTIONS)
        for batch, (x, y) in zip(loader.take(3), expected_batches, strict=False):
            assert same(batch, {"image": x, "label": y})
    loader = ds.batches(4, 3, batch_transform=lambda x, y: np.concatenate(x), **OPTIONS)
    assert same(first(loader), np.concatenate(expected_batches[0][0]))


# Several features.


@pytest.fixture(scope="module")
def pairs(directory):
    """Return two images and a number per example, and an image that most examples lack."""
    blank = png(np.full((5, 5, 3), 7))
    features = {
        "front": Image(),
        "views": {"back": Image((8, 9, 1), format="jpeg"), "n": "int64"},
        "mark": Image(default=blank),
        "label": "int64",
    }
    many = [
        {
            "front": picture(n, "mixed"),
            "views": {"back": encode(draw((8, 9, 1), n)), "n": n},
            "mark": encode(draw((6, 7, 3), n), "png"),
            "label": int(LABELS[n]),
        }
        for n in range(COUNT)
    ]
    schema = Features(features)
    short = Features({name: kind for name, kind in features.items() if name != "mark"})
    (directory / "pairs").mkdir()
    with RecordWriter(directory / "pairs" / "pairs.tfrecord") as writer:
        for number, each in enumerate(many):
            if number % 4:
                del each["mark"]
            writer.write((short if number % 4 else schema).encode(each))
    return opened(directory / "pairs", features=features, label="label")


@pytest.mark.parametrize("threads", THREADS)
def test_several_images(pairs, threads, decoder):
    options = {"image_size": (7, 6), "crop": "random", "flip": True, "views": 2, "seed": 5}
    loader = pairs.batches(4, 3, threads=threads, **options)
    hooks = {"batch_transform": lambda x, y: (x, y)}
    hooked = pairs.batches(4, 3, threads=0, **options, **hooks)
    for step, (batch, other) in enumerate(zip(loader.take(4), hooked.take(4), strict=True)):
        assert same(batch, other)
        x, ids = batch[0], loader.plan.batch(step)
        assert x["views"]["n"].tolist() == ids.tolist()
        assert [view.shape for view in x["front"]] == [(12, 7, 6, 3)] * 2
        assert [view.shape for view in x["views"]["back"]] == [(12, 7, 6, 1)] * 2
        assert [(view[row] == 7).all() for view in x["mark"] for row in range(12)] == [
            number % 4 != 0 for number in ids
        ] * 2


def test_selected_images(pairs):
    x, _ = first(pairs.batches(4, 2, select="views/back"))
    assert x.shape == (8, 8, 9, 1)
    x, _ = first(pairs.batches(4, 2, select=["front"], image_size=5))
    assert list(x) == ["front"]
    with pytest.raises(FeatureError, match="image_size"):
        pairs.batches(4, 2, select="views/n", image_size=5)
    x, _ = first(pairs.batches(4, 2, select="views/n"))
    assert x.dtype == np.int64


@pytest.mark.parametrize(("stored", "declared"), [(1, 1), (2, 3), (4, 4)])
def test_different_channels_are_rejected(tmp_path, stored, declared, decoder):
    many = [{"image": png(draw((8, 9, 3 if n == 5 else stored)))} for n in range(8)]
    write(many, tmp_path, features={"image": Image(channels=None)}, shuffle=False)
    with opened(tmp_path) as ds:
        loader = ds.sequential(4, threads=2)
        assert first(loader).shape == (4, 8, 9, stored)
        with pytest.raises(ExampleError) as raised:
            list(loader)
        assert (raised.value.record, raised.value.feature) == (5, "image")
        assert f"Image(channels={declared})" in raised.value.remedy


# Errors.

CORRUPT = {
    "truncated jpeg": lambda: encode(draw((30, 40, 3)))[:400],
    "truncated png": lambda: png(draw((30, 40, 3)))[:200],
    "truncated webp": lambda: encode(draw((30, 40, 3)), "webp")[:60],
    "12 bits": lambda: as_12_bits(encode(draw((30, 40, 3)))),
    "no image": lambda: b"not an image",
}


@pytest.mark.parametrize(("threads", "hooks"), [(0, HOOKED[0]), (3, HOOKED[0]), (3, HOOKED[1])])
@pytest.mark.parametrize("kind", CORRUPT)
def test_corrupt_image(tmp_path, kind, hooks, threads, decoder):
    many = [{"image": encode(draw((30, 40, 3), n)), "label": n % 3} for n in range(60)]
    many[41]["image"] = CORRUPT[kind]()
    path = put(tmp_path / "x.tfrecord", many, {"image": "bytes", "label": "int64"})
    features = {"image": Image(), "label": "int64"}
    with opened(tmp_path, features=features, label="label") as ds:
        loader = ds.sequential(4, threads=threads, image_size=(16, 12), **hooks)
        with pytest.raises(ExampleError) as raised:
            list(loader)
        error = raised.value
        assert (error.path.endswith(path.name), error.record) == (True, 41)
        assert (error.feature, error.offset) == ("image", ds.place(41).offset)
        assert loader.step == 10
        loader.seek(11)
        assert [x.shape for x, _ in loader] == [(4, 16, 12, 3)] * 4


@pytest.mark.parametrize("threads", THREADS)
def test_max_pixels(directory, pictures, threads, decoder):
    pictures("mixed")
    with opened(directory / "mixed", max_pixels=36 * 44 - 1) as ds:
        loader = ds.sequential(4, threads=threads, image_size=8)
        with pytest.raises(ExampleError) as raised:
            list(loader)
        error = raised.value
        assert (error.option, error.found) == ("max_pixels", 36 * 44 - 1)
        assert ds.place(34).record == error.record  # the first of 36 x 44
        assert loader.step == 8


def test_skipped_records(directory, pictures):
    pictures("jpeg")
    (tmp := directory / "skipped").mkdir()
    path = put(tmp / "a.tfrecord", ({"image": picture(n, "jpeg")} for n in range(40)),
               {"image": "bytes"})  # fmt: skip
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.warns(SkippedRecordsWarning):
        ds = opened(tmp, features={"image": Image()}, on_error="skip")
    found = np.concatenate([x.copy() for x in ds.sequential(8, image_size=(16, 12), threads=2)])
    assert len(found) == 39
    expected = pillow(picture(1, "jpeg"), size=(16, 12))
    assert np.abs(found[0].astype(int) - expected).max() <= 1


# Storage.


def test_remote_images(directory, pictures, expected_batches):
    pictures("mixed")
    url = f"memory://images-{os.getpid()}/set"
    storage = open_storage(url)
    for path in (directory / "mixed").iterdir():
        storage.upload(str(path), f"{url}/{path.name}")
    with opened(url) as ds:
        assert same(batches_of(ds.batches(4, 3, threads=2, **OPTIONS)), expected_batches)


def test_images_in_compressed_shards(directory, expected_batches):
    many = [{"image": picture(n, "mixed"), "label": int(LABELS[n])} for n in range(COUNT)]
    write(many, directory / "gzip", features={"image": Image(), "label": "int64"}, label="label",
          shuffle=False, compression="GZIP")  # fmt: skip
    with opened(directory / "gzip") as ds:
        for threads in THREADS:
            loader = ds.batches(4, 3, threads=threads, **OPTIONS)
            assert same(batches_of(loader), expected_batches)
