"""Self-play: the pool of earlier weights, and the ratings of the current policy and of the pool."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shmppo.config.checks import require
from shmppo.config.info_keys import PREFIX
from shmppo.config.train_config import TrainConfig
from shmppo.lockstep.feature import Feature
from shmppo.parallel.shared_buffers import SharedBuffers
from shmppo.storage.run_directory import OPPONENTS, saving
from shmppo.utils.files import read_file, replaced_file
from shmppo.utils.rng import opponent_generator

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


class OpponentPool(Feature):
    """The weights that opponents may have, and those that they have now.

    Attributes:
        rating: Elo rating of the current policy. The initial weights have 0.
    """

    def __init__(self, config: TrainConfig, buffers: SharedBuffers, run_dir: Path) -> None:
        """Create an empty pool. Its files are in the directory `opponents` of the run."""
        self._config, self._published = config, buffers.published
        self._directory = run_dir / OPPONENTS
        self._members: list[Member] = []
        self._chosen: list[int] = []  # the index of the member in each slot
        self.rating = 0.0

    @contextmanager
    def around_rollout(self, iteration: int) -> Iterator[None]:
        """Open this to collect a rollout: it calls `fill` first. Raises SaveError if a file cannot be written."""
        with saving(self._directory.parent):
            self.fill(iteration)
        yield

    def fill(self, iteration: int) -> None:
        """Add the current weights to the pool and choose the opponents again, every --opponent-every iterations.

        Raises:
            OSError: if a file cannot be written or read.
            ConfigError: if a file is missing or damaged.
        """
        config = self._config
        filled = bool(self._members) and self._members[-1].iteration == iteration  # before a collection that failed
        if iteration % config.opponent_every or filled:
            return
        published = self._published
        content = np.concatenate([published.weights, published.obs_mean, published.obs_scale]).tobytes()
        self._directory.mkdir(exist_ok=True)
        with replaced_file(self._path(iteration)) as temporary:
            temporary.write_bytes(content)
        self._members.append(Member(iteration, hashlib.sha256(content).hexdigest(), self.rating))
        last, generator = len(self._members) - 1, opponent_generator(config.seed, 0, iteration)
        latest = config.slots // 2
        earlier = generator.integers(max(last, 1), size=config.slots - latest).tolist()
        self._chosen = [last] * latest + earlier
        self._publish()

    def _path(self, iteration: int) -> Path:
        return self._directory / f"{iteration:06d}.float32"

    def _publish(self) -> None:
        """Copy the chosen weights to shared memory."""
        published = self._published
        for slot, index in enumerate(self._chosen):
            member = self._members[index]
            path = self._path(member.iteration)
            content = read_file(path) if path.is_file() else b""
            is_same = hashlib.sha256(content).hexdigest() == member.sha256
            require(is_same, f"{path} is missing or damaged; restore it from a copy")
            ends = np.cumsum([published.weights.size, published.obs_mean.size])
            targets = published.opponents, published.opponent_mean, published.opponent_scale
            for target, part in zip(targets, np.split(np.frombuffer(content, np.float32), ends), strict=True):
                target[slot] = part

    def rate(self, rows: Sequence[int], info: np.ndarray) -> None:
        """Update the rating with the games that ended in a rollout, in their order.

        The expected score is 1 / (1 + 10^((R' − R) / 400)) for the ratings R of the policy and R' of the opponent (Elo,
        The Rating of Chessplayers, 1978).

        Args:
            rows: the first row of each game's environment, among all ranks.
            info: float64 [games, I], the numbers of `info`.
        """
        metrics = [key.metric for key in self._config.reported_info]
        win, draw = (info[:, metrics.index(f"{PREFIX}{result}")] for result in ("win", "draw"))
        for row, score in zip(rows, (win + draw / 2).tolist(), strict=True):
            opponent = self._members[self._chosen[self._config.slot_of(row)]]
            expected = 1 / (1 + 10 ** ((opponent.rating - self.rating) / ELO_SCALE))
            self.rating += ELO_STEP * (score - expected)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores."""
        return {"members": [tuple(member) for member in self._members], "chosen": self._chosen, "rating": self.rating}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned, and the opponents. Raises ConfigError if a file is missing or damaged."""
        self._members = [Member(*member) for member in state["members"]]
        self._chosen, self.rating = list(state["chosen"]), state["rating"]
        self._publish()
