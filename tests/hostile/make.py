"""Write the hostile files of this directory: TFRecord files with one invalid part each.

The files are committed. Run this script only to add a file; do not change existing ones.
"""

import struct
import zlib
from pathlib import Path

from covey import _core

HERE = Path(__file__).parent


def masked(data: bytes) -> bytes:
    crc = _core.crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def header(length: int) -> bytes:
    size = struct.pack("<Q", length)
    return size + masked(size)


def frame(data: bytes) -> bytes:
    return header(len(data)) + data + masked(data)


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(content: bytes) -> bytes:
    """Return a valid frame of an Example whose feature x is `content`."""
    return frame(field(1, field(1, field(1, b"x") + field(2, content))))


VALID = example(field(3, b"\x0a\x01\x07"))

FILES = {
    # Frames; detected by readers.
    "frame-cut-in-header": VALID + VALID[:7],
    "frame-cut-in-data": VALID + VALID[:-9],
    "frame-cut-in-footer": VALID + VALID[:-2],
    "frame-length-2-to-the-63": VALID + header(2**63) + bytes(64),
    "frame-length-wraps-around": VALID + header(2**64 - 16) + bytes(64),
    "frame-length-all-ones": VALID + header(2**64 - 1) + bytes(64),
    "frame-length-a-terabyte": VALID + header(2**40) + bytes(64),
    "frame-length-checksum": VALID + b"\x01" + VALID[1:],
    "frame-data-checksum": VALID + VALID[:-5] + b"!" + VALID[-4:],
    "frame-zeros": bytes(64),
    "frame-text": b"x,y\n1,2\n3,4\nthis is a table and no TFRecord\n",
    # Compression.
    "gzip-cut": zlib.compressobj(9, zlib.DEFLATED, 31).compress(b"") + b"\x1f\x8b\x08\x00",
    "gzip-garbage-after-header": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff" + b"\xee" * 40,
    "gzip-bomb": (lambda z: z.compress(header(2**40)) + z.compress(bytes(16 << 20)) + z.flush())(
        zlib.compressobj(9, zlib.DEFLATED, 31)
    ),
    "zlib-two-streams": zlib.compress(VALID) + zlib.compress(VALID),
    # Examples in valid frames; detected by the decoder.
    "example-length-past-the-end": frame(b"\x0a\x7f" + b"x" * 10),
    "example-length-2-to-the-63": frame(b"\x0a" + varint(2**63) + b"x" * 10),
    "example-length-2-to-the-64": frame(b"\x0a" + varint(2**64 - 1) + b"x" * 10),
    "example-varint-without-end": frame(b"\x0a" + b"\xff" * 40),
    "example-tag-zero": frame(b"\x00" * 20),
    "example-tag-reserved-wire-type": frame(b"\x0f" * 20),
    "example-group-never-closed": frame(b"\x2b" * 2000),
    "example-groups-100000-deep": frame(b"\x2b" * 100_000 + b"\x2c" * 100_000),
    "example-group-closed-by-another": frame(b"\x2b\x34"),
    "example-entry-past-its-map": frame(field(1, b"\x0a\x20" + b"\x0a\x01x")),
    "example-value-past-its-entry": frame(field(1, field(1, field(1, b"x") + b"\x12\x7f\x01"))),
    "example-list-past-its-feature": example(b"\x1a\x7f\x0a\x01\x07"),
    "example-run-past-its-list": example(b"\x1a\x03\x0a\x7f\x07"),
    "example-packed-varint-cut": example(field(3, b"\x0a\x02\x07\x80")),
    "example-packed-floats-of-five-bytes": example(field(2, b"\x0a\x05abcde")),
    "example-float-cut": example(field(2, b"\x0dab")),
    "example-wrong-kind": example(field(1, b"\x0a\x01x")),
    "example-two-values": example(field(3, b"\x0a\x02\x07\x08")),
    "example-no-values": example(field(3, b"")),
    "example-no-kind": example(b""),
    "example-empty": frame(b""),
    "example-key-not-utf8": frame(field(1, field(1, field(1, b"\xff\xfe") + field(2, b"")))),
}


def main() -> None:
    for name, data in FILES.items():
        (HERE / f"{name}.tfrecord").write_bytes(data)


if __name__ == "__main__":
    main()
