"""Several agents in a run: the steps at which they acted, and in self-play the pool of earlier weights and the ratings.

A rating is that of Elo (The Rating of Chessplayers, 1978).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shmppo.config.checks import require
from shmppo.config.info_keys import PREFIX
from shmppo.config.train_config import TrainConfig
from shmppo.extensions.agents.files import DIRECTORY
from shmppo.extensions.agents.options import AgentOptions
from shmppo.extensions.agents.players import FunctionOpponent, opponent_generator
from shmppo.lockstep.feature import Feature
from shmppo.storage.run_directory import saving
from shmppo.utils.files import read_file, replaced_file

ELO_STEP, ELO_SCALE = 4.0, 400.0
"""K of the Elo rating, and the difference at which the better player is expected to score ten times as much."""


class Member(NamedTuple):
    """Weights in the pool."""

    iteration: int
    """Number of finished iterations when they were current."""
    sha256: str
    """Of the content of their file."""
    rating: float
    """Elo rating of the policy at that time."""


class Agents(Feature):
    """Counts steps of agents, and chooses the weights of the opponents.

    Attributes:
        steps: number of steps at which an agent of the policy has acted, of all ranks.
        rating: Elo rating of the current policy. The initial weights have 0.
    """

    steps = 0
    rating = 0.0

    def __init__(self, *arguments: Any) -> None:
        """Begin with an empty pool. Its files are in the directory `opponents` of the run."""
        super().__init__(*arguments)
        self._options = AgentOptions.of(self.config)
        self._members: list[Member] = []
        self._chosen: list[int] = []  # the index of the member in each slot

    @staticmethod
    def is_used(config: TrainConfig) -> bool:
        return bool(AgentOptions.of(config).agents)

    @staticmethod
    def check(config: TrainConfig) -> None:
        """Check that --eval-opponent can be imported."""
        FunctionOpponent(AgentOptions.of(config).eval_opponent, "--eval-opponent")

    @contextmanager
    def around_rollout(self, iteration: int) -> Iterator[None]:
        """Add the current weights to the pool and choose the opponents again, every --opponent-every iterations.

        Raises:
            SaveError: if a file cannot be written or read.
            ConfigError: if a file is missing or damaged.
        """
        filled = bool(self._members) and self._members[-1].iteration == iteration  # before a collection that failed
        if self._options.slots and iteration % self._options.opponent_every == 0 and not filled:
            with saving(self.run_dir):
                self._fill(iteration)
        yield

    def _fill(self, iteration: int) -> None:
        published, slots = self.buffers.published, self._options.slots
        content = np.concatenate([published.weights, published.obs_mean, published.obs_scale]).tobytes()
        path = self._path(iteration)
        path.parent.mkdir(exist_ok=True)
        with replaced_file(path) as temporary:
            temporary.write_bytes(content)
        self._members.append(Member(iteration, hashlib.sha256(content).hexdigest(), self.rating))
        last, generator = len(self._members) - 1, opponent_generator(self.config.seed, 0, iteration)
        latest = slots // 2
        earlier = generator.integers(max(last, 1), size=slots - latest).tolist()
        self._chosen = [last] * latest + earlier
        self._publish()

    def _path(self, iteration: int) -> Path:
        return self.run_dir / DIRECTORY / f"{iteration:06d}.float32"

    def _publish(self) -> None:
        """Copy the chosen weights to shared memory."""
        published = self.buffers.published
        for slot, index in enumerate(self._chosen):
            member = self._members[index]
            path = self._path(member.iteration)
            content = read_file(path) if path.is_file() else b""
            is_same = hashlib.sha256(content).hexdigest() == member.sha256
            require(is_same, f"{path} is missing or damaged; restore it from a copy")
            ends = np.cumsum([published.weights.size, published.obs_mean.size])
            parts = np.split(np.frombuffer(content, np.float32), ends)
            for name, part in zip(("opponents", "opponent_mean", "opponent_scale"), parts, strict=True):
                published.added[name][slot] = part

    def end_episodes(self, columns: Sequence[int], info: np.ndarray) -> None:
        """Update the rating with the games that have ended.

        The expected score is 1 / (1 + 10^((R' − R) / 400)) for the ratings R of the policy and R' of the opponent.
        """
        if not self._options.slots:
            return
        metrics = [key.metric for key in self.config.reported_info]
        win, draw = (info[:, metrics.index(f"{PREFIX}{result}")] for result in ("win", "draw"))
        for column, score in zip(columns, (win + draw / 2).tolist(), strict=True):
            opponent = self._members[self._chosen[self._options.slot_of(column)]]
            expected = 1 / (1 + 10 ** ((opponent.rating - self.rating) / ELO_SCALE))
            self.rating += ELO_STEP * (score - expected)

    def metrics(self, steps: int) -> dict[str, float]:
        self.steps += steps
        return self.summary() | ({"elo": self.rating} if self._options.slots else {})

    def summary(self) -> dict[str, Any]:
        return {"agent_steps": self.steps}

    def state(self) -> dict[str, Any]:
        pool = {"members": [tuple(member) for member in self._members], "chosen": self._chosen, "rating": self.rating}
        return {"opponents": pool}

    def load(self, checkpoint: Mapping[str, Any]) -> None:
        """Restore the counter and the opponents. Raises ConfigError if a file is missing or damaged."""
        self.steps = checkpoint["metrics"].get("agent_steps", 0)
        if pool := checkpoint["opponents"]:
            self._members = [Member(*member) for member in pool["members"]]
            self._chosen, self.rating = list(pool["chosen"]), pool["rating"]
            self._publish()


FEATURE = Agents
