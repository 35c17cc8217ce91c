"""The flag --preempt-fraction."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shmppo.config.extensions import ExtensionOptions
from shmppo.config.option import PROPER_FRACTION, option

SHORTEST = 0.25
"""No rollout is shorter than this fraction of --rollout-steps."""


@dataclass(frozen=True)
class PreemptionOptions(ExtensionOptions):
    """Rollouts of stragglers that end early."""

    preempt_fraction: float | None = option(
        None, PROPER_FRACTION, one_column=True, branchable=True, unfit_for_search="makes trials inexact"
    )
    """End the remaining rollouts early once this fraction of the ranks, or of a rank's workers, have finished theirs
    (DD-PPO: 0.6), but not before a quarter of --rollout-steps. This depends on timing, so the run is not reproducible
    (exact: false). None: wait for the slowest."""

    def shortest_rollout(self, steps: int) -> int:
        return steps if self.preempt_fraction is None else max(1, math.ceil(SHORTEST * steps))


OPTIONS = PreemptionOptions
