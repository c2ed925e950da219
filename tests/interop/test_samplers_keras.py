"""Samplers in ``keras.Model.fit``, with each of its backends, in processes of their own."""

import pytest
from sampled import run

BACKENDS = ["tensorflow", "torch", "jax"]

# Before Keras is imported, its backend must be chosen: everything about one is done in one process.
TRAINING = """
import json

import keras
import numpy as np
from sampled import planned, twice

from covey.samplers import MultiShotMemorySampler, SingleShotMemorySampler

BACKEND = keras.backend.backend()
COUNT, STEPS, EPOCHS = 60, 7, 3
X, Y = np.arange(COUNT, dtype=np.float32)[:, None], np.arange(COUNT) % 10
WORKERS = {
    "alone": {},
    "threads": {"workers": 2},
    "processes": {"workers": 2, "use_multiprocessing": True},
}
FEW = ["alone", "threads"]


class Watching(keras.Model):
    '''Remembers the batches that it is trained and tested with.'''

    def __init__(self, is_built=True):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.batches, self.tested = [], []
        self.compile(loss="mse", optimizer="sgd", run_eagerly=True)
        if is_built:  # with its loss and optimizer, which need a batch
            self.fit(X[:1], Y[:1], verbose=0)
            self.evaluate(X[:1], Y[:1], verbose=0)
            self.batches, self.tested = [], []

    def call(self, x):
        return self.dense(x) * 0 + x

    def note(self, batches, given):
        x, y = (keras.ops.convert_to_numpy(each) for each in given[-1][:2])
        batches.append((np.rint(x[:, 0]).astype(int).tolist(), y.reshape(-1).tolist()))
        logs = {"loss": 0.0}
        return (logs, given[0]) if BACKEND == "jax" else logs

    def train_step(self, *given):
        return self.note(self.batches, given)

    def test_step(self, *given):
        return self.note(self.tested, given)

    @property
    def seen(self):
        return [x for x, _ in self.batches]


def sampler(**options):
    return MultiShotMemorySampler(X, Y, 3, 2, STEPS, seed=3, **options)


def fit(model, given, **options):
    return model.fit(given, verbose=0, **{"epochs": EPOCHS, "shuffle": False, **options})


def epochs_trained(is_built, how):
    given, model = sampler(**WORKERS[how]), Watching(is_built)
    fit(model, given)
    return {
        "seen": model.seen,
        "planned": planned(given, range(STEPS * (EPOCHS + 1))),
        "labels": all(y == [n % 10 for n in x] for x, y in model.batches),
        "epoch": given.epoch,
    }


def shuffled(how):
    given, model = sampler(**WORKERS[how]), Watching()
    fit(model, given, shuffle=True)
    parts = [range(first, first + STEPS) for first in range(0, STEPS * EPOCHS, STEPS)]
    return [
        [sorted(model.seen[part.start:part.stop]) for part in parts],
        [sorted(planned(given, part)) for part in parts],
    ]


def went_on():
    given, model = sampler(workers=2), Watching()
    fit(model, given, epochs=1)
    fit(model, given, epochs=1)
    given.epoch = 9
    fit(model, given, epochs=2)
    steps = [*range(2 * STEPS), *range(9 * STEPS, 11 * STEPS)]
    return [model.seen, [planned(given, range(s, s + 1))[0] for s in steps], given.epoch]


def validated():
    given, valid, model = sampler(), sampler(workers=2), Watching()
    fit(model, given, validation_data=valid)
    steps = range(STEPS * EPOCHS)
    tested = [x for x, _ in model.tested]
    return {
        "trained": model.seen == planned(given, steps),
        "tested": tested == planned(valid, steps),
        "epochs": [given.epoch, valid.epoch],
    }


def validated_by_some():
    given, valid, model = sampler(), sampler(), Watching()
    fit(model, given, validation_data=valid, validation_steps=3)
    steps = [epoch * STEPS + batch for epoch in range(EPOCHS) for batch in range(3)]
    return [[x for x, _ in model.tested], [planned(valid, range(s, s + 1))[0] for s in steps]]


def evaluated(how):
    given, model = sampler(**WORKERS[how]), Watching(how != "alone")
    model.evaluate(given, verbose=0)
    return [[x for x, _ in model.tested], planned(given, range(STEPS)), given.epoch]


def predicted(how):
    given, model = sampler(**WORKERS[how]), Watching(how != "alone")
    found = model.predict(given, verbose=0)
    expected = np.concatenate(planned(given, range(STEPS))).tolist()
    return [np.rint(found[:, 0]).astype(int).tolist(), expected, given.epoch]


def warmed_up(how):
    def augment(x, y, count, is_warmup):
        return x, np.full(len(x), float(is_warmup))

    given, model = sampler(augmenter=augment, warmup=2, **WORKERS[how]), Watching(how != "alone")
    fit(model, given, epochs=4)
    told = [y[0] for _, y in model.batches]
    return [told[first : first + STEPS] for first in range(0, 4 * STEPS, STEPS)]


class Counting(MultiShotMemorySampler):
    ended = 0

    def on_epoch_end(self):
        self.before = self.epoch
        super().on_epoch_end()
        self.ended += self.epoch - self.before


def overridden(how):
    given, model = Counting(X, Y, 3, 2, STEPS, **WORKERS[how]), Watching(how != "alone")
    fit(model, given)
    return [given.ended, given.epoch, model.seen == planned(given, range(STEPS * EPOCHS))]


def trained_for_real():
    '''The weights that fit comes to, and those that numpy comes to with the same batches.'''
    x = np.random.default_rng(1).random((COUNT, 4)).astype(np.float32)
    given = MultiShotMemorySampler(x, Y, 5, 4, 10, seed=2)
    start = keras.initializers.RandomNormal(seed=5)
    dense = keras.layers.Dense(10, "softmax", kernel_initializer=start)
    model = keras.Sequential([keras.Input((4,)), dense])
    model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy")
    weights, biases = model.get_weights()
    losses = fit(model, given).history["loss"]
    for ids in planned(given, range(30)):
        likely = np.exp(x[ids] @ weights + biases)
        off = likely / likely.sum(1, keepdims=True) - np.eye(10)[Y[ids]]
        weights = weights - 0.5 * x[ids].T @ off / len(ids)
        biases = biases - 0.5 * off.mean(0)
    apart = [np.abs(a - b).max() for a, b in zip(model.get_weights(), (weights, biases))]
    return {"apart": float(max(apart)), "size": float(np.abs(weights).max()), "losses": losses}


def made_larger():
    given, model = SingleShotMemorySampler(X, twice, 4, STEPS), Watching(False)
    fit(model, given)
    return [
        model.seen,
        [[n for n in ids for _ in range(2)] for ids in planned(given, range(STEPS * EPOCHS))],
        given.epoch,
    ]


def failed(how):
    def augment(x, y, count, is_warmup, step):
        if step == 4:
            raise OverflowError("too bright")
        return x, y

    try:
        fit(Watching(), sampler(augmenter=augment, **WORKERS[how]))
    except Exception as error:
        return str(error)


def kinds():
    given = sampler()
    both = (*given[0], *sampler(framework="numpy")[0])
    return {
        "dataset": isinstance(given, keras.utils.PyDataset),
        "framework": given.framework,
        "types": [type(each).__module__.partition(".")[0] for each in both],
        "workers": [sampler(workers=3, max_queue_size=4).workers, given.use_multiprocessing],
    }


print(json.dumps({
    "epochs": {f"{b} {how}": epochs_trained(b, how) for b in (True, False) for how in WORKERS},
    "shuffled": {how: shuffled(how) for how in FEW},
    "went on": went_on(),
    "validated": validated(),
    "validated by some": validated_by_some(),
    "evaluated": {how: evaluated(how) for how in WORKERS},
    "predicted": {how: predicted(how) for how in FEW},
    "warmed up": {how: warmed_up(how) for how in FEW},
    "overridden": {how: overridden(how) for how in FEW},
    "for real": trained_for_real(),
    "larger": made_larger(),
    "failed": {how: failed(how) for how in WORKERS},
    "kinds": kinds(),
}))
"""

WORKERS = ["alone", "threads", "processes"]
FEW = ["alone", "threads"]


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture(scope="module")
def found(backend):
    return run(TRAINING, KERAS_BACKEND=backend)


def test_samplers_are_datasets_of_keras_with_tensors_of_its_backend(found, backend):
    kinds = found["kinds"]
    assert kinds["dataset"]
    assert kinds["framework"] == backend
    mine = {"jax": "jaxlib"}.get(backend, backend)
    assert kinds["types"] == [mine, mine, "numpy", "numpy"]
    assert kinds["workers"] == [3, False]


@pytest.mark.parametrize(("is_built", "how"), [*((True, how) for how in WORKERS), (False, "alone")])
def test_fit_trains_on_exactly_the_batches_of_its_epochs(found, is_built, how):
    trained = found["epochs"][f"{is_built} {how}"]
    assert trained["seen"] == trained["planned"][:21]
    assert trained["labels"]
    assert trained["epoch"] == 3


@pytest.mark.parametrize("how", ["threads", "processes"])
def test_fit_of_an_unbuilt_model_repeats_no_batch_that_workers_prefetched(found, how):
    trained = found["epochs"][f"False {how}"]
    positions = [trained["planned"].index(ids) for ids in trained["seen"]]
    assert positions == sorted(set(positions))
    assert trained["labels"]
    assert trained["epoch"] in (3, 4)


@pytest.mark.parametrize("how", FEW)
def test_fit_that_shuffles_trains_on_the_batches_of_each_epoch_in_it(found, how):
    seen, planned = found["shuffled"][how]
    assert seen == planned


def test_another_fit_goes_on_and_so_does_one_whose_epoch_was_set(found):
    seen, planned, epoch = found["went on"]
    assert seen == planned
    assert epoch == 11


def test_a_sampler_validates_while_another_trains(found):
    assert found["validated"] == {"trained": True, "tested": True, "epochs": [3, 3]}


def test_some_batches_of_each_epoch_validate(found):
    seen, planned = found["validated by some"]
    assert seen == planned


@pytest.mark.parametrize("how", WORKERS)
def test_evaluate_takes_an_epoch(found, how):
    seen, planned, epoch = found["evaluated"][how]
    assert seen == planned
    assert epoch == 1


@pytest.mark.parametrize("how", FEW)
def test_predict_takes_an_epoch_in_order(found, how):
    seen, planned, epoch = found["predicted"][how]
    assert seen == planned
    assert epoch == 1


@pytest.mark.parametrize("how", FEW)
def test_the_warm_up_ends_after_so_many_epochs_of_fit(found, how):
    assert found["warmed up"][how] == [[1.0] * 7, [1.0] * 7, [0.0] * 7, [0.0] * 7]


@pytest.mark.parametrize("how", FEW)
def test_an_own_on_epoch_end_that_calls_the_other_counts_as_well(found, how):
    assert found["overridden"][how] == [3, 3, True]


def test_fit_comes_to_the_weights_that_numpy_comes_to(found):
    trained = found["for real"]
    assert trained["apart"] < 1e-4 < trained["size"]
    assert trained["losses"][-1] < trained["losses"][0]


def test_augmenters_that_make_batches_larger_work_in_fit(found):
    seen, planned, epoch = found["larger"]
    assert seen == planned
    assert epoch == 3


@pytest.mark.parametrize("how", WORKERS)
def test_an_error_of_an_augmenter_ends_fit(found, how):
    assert "too bright" in found["failed"][how]
