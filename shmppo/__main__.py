"""`python -m shmppo` is the console script `shmppo`."""

import sys

from shmppo.cli import main

if __name__ == "__main__":
    sys.exit(main())
