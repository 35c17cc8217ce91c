"""POPGym RepeatPreviousEasy: name the suit of the card that was dealt four steps ago.

The highest return is 1. The other tasks of POPGym use the same options, for example
`--env popgym:popgym-AutoencodeEasy-v0 --total-steps 15000000`. Needs `pip install 'shmppo[popgym]'`.
"""

import sys

from shmppo import preset
from shmppo.train import main

if __name__ == "__main__":  # workers import this file, too
    sys.exit(main(preset("popgym", total_steps=1_000_000)))
