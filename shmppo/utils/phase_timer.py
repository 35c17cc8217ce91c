"""Where the time goes: a stopwatch that is always in exactly one phase, so the parts sum to the whole."""

from __future__ import annotations

from time import monotonic

import numpy as np

PHASES = (
    "environment",  # stepping and resetting environments
    "inference",  # the policy's forward pass while sampling
    "advantage",  # reward scaling, GAE, rows and the plan of the update
    "wait",  # the learner blocked on workers that are not busy: stragglers and signalling
    "publish",  # giving weights and statistics a new version
    "gradient",  # forward and backward passes of the update
    "reduce",  # summing the shards of a minibatch
    "optimizer",  # the gradient's norm, clipping, the step
    "other",  # everything else
)
SAMPLING = ("environment", "inference")
LEARNING = ("advantage", "gradient", "optimizer")
COMMUNICATION = ("wait", "publish", "reduce")

_INDEX = {name: i for i, name in enumerate(PHASES)}


class PhaseTimer:
    """Seconds per phase since `reset`. Starts in "other"; `switch` closes one phase and opens the next."""

    def __init__(self) -> None:
        self._seconds = [0.0] * len(PHASES)
        self._phase = _INDEX["other"]
        self._since = monotonic()

    def switch(self, phase: str) -> float:
        """Open `phase`; returns the time of the switch, in seconds of the machine's monotonic clock."""
        now = monotonic()
        self._seconds[self._phase] += now - self._since
        self._phase = _INDEX[phase]
        self._since = now
        return now

    def reset(self) -> np.ndarray:
        """Seconds per phase [len(PHASES)], up to now; counting starts again, in the phase that is open."""
        now = monotonic()
        self._seconds[self._phase] += now - self._since
        self._since = now
        seconds = np.array(self._seconds)
        self._seconds = [0.0] * len(PHASES)
        return seconds

    def add_blocked(self, blocked: float, workers: np.ndarray) -> None:
        """Explain time spent blocked on workers by what they did meanwhile.

        Args:
            blocked: seconds that the learner's "wait" holds for this stretch.
            workers: [W, len(PHASES)] seconds of each worker in the same stretch.

        The mean over workers of each phase moves out of "wait"; what is left there is idle time.
        The total is unchanged.
        """
        busy = workers.mean(axis=0)
        busy *= min(1.0, blocked / max(busy.sum(), 1e-12))
        for i, seconds in enumerate(busy):
            self._seconds[i] += float(seconds)
        self._seconds[_INDEX["wait"]] -= float(busy.sum())


def as_dict(seconds: np.ndarray) -> dict[str, float]:
    """Seconds per phase by name, with the totals "sampling", "learning" and "communication"."""
    parts = {name: float(s) for name, s in zip(PHASES, seconds, strict=True)}
    totals = {"sampling": SAMPLING, "learning": LEARNING, "communication": COMMUNICATION}
    return parts | {total: sum(parts[name] for name in names) for total, names in totals.items()}
