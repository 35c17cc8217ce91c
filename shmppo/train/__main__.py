"""Run `python -m shmppo.train`."""

import sys

from shmppo.train import main

if __name__ == "__main__":
    sys.exit(main())
