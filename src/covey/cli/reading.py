"""What the commands have in common that read a dataset."""

from __future__ import annotations

import argparse
import json
from typing import Any

from covey.cli.arguments import positive, storage_option
from covey.terminal import escape


def add_path(parser: argparse.ArgumentParser) -> None:
    """What is read, and where."""
    parser.add_argument(
        "path",
        metavar="PATH",
        help="the folder of a dataset; a folder, a file or a quoted pattern of TFRecords; or a URL",
    )
    parser.add_argument("--split", help="only this one, or several: train+test (default: all)")
    parser.add_argument(
        "--storage-option",
        metavar="NAME=VALUE",
        type=storage_option,
        action="append",
        default=[],
        help="what fsspec needs for a URL, such as anon=true; may be repeated",
    )


def add_running(parser: argparse.ArgumentParser) -> None:
    """How it runs."""
    parser.add_argument(
        "--threads", metavar="N", type=positive, help="how many work (default: all cores)"
    )
    parser.add_argument("--no-progress", action="store_true", help="show no progress bar")
    add_output(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="say only what is wrong")


def add_output(parser: argparse.ArgumentParser) -> None:
    """What is printed."""
    parser.add_argument("--json", action="store_true", help="print all of it as one JSON object")


def shows(options: argparse.Namespace) -> bool | None:
    """Whether to show progress; None leaves it to where the output goes."""
    return False if options.quiet or options.no_progress else None


def storage_options(options: argparse.Namespace) -> dict[str, Any] | None:
    """What fsspec is told."""
    return dict(options.storage_option) or None


def print_json(content: Any) -> None:
    """Print one JSON object."""
    # The escapes of JSON itself, for the control characters that it leaves as they are.
    print(escape(json.dumps(content, indent=1, ensure_ascii=False), keep="\n"))
