"""Samplers in ``keras.Model.fit``, with each backend of Keras."""

import pytest
from sampled import run

BACKENDS = ["tensorflow", "torch", "jax"]

# The backend is chosen before Keras is imported, so that each has a process.
TRAINING = """
import json

import keras
import numpy as np
from sampled import planned, repeat

from covey.samplers import MultiShotMemorySampler, SingleShotMemorySampler

BACKEND = keras.backend.backend()
COUNT, STEPS, EPOCHS = 60, 7, 3
X, Y = np.arange(COUNT, dtype=np.float32)[:, None], np.arange(COUNT) % 10
WORKERS = {
    "alone": {},
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


class Counting(MultiShotMemorySampler):
    ended = 0

    def on_epoch_end(self):
        before = self.epoch
        super().on_epoch_end()
        self.ended += self.epoch - before


def mark_warmup(x, y, count, is_warmup):
    return x, y + 100 * is_warmup


def sampler(**options):
    return Counting(X, Y, 3, 2, STEPS, seed=3, **options)


def fit(model, given, **options):
    return model.fit(given, verbose=0, **{"epochs": EPOCHS, "shuffle": False, **options})


def train(is_built, how):
    given = sampler(augmenter=mark_warmup, warmup=2, **WORKERS[how])
    model = Recorder(is_built)
    fit(model, given)
    return {
        "seen": model.seen,
        "planned": planned(given, range(STEPS * (EPOCHS + 1))),
        "labels": all(y[0] % 100 == x[0] % 10 for x, y in model.batches),
        "warmup": [y[0] >= 100 for _, y in model.batches],
        "epochs": [given.ended, given.epoch],
    }


def train_shuffled():
    given, model = sampler(workers=2), Recorder()
    fit(model, given, shuffle=True)
    parts = [range(first, first + STEPS) for first in range(0, STEPS * EPOCHS, STEPS)]
    return [
        [sorted(model.seen[part.start:part.stop]) for part in parts],
        [sorted(planned(given, part)) for part in parts],
    ]


def train_again():
    given, model = sampler(workers=2), Recorder()
    fit(model, given, epochs=1)
    fit(model, given, epochs=1)
    given.epoch = 9
    fit(model, given, epochs=2)
    steps = [*range(2 * STEPS), *range(9 * STEPS, 11 * STEPS)]
    return [model.seen, [planned(given, range(s, s + 1))[0] for s in steps], given.epoch]


def validate(validation_steps, **options):
    given, valid, model = sampler(), sampler(**options), Recorder()
    fit(model, given, validation_data=valid, validation_steps=validation_steps)
    tested = [x for x, _ in model.tested]
    return [
        model.seen == planned(given, range(STEPS * EPOCHS)),
        tested == planned(valid, range(validation_steps or STEPS)) * EPOCHS,
        [given.epoch, valid.epoch],
    ]


def train_and_evaluate(how):
    '''Evaluate with the training data between and in calls of fit.'''
    given, model = sampler(**WORKERS[how]), Recorder()
    for _ in range(2):
        fit(model, given, epochs=1)
        model.evaluate(given, verbose=0)
        model.predict(given, verbose=0)
    fit(model, given, epochs=2, validation_data=given)
    tested = [x for x, _ in model.tested]
    expected = [planned(given, range(n * STEPS, (n + 1) * STEPS)) for n in range(5)]
    return [
        model.seen == sum(expected[:4], []),
        tested == sum(expected[1:], []),
        given.epoch,
    ]


def evaluate(how):
    given, model = sampler(**WORKERS[how]), Recorder(how != "alone")
    model.evaluate(given, verbose=0)
    return [[x for x, _ in model.tested], planned(given, range(STEPS)), given.epoch]


def predict(how):
    given, model = sampler(**WORKERS[how]), Recorder(how != "alone")
    found = model.predict(given, verbose=0)
    expected = np.concatenate(planned(given, range(STEPS))).tolist()
    return [np.rint(found[:, 0]).astype(int).tolist(), expected, given.epoch]


def learn():
    '''Return the difference between the weights of Keras and of numpy after the same batches.'''
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


def train_single_shot():
    given, model = SingleShotMemorySampler(X, repeat, 4, STEPS), Recorder(False)
    fit(model, given, epochs=1)
    expected = planned(given, range(STEPS))
    return [model.seen, [[n for n in ids for _ in range(2)] for ids in expected]]


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
        "workers": [sampler(workers=3, max_queue_size=4).workers, given.use_multiprocessing],
    }


print(json.dumps({
    "train": {f"{is_built} {how}": train(is_built, how)
              for is_built in (True, False) for how in WORKERS},
    "train shuffled": train_shuffled(),
    "train again": train_again(),
    "validate": [validate(None, workers=2), validate(3)],
    "train and evaluate": {how: train_and_evaluate(how) for how in WORKERS},
    "evaluate": {how: evaluate(how) for how in ("alone", "processes")},
    "predict": {how: predict(how) for how in ("alone", "threads")},
    "learn": learn(),
    "single shot": train_single_shot(),
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


@pytest.mark.parametrize("kind", ["True alone", "True threads", "True processes", "False alone"])
def test_fit(found, kind):
    trained = found["train"][kind]
    assert trained["seen"] == trained["planned"][:21]
    assert trained["labels"]
    assert trained["warmup"] == [True] * 14 + [False] * 7
    assert trained["epochs"] == [3, 3]


@pytest.mark.parametrize("kind", ["False threads", "False processes"])
def test_fit_of_an_unbuilt_model_with_workers_repeats_no_batch(found, kind):
    trained = found["train"][kind]
    positions = [trained["planned"].index(ids) for ids in trained["seen"]]
    assert positions == sorted(set(positions))
    assert trained["labels"]
    assert trained["epochs"] in ([3, 3], [4, 4])


def test_fit_with_shuffle(found):
    seen, planned = found["train shuffled"]
    assert seen == planned


def test_fit_again_and_with_another_epoch(found):
    seen, planned, epoch = found["train again"]
    assert seen == planned
    assert epoch == 11


def test_validation(found):
    assert found["validate"] == [[True, True, [3, 0]], [True, True, [3, 0]]]


@pytest.mark.parametrize("how", ["alone", "threads", "processes"])
def test_evaluation_between_epochs(found, how):
    assert found["train and evaluate"][how] == [True, True, 4]


@pytest.mark.parametrize(
    ("method", "how"), [("evaluate", "alone"), ("evaluate", "processes"), ("predict", "alone"),
                        ("predict", "threads")]
)  # fmt: skip
def test_evaluate_and_predict(found, method, how):
    seen, planned, epoch = found[method][how]
    assert seen == planned
    assert epoch == 0


def test_fit_gives_the_weights_of_numpy(found):
    learned = found["learn"]
    assert learned["apart"] < 1e-4 < learned["size"]
    assert learned["losses"][-1] < learned["losses"][0]


def test_fit_with_an_augmenter_that_adds_examples(found):
    seen, planned = found["single shot"]
    assert seen == planned


@pytest.mark.parametrize("how", ["alone", "threads", "processes"])
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
import numpy as np
from sampled import planned

from covey.samplers import MultiShotMemorySampler

X, Y = np.arange(60, dtype=np.float32)[:, None], np.arange(60) % 10
WORKERS = {
    "alone": {},
    "threads": {"workers": 2},
    "processes": {"workers": 2, "use_multiprocessing": True},
}


def bases(sampler):
    return [each.__module__.split(".")[0] for each in type(sampler).__mro__]


def train(model, options):
    sampler = MultiShotMemorySampler(X, Y, 3, 2, 7, seed=3)
    model.batches.clear()
    model.fit(sampler, shuffle=False, verbose=0, **options)
    fitted, expected = [*model.batches], planned(sampler, range(7))
    model.batches.clear()
    model.evaluate(sampler, verbose=0, **options)
    return fitted == expected and len(model.batches) == 7


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
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = {
            "before": before,
            "bases": bases(sampler),
            "bases in a worker": pool.apply(bases, (sampler,)),
            "framework": sampler.framework,
            "train": {how: train(model, options) for how, options in WORKERS.items()},
        }
    print(json.dumps(found))
"""


# With the backend torch, importing Keras 3 does not import TensorFlow and Keras 2.
@pytest.mark.parametrize(("legacy", "backend"), [("1", "torch"), ("", "tensorflow")])
def test_keras_2(legacy, backend, tmp_path):
    script = tmp_path / "keras_2.py"
    script.write_text(KERAS_2)
    found = run(script, TF_USE_LEGACY_KERAS=legacy, KERAS_BACKEND=backend)
    assert found["before"] == (not legacy)
    for bases in (found["bases"], found["bases in a worker"]):
        assert {"keras", "tf_keras"} <= set(bases)
    assert found["framework"] == "tensorflow"
    assert found["train"] == {"alone": True, "threads": True, "processes": True}
