"""KL profile of an update: how far each optimizer step moves the policy, and how far it is from the final policy.

Let π_i be the policy after i of the I optimizer steps of an update. The profile consists of two curves:

- sequential KL(π_{i+1} ‖ π_i): how far one step moves the policy;
- reference KL(π_I ‖ π_i): how far the policy is from the final policy of the update.

Both are means over the steps of a probe: some sequences of the rollout, evaluated from their stored recurrent states.
The KLs are computed in closed form in float64. Recording a profile does not change the update.
"""

from __future__ import annotations

import csv
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.extensions.kl_profile.files import DIRECTORY, GLOSSARY, TABLE
from shmppo.parallel.shared_buffers import Minibatches
from shmppo.ppo.gradients import ShardGradients
from shmppo.spaces.distributions import Distribution
from shmppo.utils.files import open_file, refuse_links, replaced_file

PROBE_STEPS = 512  # approximate number of environment steps in the probe
MAX_RECORDED_POLICIES = 256  # of one update
FIT_SHARE = 0.5  # fit the first half only: the reference KL falls to 0 at the end of every update


@dataclass(frozen=True)
class KLProfile:
    """The profile of one update. Arrays have one element for each recorded policy."""

    steps: np.ndarray
    """Number i of optimizer steps before this policy."""
    sequential: np.ndarray
    """KL(π_{i+1} ‖ π_i) in nats. NaN for the last policy."""
    reference: np.ndarray
    """KL(π_I ‖ π_i) in nats. 0 for the last policy."""
    probe_steps: int
    """Number of environment steps in the probe."""
    seconds: float
    """Seconds spent on recording."""

    @property
    def share(self) -> np.ndarray:
        """Fraction of the update's optimizer steps before each policy, from 0 to 1."""
        return self.steps / max(int(self.steps[-1]), 1)

    @property
    def sequential_mean(self) -> float:
        """Mean sequential KL over the recorded policies; NaN if the update made no step."""
        return float(self.sequential[:-1].mean()) if len(self.sequential) > 1 else float("nan")

    @property
    def slope(self) -> float:
        """Slope of a line fitted to log₁₀(reference KL) over `share`, by least squares up to FIT_SHARE.

        NaN if fewer than two policies have a positive reference KL there.
        """
        used = (self.share <= FIT_SHARE) & (self.reference > 0)
        if used.sum() < 2:
            return float("nan")
        return float(np.polyfit(self.share[used], np.log10(self.reference[used]), 1)[0])

    @property
    def gamma(self) -> float:
        """Factor γ_D by which the reference KL changes per optimizer step in the fit: 10^(slope / I)."""
        return float(10 ** (self.slope / max(int(self.steps[-1]), 1)))

    @property
    def monotonic_share(self) -> float:
        """Fraction of recorded policies after the first that are nearer to π_I than the recorded policy before."""
        falls = np.diff(self.reference) < 0
        return float(falls.mean()) if len(falls) else float("nan")


def recorded_steps(planned: int) -> np.ndarray:
    """Choose the numbers i of optimizer steps after which the policy is recorded.

    Args:
        planned: number of optimizer steps of a complete update.

    Returns:
        All of 0 … planned, or at most MAX_RECORDED_POLICIES of them with logarithmic spacing.
    """
    if planned < MAX_RECORDED_POLICIES:
        return np.arange(planned + 1)
    return np.unique(np.concatenate([[0], np.geomspace(1, planned, MAX_RECORDED_POLICIES - 1).round()])).astype(int)


def probe_sequences(sequences: np.ndarray) -> np.ndarray:
    """Choose evenly spaced sequences with about PROBE_STEPS steps in total.

    Args:
        sequences: [sequences, 4], from `cut_sequences`.
    """
    wanted = min(len(sequences), max(1, round(PROBE_STEPS * len(sequences) / int(sequences[:, 2].sum()))))
    return sequences[np.arange(wanted) * len(sequences) // wanted]


class KLRecorder:
    """Records the profile of an update. Call `begin`, then `record` after each optimizer step, then `end`."""

    def __init__(self, config: TrainConfig, distribution: Distribution, gradients: ShardGradients) -> None:
        """Create a recorder.

        Args:
            gradients: evaluates the policy with the current weights.
        """
        self._distribution = distribution
        self._gradients = gradients
        self._recorded = frozenset(recorded_steps(config.epochs * config.minibatches).tolist())

    def begin(self, minibatches: Minibatches) -> None:
        """Choose the probe from the sequences of an update, and record the policy before its first step."""
        count = int(minibatches.bounds[0, -1, -1])
        self._probe = probe_sequences(minibatches.sequences[:count].astype(np.int64))
        self._policies: list[np.ndarray] = []
        self._steps: list[int] = []
        self._sequential: list[float] = []
        self._seconds = 0.0
        self.record(0)

    def record(self, optimizer_steps: int) -> None:
        """Record the current policy.

        Args:
            optimizer_steps: number of optimizer steps of this update so far.
        """
        began = time.perf_counter()
        follows_recorded = len(self._sequential) < len(self._steps)  # the policy before this step was recorded
        if follows_recorded or optimizer_steps in self._recorded:
            params = self._policy()
            if follows_recorded:
                self._sequential.append(self._kl(params, self._policies[-1]))
            if optimizer_steps in self._recorded:
                self._policies.append(params)
                self._steps.append(optimizer_steps)
        self._seconds += time.perf_counter() - began

    def end(self, optimizer_steps: int) -> KLProfile:
        """Compute the profile after the last step of the update.

        Args:
            optimizer_steps: number of optimizer steps of this update. `record` was called after each of them.
        """
        began = time.perf_counter()
        if self._steps[-1] != optimizer_steps:
            self._policies.append(self._policy())
            self._steps.append(optimizer_steps)
        reference = [self._kl(self._policies[-1], params) for params in self._policies]
        return KLProfile(
            steps=np.array(self._steps),
            sequential=np.array([*self._sequential, np.nan]),
            reference=np.array(reference),
            probe_steps=int(self._probe[:, 2].sum()),
            seconds=self._seconds + time.perf_counter() - began,
        )

    def _policy(self) -> np.ndarray:
        """Compute the current policy at the steps of the probe: normalized parameters, float64 [steps, O]."""
        return self._distribution.normalized(self._gradients.outputs(self._probe)[0].astype(np.float64))

    def _kl(self, p: np.ndarray, q: np.ndarray) -> float:
        """Compute the mean KL(p ‖ q) over the probe, in nats."""
        return float(self._distribution.kl(p, q).mean())


def write_profile(run_dir: Path, iteration: int, profile: KLProfile) -> None:
    """Write a profile to kl/ITERATION.npz and append its summary to kl.csv.

    Raises:
        OSError: if a file cannot be written.
    """
    (run_dir / DIRECTORY).mkdir(exist_ok=True)
    path = run_dir / DIRECTORY / f"{iteration:06d}.npz"
    with replaced_file(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **vars(profile))
    summary = (
        iteration, int(profile.steps[-1]), profile.probe_steps, profile.sequential_mean, float(profile.reference[0]),
        profile.gamma, profile.slope, profile.monotonic_share, profile.seconds,
    )  # fmt: skip
    is_new = not (run_dir / TABLE).exists()
    with open_file(run_dir / TABLE, "a", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([GLOSSARY] if is_new else [])
        writer.writerow(f"{value:.10g}" for value in summary)


def mean_profile(profiles: list[KLProfile], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Average log₁₀ of one curve over several updates.

    Args:
        profiles: of the updates. A profile is ignored if its curve, without the last policy, is not positive.
        name: "sequential" or "reference".

    Returns:
        (`share` [99], mean of log₁₀ KL in nats [99]). The mean is NaN if all profiles are ignored.
    """
    grid = np.linspace(0.01, 0.99, 99)
    curves = []
    for profile in profiles:
        values = getattr(profile, name)[:-1]
        if len(values) and (values > 0).all():
            curves.append(np.interp(grid, profile.share[:-1], np.log10(values)))
    return grid, np.mean(curves, axis=0) if curves else np.full(len(grid), np.nan)


def read_profiles(run_dir: Path) -> dict[int, KLProfile]:
    """Read all profiles of a run. Return them by iteration.

    Raises:
        ConfigError: if the run directory contains none.
    """
    refuse_links(run_dir)
    profiles = {}
    for path in sorted((run_dir / DIRECTORY).glob("*.npz")):
        with open_file(path) as opened, np.load(opened) as file:
            profiles[int(path.stem)] = KLProfile(
                file["steps"], file["sequential"], file["reference"], int(file["probe_steps"]), float(file["seconds"])
            )
    if not profiles:
        raise ConfigError(f"{run_dir / DIRECTORY} contains no profiles; train with --kl-profile-every 10")
    return profiles
