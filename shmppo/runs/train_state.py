"""The state of a run that checkpoints contain besides the learner, and the row of metrics of an iteration."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from shmppo.config.checks import flag, require, shown
from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import modules_of
from shmppo.envs.schedule import write_options
from shmppo.envs.spec import CONTENT, EnvSpec
from shmppo.kernels import supported_variants
from shmppo.lockstep.action_log import ActionLog, episode_ends
from shmppo.lockstep.feature import Feature
from shmppo.lockstep.learner import Learner
from shmppo.lockstep.pool import Times
from shmppo.loggers.metrics import HASH_DIGITS, STATE_HASH, WEIGHTS_HASH
from shmppo.models.actor_critic import weights_sha256
from shmppo.models.user_module import user_modules
from shmppo.parallel.process_group import SINGLE_PROCESS, ProcessGroup
from shmppo.parallel.shared_buffers import Rollout, SharedBuffers
from shmppo.ppo.gae import explained_variance
from shmppo.runs.decisions import Decisions
from shmppo.runs.episode_statistics import EpisodeStatistics
from shmppo.utils import machine
from shmppo.utils.phase_timer import PHASES
from shmppo.utils.program import source_digests

REPLAY_LIMIT = 1_000_000
"""Steps of an episode that are recorded for a replay. A longer one is restarted where it would need a replay."""

log = logging.getLogger(__name__)
START_FIELDS = ("model", "optimizer", "schedule", "obs_moments", "return_moments", "discounted_return")
"""Keys of `Learner.state`."""


class TrainState:
    """Counters and statistics of a run, its action log, and the reasons why it is inexact.

    Attributes:
        learner: the learner, which the session sets when it has made it.
        iteration: number of finished iterations.
        env_steps: number of finished environment steps of all ranks.
        phase_seconds: [phases], seconds of the run by phase.
        decisions: what is decided from metrics.
        checked: whether the check of the environment has passed (--check-determinism).
        condition: the condition of --stop-when that has ended the run. None: none has.
        inexact_reasons: why the weights do not depend only on configuration and seed. Empty for an exact run.
        generators: the global random generators that each environment has for itself.
        episodes: statistics of finished episodes.
        actions: the action log, which restores environments.
        features: the optional features of the run.
        initial_weights: path, iteration, and hash of the run that --init-from named. None without this option.
        branched_from: path, iteration, and hash of the run that this one branches from, the changed options, and what
            that run has branched from. None: this run is no branch.
    """

    learner: Learner

    def __init__(
        self,
        config: TrainConfig,
        task: EnvSpec,
        buffers: SharedBuffers,
        process_group: ProcessGroup = SINGLE_PROCESS,
        features: Sequence[Feature] = (),
    ) -> None:
        """Create the state at the start of a new run."""
        self.features = features
        self._config, self._buffers, self._process_group = config, buffers, process_group
        self.iteration = self.env_steps = 0
        self.phase_seconds = np.zeros(len(PHASES))
        self.decisions = Decisions(config)
        self.checked = False
        self.inexact_reasons: list[str] = []
        self.condition: str | None = None
        self._code: dict[str, str] = {}
        self.initial_weights: dict[str, Any] | None = None
        self.branched_from: dict[str, Any] | None = None
        self.generators, self._spaces = task.generators, task.stored
        self.episodes = EpisodeStatistics(config.reported_info, self.decisions.needed, config.columns_per_env)
        replayed = config.recording() is not None or (task.seeding == "episode" and task.snapshot is None)
        limit = REPLAY_LIMIT if replayed else 0
        self.actions = ActionLog(config.rows, task.distribution.action_size, limit, config.columns_per_env)
        others = [own.computed_by for feature in features for own, _ in feature.networks()]
        self._computed_by = "torch" if "torch" in (config.computed_by, *others) else "native"
        if task.inexact_reason is not None:
            self.mark_inexact(task.inexact_reason)

    @property
    def fingerprint(self) -> dict[str, str]:
        """Versions of the libraries that compute numbers of the run, and the processor."""
        found = machine.fingerprint(self._computed_by, self._config.device, self._config.act_on)
        if self._computed_by == "torch":  # the kernels compute functions for it
            found["kernels"] = "compiled" if supported_variants() else "not compiled"
        return found | {name: self._spaces[name] for name in self._spaces.keys() & {CONTENT}}

    def mark_inexact(self, reason: str) -> None:
        """Mark the run as inexact: its weights do not depend only on configuration and seed. It stays inexact."""
        if reason not in self.inexact_reasons:
            log.warning("not exact: %s", reason)
            self.inexact_reasons.append(reason)

    def mark_lost(self, row: int) -> None:
        """Mark an episode as lost whose environment could not be restored, and the run as inexact."""
        (episode,) = self.actions.episodes(range(row, row + 1))
        self.actions.mark_lost(row)
        recording = self._config.recording()
        if recording is not None and episode.actions is not None:
            self.mark_inexact(f"an episode could not be continued, because {flag(recording)} has other content")
            return
        env_index = row // self._config.columns_per_env
        self.mark_inexact(f"environment {env_index}: its episode could not be replayed and was restarted")

    def publish_options(self, *, ended: bool = False) -> None:
        """Publish the options of the episodes that begin in the next iteration (--env-schedule).

        ended: whether there is no next one, so that a last evaluation has the options of the iteration before.
        """
        if self.decisions.schedule is not None and ended:
            write_options(self.actions.options[self.iteration], self._buffers.published.reset_options)
        elif self.decisions.schedule is not None:
            iteration, known = self.iteration + 1, self.actions.options
            before = known.get(iteration - 1)
            options = self.decisions.schedule(iteration, self.decisions.metrics, before)
            if options != self.decisions.schedule(iteration, self.decisions.metrics, before):
                self.mark_inexact("--env-schedule gives other options when it is called again")
            if options != known.get(iteration, before):
                log.info("episodes that begin in iteration %d or later get the options %s", iteration, shown(options))
            self.actions.begin_iteration(options)
            write_options(options, self._buffers.published.reset_options)

    def compare_code(self) -> None:
        """Record the code of the run's modules. If it has changed since the checkpoint, the run becomes inexact."""
        code = source_digests(modules_of(self._config.to_json()))
        for name, digest in code.items():
            if self._code.get(name, digest) != digest:
                self.mark_inexact(f"the code of {name} has changed since the run was stopped")
        self._code |= code

    @property
    def updating(self) -> bool:
        """Whether the update with a committed rollout is in progress. A checkpoint would be inconsistent then."""
        return self.actions.iteration > self.iteration

    def log_actions(self, rollout: Rollout) -> None:
        """Log the actions of a complete rollout. From now on, environments are restored to its end."""
        numbers = self._buffers.carries[(self.iteration + 1) % 2].episode
        if self._config.has_idle_steps:
            self.actions.commit(rollout.joint_actions, episode_ends(rollout), numbers)
        else:
            self.actions.commit(rollout.actions, episode_ends(rollout), numbers, rollout.valid_steps)

    def finish_iteration(
        self,
        rollout: Rollout,
        advantages: np.ndarray,
        statistics: dict[str, float],
        times: Times,
    ) -> dict[str, float]:
        """Update the counters after an iteration, and return its row of metrics.csv.

        Args:
            advantages: [T, N].
            statistics: of the update (`Learner.update`).
        """
        group = self._process_group
        # Time from here on belongs to the next iteration. `times` ends here, too.
        allreduce_seconds, group.allreduce_seconds = group.allreduce_seconds, 0.0
        self.iteration += 1
        finished = self.episodes.add_rollout(rollout, self._config.first_row, group)
        if rollout.unrepeated.any():
            self.mark_inexact("a skipped episode did not fail when it was repeated, or an environment hung")
        for feature in self.features:
            feature.end_episodes(finished[:, 1].astype(int).tolist(), finished[:, 4:])
        returns = [episode[0] for episode in self.episodes.last] or [math.nan]
        acted = int(group.gather(rollout.valid_steps).sum())
        steps = self._config.batch_steps if self._config.has_idle_steps else acted
        self.env_steps += steps
        self.phase_seconds += times.phases
        explained = explained_variance(rollout.value, advantages + rollout.value, rollout.valid_steps, group)
        return {
            **statistics,
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "wall_seconds": self.phase_seconds.sum(),
            "steps_per_second": steps / (times.phases.sum() - times.phases[PHASES.index("evaluation")]),
            "episodes": self.episodes.count,
            "failed_episodes": self.episodes.failed,
            "return_mean_100": self.episodes.return_mean,
            "return_min_100": min(returns),
            "return_max_100": max(returns),
            "length_mean_100": self.episodes.length_mean,
            **self.episodes.info_means,
            "explained_variance": explained,
            "sync_seconds": times.signaling,
            "collect_seconds": times.collect,
            "allreduce_seconds": allreduce_seconds,
            "straggler_wait": waiting_share(times.workers),
            **{name: value for feature in self.features for name, value in feature.metrics(acted).items()},
            "slowest_worker": int(times.workers.argmax()),
            **{f"{phase}_seconds": seconds for phase, seconds in zip(PHASES, times.phases, strict=True)},
        }

    def hashes(self) -> dict[str, str]:
        """Return the hashes of the weights and of the train state, by column of metrics.csv."""
        weights, carry = self.learner.weights_sha256(), self._buffers.carry_arrays(self.iteration)
        state = {"learner": self.learner.state(), "carry": carry, "episodes": self.episodes.state()}
        return {WEIGHTS_HASH: weights[:HASH_DIGITS], STATE_HASH: state_hash(self.iteration, weights, state)}

    def to_checkpoint(self) -> dict[str, Any]:
        """Return the content of a checkpoint: everything that the next iteration depends on."""
        carry = self._buffers.carry_arrays(self.iteration)
        for module in user_modules(self.learner.model):
            if module.inexact_reason is not None:
                self.mark_inexact(module.inexact_reason)
        return {
            "config": json.dumps(self._config.to_json()),
            "fingerprint": self.fingerprint,
            "checked": self.checked,
            "condition": self.condition,
            "generators": list(self.generators),
            "code": self._code,
            "spaces": json.dumps(self._spaces),
            "inexact_reasons": self.inexact_reasons,
            "initial_weights": self.initial_weights,
            "branched_from": self.branched_from,
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "learner": self.learner.state(),
            "carry": {name: torch.from_numpy(array.copy()) for name, array in carry.items()},
            "actions": {name: torch.from_numpy(array) for name, array in self.actions.state().items()},
            "episodes": self.episodes.state(),
            "seconds": torch.from_numpy(self.phase_seconds.copy()),
            "metrics": self.decisions.metrics,
            "best_value": self.decisions.best_value,
            "best_return": self.decisions.best_return,
            "progress": self.decisions.progress,
            "reset_options": json.dumps(self.actions.options),
            "failed_episodes": self.episodes.failed,
            **{name: value for feature in self.features for name, value in feature.state().items()},
        }

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Restore what `to_checkpoint` returned, except the learner.

        If a library or the processor has changed, the run becomes inexact.

        Raises:
            ConfigError: if only the content of the environment has changed.
        """
        self.iteration = checkpoint["iteration"]
        self.env_steps = checkpoint["env_steps"]
        self.initial_weights = checkpoint["initial_weights"]
        self.branched_from = checkpoint.get("branched_from")  # older checkpoints have none
        self.checked = checkpoint.get("checked", False)
        condition = checkpoint.get("condition")
        self.condition = condition if condition in self._config.stop_when else None
        self.generators = tuple(sorted({*self.generators, *checkpoint.get("generators", ())}))
        self._code = checkpoint.get("code", {})
        log.info("resumed at iteration %d", self.iteration)
        self.inexact_reasons = list(dict.fromkeys([*checkpoint["inexact_reasons"], *self.inexact_reasons]))
        now, before = self.fingerprint, checkpoint["fingerprint"]
        same_processors = machine.same_bits_on(now)["processor"]
        changed = {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}
        # With another library or processor, the content may differ in bits that nobody has changed.
        where = f"the model of --env {self._config.env_id} differs from that of the run"
        require(changed != {CONTENT}, f"{where}; restore it, or start a new run with --init-from")
        for name in sorted(now.keys() | before.keys()):
            own, other = now.get(name, "unused"), before.get(name, "unused")
            unused = name == "mujoco" and "unused" in (own, other)  # another environment has imported it
            if own != other and not unused and not (name == "processor" and other in same_processors):
                self.mark_inexact(f"resumed with {name} {own}, started with {other}")
        for name, array in self._buffers.carry_arrays(self.iteration).items():
            array[:] = checkpoint["carry"][name].numpy()
        self.actions.load({name: tensor.numpy() for name, tensor in checkpoint["actions"].items()}, self.iteration)
        self.episodes.load(checkpoint["episodes"])
        self.phase_seconds = checkpoint["seconds"].numpy().copy()
        self.decisions.metrics, self.decisions.best_value = checkpoint["metrics"], checkpoint["best_value"]
        self.decisions.best_return = checkpoint.get("best_return", -math.inf)  # older checkpoints have neither
        known = checkpoint.get("progress", {})
        self.decisions.progress = {name: known[name] for name in known if name in self.decisions.needed}
        self.decisions.look_at(self.decisions.metrics)
        options = json.loads(checkpoint["reset_options"])
        self.actions.options = {int(iteration): known for iteration, known in options.items()}
        self.episodes.failed = checkpoint["failed_episodes"]
        for feature in self.features:
            feature.load(checkpoint)


def waiting_share(worker_seconds: np.ndarray) -> float:
    """Return the fraction of the slowest worker's time for which a worker waits, as a mean over workers.

    Args:
        worker_seconds: [W], seconds that each worker took for its part of the rollout.
    """
    return float(1 - worker_seconds.mean() / max(worker_seconds.max(), 1e-12))


def state_digests(checkpoint: Mapping[str, Any]) -> dict[str, str]:
    """Return digests of the parts of a checkpoint that the next iteration depends on, by name.

    An exported policy has only some of them.
    """
    learner = checkpoint["learner"]
    parts = {name: learner[name] for name in START_FIELDS if name in learner}
    parts |= {name: checkpoint[name] for name in ("carry", "actions", "episodes") if name in checkpoint}
    digests = {name: digest(leaves(part)) for name, part in parts.items()}
    if "carry" in checkpoint:
        weights = weights_sha256(learner["model"].values())
        digests[STATE_HASH] = state_hash(checkpoint["iteration"], weights, checkpoint)
    return digests


def state_hash(iteration: int, weights: str, state: Mapping[str, Any]) -> str:
    """Return the first 32 digits of the SHA-256 of a train state, without snapshots and the action log.

    Args:
        iteration: number of finished iterations. The moments of the optimizer, which are twice as large as the weights,
            belong only to every tenth hash.
        weights: SHA-256 of the weights.
        state: "learner", "carry", and "episodes" of a checkpoint.
    """
    learner, carry, episodes = dict(state["learner"], model=weights), dict(state["carry"]), state["episodes"]
    carry.pop("snapshot")  # another way to step the environments has another one
    if iteration % 10:
        del learner["optimizer"]
    return digest(leaves([learner, carry, episodes | {"last": np.array(episodes["last"])}]), 2 * HASH_DIGITS)


def leaves(value: Any) -> Iterator[np.ndarray]:
    """Yield the arrays and numbers in the state of a learner."""
    if isinstance(value, (Mapping, list, tuple)):
        # A checkpoint of an earlier version may have its arrays in another order.
        for part in (value[name] for name in sorted(value, key=str)) if isinstance(value, Mapping) else value:
            yield from leaves(part)
    elif isinstance(value, (torch.Tensor, np.ndarray)):
        yield np.asarray(value)
    else:
        yield np.frombuffer(repr(value).encode(), np.uint8)


def digest(arrays: Iterable[np.ndarray], digits: int = 16) -> str:
    """Return the first digits of the SHA-256 of the bytes of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:digits]
