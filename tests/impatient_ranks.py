"""`python -m shmppo.train`, but a rank waits for the others only as many seconds as the first argument says."""

import sys

from shmppo.runs import launch
from shmppo.train import main

if __name__ == "__main__":
    launch.RANK_TIMEOUT = float(sys.argv.pop(1))
    sys.exit(main())
