"""The DataLoader of a loader in trainers: Lightning and accelerate. Ranks: test_two_ranks."""

import pytest
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from pytorch_lightning.callbacks import ModelCheckpoint
from torch_data import STEPS, epoch, load, read
from trainers import Recorder, new_trainer

# Trainers warn about the machine, and use what PyTorch calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore")


def fit(directory, loader, checkpoint=None, callbacks=(), **options):
    """Return the batches that Lightning trains on."""
    trainer = new_trainer(
        directory,
        callbacks=list(callbacks),
        enable_checkpointing=bool(callbacks),
        **{"max_epochs": 3, **options},
    )
    model = Recorder()
    trainer.fit(model, loader.to_torch(), ckpt_path=checkpoint, weights_only=False)
    return model.seen


def test_lightning(ds, tmp_path):
    loader, valid = load(ds), load(ds, seed=1)
    model = Recorder()
    trainer = new_trainer(tmp_path, max_epochs=2, num_sanity_val_steps=0)
    trainer.fit(model, loader.to_torch(), valid.to_torch())
    assert model.seen == loader.plan.batches(0, 2 * STEPS).tolist()
    assert model.validated == valid.plan.batches(0, 2 * STEPS).tolist()
    assert loader.epoch == 2


def test_resume_with_lightning(ds, tmp_path):
    plan = load(ds).plan
    saved = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    assert fit(tmp_path, load(ds), callbacks=[saved], max_epochs=2) == [
        *epoch(plan, 0),
        *epoch(plan, 1),
    ]
    for step in (3, STEPS, STEPS + 2):
        found = fit(tmp_path, load(ds), tmp_path / f"step={step}.ckpt")
        assert found == plan.batches(step, 3 * STEPS).tolist()


@pytest.fixture(params=[False, True], ids=["DataLoader", "StatefulDataLoader"])
def accelerator(request):
    config = DataLoaderConfiguration(use_stateful_dataloader=request.param)
    return lambda: Accelerator(cpu=True, dataloader_config=config)


def test_accelerate(ds, accelerator):
    loader = load(ds)
    batches = accelerator().prepare(loader.to_torch())
    assert len(batches) == STEPS
    for number in (0, 1):
        assert read(batches) == epoch(loader.plan, number)
    assert loader.epoch == 2
    batches.set_epoch(5)
    assert read(batches) == epoch(loader.plan, 5)


def test_resume_with_accelerate(ds, accelerator, tmp_path):
    plan = load(ds).plan
    first, second = accelerator(), accelerator()
    batches, resumed = (each.prepare(load(ds).to_torch()) for each in (first, second))
    read(batches)
    iterator = iter(batches)
    for _ in range(3):
        next(iterator)
    first.save_state(tmp_path / "state")
    second.load_state(tmp_path / "state")
    resumed.set_epoch(1)
    if not second.use_stateful_dataloader:
        resumed = second.skip_first_batches(resumed, 3)
    assert read(resumed) == epoch(plan, 1)[3:]
