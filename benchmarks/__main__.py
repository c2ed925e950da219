"""Run all measurements: python -m benchmarks [--rounds 5] [--only codec memory writing reading]."""

from __future__ import annotations

import argparse
import datetime
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=["codec", "memory", "writing", "reading"])
    options = parser.parse_args()
    wanted = options.only or ["codec", "memory", "writing", "reading"]

    from benchmarks import codec, memory, reading, writing
    from benchmarks.data import large, small
    from benchmarks.measure import machine

    print(f"{datetime.date.today()}, {machine()}")
    if "codec" in wanted:
        codec.run([small()], options.rounds)
        codec.run([large()], options.rounds)
    if "memory" in wanted:
        memory.run()
    if "writing" in wanted:
        writing.run(small(), options.rounds)
    if "reading" in wanted:
        reading.run(small(), options.rounds)


if __name__ == "__main__":
    main()
