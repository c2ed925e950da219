"""The number of buckets follows from the size of the source, and changes no byte of the result."""

import numpy as np
import pytest
from engines import ThreadPool, digests

import covey
from covey import ClassLabel, Features, Tensor
from covey._progress import Progress
from covey.engines.pools import Here
from covey.errors import FeatureError
from covey.shuffle.keys import RecordOrder, make_rows
from covey.shuffle.runs import HASH_BITS, MAX_HASH_BITS, make_table
from covey.writing.encode import ItemEncoder
from covey.writing.input_types import normalize_input
from covey.writing.inputs import Input
from covey.writing.job import WriteJob
from covey.writing.options import WriteOptions, WriteSchema
from covey.writing.pieces import Piece
from covey.writing.scratch import Scratch
from covey.writing.split_writer import stage_split
from covey.writing.stages import MapContext, map_piece
from covey.writing.write_steps import resolve_schema, write_ordered

EXAMPLES = [
    {"x": np.arange(i % 5), "name": f"row {i}", "label": f"class {i % 7}"} for i in range(900)
]


def write(path, bits, **options):
    """Write the examples as three pieces, with this number of bits."""
    options = WriteOptions(split="train", label="label", **options)
    source = normalize_input(EXAMPLES)
    progress = Progress(False, None, "reading")
    with stage_split(str(path), options) as writer, ThreadPool(2) as pool:
        schema = resolve_schema(options, source, writer.targets, writer.known_schema())
        directory = writer.staging.path
        job = WriteJob(
            pool, options, schema, [source], source, directory, progress, pieces=3, bits=bits
        )
        write_ordered(writer, job, job.run(), [source])


@pytest.mark.parametrize(
    "options", [{"shards": 4}, {"shard_bytes": 3000}, {"shards": 3, "memory_limit": 1 << 14}]
)
def test_bits_do_not_change_the_result(tmp_path, options):
    covey.write(EXAMPLES, tmp_path / "local" / "birds", label="label", progress=False, **options)
    expected = digests(tmp_path / "local")
    for bits in (1, HASH_BITS, 16):
        write(tmp_path / str(bits) / "birds", bits, **options)
        assert digests(tmp_path / str(bits)) == expected


@pytest.mark.parametrize(
    ("size", "bits"),
    [(0, HASH_BITS), (1 << 36, 12), (1 << 37, 13), (1 << 40, 16), (1 << 43, MAX_HASH_BITS)],
)
def test_bits_follow_from_the_size_of_the_files(tmp_path, size, bits):
    halves = []
    for name in ("a", "b"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(size // 2)  # a sparse file
        halves.append(Input(path=str(tmp_path / name), number=len(halves)))
    joined = Input(sources=tuple(halves))
    with ThreadPool(1) as pool:
        job = WriteJob(
            pool,
            WriteOptions(split="train"),
            WriteSchema(),
            [joined],
            joined,
            tmp_path,
            Progress(False, None, "reading"),
        )
        assert job.context().bits == bits


@pytest.mark.parametrize(
    ("order", "records"),
    [
        (RecordOrder(by="position"), 256),
        (RecordOrder(by_class=True, by="position"), 4096),
        (RecordOrder(by_class=True), 700),
        (RecordOrder(), 100),
    ],
)
def test_a_bucket_is_a_small_part_of_the_records(order, records):
    """A task reads at least one bucket at a time, whose size limits its memory."""
    positions = np.arange(100_000, dtype=np.uint64)
    rows = make_rows(positions, np.full(len(positions), 50_000, np.uint64), None, seed=0)
    table = make_table(rows[order.sort(rows)], order)
    assert table["records"].max() <= records
    assert table["records"].sum() == len(rows)


@pytest.mark.parametrize("key", [None, "name"])
def test_blocks_of_columns_with_declared_features(tmp_path, monkeypatch, key):
    """They are encoded as columns, with the records and rows of the same examples."""
    kinds = {
        "name": "str",
        "x": Tensor("float64", (2,)),
        "y": "int8",
        "label": ClassLabel(["a", "b"]),
    }
    features = Features(kinds).with_defaults({"y": 7})
    columns = {
        "name": [f"row {i}" for i in range(300)],
        "x": np.arange(600.0).reshape(300, 2),
        "y": [None if i % 3 else i % 100 for i in range(300)],
        "label": ["ab"[i % 2] for i in range(300)],
    }
    options = WriteOptions(split="train", features=features, label="label", key=key)
    schema = WriteSchema(features=features, label="label")
    scratch = Scratch(str(tmp_path))
    context = MapContext(options, schema, None, None, (), scratch, HASH_BITS, in_memory=True)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def records(payload):
        if isinstance(payload, dict):
            objects = {name: each for name, each in payload.items() if isinstance(each, list)}
            payload = payload | {name: np.array(each, object) for name, each in objects.items()}
        piece = Piece(0, 0, 1 << 16, None, payload=payload)
        (group,) = map_piece(Here(context), piece).groups
        (run,) = group.runs
        return group.kind, run.sorted.copy().data.tobytes(), run.sorted.rows.tobytes()

    expected = records(normalize_input(rows))
    with pytest.raises(FeatureError, match="'c'") as caught:
        records({**columns, "label": ["c", *columns["label"][1:]]})
    assert (caught.value.example, caught.value.feature) == (0, "label")
    monkeypatch.delattr(ItemEncoder, "encode")
    assert records(columns) == expected
