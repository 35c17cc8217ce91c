"""Whether a policy uses its memory: it plays the same episodes again while its recurrent states are changed.

Before each step, a function of the type `policies.evaluation.ChangeStates` changes the states:

- It sets them to 0 every k steps, as at the start of an episode. With k = 1, the policy has no memory.
- It holds the states after the first step: the policy knows the first and the current observation.
- It takes them from another episode at the same step: usual states, but of a wrong past.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shmppo.config.checks import flag, require
from shmppo.config.train_config import load_config
from shmppo.envs.vector_env import VectorEnv
from shmppo.loggers.text import number
from shmppo.models.encoders import network_input
from shmppo.plotting.curves import bootstrap_interval
from shmppo.plotting.style import label, new_figure, save
from shmppo.policies.evaluation import evaluate
from shmppo.policies.policy import TrainedPolicy, load_trained
from shmppo.storage.run_directory import MEMORY_PICTURE
from shmppo.utils.files import make_parent_directory

Recorded = defaultdict[int, list[tuple[np.ndarray, list[np.ndarray]]]]
"""Steps by the index of the column: the recurrent state before the step [S], and the observation, an array per leaf."""
KEPT, HELD, EXCHANGED = "kept", "held", "exchanged"
CAPTION = "Held: after the first step. Exchanged: for the state of another episode. Bars: 95 % bootstrap intervals."
MAX_ROWS = 4000
"""Largest number of steps in a regression."""


@dataclass(frozen=True)
class MemoryUse:
    """How the return of a policy depends on its recurrent state, and what a linear map reads from the state."""

    iteration: int
    """Finished iterations of the policy."""
    returns: dict[str, list[float]]
    """Returns of the same episodes [episodes], by what happens to the states: the number of steps from one reset to the
    next, "kept", "held" after the first step, or "exchanged" for those of another episode."""
    hidden: dict[str, list[float]]
    """For "R² of NAME", or "accuracy of NAME" if the part NAME of the observation, which the actor does not see, is
    Discrete: that of a ridge regression from the state, and of one from what the actor sees at the same step. They are
    fitted to half of the episodes, and measured on the other half."""

    def interval(self, case: str, base: str | None = None) -> tuple[float, float, float]:
        """Return the mean return of a case, or its mean difference from another case, and the 95 % interval of it."""
        values = np.array(self.returns[case]) - (self.returns[base] if base else 0.0)
        low, high = bootstrap_interval(values[:, np.newaxis], lambda draws: draws.mean(axis=-2))
        return float(values.mean()), float(low[0]), float(high[0])

    @property
    def sentence(self) -> str:
        """Whether the policy uses its memory, and how far back: from which k on resets cost at most 5 %."""
        kept, without, (gain, low, high) = self.interval(KEPT)[0], self.interval("1")[0], self.interval(KEPT, "1")
        if low <= 0 <= high:
            return f"The return is {number(kept)} with memory and {number(without)} without it, which may be chance."
        text = f"The return {'falls' if gain > 0 else 'rises'} from {number(kept)} to {number(without)} without memory"
        left = {int(case): 1 - self.interval(KEPT, case)[0] / gain for case in self.returns if case.isdigit()}
        k = min((k for k in left if min(share for at, share in left.items() if at >= k) >= 0.95), default=max(left))
        return f"{text}; resets every {k} steps cost {100 - 100 * left[k]:.0f} % of the difference."

    @property
    def text(self) -> str:
        """The sentence, what is read from the states, and all mean returns with their 95 % intervals."""
        read = ["{}: {:.2f} from the state, {:.2f} without it".format(name, *two) for name, two in self.hidden.items()]
        means = ["{:>9}  {} ({} to {})".format(case, *map(number, self.interval(case))) for case in self.returns]
        return "\n".join([self.sentence, *read, *means])


def memory_use(run_dir: str | Path, *, episodes: int = 50, **arguments: Any) -> MemoryUse:
    """Measure how the return of a policy depends on its recurrent state.

    The recurrent states of all steps are kept, and all observations if the actor does not see all parts of them.

    Args:
        run_dir, arguments: see `shmppo.policies.evaluation.evaluate`.
        episodes: number of episodes, at least 2. They are played once for each change of the states.

    Raises:
        ConfigError: if the policy has no recurrent core, if an episode has failed, or if `evaluate` raises it.
        EnvError: if an environment raises.
    """
    for name in ("video", "record", "round_robin"):
        require(not arguments.get(name), f"{flag(name)} is of no use with --memory; leave it out")
    require(episodes > 1, f"--episodes is {episodes}; --memory needs at least 2")
    source = {"env_kwargs": {}} | {k: v for k, v in arguments.items() if k in ("checkpoint", "trust", "env_kwargs")}
    trained, recorded = load_trained(run_dir, **source), Recorded(list)
    require(trained.model.state_size > 0, f"{run_dir} has no recurrent core, so no memory; name a run with a core")
    hidden = set(range(len(trained.task.observation.network_leaves))) - set(trained.model.inputs[0])

    def play(change: Any, *values: Any) -> list[float]:
        arguments["change_states"] = partial(change, *values, recorded)
        result = evaluate(run_dir, episodes=episodes, **arguments)
        require(not result.failed, "an episode has failed; --memory needs an environment that does not fail")
        return result.returns

    kept = play(record, bool(hidden))
    steps = max(map(len, recorded.values()))
    returns = {str(2**i): play(reset, 2**i) for i in range(max(1, (steps - 1).bit_length()))} | {KEPT: kept}
    returns |= {HELD: play(replay, 0, 1), EXCHANGED: play(replay, len(recorded) // episodes, steps)}
    return MemoryUse(trained.iteration, returns, read_hidden(trained, hidden, recorded) if hidden and steps > 1 else {})


def record(with_obs: bool, recorded: Recorded, envs: VectorEnv, step: int, states: np.ndarray) -> None:
    """Record the states, and the observations if needed, of the columns whose episode has not ended."""
    for i, handle in enumerate(envs.handles):
        if not handle.episode:
            recorded[handle.index].append((states[i].copy(), [leaf[i].copy() for leaf in envs.obs if with_obs]))


def reset(k: int, recorded: Recorded, envs: VectorEnv, step: int, states: np.ndarray) -> None:
    """Set the states to 0 every k steps. Columns begin at different steps, each of which is equally frequent."""
    columns = np.array([handle.index for handle in envs.handles]) - min(recorded)
    states[(step + columns * k // len(recorded)) % k == 0] = 0.0


def replay(shift: int, last: int, recorded: Recorded, envs: VectorEnv, step: int, states: np.ndarray) -> None:
    """Replace the states by recorded ones of the same step.

    Args:
        shift: how many columns later they were recorded, after the last column from the first one on.
        last: the last step of which states are used.
    """
    for i, handle in enumerate(envs.handles):
        steps = recorded[(handle.index + shift - min(recorded)) % len(recorded) + min(recorded)]
        states[i] = steps[min(step, last, len(steps) - 1)][0]


def read_hidden(trained: TrainedPolicy, hidden: set[int], recorded: Recorded) -> dict[str, list[float]]:
    """Return `MemoryUse.hidden` of recorded steps. hidden: indices of the leaves that the actor does not see."""
    leaves, seen = trained.task.observation.network_leaves, trained.model.inputs[0]
    rows = [(n, after, obs) for n, steps in enumerate(recorded.values()) for (_, obs), (after, _) in pairwise(steps)]
    numbers, after, obs = zip(*rows[:: 1 + len(rows) // MAX_ROWS], strict=True)
    pairs = zip(leaves, map(np.stack, zip(*obs, strict=True)), strict=False)  # an action mask comes last
    parts = [network_input(leaf, torch.from_numpy(stored)).flatten(1).double().numpy() for leaf, stored in pairs]
    inputs = [np.stack(after), np.concatenate([parts[i] for i in seen], axis=1)]
    fitted = np.array(numbers) < len(recorded) / 2
    kinds = {i: "accuracy" if len(leaves[i].sizes) == 1 else "R²" for i in sorted(hidden)}
    return {f"{one} of {leaves[i].name}": [score(x, parts[i], fitted, one) for x in inputs] for i, one in kinds.items()}


def score(inputs: np.ndarray, targets: np.ndarray, fitted: np.ndarray, measure: str) -> float:
    """Fit a ridge regression to some rows, and measure it on the other rows.

    Args:
        inputs, targets: [n, D], [n, numbers].
        fitted: bool [n].
        measure: R², or the accuracy of one-hot targets.
    """
    x = np.c_[(inputs - inputs.mean(axis=0)) / np.maximum(inputs.std(axis=0), 1e-6), np.ones(len(inputs))]
    products, penalty = x @ x[fitted].T, 0.01 * fitted.sum() * np.eye(fitted.sum())  # dual: D may be above n
    predicted, true = products[~fitted] @ np.linalg.solve(products[fitted] + penalty, targets[fitted]), targets[~fitted]
    if measure == "accuracy":
        return float((predicted.argmax(axis=1) == true.argmax(axis=1)).mean())
    return float(1 - np.square(true - predicted).sum() / np.square(true - true.mean(axis=0)).sum())


def report_memory_use(options: Any, arguments: dict[str, Any]) -> str:
    """Return what `shmppo evaluate --memory` prints, and draw the returns as memory.png in the run directory.

    Args:
        options: flags of the command.
        arguments: of `memory_use`.

    Raises:
        ConfigError: if matplotlib is missing, if the picture cannot be written, or if `memory_use` raises it.
    """
    require(len(options.run_dir) == 1, "give one RUN_DIR")
    path, (figure, (axis,)) = options.run_dir[0].absolute() / MEMORY_PICTURE, new_figure(1, 1, height=3.5)
    load_config(path.parent)  # so that a wrong name makes no directory
    make_parent_directory(path, "--memory")
    use = memory_use(options.run_dir[0], **arguments)
    mean, low, high = np.transpose([use.interval(case) for case in use.returns])
    axis.errorbar(list(use.returns), mean, (mean - low, high - mean), fmt="o", capsize=3)
    label(axis, "steps from one reset of the recurrent state to the next", "mean return")
    save(figure, path, "\n".join([*use.text.splitlines()[: 1 + len(use.hidden)], CAPTION]))
    return json.dumps(asdict(use) | {"sentence": use.sentence}) if options.json else use.text
