"""Run the benchmarks: python -m benchmarks [--rounds 5] [--only codec memory loading ...]."""

from __future__ import annotations

import argparse
import datetime
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parts = ["codec", "memory", "writing", "reading", "loading", "samplers", "images"]
    parser.add_argument("--only", nargs="*", choices=parts)
    options = parser.parse_args()
    wanted = options.only or parts

    from benchmarks import codec, images, loading, memory, reading, samplers, writing
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
    if "loading" in wanted:
        loading.run(small(), large, options.rounds)
    if "samplers" in wanted:
        samplers.run(small(), options.rounds)
    if "images" in wanted:
        images.run(options.rounds)


if __name__ == "__main__":
    main()
