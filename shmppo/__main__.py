"""Run the console script `shmppo` with `python -m shmppo`."""

import sys

from shmppo.cli import main

if __name__ == "__main__":
    sys.exit(main())
