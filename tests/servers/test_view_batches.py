"""Batches of ``covey view``, compared with those of loaders and plans."""

import base64
import json
import threading
import tracemalloc
import urllib.error
import urllib.request
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from http.cookiejar import CookieJar
from io import BytesIO
from urllib.parse import urlencode

import numpy as np
import pytest
from covey.view.messages import Query
from covey.view.plans import MAX_BATCH, PlanCache, PlanOptions, find_plan, make_quietly
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow
from view_data import write_birds, write_corrupt

import covey
from covey.errors import PlanError, SmallClassesWarning
from covey.plan import BalancedPlan
from covey.view import ROUTES, View
from covey.view.session import Session

CLASSES, COUNT = 30, 600
STEPS = st.one_of(st.integers(0, 200), st.integers(0, 10**12), st.just(10**12))


def draw_labels():
    """Return labels of classes of 1 to about 40 examples; ids are not contiguous."""
    rng = np.random.default_rng(3)
    labels = np.minimum(*rng.integers(0, CLASSES, (2, COUNT)))
    labels[:CLASSES] = np.arange(CLASSES)
    return labels * 7 - 21


class Client:
    """Requests to a view, with its cookie."""

    def __init__(self, view):
        handler = urllib.request.HTTPCookieProcessor(CookieJar())
        self._opener = urllib.request.build_opener(handler)
        self._root = f"http://127.0.0.1:{view.port}/api/"
        self._opener.open(view.url).read()

    def raw(self, path, body=None, **parameters):
        """Return the status, the body and the headers of a response."""
        given = {name: value for name, value in parameters.items() if value is not None}
        data = None if body is None else body.encode()
        try:
            with self._opener.open(f"{self._root}{path}?{urlencode(given)}", data) as response:
                return response.status, response.read(), response.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(), error.headers

    def get(self, path, body=None, **parameters):
        status, content, _ = self.raw(path, body, **parameters)
        assert status == 200, content
        return json.loads(content)

    def error(self, path, body=None, **parameters):
        """Return the message of a request that is refused."""
        status, content, _ = self.raw(path, body, **parameters)
        assert 400 <= status < 500, content
        return json.loads(content)["error"]

    def columns(self, path, **parameters):
        """Return the values and the arrays of a binary response."""
        status, content, headers = self.raw(path, **parameters)
        assert status == 200, content
        size = int.from_bytes(content[:4], "little")
        values = json.loads(content[4 : 4 + size])
        arrays = {
            name: np.frombuffer(
                content,
                each["dtype"],
                int(np.prod(each["shape"])),
                4 + size + each["offset"],
            ).reshape(each["shape"])
            for name, each in values.pop("columns").items()
        }
        return values, arrays, headers


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
    found = client.get("batch", **parameters, **ranks, step=step)
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
    found = client.get("batch", **parameters, **seed)
    for rank, loader in zip(found["ranks"], loaders, strict=True):
        try:
            expected = loader.batch(step)[0].tolist()
        except PlanError:  # the epoch of this rank has ended
            expected = []
            assert rank["batch"] is None
        assert ids_of(rank) == expected


def test_a_step_is_not_another_step(client):
    """The comparisons above would also hold for a constant."""
    found = {str(client.get("batch", step=step)["ranks"]) for step in (0, 1, 2, 10**12)}
    assert len(found) == 4
    seeds = {str(client.get("batch", step=9, seed=seed)["ranks"]) for seed in range(5)}
    assert len(seeds) == 5


def test_warnings_are_shown_and_not_raised(client):
    found = client.get("batch", examples_per_class=9)
    assert "fewer than 9 examples" in found["warnings"][0]
    assert client.get("batch", examples_per_class=1)["warnings"] == []


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"step": -1}, "step"),
        ({"step": 2**62}, "step"),
        ({"step": "1e3"}, "step"),
        ({"seed": 2**64}, "seed"),
        ({"classes_per_batch": 0}, "classes_per_batch"),
        ({"classes_per_batch": 31}, "classes_per_batch"),
        ({"classes_per_batch": 200, "examples_per_class": 100}, "too large"),
        ({"examples_per_class": 10**9}, "examples_per_class"),
        ({"world_size": 65}, "world_size"),
        ({"world_size": 9}, "cannot be split"),
        ({"mode": "other"}, "mode"),
        ({"small_classes": "x"}, "small_classes"),
        ({"small_classes": "error", "examples_per_class": 50}, "fewer than 50"),
        ({"class_weights": "cube"}, "class_weights"),
        ({"weights": "0" * 32}, "paste"),
        ({"plan": "x"}, "plan"),
        ({"plan": "shuffled", "batch_size": MAX_BATCH + 1}, "batch_size"),
        ({"split": "../etc"}, "no split"),
    ],
)
def test_invalid_parameters(client, parameters, expected):
    assert expected in client.error("batch", **parameters)


def test_ranks_beyond_the_limit_are_omitted(client):
    sizes = {"classes_per_batch": 8, "examples_per_class": 64}
    found = client.get("batch", world_size=64, mode="independent", **sizes)
    assert (len(found["ranks"]), found["omitted_ranks"]) == (32, 32)
    assert sum(len(ids_of(rank)) for rank in found["ranks"]) == MAX_BATCH


def test_an_empty_split(birds):
    with View(Session.of_path(birds)) as view:
        assert "no examples" in Client(view).error("batch", split="empty")


def test_the_cache_of_plans_is_bounded(ds):
    cache = PlanCache(max_plans=3)
    made = []

    def make(seed):
        made.append(seed)
        return BalancedPlan(ds.classes, 4, 1, seed)

    for seed in (0, 1, 2, 0, 3, 0, 1):
        plan, _ = cache.find(seed, lambda seed=seed: make(seed), 1, "split")
        assert plan.seed == seed
        assert len(cache) <= 3
    assert made == [0, 1, 2, 3, 1]
    narrow = PlanCache(max_classes=len(ds.classes))
    for seed in range(3):
        narrow.find(seed, lambda seed=seed: make(seed), 1, "split")
        assert len(narrow) == 1


def test_a_plan_does_not_copy_the_class_table(ds):
    session = Session.of_dataset(ds)
    plan = find_plan(session, Query("classes_per_batch=4")).plan
    assert np.shares_memory(plan._eligible.table.by_class, ds.classes.by_class)


def test_threads(client):
    """Requests for different plans at the same time have the answers of requests alone."""
    asked = [{"seed": seed % 20, "step": seed, "world_size": 1 + seed % 3} for seed in range(120)]
    expected = [client.get("batch", **each) for each in asked]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda each: client.get("batch", **each), asked))
    assert found == expected


# Coverage.


def test_coverage_of_the_last_step(ds):
    session = Session.of_dataset(ds)
    last = find_plan(session, Query("")).plan.last_step
    found = ROUTES["/api/coverage"](session, Query(f"step={last}&until={last}"))
    assert found.status == 200


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
    values, _, _ = client.columns("coverage", **asked)
    seen = len(np.unique(drawn)) / len(ds)
    assert values["at"]["examples"] == pytest.approx(seen)
    assert values["at"]["classes"] == pytest.approx(np.mean(np.array(visits) > 0))
    assert values["at"]["visits"] == [min(visits), max(visits)]


def test_coverage_over_time(client, ds):
    plan = loader_of(ds, 4, 2).plan
    _, arrays, _ = client.columns("coverage", classes_per_batch=4, examples_per_class=2, until=700)
    assert 2 < len(arrays["step"]) <= 100
    assert (arrays["step"][0], arrays["step"][-1]) == (0, 700)
    assert (np.diff(arrays["step"]) > 0).all()
    for step, classes, examples in zip(
        arrays["step"], arrays["classes"], arrays["examples"], strict=True
    ):
        expected = plan.coverage(int(step))
        assert (classes, examples) == pytest.approx((expected.classes, expected.examples))
    _, far, _ = client.columns("coverage", classes_per_batch=4, until=10**12)
    assert far["examples"][-1] == 1


# States.


def paste(client, state, **options):
    return client.get("state", json.dumps(state), **options)["parameters"]


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
    shown = client.get("batch", **found, world_size=world_size, mode=mode)
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
        shown = client.get("batch", **{**found, "step": step})
        assert ids_of(shown["ranks"][0]) == loader.plan.batch(step).tolist()
    without = client.get("batch", **{**found, "weights": None, "step": 400})
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
    shown = client.get("batch", **found)
    x, _ = loader.batch(loader.step)  # x is the id of the example
    assert ids_of(shown["ranks"][0]) == x.tolist()
    values, _, _ = client.columns("batch/x", **found)
    assert values["parts"][0]["texts"] == list(map(str, x.tolist()))


def test_states_of_parts_that_are_not_found(client, ds):
    part, _ = ds.split_classes(train=0.5, seed=12345)
    message = client.error("state", json.dumps(loader_of(part, 4, 2).state_dict()))
    assert "split_classes() with another seed" in message
    for text, expected in (("1:2", "SEED:BEGIN:CLASSES"), ("0:20:11", "the parts have 31 classes")):
        assert expected in client.error("batch", class_part=text)


@pytest.mark.parametrize("kind", ["shuffled", "sequential"])
def test_states_without_classes(client, ds, kind):
    loader = getattr(ds, kind)(7, remainder="fill", threads=0)
    loader.seek(55)
    found = paste(client, loader.state_dict())
    assert (found["plan"], found["step"], found["batch_size"]) == (kind, 55, 7)
    shown = client.get("batch", **found)
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
        ({"plan": {**plan, "classes_per_batch": 10**9}}, "not shown"),
        ({"plan": {**plan, "seed": -1}}, "seed"),
        ({"weights": [[0, "AAAA"]]}, "corrupt"),
        ({"weights": [[batch, None] for batch in range(2000)]}, "changes"),
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
        assert "must be the JSON of loader.state_dict()" in client.error("state", text)
    for plan in (
        None,
        [],
        "balanced",
        {},
        {"kind": ["balanced"]},
        {**state["plan"], "classes": -1},
    ):
        assert "state" in client.error("state", json.dumps({**state, "plan": plan}))


# Contents.


def images_of(values, arrays, part):
    """Return the thumbnails of a part."""
    flat, sizes, begin, found = arrays[f"{part}.pixels"], arrays[f"{part}.sizes"], 0, []
    assert values["parts"][part]["kind"] == "image"
    for height, width, channels in sizes.tolist():
        end = begin + height * width * channels
        found.append(flat[begin:end].reshape(height, width, channels))
        begin = end
    assert begin == len(flat)
    return found


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
    ranks = {"world_size": 3, "mode": mode, "rank": rank}
    options = {"image_size": (24, 32), "crop": crop, "views": views, "select": "photo"}
    with covey.open(birds, split="train") as dataset:
        loader = dataset.batches(4, 9, seed=2, flip=flip, threads=0, **options, **ranks)
        x, _ = loader.batch(step)
    expected = [x] if views == 1 else list(x)
    asked = {**options, **ranks, "image_size": "24x32", "flip": int(flip), "step": step}
    asked |= {"classes_per_batch": 4, "examples_per_class": 9, "seed": 2}
    values, arrays, _ = pictures.columns("batch/x", **asked)
    assert values["total"] == values["rows"] == len(expected[0])
    assert len(values["parts"]) == views
    for part, pixels in enumerate(expected):
        assert np.array_equal(np.stack(images_of(values, arrays, part)), pixels)
    row = step % len(expected[0])
    status, png, headers = pictures.raw("batch/image", **asked, row=row, view=views - 1)
    assert (status, headers["Content-Type"]) == (200, "image/png")
    assert np.array_equal(np.asarray(Pillow.open(BytesIO(png))), expected[-1][row])
    part, some, _ = pictures.columns("batch/x", **asked, first=2, rows=3)
    assert part["rows"] == min(3, len(expected[0]) - 2)
    assert np.array_equal(np.stack(images_of(part, some, 0)), expected[0][2:5])


def test_images_of_different_sizes(pictures):
    asked = {"classes_per_batch": 6, "examples_per_class": 4, "select": "photo"}
    values, arrays, _ = pictures.columns("batch/x", **asked)
    assert "different sizes" in values["error"]
    assert not arrays
    values, arrays, _ = pictures.columns("batch/x", **asked, image_size="ragged")
    sizes = {each.shape for each in images_of(values, arrays, 0)}
    assert len(sizes) > 1
    assert max(max(each) for each in sizes) == 128


def test_values_that_are_not_images(pictures, birds):
    asked = {"classes_per_batch": 3, "examples_per_class": 2, "step": 5}
    with covey.open(birds, split="train") as dataset:
        x, _ = dataset.batches(3, 2, select="curve", threads=0).batch(5)
        captions, _ = dataset.batches(3, 2, select="caption", threads=0).batch(5)
    values, arrays, _ = pictures.columns("batch/x", **asked, select="curve")
    assert values["parts"][0]["shape"] == [64]
    assert np.array_equal(arrays["0.plots"].reshape(6, 64), x)
    values, _, _ = pictures.columns("batch/x", **asked, select="caption")
    assert values["parts"][0]["texts"] == [str(each) for each in captions]
    values, _, _ = pictures.columns("batch/x", **asked, select="all", image_size=16)
    assert {part["name"] for part in values["parts"]} >= {"photo", "caption", "curve", "notes"}


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
        ({"rows": 10**9}, "rows"),
        ({"classes_per_batch": 100}, "classes_per_batch"),
    ],
)
def test_invalid_load_options(pictures, parameters, expected):
    assert expected in pictures.error("batch/x", **parameters)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [({"select": "nothing"}, "nothing"), ({"select": "caption", "flip": 1}, "decoded image")],
)
def test_errors_of_the_loader_are_answers(pictures, parameters, expected):
    values, _, _ = pictures.columns("batch/x", **parameters)
    assert expected in values["error"]


def test_errors_of_hooks_are_answers(birds):
    def fail(x, y):
        raise ValueError("from the hook")

    with covey.open(birds, split="train") as dataset:
        loader = dataset.batches(2, 2, select="eggs", batch_transform=fail, threads=0)
        with View(Session.of_dataset(dataset, loader)) as view:
            values, _, _ = Client(view).columns("batch/x")
    assert "from the hook" in values["error"]


def test_rows_and_views_that_do_not_exist(pictures):
    asked = {"classes_per_batch": 2, "examples_per_class": 2, "image_size": 8, "select": "photo"}
    for wrong in ({"row": 4}, {"row": 0, "view": 1}):
        assert pictures.raw("batch/image", **asked, **wrong)[0] == 404
    text = {**asked, "select": "caption", "image_size": None}
    assert pictures.raw("batch/image", **text, row=0)[0] == 415
    values, _, _ = pictures.columns("batch/x", **asked, first=4)
    assert values["rows"] == 0


def test_a_fixed_response_has_a_tag(pictures):
    asked = {"classes_per_batch": 2, "image_size": 8, "select": "photo"}
    _, _, headers = pictures.columns("batch/x", **asked)
    assert headers["ETag"]


def test_a_corrupt_record_does_not_hide_the_others(birds, tmp_path):
    path = write_corrupt(birds, tmp_path / "corrupt")
    with View(Session.of_path(path, split="train")) as view:
        client = Client(view)
        asked = {"plan": "sequential", "batch_size": 8, "image_size": 16, "select": "photo"}
        values, arrays, _ = client.columns("batch/x", **asked)
        assert [each["row"] for each in values["errors"]] == [3]
        sizes = [each.shape[0] for each in images_of(values, arrays, 0)]
        assert sizes == [16, 16, 16, 0, 16, 16, 16, 16]
        assert client.raw("batch/image", **asked, row=3)[0] == 422
        assert client.raw("batch/image", **asked, row=4)[0] == 200


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
            shown = client.get("batch", step=9, classes_per_batch=2, seed=1)
            assert ids_of(shown["ranks"][0]) == loader.plan.batch(9).tolist()
            values, arrays, headers = client.columns("batch/x", step=9, image_size=8)
            x, _ = loader.batch(9)
            part = values["parts"][0]
            assert (part["shape"], part["dtype"]) == ([4, 6, 3], "float32")
            assert (part["low"], part["high"]) == pytest.approx((x.min(), x.max()))
            assert len(images_of(values, arrays, 0)) == 12
            assert headers["ETag"] is None
            ranks = client.get("batch", step=9, world_size=2)["ranks"]
            assert ids_of(ranks[1]) == loader.plan.for_rank(1, 2).batch(9).tolist()
            loader.seek(77)
            found = client.get("state", json.dumps(loader.state_dict()))
            assert found["parameters"] == {"step": 77}
            state = loader.state_dict()
            loader.set_class_weights(None)
            changed = client.get("batch", step=500)
            assert ids_of(changed["ranks"][0]) == loader.plan.batch(500).tolist()
            found = paste(client, state)
            other = dataset.batches(4, 3, seed=6, threads=0, select="photo", image_size=8)
            other.load_state_dict(state)
            shown = client.get("batch", **{**found, "step": 500})
            assert ids_of(shown["ranks"][0]) == other.plan.batch(500).tolist()


def test_hooks_of_whole_batches(birds):
    def double(x, y, examples_per_class, is_warmup):
        return np.concatenate([x, 255 - x]), np.concatenate([y, y])

    with covey.open(birds, split="train") as dataset:
        loader = dataset.batches(2, 2, select="photo", image_size=16, augmenter=double, threads=0)
        with View(Session.of_dataset(dataset, loader)) as view:
            values, arrays, _ = Client(view).columns("batch/x", step=3)
        x, _ = loader.batch(3)
        assert (values["total"], values["is_aligned"]) == (8, False)
        assert np.array_equal(np.stack(images_of(values, arrays, 0)), x)


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
        plans, loader, splits = PlanCache(), None, ("train",)

        def __len__(self):
            return count

        def dataset(self, query):
            return self

    tracemalloc.start()
    try:
        shown = find_plan(Examples(), Query("classes_per_batch=32&examples_per_class=4"))
        drawn = shown.draw(10**12, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(drawn.ids) == 128
    assert peak < 8 << 20


def test_options_are_a_key(ds):
    query = Query("seed=1&classes_per_batch=4")
    assert PlanOptions.parse(query, ds) == PlanOptions.parse(query, ds)
    assert len({PlanOptions.parse(Query(f"seed={seed}"), ds) for seed in (1, 2, 2)}) == 2


def test_a_plan_does_not_change_the_filters_of_warnings(ds):
    """Filters of warnings are those of the process: another thread may change them meanwhile."""
    before, seen = warnings.filters[:], []

    def make():
        seen.append(warnings.filters[:])
        return PlanOptions.parse(Query("examples_per_class=9"), ds).make(ds)

    plan, messages = make_quietly(make)
    assert isinstance(plan, BalancedPlan)
    assert len(messages) == 1
    assert "fewer than 9 examples" in messages[0]
    assert seen == [before]
    with pytest.warns(SmallClassesWarning):
        make()


def test_requests_in_parallel_do_not_disable_warnings(ds):
    session = Session.of_dataset(ds)
    before = warnings.filters[:]
    threads = [
        threading.Thread(
            target=find_plan, args=(session, Query(f"seed={seed}&examples_per_class=9"))
        )
        for seed in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before
