"""Statistics of the last finished episodes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from shmppo.config.info_keys import InfoKey
from shmppo.envs.episode_info import info_means
from shmppo.lockstep.action_log import episode_ends
from shmppo.parallel.process_group import ProcessGroup
from shmppo.parallel.shared_buffers import Rollout

MIN_EPISODES = 20
"""After so many episodes without a key of --info-keys, --stop-when, or --best-by, a warning names it."""


class EpisodeStatistics:
    """Returns, lengths, and numbers of `info` of the last 100 finished episodes.

    Attributes:
        keys: the I keys of `info`.
        count: number of finished episodes of the run.
        failed: number of episodes that --skip-bad-episodes ended. They are not added.
        last: the last 100 episodes, the newest last: undiscounted return, number of steps, and the numbers of `info`,
            NaN where an episode had none.
        seen: names of the metrics `info/KEY` that an episode of the run has had.
        own: the episodes of this rank that ended in the last rollout: environment, number, CRC-32, return, length,
            and the numbers of `info`.
    """

    def __init__(self, info_keys: Sequence[InfoKey], needed: Collection[str] = (), columns_per_env: int = 1) -> None:
        """needed: metrics that decide something (see `Decisions`)."""
        self._columns_per_env = columns_per_env
        self.keys, self.count, self.failed = info_keys, 0, 0
        self._needed = {name.removeprefix("eval/") for name in needed}
        self.last: deque[list[float]] = deque(maxlen=100)
        self.seen: set[str] = set()
        self.own: list[list[float]] = []

    def add(self, episodes: list[list[float]]) -> None:
        """Add finished episodes, the newest last."""
        self.count += len(episodes)
        self.last.extend(episodes)
        means = info_means(self.keys, [info for _, _, *info in episodes])
        self.seen.update(name for name, mean in means.items() if not math.isnan(mean))

    def add_rollout(self, rollout: Rollout, first_row: int, process_group: ProcessGroup) -> np.ndarray:
        """Add the episodes that ended in a rollout, on all ranks, in the order of (step, global environment).

        An episode of length 0 has failed and is only counted. A negative length means that the step has only reset the
        environment.

        Args:
            rollout: the rollout of this rank's environments.
            first_row: global index of this rank's first column.
            process_group: the ranks.

        Returns:
            The added episodes: step, column, return, length, and the numbers of `info`.
        """
        t, n = np.nonzero(episode_ends(rollout))
        numbers = rollout.ended_return[t, n], rollout.ended_length[t, n], rollout.ended_info[t, n]
        own = np.column_stack([t, first_row + n, *numbers])
        finished = own[:, 3] > 0
        environments = own[:, 1] // self._columns_per_env
        self.own = np.column_stack([environments, rollout.ended_episode[t, n], own[:, 2:]])[finished].tolist()
        ended = np.concatenate(process_group.gather_rows(own))
        ended = ended[np.lexsort((ended[:, 1], ended[:, 0]))]
        added: np.ndarray = ended[ended[:, 3] > 0]
        self.add(added[:, 2:].tolist())
        starts = process_group.gather(rollout.failed_starts.sum(keepdims=True))
        self.failed += int((ended[:, 3] == 0).sum() + starts.sum())
        return added

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores."""
        return {"count": self.count, "last": list(self.last), "seen": sorted(self.seen)}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.count = state["count"]
        self.last.extend(state["last"])
        self.seen.update(state["seen"])

    @property
    def info_means(self) -> dict[str, float]:
        """Means of the keys that are named or were seen, by metric. NaN: none of these episodes has the key."""
        return info_means(self.keys, [info for _, _, *info in self.last], self.seen)

    @property
    def misleading(self) -> list[str]:
        """Sentences about keys that no episode has had, and metrics of success that most of these episodes lack."""
        known = [key for key in self.keys if key.named or key.metric in self._needed]
        return [
            f"{key.metric}: no episode has had this key so far; correct its name if it is misspelled"
            for key in known
            if key.metric not in self.seen and len(self.last) >= MIN_EPISODES
        ] + [
            f"{key.metric} is the mean of only those episodes that have it; set it in every episode, also to 0"
            for k, key in enumerate(self.keys, start=2)
            if key.metric.endswith("success")
            and len(self.last) > sum(math.isnan(row[k]) for row in self.last) > len(self.last) / 2
        ]

    @property
    def return_mean(self) -> float:
        """Mean undiscounted return. NaN before the first episode has ended."""
        return self._mean(0)

    @property
    def length_mean(self) -> float:
        """Mean number of steps. NaN before the first episode has ended."""
        return self._mean(1)

    def _mean(self, column: int) -> float:
        return sum(episode[column] for episode in self.last) / len(self.last) if self.last else math.nan
