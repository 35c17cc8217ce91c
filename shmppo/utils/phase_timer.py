"""A timer for the phases of training. It is always in exactly one phase, so the phases add up to the total time."""

from __future__ import annotations

from time import monotonic

import numpy as np

PHASE_GLOSSARY: dict[str, str] = {
    "environment": "environments are stepped and reset",
    "inference": "the policy computes actions",
    "advantage": "rewards are scaled, advantages computed, sequences and minibatches formed",
    "wait": "the learner sends commands, and waits for the slowest worker of a rollout or an update",
    "publish": "the statistics that normalize observations are copied to shared memory",
    "gradient": "forward and backward passes of the update",
    "reduce": "gradients of shards and ranks are added",
    "optimizer": "gradient norm, clipping, optimizer step",
    "evaluation": "episodes of `--eval-every` are played, and recorded with `--eval-videos`",
    "other": "everything else",
}
"""What happens in each phase."""
PHASES = tuple(PHASE_GLOSSARY)
SAMPLING = ("environment", "inference")
LEARNING = ("advantage", "gradient", "optimizer")
COMMUNICATION = ("wait", "publish", "reduce")


class PhaseTimer:
    """Measures seconds per phase since the last `reset`. The first phase is "other".

    Attributes:
        phase: the current phase.
    """

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self.phase = "other"
        self._since = monotonic()

    def switch(self, phase: str) -> float:
        """Start `phase` and end the phase before. Return the current time of the monotonic clock, in seconds."""
        now = monotonic()
        self._seconds[self.phase] += now - self._since
        self.phase = phase
        self._since = now
        return now

    def reset(self) -> np.ndarray:
        """Return the seconds per phase [len(PHASES)] up to now, and set them to 0. The current phase stays."""
        self.switch(self.phase)
        seconds = np.array(list(self._seconds.values()))
        self._seconds = dict.fromkeys(PHASES, 0.0)
        return seconds

    def add_blocked(self, blocked: float, workers: np.ndarray) -> None:
        """Move the learner's waiting time from "wait" to the phases in which the workers computed.

        For each phase, the mean over the workers is moved. The rest of "wait" is idle time: stragglers and
        synchronization. The total does not change.

        Args:
            blocked: seconds that the learner waited.
            workers: [W, len(PHASES)] seconds of each worker in the same period.
        """
        busy = workers.mean(axis=0)
        busy *= min(1.0, blocked / max(busy.sum(), 1e-12))
        for phase, seconds in zip(PHASES, busy, strict=True):
            self._seconds[phase] += float(seconds)
        self._seconds["wait"] -= float(busy.sum())


def as_dict(seconds: np.ndarray) -> dict[str, float]:
    """Return seconds per phase by name, and the totals "sampling", "learning", and "communication".

    Args:
        seconds: [len(PHASES)] from `PhaseTimer.reset`.
    """
    parts = {name: float(s) for name, s in zip(PHASES, seconds, strict=True)}
    totals = {"sampling": SAMPLING, "learning": LEARNING, "communication": COMMUNICATION}
    return parts | {total: sum(parts[name] for name in names) for total, names in totals.items()}
