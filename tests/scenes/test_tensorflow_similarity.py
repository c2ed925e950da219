"""Code that was written for versions 0.14 to 0.17 of TensorFlow Similarity."""

import numpy as np
from sampled import run

# The minimal example of the README of TensorFlow Similarity, with less data and fewer filters.
QUICKSTART = """
import json
import sys

import matplotlib
import numpy as np

matplotlib.use("agg")
import covey
from covey.samplers import TFDatasetMultiShotMemorySampler

random = np.random.default_rng(1)
digits = np.eye(10, dtype=np.uint8).repeat(30, 0).reshape(300, 1, 10, 1) * np.uint8(200)
images = digits.repeat(10, 1) + random.integers(0, 50, (300, 10, 10, 1), np.uint8)
covey.write({"image": images, "label": np.arange(300) // 30}, sys.argv[1], split="train",
            label="label", progress=False)

sampler = TFDatasetMultiShotMemorySampler(
    dataset_name=sys.argv[1], splits="train", classes_per_batch=10,
    steps_per_epoch=20)

from tensorflow.keras import layers
from tensorflow_similarity.layers import MetricEmbedding
from tensorflow_similarity.models import SimilarityModel

inputs = layers.Input(shape=(10, 10, 1))
x = layers.Rescaling(1 / 255)(inputs)
x = layers.Conv2D(4, 3, activation="relu")(x)
x = layers.Flatten()(x)
x = layers.Dense(64, activation="relu")(x)
outputs = MetricEmbedding(64)(x)
model = SimilarityModel(inputs, outputs)

from tensorflow_similarity.losses import MultiSimilarityLoss

model.compile("adam", loss=MultiSimilarityLoss())
history = model.fit(sampler, epochs=5, verbose=0)

from tensorflow_similarity.visualization import viz_neigbors_imgs

sx, sy = sampler.get_slice(0, 100)
model.index(x=sx, y=sy, data=sx)
qx, qy = sampler.get_slice(213, 1)
nns = model.single_lookup(qx[0])
viz_neigbors_imgs(qx[0], qy[0], nns, show=False)
print(json.dumps({
    "losses": history.history["loss"],
    "epoch": sampler.epoch,
    "label": int(qy[0]),
    "neighbours": [int(each.label) for each in nns],
}))
"""


def test_quickstart(tmp_path):
    script = tmp_path / "quickstart.py"
    script.write_text(QUICKSTART)
    found = run(script, tmp_path / "digits", TF_USE_LEGACY_KERAS="1")
    assert len(found["losses"]) == found["epoch"] == 5
    assert np.isfinite(found["losses"]).all()
    assert found["neighbours"] == [found["label"]] * 5
