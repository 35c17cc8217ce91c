"""Run `python -m shmppo.search`."""

import sys

from shmppo.search import main

if __name__ == "__main__":
    sys.exit(main())
