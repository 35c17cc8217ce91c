"""The KL profile of an update: how far each optimizer step moves the policy, and how far it still is from the last one.

On a fixed probe of the rollout's rows, replayed from their stored states (new ones in each epoch with
--refresh-states), with π_i the policy after i of the update's I optimizer steps: sequential KL(π_{i+1} ‖ π_i) and
reference KL(π_I ‖ π_i), means over the probe's steps, closed forms in float64. Nothing here is read by the update.
"""

from __future__ import annotations

import csv
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.models.distributions import Distribution
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.ppo.gradients import ShardGradients

PROBE_STEPS = 512  # environment steps of the probe, about: one forward pass of them per recorded policy
MOST_RECORDED = 256  # policies kept of one update
FIT_SHARE = 0.5  # the fit ends here: later, the reference falls to 0 whatever the contraction
PROFILES, TABLE = "kl", "kl.csv"
COLUMNS = (
    "iteration", "optimizer_steps", "probe_steps", "sequential_mean", "reference_start", "gamma", "slope",
    "monotonic_share", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class KLProfile:
    """One update's profile; arrays are [recorded policies]."""

    steps: np.ndarray
    """i, optimizer steps taken before the policy."""
    sequential: np.ndarray
    """KL(π_{i+1} ‖ π_i) in nats; NaN for the last policy."""
    reference: np.ndarray
    """KL(π_I ‖ π_i) in nats; 0 for the last policy."""
    probe_steps: int
    seconds: float
    """What recording it cost."""

    @property
    def share(self) -> np.ndarray:
        """Share of the update's data that the policy has learned from, 0 … 1."""
        return self.steps / max(int(self.steps[-1]), 1)

    @property
    def sequential_mean(self) -> float:
        """Mean over the recorded policies; NaN where no step was taken."""
        return float(self.sequential[:-1].mean()) if len(self.sequential) > 1 else float("nan")

    @property
    def slope(self) -> float:
        """Of log₁₀ of the reference KL by the share of data, least squares over the first half; NaN where it is 0."""
        used = (self.share <= FIT_SHARE) & (self.reference > 0)
        if used.sum() < 2:
            return float("nan")
        return float(np.polyfit(self.share[used], np.log10(self.reference[used]), 1)[0])

    @property
    def gamma(self) -> float:
        """γ_D, the factor per optimizer step of a reference KL that falls as γ_D^i: 10^(slope / I)."""
        return float(10 ** (self.slope / max(int(self.steps[-1]), 1)))

    @property
    def monotonic_share(self) -> float:
        """Share of neighboring recorded policies of which the later is the nearer to π_I."""
        falls = np.diff(self.reference) < 0
        return float(falls.mean()) if len(falls) else float("nan")


def recorded_steps(planned: int) -> np.ndarray:
    """Step counts i at which a policy is kept: every one of 0 … planned, or MOST_RECORDED of them spaced in log."""
    if planned < MOST_RECORDED:
        return np.arange(planned + 1)
    return np.unique(np.concatenate([[0], np.geomspace(1, planned, MOST_RECORDED - 1).round()])).astype(int)


def probe_sequences(rows: np.ndarray) -> np.ndarray:
    """About PROBE_STEPS steps of a row table [rows, 4], whole rows evenly spaced over it."""
    wanted = min(len(rows), max(1, round(PROBE_STEPS * len(rows) / int(rows[:, 2].sum()))))
    return rows[np.arange(wanted) * len(rows) // wanted]


class KLRecorder:
    """Records the profile of one update after the other: `begin`, `record` after each optimizer step, `end`."""

    def __init__(
        self, config: TrainConfig, distribution: Distribution, gradients: ShardGradients, arena: SharedBuffers
    ) -> None:
        """gradients: evaluates the policy with the weights that are learned."""
        self._distribution = distribution
        self._gradients = gradients
        self._arena = arena
        self._recorded = frozenset(recorded_steps(config.epochs * config.minibatches).tolist())

    def begin(self) -> None:
        """Choose the probe from the plan in the arena, and keep the policy that the update starts from."""
        count = int(self._arena.array("bounds")[0, -1, -1])
        self._rows = probe_sequences(self._arena.array("rows")[:count].astype(np.int64))
        self._kept: list[Tensor] = []
        self._steps: list[int] = []
        self._sequential: list[float] = []
        self._seconds = 0.0
        self.record(0)

    def record(self, taken: int) -> None:
        """Look at the policy after `taken` optimizer steps."""
        began = time.perf_counter()
        before = len(self._sequential) < len(self._steps)  # the policy one step ago was kept
        if before or taken in self._recorded:
            params = self._policy()
            if before:
                self._sequential.append(self._kl(params, self._kept[-1]))
            if taken in self._recorded:
                self._kept.append(params)
                self._steps.append(taken)
        self._seconds += time.perf_counter() - began

    def end(self, taken: int) -> KLProfile:
        """The profile, now that the last of `taken` steps is taken and its policy looked at."""
        began = time.perf_counter()
        if self._steps[-1] != taken:
            self._kept.append(self._policy())
            self._steps.append(taken)
        reference = [self._kl(self._kept[-1], params) for params in self._kept]
        return KLProfile(
            steps=np.array(self._steps),
            sequential=np.array([*self._sequential, np.nan]),
            reference=np.array(reference),
            probe_steps=int(self._rows[:, 2].sum()),
            seconds=self._seconds + time.perf_counter() - began,
        )

    def _policy(self) -> Tensor:
        """The policy's parameters at the probe's real steps, float64 [steps, P]."""
        params, real = self._gradients.policy(self._rows)
        return params[real].double()

    def _kl(self, p: Tensor, q: Tensor) -> float:
        return float(self._distribution.kl(p, q).mean())


def write_profile(run_dir: Path, iteration: int, profile: KLProfile) -> None:
    """Write kl/ITERATION.npz and the row of kl.csv; rows of this and later iterations, of before a resume, go."""
    (run_dir / PROFILES).mkdir(exist_ok=True)
    np.savez(
        run_dir / PROFILES / f"{iteration:06d}.npz",
        steps=profile.steps,
        sequential=profile.sequential,
        reference=profile.reference,
        probe_steps=profile.probe_steps,
        seconds=profile.seconds,
    )
    numbers = (
        iteration, int(profile.steps[-1]), profile.probe_steps, profile.sequential_mean, float(profile.reference[0]),
        profile.gamma, profile.slope, profile.monotonic_share, profile.seconds,
    )  # fmt: skip
    table, temporary = run_dir / TABLE, run_dir / f"{TABLE}.partial"
    rows: list[dict[str, str]] = []
    if table.exists():
        with open(table, newline="") as file:
            rows = [row for row in csv.DictReader(file) if int(row["iteration"]) < iteration]
    with open(temporary, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
        writer.writerow({name: f"{value:.10g}" for name, value in zip(COLUMNS, numbers, strict=True)})
    os.replace(temporary, table)


def mean_profile(profiles: list[KLProfile], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean over updates of log₁₀ of a profile's "sequential" or "reference", against the share of data.

    Returns:
        (shares [99], log₁₀ of the geometric mean in nats [99]); a profile that is 0 or less anywhere else than at its
        end is left out.
    """
    grid = np.linspace(0.01, 0.99, 99)
    curves = []
    for profile in profiles:
        values = getattr(profile, name)[:-1]
        if len(values) and (values > 0).all():
            curves.append(np.interp(grid, profile.share[:-1], np.log10(values)))
    return grid, np.mean(curves, axis=0) if curves else np.full(len(grid), np.nan)


def read_profiles(run_dir: Path) -> dict[int, KLProfile]:
    """The profiles of a run by iteration. Raises ConfigError where none was recorded."""
    found = {}
    for path in sorted((run_dir / PROFILES).glob("*.npz")):
        with np.load(path) as file:
            found[int(path.stem)] = KLProfile(
                file["steps"], file["sequential"], file["reference"], int(file["probe_steps"]), float(file["seconds"])
            )
    if not found:
        raise ConfigError(f"{run_dir / PROFILES} holds no profiles; train with --kl-profile-every 10")
    return found
