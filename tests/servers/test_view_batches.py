"""Batches of ``covey view``, compared with those of loaders and plans."""

import base64
import itertools
import json
import tracemalloc
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow
from view_data import Client, write_birds, write_corrupt

import covey
from covey.errors import PlanError, SmallClassesWarning
from covey.view import View
from covey.view.batches import MAX_BATCH, PlanOptions, draw, find_plan
from covey.view.session import Session

CLASSES, COUNT = 30, 600
STEPS = st.one_of(st.integers(0, 200), st.integers(0, 10**12), st.just(10**12))


def draw_labels():
    """Return labels of classes of 1 to about 40 examples; ids are not contiguous."""
    rng = np.random.default_rng(3)
    labels = np.minimum(*rng.integers(0, CLASSES, (2, COUNT)))
    labels[:CLASSES] = np.arange(CLASSES)
    return labels * 7 - 21


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """Return the path of a dataset whose x is the id of the example."""
    path = tmp_path_factory.mktemp("numbers") / "numbers"
    columns = {"x": np.arange(COUNT, dtype=np.int64), "label": draw_labels()}
    covey.write(columns, path, split="train", label="label", shuffle=False, progress=False)
    return path


@pytest.fixture(scope="module")
def ds(numbers):
    with covey.open(numbers, split="train") as opened:
        yield opened


@pytest.fixture(scope="module")
def client(numbers):
    with View(Session.of_path(numbers)) as view:
        yield Client(view)


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    return write_birds(tmp_path_factory.mktemp("birds") / "birds")


@pytest.fixture(scope="module")
def pictures(birds):
    with View(Session.of_path(birds, split="train")) as view:
        yield Client(view)


def loader_of(dataset, classes_per_batch, examples_per_class, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallClassesWarning)
        return dataset.batches(classes_per_batch, examples_per_class, threads=0, **options)


def ids_of(rank):
    return [number for group in rank["classes"] for number in group["ids"]]


# Record ids.


@settings(max_examples=60)
@given(data=st.data())
def test_a_batch_is_that_of_the_loader(client, ds, data):
    mode = data.draw(st.sampled_from(["split", "independent"]))
    world_size = data.draw(st.integers(1, 8))
    parameters = {
        "classes_per_batch": data.draw(st.integers(world_size, 12)),
        "examples_per_class": data.draw(st.integers(1, 9)),
        "seed": data.draw(st.integers(0, 2**64 - 1)),
        "class_weights": data.draw(st.sampled_from(["", "size", "sqrt"])),
        "total_examples_per_class": data.draw(st.sampled_from([None, 5])),
        "small_classes": data.draw(st.sampled_from(["repeat", "drop"])),
    }
    step = data.draw(STEPS)
    options = {**parameters, "class_weights": parameters["class_weights"] or None}
    sizes = (options.pop("classes_per_batch"), options.pop("examples_per_class"))
    ranks, refused = {"world_size": world_size, "mode": mode}, ""
    try:
        loaders = [
            loader_of(ds, *sizes, **options, rank=rank, **ranks) for rank in range(world_size)
        ]
    except PlanError as error:
        refused = str(error)
    if refused:
        assert client.error("batch", **parameters, **ranks, step=step) == refused
        return
    found = client.json("batch", **parameters, **ranks, step=step)
    assert [rank["rank"] for rank in found["ranks"]] == list(range(world_size))
    assert found["steps_per_epoch"] == len(loaders[0])
    assert found["epoch"] == step // len(loaders[0])
    for rank, loader in zip(found["ranks"], loaders, strict=True):
        x, y = loader.batch(step)
        assert ids_of(rank) == x.tolist() == loader.plan.batch(step).tolist()
        labels = [group["id"] for group in rank["classes"]]
        assert labels == loader.plan.classes(step).tolist()
        assert np.repeat(labels, sizes[1]).tolist() == y.tolist()
        assert [group["name"] for group in rank["classes"]] == list(map(str, labels))
        assert (rank["batch"], rank["row"]) == loader.plan.key(step)[1:3]


@settings(max_examples=40)
@given(
    kind=st.sampled_from(["shuffled", "sequential"]),
    size=st.integers(1, 700),
    remainder=st.sampled_from(["keep", "drop", "fill"]),
    step=STEPS,
    world_size=st.integers(1, 5),
    mode=st.sampled_from(["split", "independent"]),
)
def test_a_batch_without_classes(client, ds, kind, size, remainder, step, world_size, mode):
    ranks = {"world_size": world_size, "mode": mode}
    parameters = {"plan": kind, "batch_size": size, "remainder": remainder, **ranks, "step": step}
    seed = {"seed": 5} if kind == "shuffled" else {}
    make, refused = ds.shuffled if kind == "shuffled" else ds.sequential, ""
    try:
        loaders = [
            make(size, remainder=remainder, rank=rank, threads=0, **ranks, **seed)
            for rank in range(world_size)
        ]
    except PlanError as error:
        refused = str(error)
    if refused:
        assert client.error("batch", **parameters, **seed) == refused
        return
    found = client.json("batch", **parameters, **seed)
    for rank, loader in zip(found["ranks"], loaders, strict=True):
        try:
            expected = loader.batch(step)[0].tolist()
        except PlanError:  # the epoch of this rank has ended
            expected = []
            assert rank["batch"] is None
        assert ids_of(rank) == expected


def test_a_step_is_not_another_step(client):
    """The comparisons above would also hold for a constant."""
    found = {str(client.json("batch", step=step)["ranks"]) for step in (0, 1, 2, 10**12)}
    assert len(found) == 4
    seeds = {str(client.json("batch", step=9, seed=seed)["ranks"]) for seed in range(5)}
    assert len(seeds) == 5


def test_warnings_are_shown_and_not_raised(client):
    found = client.json("batch", examples_per_class=9)
    assert "fewer than 9 examples" in found["warnings"][0]
    assert client.json("batch", examples_per_class=1)["warnings"] == []


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"step": -1}, "step"),
        ({"step": 2**62}, "step"),
        ({"step": "1e3"}, "step"),
        ({"seed": 2**64}, "seed"),
        ({"classes_per_batch": 0}, "classes_per_batch"),
        ({"classes_per_batch": 31}, "classes_per_batch"),
        ({"classes_per_batch": 20, "examples_per_class": 10_000}, "too large"),
        ({"examples_per_class": 10**9}, "examples_per_class"),
        ({"world_size": 65}, "world_size"),
        ({"world_size": 9}, "cannot be split"),
        ({"mode": "other"}, "mode"),
        ({"small_classes": "x"}, "small_classes"),
        ({"small_classes": "error", "examples_per_class": 50}, "fewer than 50"),
        ({"class_weights": "cube"}, "class_weights"),
        ({"state": "0" * 32}, "paste"),
        ({"plan": "x"}, "plan"),
        ({"plan": "shuffled", "batch_size": MAX_BATCH + 1}, "batch_size"),
        ({"split": "../etc"}, "no split"),
    ],
)
def test_invalid_parameters(client, parameters, expected):
    assert expected in client.error("batch", **parameters)


def test_ranks_beyond_the_limit_are_omitted(client):
    sizes = {"classes_per_batch": 8, "examples_per_class": 64}
    found = client.json("batch", world_size=64, mode="independent", **sizes)
    assert (len(found["ranks"]), found["omitted_ranks"]) == (32, 32)
    assert sum(len(ids_of(rank)) for rank in found["ranks"]) == MAX_BATCH


def test_an_empty_split(birds):
    with View(Session.of_path(birds)) as view:
        assert "no examples" in Client(view).error("batch", split="empty")


def test_plans_are_stored(ds):
    """A plan of a million classes takes a tenth of a second; it refers to the class table."""
    session = Session.of_dataset(ds)
    for seed in (0, 1, 2, 0, 3, 0):
        find_plan(session, ds, PlanOptions(seed=seed, world_size=1 + seed % 2))
    assert (session.plan.cache_info().misses, session.plan.cache_info().hits) == (4, 2)
    plan, _ = find_plan(session, ds, PlanOptions(classes_per_batch=4))
    assert np.shares_memory(plan._eligible.table.by_class, ds.classes.by_class)


def test_threads(client):
    """Requests for different plans at the same time have the answers of requests alone."""
    asked = [{"seed": seed % 20, "step": seed, "world_size": 1 + seed % 3} for seed in range(120)]
    expected = [client.json("batch", **each) for each in asked]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda each: client.json("batch", **each), asked))
    assert found == expected


# Coverage.


@settings(max_examples=25)
@given(step=st.integers(0, 3000), weights=st.sampled_from(["", "sqrt"]), ranks=st.integers(1, 3))
def test_coverage_is_what_was_drawn(client, ds, step, weights, ranks):
    sizes = {"classes_per_batch": 4, "examples_per_class": 2, "seed": 11}
    asked = {**sizes, "class_weights": weights, "step": step}
    asked |= {"world_size": ranks, "mode": "independent"}
    loader = loader_of(ds, 4, 2, seed=11, class_weights=weights or None)
    drawn = np.asarray(loader.plan.batches(0, step * ranks)).reshape(-1)
    labels = ds.labels[drawn]
    visits = [(labels == label).sum() // 2 for label in ds.classes.labels]
    at = client.json("coverage", **asked)["at"]
    assert at["examples"] == pytest.approx(len(np.unique(drawn)) / len(ds))
    assert at["classes"] == pytest.approx(np.mean(np.array(visits) > 0))
    assert at["visits"] == [min(visits), max(visits)]


def test_coverage_without_classes(client):
    asked = {"plan": "shuffled", "batch_size": 60}
    for step, examples in ((0, 0), (3, 0.3), (10, 1), (10**12, 1)):
        assert client.json("coverage", **asked, step=step)["at"]["examples"] == examples


# States.


def paste(client, state, **options):
    return client.json("state", json.dumps(state), **options)["parameters"]


@settings(max_examples=25)
@given(
    sizes=st.tuples(st.integers(4, 9), st.integers(1, 5)),
    seed=st.integers(0, 2**53),
    step=STEPS,
    options=st.sampled_from(
        [
            {},
            {"small_classes": "drop"},
            {"total_examples_per_class": 6},
            {"total_examples_per_class": 6, "small_classes": "drop"},
            {"class_weights": "sqrt"},
        ]
    ),
    ranks=st.sampled_from([(1, "split"), (3, "split"), (4, "independent")]),
)
def test_a_state_leads_to_its_batch(client, ds, sizes, seed, step, options, ranks):
    world_size, mode = ranks
    loader = loader_of(ds, *sizes, seed=seed, world_size=world_size, mode=mode, rank=0, **options)
    loader.seek(step)
    found = paste(client, loader.state_dict(), world_size=world_size, mode=mode)
    assert found["step"] == step
    shown = client.json("batch", **found, world_size=world_size, mode=mode)
    other = loader_of(ds, *sizes, seed=seed, world_size=world_size, mode=mode, rank=0, **options)
    other.load_state_dict(loader.state_dict())
    assert ids_of(shown["ranks"][0]) == other.batch(other.step)[0].tolist()


def test_a_state_with_changed_weights(client, ds):
    loader = loader_of(ds, 5, 2, seed=8)
    loader.seek(100)
    loader.set_class_weights({0: 9.0})
    loader.seek(400)
    found = paste(client, loader.state_dict())
    assert found["step"] == 400
    for step in (99, 100, 400, 401, 10**12):
        shown = client.json("batch", **{**found, "step": step})
        assert ids_of(shown["ranks"][0]) == loader.plan.batch(step).tolist()
    without = client.json("batch", seed=8, classes_per_batch=5, examples_per_class=2, step=400)
    assert ids_of(without["ranks"][0]) != loader.plan.batch(400).tolist()


@settings(max_examples=40)
@given(data=st.data())
def test_states_of_parts_of_split_classes(client, ds, data):
    """The batch has the examples that the loader of the part reads, by their ids in the split."""
    first = data.draw(st.integers(1, 20))
    second = data.draw(st.integers(1, CLASSES - first))
    numbers = {"train": first, "val": second}
    fractions = st.sampled_from([{"train": 0.8}, {"train": 0.7, "val": 0.15}])
    sizes = data.draw(st.one_of(st.just(numbers), fractions))
    seed = data.draw(st.integers(0, 2**64 - 1))
    divided = {
        "seed": data.draw(st.sampled_from([0, seed])),
        "labels": data.draw(st.sampled_from([None, "contiguous"])),
    }
    part = data.draw(st.sampled_from(ds.split_classes(**sizes, **divided)))
    loader = loader_of(part, data.draw(st.integers(1, len(part.classes))), 2, seed=seed)
    loader.seek(data.draw(STEPS))
    if data.draw(st.booleans()):
        loader.set_class_weights(np.arange(1, 1 + len(part.classes)) * 1.0)
    found = paste(client, loader.state_dict())
    assert found["step"] == loader.step
    shown = client.json("batch", **found)
    x, _ = loader.batch(loader.step)  # x is the id of the example
    assert ids_of(shown["ranks"][0]) == x.tolist()
    _, *rows = client.lines("batch/x", **found)
    assert [row["values"]["x"]["text"] for row in rows] == list(map(str, x.tolist()))


def test_states_of_parts_that_are_not_found(client, ds):
    part, _ = ds.split_classes(train=0.5, seed=12345)
    message = client.error("state", json.dumps(loader_of(part, 4, 2).state_dict()))
    assert "split_classes() with another seed" in message


@pytest.mark.parametrize("kind", ["shuffled", "sequential"])
def test_states_without_classes(client, ds, kind):
    loader = getattr(ds, kind)(7, remainder="fill", threads=0)
    loader.seek(55)
    answer = client.json("state", json.dumps(loader.state_dict()))
    assert (answer["plan"]["kind"], answer["plan"]["batch_size"]) == (kind, 7)
    found = answer["parameters"]
    assert found["step"] == 55
    shown = client.json("batch", **found)
    assert ids_of(shown["ranks"][0]) == loader.batch(55)[0].tolist()


def test_states_of_other_batches_are_refused(client, ds):
    state = loader_of(ds, 4, 2).state_dict()
    plan = state["plan"]
    for name in ("classes", "examples", "sum"):
        other = json.dumps({**state, "plan": {**plan, name: plan[name] + 1}})
        message = client.error("state", other)
        assert "other batches" in message
        assert name in message
    for changed, expected in (
        ({"format": 2}, "version"),
        ({"batch": -1}, "corrupt"),
        ({"batch": "7"}, "corrupt"),
        ({"plan": {**plan, "kind": "x"}}, "kind"),
        ({"plan": {**plan, "classes_per_batch": 10**9}}, "classes_per_batch"),
        ({"plan": {**plan, "seed": -1}}, "seed"),
        ({"weights": [[0, "AAAA"]]}, "corrupt"),
        ({"weights": [[0, None]] * 140_000}, "changes"),
    ):
        text = json.dumps({**state, **changed})
        assert expected in client.error("state", text)


def test_hostile_states(client, ds):
    state = loader_of(ds, 4, 2).state_dict()
    bomb = base64.b64encode(zlib.compress(bytes(64 << 20), 9)).decode()
    assert "corrupt" in client.error("state", json.dumps({**state, "weights": [[0, bomb]]}))
    hostile = ["", "{}", "null", "[]", repr(state), json.dumps({"a": state}), "[" * 10**6]
    hostile += ['{"format": 1, "plan": {}, "batch": ' + "9" * 10**5 + "}", json.dumps(state) + "}"]
    hostile += ['{"format": 1, "plan": {}, "batch": NaN}', '{"a":' * 10**5]
    for text in hostile:
        assert client.error("state", text)
    for plan in (None, [], "balanced", {}, {"kind": ["balanced"]}):
        message = client.error("state", json.dumps({**state, "plan": plan}))
        assert message.startswith("kind is")
    for name, wrong in itertools.product(("classes", "examples_per_class", "seed"), (-1, "x", 1.5)):
        changed = {**state, "plan": {**state["plan"], name: wrong}}
        assert name in client.error("state", json.dumps(changed))


# Contents.


def image_of(value):
    """Return the pixels of a value of a row."""
    head, _, data = value["image"].partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Pillow.open(BytesIO(base64.b64decode(data))))


def images_of(rows, name):
    return np.stack([image_of(row["values"][name]) for row in rows])


@settings(max_examples=15)
@given(
    step=STEPS,
    crop=st.sampled_from(["squash", "center", "random"]),
    flip=st.booleans(),
    views=st.integers(1, 3),
    rank=st.integers(0, 2),
    mode=st.sampled_from(["split", "independent"]),
)
def test_images_are_those_of_the_loader(pictures, birds, step, crop, flip, views, rank, mode):
    views = views if flip or crop == "random" else 1
    ranks = {"world_size": 3, "mode": mode, "rank": rank}
    options = {"image_size": (24, 32), "crop": crop, "views": views, "select": "photo"}
    asked = {**options, **ranks, "image_size": "24x32", "flip": int(flip), "step": step}
    asked |= {"classes_per_batch": 4, "examples_per_class": 9, "seed": 2}
    with covey.open(birds, split="train") as dataset:
        loader = dataset.batches(4, 9, seed=2, flip=flip, threads=0, **options, **ranks)
        x, _ = loader.batch(step)
    expected = [x] if views == 1 else list(x)
    head, *rows = pictures.lines("batch/x", **asked)
    assert head == {"total": len(expected[0]), "is_aligned": True}
    assert [row["row"] for row in rows] == list(range(len(expected[0])))
    names = ["photo"] if views == 1 else [f"photo[{view}]" for view in range(views)]
    for name, pixels in zip(names, expected, strict=True):
        assert np.array_equal(images_of(rows, name), pixels)
    assert pictures.lines("batch/x", **asked, rows=3) == [head, *rows[:3]]


def test_images_of_different_sizes(pictures):
    asked = {"classes_per_batch": 6, "examples_per_class": 4, "select": "photo"}
    assert "different sizes" in pictures.error("batch/x", **asked)
    for side in (32, 128):
        _, *rows = pictures.lines("batch/x", **asked, image_size="ragged", side=side)
        sizes = {image_of(row["values"]["photo"]).shape for row in rows}
        assert len(sizes) > 1
        assert max(max(each) for each in sizes) == side


def test_values_that_are_not_images(pictures, birds):
    asked = {"classes_per_batch": 3, "examples_per_class": 2, "step": 5}
    with covey.open(birds, split="train") as dataset:
        x, _ = dataset.batches(3, 2, select="curve", threads=0).batch(5)
        captions, _ = dataset.batches(3, 2, select="caption", threads=0).batch(5)
    _, *rows = pictures.lines("batch/x", **asked, select="curve")
    for row, curve in zip(rows, x, strict=True):
        value = row["values"]["curve"]
        assert (value["dtype"], value["shape"]) == ("float32", [64])
        assert (value["low"], value["high"]) == pytest.approx((curve.min(), curve.max()))
        assert value["plot"]["low"] == pytest.approx(curve.tolist(), rel=1e-3)
    _, *rows = pictures.lines("batch/x", **asked, select="caption")
    assert [row["values"]["caption"]["text"] for row in rows] == [str(each) for each in captions]
    _, *rows = pictures.lines("batch/x", **asked, select="all", image_size=16)
    assert rows[0]["values"].keys() >= {"photo", "caption", "curve", "notes"}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"image_size": 0}, "image_size"),
        ({"image_size": 10**9}, "image_size"),
        ({"image_size": "9x"}, "image_size"),
        ({"image_size": "٣"}, "image_size"),
        ({"crop": "x"}, "crop"),
        ({"views": 9}, "views"),
        ({"rank": 1}, "rank"),
        ({"rows": 0}, "rows"),
        ({"classes_per_batch": 100}, "classes_per_batch"),
        ({"select": "nothing"}, "nothing"),
        ({"select": "caption", "flip": 1}, "decoded image"),
    ],
)
def test_invalid_load_options(pictures, parameters, expected):
    assert expected in pictures.error("batch/x", **parameters)


def test_errors_of_hooks_are_answers(birds):
    def fail(x, y):
        raise ValueError("from the hook")

    with covey.open(birds, split="train") as dataset:
        loader = dataset.batches(2, 2, select="eggs", batch_transform=fail, threads=0)
        with View(Session.of_dataset(dataset, loader)) as view:
            assert Client(view).error("batch/x") == "ValueError: from the hook"


def test_a_corrupt_record_does_not_hide_the_others(birds, tmp_path):
    path = write_corrupt(birds, tmp_path / "corrupt")
    with View(Session.of_path(path, split="train")) as view:
        asked = {"plan": "sequential", "batch_size": 8, "image_size": 16, "select": "photo"}
        _, *rows = Client(view).lines("batch/x", **asked)
    assert ["error" in row for row in rows] == [row == 3 for row in range(8)]
    assert "checksum" in rows[3]["error"]


# A session with a loader.


def test_the_batches_of_a_loader(birds):
    def transform(example, rng):
        return {"photo": example["photo"][:4, :6].astype(np.float32) + rng.random()}

    with covey.open(birds, split="train") as dataset:
        loader = dataset.batches(
            4, 3, seed=6, select="photo", image_size=40, transform=transform, threads=0
        )
        loader.set_class_weights({0: 7.0})
        with View(Session.of_dataset(dataset, loader)) as view:
            client = Client(view)
            shown = client.json("batch", step=9, classes_per_batch=2, seed=1)
            assert ids_of(shown["ranks"][0]) == loader.plan.batch(9).tolist()
            _, *rows = client.lines("batch/x", step=9, image_size=8)
            x, _ = loader.batch(9)
            for row, pixels in zip(rows, x, strict=True):
                value = row["values"]["photo"]
                assert (value["shape"], value["dtype"]) == ([4, 6, 3], "float32")
                scaled = (pixels - pixels.min()) * (255 / ((pixels.max() - pixels.min()) or 1))
                assert np.abs(image_of(value) - scaled).max() <= 1
            ranks = client.json("batch", step=9, world_size=2)["ranks"]
            assert ids_of(ranks[1]) == loader.plan.for_rank(1, 2).batch(9).tolist()
            loader.seek(77)
            assert paste(client, loader.state_dict())["step"] == 77
            state = loader.state_dict()
            loader.set_class_weights(None)
            changed = client.json("batch", step=500)
            assert ids_of(changed["ranks"][0]) == loader.plan.batch(500).tolist()
            found = paste(client, state)
            other = dataset.batches(4, 3, seed=6, threads=0, select="photo", image_size=8)
            other.load_state_dict(state)
            shown = client.json("batch", **{**found, "step": 500})
            assert ids_of(shown["ranks"][0]) == other.plan.batch(500).tolist()


def test_hooks_of_whole_batches(birds):
    def double(x, y, examples_per_class, is_warmup):
        return np.concatenate([x, 255 - x]), np.concatenate([y, y])

    with covey.open(birds, split="train") as dataset:
        loader = dataset.batches(2, 2, select="photo", image_size=16, augmenter=double, threads=0)
        with View(Session.of_dataset(dataset, loader)) as view:
            head, *rows = Client(view).lines("batch/x", step=3)
        x, _ = loader.batch(3)
        assert head == {"total": 8, "is_aligned": False}
        assert np.array_equal(images_of(rows, "x"), x)


# Limits.


def test_ten_million_records():
    """A batch is drawn without an array of all records."""
    from covey.classes import ClassTable

    count, classes = 10_000_000, 10_000
    table = np.zeros(classes, covey.classes.CLASS_DTYPE)
    table["label"] = np.arange(classes)
    table["records"] = count // classes
    table["first"] = np.arange(classes) * (count // classes)
    by_class = np.arange(count, dtype=np.uint32)

    class Examples:
        label, classes = "label", ClassTable(table, by_class, None)

        def __len__(self):
            return count

    dataset = Examples()
    tracemalloc.start()
    try:
        options = PlanOptions(classes_per_batch=32, examples_per_class=4)
        plan, _ = find_plan(Session("", (), None), dataset, options)
        drawn = draw(plan, 10**12, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(drawn.ids) == 128
    assert peak < 8 << 20


def test_requests_do_not_change_the_filters_of_warnings(ds):
    """Filters of warnings are those of the process: another thread may change them meanwhile."""
    session, before = Session.of_dataset(ds), warnings.filters[:]
    with ThreadPoolExecutor(8) as pool:
        options = [PlanOptions(seed=seed, examples_per_class=9) for seed in range(20)]
        found = list(pool.map(lambda each: find_plan(session, ds, each)[1], options))
    assert all("fewer than 9 examples" in messages[0] for messages in found)
    assert warnings.filters == before
    with pytest.warns(SmallClassesWarning):
        options[0].make(ds)
