"""``python -m covey`` is the same as ``covey``."""

import sys

from covey.cli import main

if __name__ == "__main__":
    sys.exit(main())
