"""What a callback can do with its run: `callback(row, run)`."""

from __future__ import annotations

import copy
import dataclasses
import re

from shmppo.config.checks import require
from shmppo.policies.evaluation import Evaluation, play_episodes
from shmppo.policies.policy import Policy, TrainedPolicy
from shmppo.runs.session import Session
from shmppo.sampling.evaluation import evaluation_errors
from shmppo.utils.torch_utils import numeric_modes

_NAME = re.compile(r"(?!best$|1$|iteration-)[A-Za-z0-9][A-Za-z0-9-]*")


class RunHandle:
    """The run that calls a callback. None of its methods changes the weights."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def _trained(self) -> TrainedPolicy:
        return self._session.evaluations.policy(self._session.learner, self._session.state.iteration)

    def policy(self, seed: int = 0) -> Policy:
        """Return a copy of the current policy. seed: of the actions that it samples."""
        trained = self._trained()
        model, moments = copy.deepcopy((trained.model, trained.moments))
        return Policy(dataclasses.replace(trained, model=model, moments=moments), seed)

    def save(self, name: str) -> None:
        """Save a checkpoint as checkpoint-NAME.pt, and as the newest one.

        With several ranks, only rank 0 saves it, and only as checkpoint-NAME.pt: it can be evaluated, but not resumed.

        Raises:
            ConfigError: if the name is reserved, or has other characters than letters, digits, and hyphens.
            SaveError: if it cannot be written.
        """
        advice = "use letters, digits, and hyphens, but not best, 1, or iteration-…"
        require(_NAME.fullmatch(name) is not None, f"run.save got the name {name!r}; {advice}")
        self._session.save(name)

    def stop(self, reason: str = "callback") -> None:
        """Stop the run after this iteration.

        Args:
            reason: the value of `stop_reason` in summary.json.

        Raises:
            ConfigError: if the reason is "finished", "signal", or "error", which have another meaning.
        """
        require(reason not in ("finished", "signal", "error"), f"run.stop got the reason {reason!r}; use another one")
        self._session.stop.make(reason)

    def evaluate(self, episodes: int, *, stochastic: bool = False) -> Evaluation:
        """Play episodes with the current policy, in this process alone.

        They have the same seeds as the episodes of --eval-every, and without `stochastic` also the same results.

        Raises:
            ShmppoError: if an environment raises in an episode.
        """
        trained = self._trained()
        with numeric_modes(), evaluation_errors(trained.iteration):
            results = play_episodes(trained, episodes=episodes, seed=trained.config.seed, stochastic=stochastic)
        return Evaluation.of(trained, results)
