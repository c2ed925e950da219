"""CRC-32C: one suite over every implementation that this processor can run."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey import _core

IMPLEMENTATIONS = _core.crc32c_implementations()

# RFC 3720, appendix B.4, and the check value of the CRC catalogue.
READ_PDU = bytes.fromhex(
    "01c00000" "00000000" "00000000" "00000000" "14000000" "00000400"
    "00000014" "00000018" "28000000" "00000000" "02000000" "00000000"
)  # fmt: skip
VECTORS = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (READ_PDU, 0xD9963A56),
    (b"123456789", 0xE3069283),
    (b"", 0),
]


def bit_by_bit(data: bytes) -> int:
    """The definition."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_portable_is_the_last_implementation():
    assert IMPLEMENTATIONS[-1] == "portable"


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
class TestImplementation:
    @pytest.mark.parametrize(("data", "expected"), VECTORS)
    def test_published_vectors(self, implementation, data, expected):
        assert _core.crc32c(data, 0, implementation) == expected

    @settings(max_examples=40)
    @given(data=st.binary(max_size=500))
    def test_any_data(self, implementation, data):
        assert _core.crc32c(data, 0, implementation) == bit_by_bit(data)

    # Around the sizes at which streams are interleaved (192) and longest (3 * 8192).
    @pytest.mark.parametrize("size", [191, 192, 193, 215, 216, 24575, 24576, 24577, 49152, 100003])
    def test_long_inputs_agree_with_portable(self, implementation, size):
        data = (bytes(range(251)) * (size // 251 + 1))[:size]
        assert _core.crc32c(data, 0, implementation) == _core.crc32c(data, 0, "portable")

    @settings(max_examples=40)
    @given(data=st.binary(max_size=1000), cut=st.integers(0, 1000))
    def test_two_pieces(self, implementation, data, cut):
        first = _core.crc32c(data[:cut], 0, implementation)
        assert _core.crc32c(data[cut:], first, implementation) == _core.crc32c(data)

    @pytest.mark.parametrize("start", range(8))
    def test_alignment(self, implementation, start):
        data = memoryview(bytes(range(256)) * 4)[start : start + 900]
        assert _core.crc32c(data, 0, implementation) == bit_by_bit(bytes(data))


def test_unknown_implementation():
    with pytest.raises(ValueError, match="no such implementation"):
        _core.crc32c(b"", 0, "sse9")
