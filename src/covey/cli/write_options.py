"""The options of ``covey write``."""

from __future__ import annotations

import argparse

from covey.cli.arguments import (
    count_or_share,
    default,
    fraction,
    kind,
    positive,
    size,
    storage_option,
)

# As covey.sources has them; asking it would take longer than the rest of the help.
KINDS = "image folder, image table, CSV, JSON Lines, JSON, Parquet, NPZ, TFRecords, TFDS folder"

EXAMPLES = """\
examples:
  covey write photos data/birds                     a folder of images per class
  covey write birds.csv data/birds --label species
  covey write glyphs.npz data/glyphs --held-out-classes 100
  covey write photos data/birds --val-fraction 0.1 --on-error skip --report bad.jsonl
  covey write more.jsonl data/birds --mode append
  covey write photos s3://bucket/birds --storage-option profile=mine
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what there is to choose."""
    parser.epilog = EXAMPLES
    parser.add_argument("source", metavar="SOURCE", help="a file, a folder, or a quoted pattern")
    parser.add_argument("target", metavar="TARGET", help="the folder of the dataset, or a URL")

    reading = parser.add_argument_group("what is read")
    reading.add_argument(
        "--kind", type=kind, help=f"what SOURCE is, if that is not clear from its contents: {KINDS}"
    )
    reading.add_argument(
        "--label", help="the feature that tells the class (default: what is called so, or similar)"
    )
    reading.add_argument(
        "--key", help="the feature that is unique to an example (default: its file, id or number)"
    )
    reading.add_argument(
        "--source-split", metavar="NAME", help="of a SOURCE with splits (default: as --split)"
    )
    reading.add_argument(
        "--default",
        metavar="NAME=VALUE",
        type=default,
        action="append",
        default=[],
        help="what JSON objects get that lack a feature; may be repeated",
    )
    reading.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="skip leaves out what cannot be read, and lists it (default: raise)",
    )
    reading.add_argument(
        "--report", metavar="FILE", help="write all that was left out to FILE, as JSON Lines"
    )

    splits = parser.add_argument_group("splits")
    splits.add_argument("--split", default="train", help="what to write (default: train)")
    held_out = splits.add_mutually_exclusive_group()
    held_out.add_argument(
        "--val-fraction",
        metavar="SHARE",
        type=fraction,
        help="write about this share of the examples as a second split; the hash of an example's "
        "key decides, so that it stays where it is when others are added",
    )
    held_out.add_argument(
        "--held-out-classes",
        metavar="N",
        type=count_or_share,
        help="write this many classes (or 10%% of them) as a second split, to judge a model by "
        "classes it has never seen; the hashes of their names decide",
    )
    splits.add_argument("--val-split", metavar="NAME", help="the second split (default: val)")
    splits.add_argument(
        "--val-seed",
        metavar="N",
        type=int,
        default=0,
        help="divide otherwise (default: 0); --seed does not change who is held out",
    )
    splits.add_argument(
        "--mode",
        choices=("error", "overwrite", "append"),
        default="error",
        help="what to do if a split is there already (default: error)",
    )

    order = parser.add_argument_group("order")
    order.add_argument("--seed", type=int, default=0, help="of the shuffled order (default: 0)")
    order.add_argument("--no-shuffle", action="store_true", help="keep the order of SOURCE")
    order.add_argument(
        "--order", choices=("class",), help="lay classes together, for readers that need them so"
    )

    files = parser.add_argument_group("files")
    shards = files.add_mutually_exclusive_group()
    shards.add_argument("--shards", metavar="N", type=positive, help="how many, of each split")
    shards.add_argument("--records-per-shard", metavar="N", type=positive)
    shards.add_argument(
        "--shard-size", metavar="SIZE", type=size, default=256 << 20, help="(default: 256M)"
    )
    files.add_argument(
        "--compression",
        choices=("none", "gzip", "zlib"),
        default="none",
        help="gzip can still be read at random; TFDS reads only none (default: none)",
    )
    files.add_argument(
        "--level", type=int, choices=range(10), default=6, help="of compression (default: 6)"
    )
    files.add_argument(
        "--storage-option",
        metavar="NAME=VALUE",
        type=storage_option,
        action="append",
        default=[],
        help="what fsspec needs if TARGET is a URL, such as profile=mine; may be repeated",
    )
    files.add_argument("--name", help="of the dataset (default: that of its folder)")
    files.add_argument("--description", default="", help="of the dataset, for people")

    running = parser.add_argument_group("running")
    running.add_argument(
        "--workers", metavar="N", type=positive, help="how many threads or processes work"
    )
    running.add_argument(
        "--memory",
        metavar="SIZE",
        type=size,
        default=512 << 20,
        help="hold about so much, and put the rest aside on disk (default: 512M)",
    )
    running.add_argument("--no-progress", action="store_true", help="show no progress bar")
    running.add_argument(
        "-q", "--quiet", action="store_true", help="say only what went wrong or was left out"
    )
