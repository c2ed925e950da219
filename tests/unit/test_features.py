"""Features: encoding and decoding of examples and columns, and the errors of invalid ones."""

import gc
import pickle
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schemas import datasets, plain, same

from covey import ClassLabel, Features, Image, Ragged, Sparse, Steps, Tensor
from covey.arrays import RaggedArray, SparseArray, StringArray
from covey.errors import ExampleError, FeatureError
from covey.schema.codec import flat_items, row_of

# The header of a GIF of height 4 and width 5.
GIF = b"GIF89a" + bytes([5, 0, 4, 0, 0, 0, 0])


def round_trip(feature, value):
    features = Features({"x": feature})
    return features.decode(features.encode({"x": value}))["x"]


class TestValues:
    @pytest.mark.parametrize(
        ("feature", "value", "expected"),
        [
            ("int64", 5, 5),
            ("int64", True, 1),
            ("int64", np.array(9), 9),
            ("uint64", 2**64 - 1, 2**64 - 1),
            ("float32", 0.5, 0.5),
            ("float32", 3, 3.0),
            ("float16", 0.1, np.float16(0.1)),
            ("float64", 0.1, 0.1),
            (Tensor("float64", encoding="list"), 0.1, np.float64(np.float32(0.1))),
            ("bool", True, True),
            ("bool", 1, True),
            ("str", "wrén", "wrén"),
            ("str", b"wren", "wren"),
            ("bytes", b"\x00\xff", b"\x00\xff"),
            ("bytes", "wren", b"wren"),
            ("bytes", bytearray(b"b"), b"b"),
            ("bytes", np.array(b"np"), b"np"),
        ],
    )
    def test_scalars(self, feature, value, expected):
        assert round_trip(feature, value) == expected

    @pytest.mark.parametrize(
        ("feature", "value"),
        [
            (Tensor("int64", (3,)), [1, 2, 3]),
            (Tensor("int64", (3,)), np.array([1, 0, 2, 0, 3])[::2]),
            (Tensor("int64", (2, 2)), np.array([[1, 3], [2, 4]]).T),
            (Tensor("int32", (2,)), np.array([1, 2], ">i4")),
            (Tensor("float32", (None, 2)), [[1, 2], [3, 4], [5, 6]]),
            (Tensor("float32", (2, None)), [[1, 2, 3], [4, 5, 6]]),
            (Tensor("uint8", (None, None, 3), encoding="bytes"), np.ones((2, 5, 3), np.uint8)),
            (Tensor("str", (2, 2)), [["a", "b"], ["c", "d"]]),
            (Tensor("str", (None,)), np.array(["a", "bc"])),
            (Tensor("bytes", (None,)), []),
            (Tensor("float32", (0,)), []),
            (Ragged("str"), [["a"], [], ["b", "c"]]),
            (Ragged("float32", 3, (2,)), [[[[1, 2]], []], [[[3, 4], [5, 6]]]]),
            (Ragged("str", 2, (2,)), [[["a", "b"]], [], [["c", "d"], ["e", "f"]]]),
            (Tensor("str", (None, 2)), [["a", "b"], ["c", "d"], ["e", "f"]]),
            (Tensor("str", (2, None)), [["a", "b", "c"], ["d", "e", "f"]]),
            (Tensor("str", (None, 2)), np.array([], str)),
            (Tensor("float32", (None, 4)), []),
            (Tensor("uint64", (2,)), [2**64 - 1, 1]),
        ],
    )
    def test_arrays(self, feature, value):
        expected = value.tolist() if hasattr(value, "tolist") else value
        assert round_trip(feature, value).tolist() == expected

    @pytest.mark.parametrize(
        "value",
        [
            SparseArray(np.array([[0, 1], [2, 0]]), np.array([5, 6]), (3, 2)),
            ([[0, 1], [2, 0]], [5, 6]),
            {"indices": [[0, 1], [2, 0]], "values": [5, 6]},
            np.array([[0, 5], [0, 0], [6, 0]]),
        ],
        ids=["array", "pair", "dict", "dense"],
    )
    def test_sparse(self, value):
        found = round_trip(Sparse("int64", (3, 2)), value)
        assert found.to_dense().tolist() == [[0, 5], [0, 0], [6, 0]]

    def test_labels_by_name_and_number(self):
        label = ClassLabel(names=["wren", "owl"])
        assert [round_trip(label, value) for value in ("owl", 0, -1, np.int64(1))] == [1, 0, -1, 1]

    def test_defaults(self):
        features = Features(
            {
                "x": Tensor("int64", (2,), default=[7, 8]),
                "s": Tensor("str", default="none"),
                "v": Tensor("float32", (None,), default=[]),
                "label": ClassLabel(names=["wren", "owl"], default="owl"),
                "image": Image(default=b"?"),
                "ragged": Ragged("str", default=[]),
                "sparse": Sparse("int64", (3,), default=[]),
                "grid": Tensor("str", (2, 2), default=[["a", "b"], ["c", "d"]]),
                "boxes": Tensor("float32", (None, 2), default=np.zeros((0, 2))),
            }
        )
        missing = features.encode({})
        assert features.encode(dict.fromkeys(features)) == missing  # None is missing
        expected = {
            "x": [7, 8],
            "s": "none",
            "v": [],
            "label": 1,
            "image": b"?",
            "ragged": [],
            "sparse": [0, 0, 0],
            "grid": [["a", "b"], ["c", "d"]],
            "boxes": [],
        }
        found = features.decode(missing)
        assert found["boxes"].shape == (0, 2)
        assert {name: plain(value) for name, value in found.items()} == expected
        filled = features.encode(features.fill_in({}))
        found = features.without_defaults().decode(filled)
        assert {name: plain(value) for name, value in found.items()} == expected
        given = {"x": [1, 2], "s": "here", "v": [3.0], "label": 0, "image": GIF}
        columns = features.decode_batch([missing, features.encode(given)])
        assert {name: plain(columns[name][1]) for name in given} == given
        assert columns["x"].tolist() == [[7, 8], [1, 2]]
        assert columns["s"].tolist() == ["none", "here"]
        assert pickle.loads(pickle.dumps(features)) == features

    def test_channels_of_images(self):
        assert Image().shape == (None, None, 3)
        assert Image(channels=None).shape == (None, None, None)
        assert Image((None, None, None)).channels is None
        for channels in (1, 3, 4):
            assert Image(channels=channels) == Image((None, None, channels))
            assert Image((4, 5, None), channels=channels) == Image((4, 5, channels))
            assert Image((4, 5, channels), channels=channels).channels == channels
        assert replace(Image((4, 5, 1)), shape=(4, 5, None)).channels is None
        assert Image(exif_orientation=True) != Image()
        assert repr(Image((4, 5, 1))) == (
            "Image(shape=(4, 5, 1), dtype='uint8', format='png', exif_orientation=False, "
            "default=REQUIRED)"
        )

    @pytest.mark.parametrize("channels", [None, 1, 3, 4])
    def test_encoded_images_are_stored_unchanged(self, tmp_path, channels):
        path = tmp_path / "x.gif"
        path.write_bytes(GIF)
        feature = Image(channels=channels)
        given = [GIF, bytearray(GIF), memoryview(GIF), path, str(path), {"bytes": GIF, "path": ""}]
        given.append({"bytes": None, "path": str(path)})
        assert [round_trip(feature, value) for value in given] == [GIF] * len(given)
        block = Features({"x": feature}).encode_batch({"x": given})
        again = Features({"x": feature}).decode_batch(block)
        assert again["x"].tolist() == [GIF] * len(given)
        # Strings of another schema are checked without a copy.
        assert Features({"x": feature}).encode_batch(again).data.tobytes() == block.data.tobytes()
        with pytest.raises(FeatureError, match="must be 9 x any"):
            Features({"x": Image((9, None, 3))}).encode_batch(again)


class TestErrors:
    @pytest.mark.parametrize(
        ("feature", "value", "what"),
        [
            ("int64", 1.5, "has dtype float64, expected int64"),
            ("int64", "7", "has dtype <U1, expected int64"),
            ("int64", [1], r"has shape \(1,\), expected \(\)"),
            ("int64", 2**63, "is 9223372036854775808; must be from"),
            ("int8", 128, "is 128; must be from -128 to 127"),
            ("uint8", -1, "is -1; must be from 0 to 255"),
            ("bool", 2, "is 2; must be from 0 to 1"),
            ("bool", "yes", "has dtype"),
            ("float32", 1j, "has dtype complex128"),
            ("float32", None, "has dtype object"),
            ("float32", 1e300, "too large for float32"),
            (Tensor("float16", (1,)), [1e6], "too large for float16"),
            (Sparse("int64", (3,)), ([[1.7]], [1]), "must be integers"),
            (Sparse("int64", (2, 3)), (np.zeros((3, 2), int).T, [1, 2]), "must be integers"),
            (Sparse("int64", (3,)), {"indices": [1]}, "must be indices and values"),
            (ClassLabel(num_classes=1), np.bool_(True), "is 1; must be from -1 to 0"),
            (Tensor("str", (None,)), [[["deep"]]], "is of type list, expected str"),
            ("str", b"\xff", "is not valid UTF-8"),
            ("str", "\ud800", "is not valid UTF-8"),
            ("bytes", 7, "is of type int, expected bytes"),
            (Tensor("str", (None,)), "text", "is of type str, expected a list of str"),
            (Tensor("str", (2,)), ["a"], r"has shape \(1,\), expected \(2,\)"),
            (Tensor("str", (None, 2)), [["a", "b"], ["c"]], "is ragged"),
            (Tensor("int64", (2, None)), [[1, 2], [3]], "is not an array"),
            (ClassLabel(names=["a", "b"]), "c", "unknown class 'c'; the label has 2 names"),
            (ClassLabel(names=["a", "b"]), 2, "is 2; must be from -1 to 1"),
            (ClassLabel(num_classes=3), "a", "but the label has no names"),
            (Ragged("int64"), [1, 2], "1 is not a list; expected 2 levels of lists"),
            (Ragged("int64"), [[1], ["x"]], "has dtype"),
            (Sparse("int64", (3,)), ([[3]], [1]), r"index \(3,\) is outside the shape \(3,\)"),
            (Sparse("int64", (3,)), ([[1]], [1, 2]), "1 sparse indices for 2 values"),
            (Image(), 7, "the image is of type int"),
            (Image(), np.ones((4, 4, 4), np.uint8), "has shape"),
            (Image(channels=1), np.ones((4, 4, 3), np.uint8), "has shape"),
            (Image(), b"text", "4 bytes that begin with b'text' are not an image"),
            (Image(), "missing.jpg", "the image cannot be read: missing.jpg: there is no such"),
            (Image(), "\0", "the image cannot be read"),
            (Image(), {"bytes": None, "path": None}, "is of type dict; must be"),
            (Image((5, None, 3)), GIF, "height x width 4 x 5; must be 5 x any"),
        ],
    )
    def test_invalid_values(self, feature, value, what):
        with pytest.raises(FeatureError, match=what) as caught:
            Features({"x": feature}).encode({"x": value})
        assert caught.value.feature == "x"

    def test_missing_and_extra_names(self):
        features = Features({"x": "int64", "y": "int64"})
        with pytest.raises(FeatureError, match="it is missing") as caught:
            features.encode({"x": 1})
        assert caught.value.feature == "y"
        with pytest.raises(
            FeatureError, match="there is no feature 'z'; the features are 'x', 'y'"
        ):
            features.encode({"x": 1, "y": 2, "z": 3})
        with pytest.raises(FeatureError, match="there is no feature 'z'"):
            features.decode(b"", ["z"])

    @pytest.mark.parametrize(
        ("columns", "what"),
        [
            ({"x": [1, 2], "s": ["a"]}, "different numbers of rows: 'x' 2, 's' 1"),
            ({"x": 5, "s": ["a"]}, "is of type int; must be a sequence"),
            ({"x": [1.5, 2.5], "s": ["a", "b"]}, "has dtype float64"),
            ({"x": [1, 2], "s": ["a", 2]}, "is of type int, expected str"),
            ({"x": [1, 2]}, "feature 's': it is missing"),
            ({"x": np.zeros((2, 2), int), "s": ["a", "b"]}, "has shape"),
            ({"x": [1], "s": ["a"], "b": [5]}, "is of type int, expected bytes"),
            ({"x": [1], "s": ["a"], "b": ["\ud800"]}, "not bytes and not a string that is valid"),
        ],
    )
    def test_invalid_columns(self, columns, what):
        features = Features({"x": "int64", "s": "str", "b": Tensor("bytes", default=b"")})
        with pytest.raises(FeatureError, match=what):
            features.encode_batch(columns)

    @pytest.mark.parametrize(
        ("stored", "feature", "values", "what"),
        [
            ("bytes", "str", [b"\0\1", b"\xff"], "not valid UTF-8"),
            ("bytes", "str", [b"\0\1", b"\xed\xa0\x80"], "not valid UTF-8"),
            ("bytes", Tensor("bool", (2,), encoding="bytes"), [b"\0\1", b"\0\2"], "a byte other"),
            ("int64", ClassLabel(names=["a", "b"]), [-1, 99], "the class is 99"),
        ],
    )
    def test_stored_values_that_do_not_match(self, stored, feature, values, what):
        records = [Features({"x": stored}).encode({"x": value}) for value in values]
        with pytest.raises(ExampleError, match=what) as caught:
            Features({"x": feature}).decode_batch(records)
        assert (caught.value.record, caught.value.feature) == (1, "x")

    @pytest.mark.parametrize("data", ["é", "a" * 20 + "€" + "b" * 9, "\U0010ffff", "\x00", ""])
    def test_strings_of_any_characters(self, data):
        assert round_trip("str", data) == data

    def test_invalid_arguments(self):
        features = Features({"x": "int64"})
        record = features.encode({"x": 1})
        with pytest.raises(FeatureError, match="the example is of type list"):
            features.encode([1])
        with pytest.raises(TypeError, match="or use decode"):
            features.decode_batch(record)
        with pytest.raises(FeatureError) as caught:
            features.decode(record, "x")
        assert (caught.value.option, caught.value.found) == ("names", "x")
        with pytest.raises(FeatureError) as caught:
            list(features.encode_blocks({"x": [1]}, block_bytes=0))
        assert (caught.value.option, caught.value.found) == ("block_bytes", 0)
        with pytest.raises(TypeError, match="all blocks or all bytes"):
            features.decode_batch([features.encode_batch({"x": [1]}), b""])
        assert features.decode_batch(r for r in [record] * 3)["x"].tolist() == [1, 1, 1]

    @pytest.mark.parametrize(
        "splits",
        [[0, 3], [0, 2, 1], [-1, 1, 2], [0, 1, 2**62], [0, 1, 2**62 + 2], [0, 1, 4], []],
        ids=str,
    )
    @pytest.mark.parametrize("shape", [(None,), (None, 4)])
    def test_invalid_row_splits(self, shape, splits):
        # In rows of 4 values, the offset of item 2**62 + 2 overflows to that of item 2.
        values = np.zeros((3, *shape[1:]), np.int64)
        features = Features({"v": Tensor("int64", shape), "n": "int64"})
        column = RaggedArray(values, np.array(splits, np.int64))
        with pytest.raises((FeatureError, ValueError)):
            features.encode_batch({"v": column, "n": [1, 2]})

    def test_steps_are_not_written(self):
        with pytest.raises(FeatureError, match="a SequenceExample cannot be written"):
            Features({"x": Steps("int64")}).encode({"x": [1]})


class TestInvalidSchemas:
    @pytest.mark.parametrize(
        ("make", "what"),
        [
            (lambda: Tensor("object"), "dtype is 'object'; must be one of"),
            (lambda: Tensor("complex64"), "dtype is 'complex64'"),
            (lambda: Tensor(np.datetime64), "dtype is"),
            (
                lambda: Tensor("int64", (-1,)),
                "shape is \\(-1,\\); must be a tuple of integers from 0 to",
            ),
            (lambda: Tensor("int64", (2**40, 2**40)), "must be a tuple of integers from 0 to"),
            (lambda: Tensor("int64", (2**20, 2**20)), "exceeds 2 GiB"),
            (
                lambda: Tensor("int64", (2.5,)),
                "shape is \\(2.5,\\); must be a tuple of integers and None",
            ),
            (lambda: Tensor("int64", ("9",)), "shape is \\('9',\\); must be"),
            (lambda: Tensor("int64", (1,) * 40), "40 dimensions"),
            (lambda: Tensor("int64", (None, 0)), "both an unknown and an empty dimension"),
            (lambda: Tensor("int64", (None, None)), "2 unknown dimensions"),
            (lambda: Tensor("str", encoding="bytes"), "must be 'list' for str"),
            (lambda: Tensor("int64", encoding="zip"), "must be one of 'list', 'bytes', "),
            (lambda: Tensor("int8", encoding="bytes_each"), "must be one of"),
            (lambda: Tensor("int64", default="x"), "has dtype"),
            (lambda: Tensor("int64", (2,), default=[1]), "has shape"),
            (lambda: Ragged("int64", 1), "must be from 2 to 16"),
            (lambda: Ragged("int64", 2, (None,)), "must be a tuple of integers >= 1"),
            (lambda: Sparse("int64", ()), "must be a tuple of integers >= 1"),
            (lambda: Sparse("str", (3,)), "must be a number, not float64"),
            (lambda: Steps("int64", (None, None)), r"must be known, or \(None,\)"),
            (lambda: Image((3, 3)), "three dimensions"),
            (lambda: Image(dtype="float32"), "must be one of 'uint8', 'uint16'"),
            (lambda: Image(format="tiff"), "must be one of"),
            (lambda: Image(channels=2), "channels is 2; must be 1, 3, 4 or None"),
            (lambda: Image(channels=True), "channels is True; must be 1, 3, 4 or None"),
            (lambda: Image((4, 5, 1), channels=3), "channels is 3; must be 1, that of the shape"),
            (lambda: Image((4, 5, 1), channels=None), "channels is None; must be 1"),
            (lambda: Image(exif_orientation=1), "exif_orientation is 1; must be True or False"),
            (lambda: ClassLabel(names=["a", "a"]), "names: the name 'a' occurs twice"),
            (lambda: ClassLabel(names="ab"), "must be a list of strings"),
            (lambda: ClassLabel(names=["a"], num_classes=2), "num_classes is 2"),
            (lambda: ClassLabel(num_classes=-1), "must be an integer >= 0"),
            (lambda: ClassLabel(num_classes=2.5), "must be an integer"),
            (lambda: Features({"x": None}), "dtype is None"),
            (lambda: Ragged("int64", 2, (0,)), "must be a tuple of integers >= 1"),
            (lambda: Ragged("int64", default=[[1]]), r"must be \[\]"),
            (lambda: Features({"": "int64"}), "the name of a feature is ''"),
            (lambda: Features({3: "int64"}), "the name of a feature is 3"),
            (lambda: Features({"\ud800": "int64"}), "not valid UTF-8"),
            (lambda: Features({"a": {"b": "int64"}, "a/b": "int64"}), "the name occurs twice"),
            (
                lambda: Features({"r": Ragged("int64"), "r/ragged_flat_values": "int64"}),
                "both stored under",
            ),
            (lambda: Features(["x"]), "must be a dict"),
            (lambda: Features({"x": "quaternion"}), "feature 'x': dtype is 'quaternion'"),
        ],
    )
    def test_invalid_feature(self, make, what):
        with pytest.raises(FeatureError, match=what):
            make()

    def test_nesting_is_bounded(self):
        nested = "int64"
        for _ in range(10_000):
            nested = {"x": nested}
        with pytest.raises(FeatureError, match="nested deeper than 32 levels"):
            Features(nested)

    def test_shape_larger_than_the_records(self):
        # 1 GiB per example in the schema; the records have 20 bytes.
        features = Features({"x": Tensor("uint8", (1 << 30,), encoding="bytes")})
        small = Features({"x": Tensor("uint8", (4,), encoding="bytes")})
        records = [small.encode({"x": np.zeros(4, np.uint8)})] * 100
        with pytest.raises(ValueError, match="have at least"):
            features.decode_batch(records)


class TestFeatures:
    def test_mapping(self):
        features = Features({"x": "int64", "y": str})
        assert dict(features) == {"x": Tensor("int64"), "y": Tensor("str")}
        assert features == {"x": Tensor("int64"), "y": Tensor("str")}
        reordered = Features({"y": "str", "x": int})
        assert features == reordered
        assert hash(features) == hash(reordered)
        assert features.encode({"x": 1, "y": "a"}) == reordered.encode({"y": "a", "x": 1})
        assert Features({"a": {"b": "int64"}}) != Features({"a/b": "int64"})

    def test_pickle(self):
        features = Features({"a": {"b": Tensor("int64", default=3)}, "c": ClassLabel(names=["q"])})
        again = pickle.loads(pickle.dumps(features))
        assert again == features
        assert again.encode({"c": "q"}) == features.encode({"c": "q"})

    def test_value_that_modifies_the_example(self):
        class Modifying:
            def __init__(self, example):
                self.example = example

            def __array__(self, dtype=None, copy=None):
                self.example.clear()
                return np.array(5)

        example = {"a": b"a" * 1000, "b": 0}
        example["b"] = Modifying(example)
        features = Features({"a": "bytes", "b": "int64"})
        with pytest.raises(FeatureError):
            features.encode(example)

    def test_value_that_modifies_a_list(self):
        class Modifying:
            def __array__(self, dtype=None, copy=None):
                strings.clear()
                self.other = [b"Z" * 40 for _ in range(100)]
                return np.array(5)

        strings = [bytes([65 + i]) * 40 for i in range(20)]
        expected = list(strings)
        features = Features({"a": Tensor("bytes", (None,)), "b": "int64"})
        found = features.decode(features.encode({"a": strings, "b": Modifying()}))
        assert found["a"].tolist() == expected

    def test_columns_that_another_thread_modifies(self):
        features = Features({"x": Tensor("int64", (100,))})
        column = np.zeros((200, 100), np.int64)
        done = threading.Event()

        def modify():
            while not done.is_set():
                column.fill(-1)
                column.fill(0)

        thread = threading.Thread(target=modify)
        thread.start()
        for _ in range(30):
            features.encode_batch({"x": column})  # must not crash
        done.set()
        thread.join()

    def test_arrays_are_released(self):
        # A reference cycle would keep a batch until the garbage collector runs.
        features = Features(
            {"x": Tensor("float32", (3,)), "n": {"y": "int64"}, "r": Ragged("int64")}
        )
        column = np.ones((2, 3), np.float32)
        alive = weakref.ref(column)
        gc.disable()
        try:
            block = features.encode_batch({"x": column, "n": {"y": [1, 2]}, "r": [[[1]], []]})
            decoded = features.decode_batch(block)
            result = weakref.ref(decoded["x"])
            features.encode({"x": column[0], "n": {"y": 1}, "r": []})
            with pytest.raises(FeatureError):
                features.encode({"x": column[0], "n": {"z": 1}, "r": []})
            del column, block, decoded
            assert alive() is None
            assert result() is None
        finally:
            gc.enable()

    def test_concurrent_use(self):
        features = Features({"x": Tensor("float32", (None,)), "s": "str"})
        examples = [{"x": np.arange(i % 7), "s": str(i)} for i in range(200)]
        expected = [features.encode(example) for example in examples]
        found = [None] * 4

        def work(i):
            found[i] = [features.encode(example) for example in examples]
            features.decode_batch(expected)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [expected] * 4

    def test_blocks_of_columns(self):
        features = Features({"x": "int64"})
        complete = features.encode_batch({"x": np.arange(1000)})
        parts = list(features.encode_blocks({"x": np.arange(1000)}, block_bytes=500))
        assert len(parts) > 10
        assert [record for part in parts for record in part] == list(complete)
        assert [part.first for part in parts][:2] == [0, len(parts[0])]
        assert features.decode_batch(parts)["x"].tolist() == list(range(1000))

    def test_no_rows(self):
        features = Features(
            {
                "x": Tensor("float32", (None,)),
                "s": "str",
                "r": Ragged("int64"),
                "f": Tensor("int64", (3,)),
                "l": ClassLabel(num_classes=2),
            }
        )
        block = features.encode_batch({"x": [], "s": [], "r": [], "f": [], "l": []})
        assert len(block) == 0
        columns = features.decode_batch(block)
        assert [len(column) for column in columns.values()] == [0] * 5
        assert len(features.decode_batch([])["x"]) == 0


class TestArrays:
    def test_string_array(self):
        array = StringArray.of(["a", "", "bcd"])
        assert array.shape == (3,)
        assert [array[-1], *array[1:]] == ["bcd", "", "bcd"]
        assert np.asarray(array).tolist() == ["a", "", "bcd"]
        with pytest.raises(TypeError, match="all str or all bytes"):
            StringArray.of(["a", 3])
        with pytest.raises(IndexError, match="row 3 is out of range for a column of 3"):
            array[3]
        with pytest.raises(ValueError, match="must be 1"):
            array[::2]

    def test_ragged_array(self):
        array = RaggedArray.of([[1, 2], [], [3]])
        assert array.tolist() == [[1, 2], [], [3]]
        assert array[1:].tolist() == [[], [3]]
        assert array.row_lengths.tolist() == [2, 0, 1]
        assert [row.tolist() for row in array] == array.tolist()
        with pytest.raises(IndexError):
            array[-4]

    def test_sparse_batch(self):
        features = Features({"x": Sparse("int64", (4,))})
        batch = features.encode_batch({"x": [([[1]], [5]), ([], []), ([[0], [3]], [6, 7])]})
        column = features.decode_batch(batch)["x"]
        assert column.tolist() == [[0, 5, 0, 0], [0, 0, 0, 0], [6, 0, 0, 7]]
        assert column[1:].tolist() == column.tolist()[1:]
        assert list(features.encode_batch({"x": column})) == list(batch)


class TestInconsistentColumns:
    """Features whose columns contradict each other, as in a corrupt file."""

    def test_ragged_lengths_that_do_not_add_up(self):
        parts = Features(
            {
                "r/ragged_flat_values": Tensor("int64", (None,)),
                "r/ragged_row_lengths_0": Tensor("int64", (None,)),
            }
        )
        for lengths in ([1], [3, -1], [2**62] * 4 + [2]):
            record = parts.encode(
                {"r/ragged_flat_values": [1, 2], "r/ragged_row_lengths_0": lengths}
            )
            with pytest.raises(ValueError, match=r"record 0: feature 'r': .*ragged length"):
                Features({"r": Ragged("int64")}).decode(record)

    def test_sparse_indices_outside(self):
        parts = Features(
            {"x/values": Tensor("int64", (None,)), "x/indices": Tensor("int64", (None,))}
        )
        for indices in ([9], [-1], [], [0, 1]):
            record = parts.encode({"x/values": [1], "x/indices": indices})
            with pytest.raises(ValueError, match="sparse ind"):
                Features({"x": Sparse("int64", (3,))}).decode(record)

    def test_stored_shapes_that_do_not_match(self):
        parts = Features({"x/shape": Tensor("int32", (3,)), "x/value": "bytes"})
        features = Features({"x": Tensor("uint8", (None, None, 2), encoding="bytes")})
        valid = parts.encode({"x/shape": [1, 2, 2], "x/value": b"1234"})
        for shape in ([2, 3, 2], [-2, -1, 2], [2**31 - 1, 2**31 - 1, 2], [4, 0, 2], [2, 2, 1]):
            record = parts.encode({"x/shape": shape, "x/value": b"1234"})
            with pytest.raises(ValueError, match="record 1: feature 'x': the stored shape"):
                features.decode_batch([valid, record])


@st.composite
def near_copies(draw):
    """Features, and records of them among copies that differ in a byte or two, but not in size."""
    features, examples = draw(datasets(odd=True))
    valid = [features.encode(example) for example in examples]
    records = []
    for record in draw(st.lists(st.sampled_from(valid), min_size=1, max_size=8)):
        copy = bytearray(record)
        offsets = st.integers(0, max(len(copy) - 1, 0))
        kind = draw(st.sampled_from(["none", "none", "value", "shift", "swap"])) if copy else "none"
        if kind == "value":
            copy[draw(offsets)] ^= draw(st.integers(1, 255))
        elif kind != "none":
            a, b = draw(offsets), draw(offsets)
            if kind == "swap":
                copy[a], copy[b] = copy[b], copy[a]
            else:  # a length that grows while another shrinks
                copy[a], copy[b] = (copy[a] + 1) % 256, (copy[b] - 1) % 256
        records.append(bytes(copy))
    return features, records


@settings(max_examples=80)
@given(case=near_copies())
def test_records_of_similar_layout(case):
    """The decoder reuses the layout of earlier records, which must not change the result."""
    features, records = case
    alone = []
    for record in records:
        try:
            alone.append(features.decode(record))
        except ExampleError as error:
            alone.append(error)
    if any(isinstance(each, ExampleError) for each in alone):
        with pytest.raises(ExampleError) as raised:
            features.decode_batch(records)
        number, own = raised.value.record, alone[raised.value.record]
        assert str(raised.value) == str(own).replace("record 0", f"record {number}", 1)
        assert raised.value.feature == own.feature
    else:
        batch = features.decode_batch(records)
        for i, example in enumerate(alone):
            assert same(values(row_of(batch, i)), values(example))


def values(feature):
    """A decoded value, or those of a nested feature, as lists and Python numbers."""
    if isinstance(feature, dict):
        return [values(each) for _, each in sorted(feature.items())]
    return plain(feature)


def flat(values):
    """The values by name; one feature may be nested."""
    return {"/".join(path): value for path, value in flat_items(values)}


@settings(max_examples=80)
@given(dataset=datasets(odd=True))
def test_examples_and_columns_have_the_same_records(dataset):
    features, examples = dataset
    records = [features.encode(example) for example in examples]
    columns = features.decode_batch(records)
    for row, record in enumerate(records):
        decoded = flat(features.decode(record))
        for name, value in flat(examples[row]).items():
            expected = 7 if value is None else plain(value)  # the default
            assert same(plain(decoded[name]), expected)
            assert same(plain(flat(columns)[name][row]), expected)
            if isinstance(value, np.ndarray) and not isinstance(features[name], Sparse):
                assert decoded[name].dtype == value.dtype
    block = features.encode_batch(columns)
    if all(value is not None for example in examples for value in flat(example).values()):
        assert list(block) == records
    again = features.decode_batch(block)
    for name, column in flat(columns).items():
        assert same(plain(flat(again)[name]), plain(column))
        part = flat(features.decode_batch(records, [name]))
        assert list(part) == [name]
        assert same(plain(part[name]), plain(column))
