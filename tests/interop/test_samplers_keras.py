"""Samplers in ``keras.Model.fit``, with each backend of Keras."""

import pytest
from sampled import run

BACKENDS = ["tensorflow", "torch", "jax"]
STEPS = 6


def split(batches):
    """Return the batches of each epoch."""
    return [batches[first : first + STEPS] for first in range(0, len(batches), STEPS)]


# The backend is chosen before Keras is imported, so that each has a process.
TRAINING = """
import json
import os
import random
import threading

import keras
import numpy as np
from sampled import planned

from covey.samplers import MultiShotMemorySampler

BACKEND = keras.backend.backend()
COUNT, STEPS, EPOCHS = 60, 6, 3
PROCESS = os.getpid()
X, Y = np.arange(COUNT, dtype=np.float32)[:, None], np.arange(COUNT) % 10
WORKERS = {
    "plain": {},
    "threads": {"workers": 2},
    "processes": {"workers": 2, "use_multiprocessing": True},
}


class Recorder(keras.Model):
    '''A model that records the batches of training and of evaluation.'''

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

    def record(self, batches, arguments):
        x, y = (keras.ops.convert_to_numpy(each) for each in arguments[-1][:2])
        batches.append((np.rint(x[:, 0]).astype(int).tolist(), y.reshape(-1).tolist()))
        logs = {"loss": 0.0}
        return (logs, arguments[0]) if BACKEND == "jax" else logs

    def train_step(self, *arguments):
        return self.record(self.batches, arguments)

    def test_step(self, *arguments):
        return self.record(self.tested, arguments)

    @property
    def seen(self):
        return [x for x, _ in self.batches]


def sampler(**options):
    return MultiShotMemorySampler(X, Y, 3, 2, STEPS, seed=3, **{"augmenter": mark, **options})


def mark(x, y, count, is_warmup):
    return x, y + 100 * is_warmup


def fit(model, given, **options):
    return model.fit(given, verbose=0, **{"epochs": EPOCHS, "shuffle": False, **options})


def record(how, is_built, shuffle):
    '''Return the batches of each epoch: of fit, of fit after it, and between evaluations.'''
    given, other, model = sampler(warmup=4, **WORKERS[how]), sampler(), Recorder(is_built)
    fit(model, given, shuffle=shuffle)
    fit(model, given, shuffle=shuffle, epochs=1)
    model.evaluate(other, verbose=0)
    fit(model, given, shuffle=shuffle, epochs=2, validation_data=other)
    model.evaluate(other, verbose=0)
    given.epoch = 9
    fit(model, given, shuffle=shuffle, epochs=1)
    return {
        "seen": model.seen,
        "planned": planned(given, [*range(6 * STEPS), *range(9 * STEPS, 10 * STEPS)]),
        "warmup": [y[0] >= 100 for _, y in model.batches],
        "labels": all(y[0] % 100 == x[0] % 10 for x, y in model.batches),
        "epochs": [given.epoch, other.epoch],
        "evaluated": [x for x, _ in model.tested] == planned(other, range(4 * STEPS)),
    }


def evaluate(how):
    '''Evaluate with the training data: it counts as an epoch, as in Keras 2.'''
    given, model = sampler(**WORKERS[how]), Recorder(how != "plain")
    model.evaluate(given, verbose=0)
    fit(model, given, epochs=1, validation_data=given)
    found = model.predict(given, verbose=0)
    return [
        [x for x, _ in model.tested] + model.seen,
        planned(given, [*range(STEPS), *range(2 * STEPS, 3 * STEPS), *range(STEPS, 2 * STEPS)]),
        np.rint(found[:, 0]).astype(int).tolist(),
        np.concatenate(planned(given, range(3 * STEPS, 4 * STEPS))).tolist(),
        given.epoch,
    ]


def makers(how, shuffle):
    '''Return what made each batch: 0 the caller, 1 a thread, 2 a process.'''
    def identify(x, y, count, is_warmup):
        is_thread = threading.current_thread().name.startswith("covey-sampler")
        return x, np.full(len(y), 2 if os.getpid() != PROCESS else int(is_thread))

    given, model = sampler(augmenter=identify, **WORKERS[how]), Recorder()
    random.seed(1)  # Keras shuffles with this module
    fit(model, given, shuffle=shuffle, epochs=1)
    return [y[0] for _, y in model.batches]


def fit_half_epochs(how):
    given, model = sampler(**WORKERS[how]), Recorder()
    fit(model, given, epochs=4, steps_per_epoch=STEPS // 2)
    return [model.seen, planned(given, range(2 * STEPS)), given.epoch]


def fail(how):
    def augment(x, y, count, is_warmup, step):
        if step == 4:
            raise OverflowError("too bright")
        return x, y

    try:
        fit(Recorder(), sampler(augmenter=augment, **WORKERS[how]))
    except Exception as error:
        return str(error)


def types():
    given = sampler()
    both = (*given[0], *sampler(framework="numpy")[0])
    return {
        "dataset": isinstance(given, keras.utils.PyDataset),
        "framework": given.framework,
        "types": [type(each).__module__.partition(".")[0] for each in both],
        "workers": [sampler(workers=3).prefetch_workers, given.use_multiprocessing],
    }


CASES = [(how, is_built, shuffle) for how in WORKERS
         for is_built, shuffle in ((False, False), (True, True))]
print(json.dumps({
    "record": {" ".join(map(str, case)): record(*case) for case in CASES},
    "evaluate": {how: evaluate(how) for how in WORKERS},
    "makers": {f"{how} {shuffle}": makers(how, shuffle)
               for how in WORKERS for shuffle in (True, False)},
    "half": {how: fit_half_epochs(how) for how in WORKERS},
    "fail": {how: fail(how) for how in WORKERS},
    "types": types(),
}))
"""


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture(scope="module")
def found(backend):
    return run(TRAINING, KERAS_BACKEND=backend)


def test_batches_are_tensors_of_the_backend(found, backend):
    tensor = {"jax": "jaxlib"}.get(backend, backend)
    assert found["types"] == {
        "dataset": True,
        "framework": backend,
        "types": [tensor, tensor, "numpy", "numpy"],
        "workers": [3, False],
    }


@pytest.mark.parametrize(("is_built", "shuffle"), [(False, False), (True, True)])
@pytest.mark.parametrize("how", ["plain", "threads", "processes"])
def test_every_epoch_has_the_batches_of_the_plan(found, how, is_built, shuffle):
    recorded = found["record"][f"{how} {is_built} {shuffle}"]
    seen, planned = recorded["seen"], recorded["planned"]
    if shuffle:
        assert seen != planned
        assert list(map(sorted, split(seen))) == list(map(sorted, split(planned)))
    else:
        assert seen == planned
    assert recorded["warmup"] == [True] * 4 * STEPS + [False] * 3 * STEPS
    assert recorded["epochs"] == [10, 4]
    assert recorded["labels"]
    assert recorded["evaluated"]


@pytest.mark.parametrize("how", ["plain", "threads", "processes"])
def test_evaluation_with_the_training_data_counts_as_an_epoch(found, how):
    seen, planned, predicted, expected, epoch = found["evaluate"][how]
    assert seen == planned
    assert predicted == expected
    assert epoch == 4


@pytest.mark.parametrize("shuffle", [False, True])
def test_workers_make_all_batches(found, shuffle):
    made = [found["makers"][f"{how} {shuffle}"] for how in ("plain", "threads", "processes")]
    assert made == [[maker] * STEPS for maker in (0, 1, 2)]


@pytest.mark.parametrize("how", ["plain", "threads", "processes"])
def test_epochs_of_several_calls_with_fewer_steps(found, how):
    seen, planned, epoch = found["half"][how]
    assert seen == planned
    assert epoch == 2


@pytest.mark.parametrize("how", ["plain", "threads", "processes"])
def test_an_error_of_the_augmenter_ends_fit(found, how):
    assert "too bright" in found["fail"][how]


# Keras 2, with covey imported before and after it.
KERAS_2 = """
import json
import multiprocessing
import os
import sys

if not os.environ.get("TF_USE_LEGACY_KERAS"):
    import tf_keras
import queue
import numpy as np
from sampled import planned

from covey.samplers import MultiShotMemorySampler

X, Y = np.arange(60, dtype=np.float32)[:, None], np.arange(60) % 10
WORKERS = {
    "plain": {},
    "threads": {"workers": 2},
    "processes": {"workers": 2, "use_multiprocessing": True},
}


def bases(sampler):
    return [each.__module__.split(".")[0] for each in type(sampler).__mro__]


def train(model, options):
    sampler = MultiShotMemorySampler(X, Y, 3, 2, 7, seed=3)
    model.batches.clear()
    # Threads of Keras 2 may end an epoch twice, and processes end none: it is set.
    callback = tf_keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: setattr(sampler, "epoch", epoch)
    )
    model.fit(sampler, epochs=3, shuffle=False, verbose=0, callbacks=[callback], **options)
    fitted, expected = [*model.batches], planned(sampler, range(21))
    model.batches.clear()
    model.evaluate(sampler, verbose=0, **options)
    evaluated = len(model.batches) == 7
    if not options:  # without a callback
        sampler.epoch = 0
        model.batches.clear()
        model.fit(sampler, epochs=2, shuffle=False, verbose=0)
        evaluated &= model.batches == planned(sampler, range(14))
        model.evaluate(sampler, verbose=0)
        evaluated &= sampler.epoch == 3
    return fitted == expected and evaluated


# At the end of each iteration, Keras 2 waits for 5 seconds, and ignores that the queue is empty.
get = queue.Queue.get
queue.Queue.get = lambda self, block=True, timeout=None: get(self, block, timeout and 0.1)

if __name__ == "__main__":
    before = "tf_keras" in sys.modules
    sampler = MultiShotMemorySampler(X, Y, 3)
    import tf_keras

    class Recorder(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.batches = []
            self.compile(run_eagerly=True)

        def train_step(self, data):
            self.batches.append(data[0].numpy()[:, 0].astype(int).tolist())
            return {"loss": 0.0}

        test_step = train_step

    model = Recorder()
    found = {
        "before": before,
        "bases": [bases(sampler)],
        "framework": sampler.framework,
        "train": {how: train(model, WORKERS[how]) for how in sys.argv[1:]},
    }
    if not before:  # a worker imports Keras 2 with the sampler
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found["bases"].append(pool.apply(bases, (sampler,)))
    print(json.dumps(found))
"""


# With the backend torch, importing Keras 3 does not import TensorFlow and Keras 2.
@pytest.mark.parametrize(
    ("legacy", "backend", "workers"),
    [("1", "torch", ["plain"]), ("", "tensorflow", ["plain", "threads", "processes"])],
)
def test_keras_2(legacy, backend, workers, tmp_path):
    script = tmp_path / "keras_2.py"
    script.write_text(KERAS_2)
    found = run(script, *workers, TF_USE_LEGACY_KERAS=legacy, KERAS_BACKEND=backend)
    assert found["before"] == (not legacy)
    assert len(found["bases"]) == 1 + bool(legacy)
    assert all({"keras", "tf_keras"} <= set(bases) for bases in found["bases"])
    assert found["framework"] == "tensorflow"
    assert found["train"] == dict.fromkeys(workers, True)
