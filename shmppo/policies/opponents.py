"""A trained policy as an opponent, and round robins of trained policies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from shmppo.config.checks import require
from shmppo.config.info_keys import PREFIX, RESULTS
from shmppo.config.trust import Trusted
from shmppo.envs.agents_vector_env import AgentsVectorEnv
from shmppo.policies.policy import WITHOUT_MINIBATCHES, TrainedPolicy, load_trained
from shmppo.sampling.actor import Actor
from shmppo.sampling.evaluation import EpisodeResult
from shmppo.sampling.evaluation_opponents import RANDOM, EvaluationOpponent, FunctionOpponent
from shmppo.utils.files import user_path
from shmppo.utils.rng import opponent_generator


class PolicyOpponent(EvaluationOpponent):
    """A trained policy as an opponent."""

    def __init__(self, trained: TrainedPolicy, *, stochastic: bool) -> None:
        """Create the opponent. stochastic: whether it samples actions, or takes the most likely ones."""
        self._trained, self._stochastic = trained, stochastic

    def begin(self, envs: AgentsVectorEnv, seed: int) -> None:
        """Begin an episode in every environment, with recurrent states of zero."""
        trained, count, distribution = self._trained, len(envs.handles), self._trained.task.distribution
        low = envs.handles[0].index
        self._playing = np.zeros(count, bool)
        self._actor = Actor(trained.config, trained.model, distribution, envs.obs, low=low, active=self._playing)
        self._actor.load(trained.obs_mean, trained.obs_scale)
        self._generators = [opponent_generator(seed, handle.index, 0) for handle in envs.handles]

    def act(self, rows: Sequence[int]) -> list[Any]:
        """Return its actions."""
        self._playing[:] = False
        self._playing[rows] = True
        distribution = self._trained.task.distribution
        if self._stochastic:
            self._actor.load_noise(np.stack([distribution.noise(one, 1) for one in self._generators], axis=1))
        return distribution.to_env(self._actor.act(0 if self._stochastic else None)[rows])

    def end(self, row: int) -> None:
        """Restart with a recurrent state of zero."""
        self._actor.states[row] = 0.0


ANY = "any"
"""The seat that the seed draws for each episode."""


def absolute_opponent(name: str) -> str:
    """Return the name of an opponent. A directory is absolute, because the user's code may change the working one."""
    return str(user_path(name, "--opponent")) if name != RANDOM and Path(name).exists() else name


def load_opponent(
    name: str, trained: TrainedPolicy, trust: Trusted, env_kwargs: Mapping[str, Any], *, stochastic: bool
) -> EvaluationOpponent:
    """Return the opponent that `evaluate --opponent` names: "random", `module:function`, or the directory of a run.

    env_kwargs: arguments of the environment that replace or extend those of both runs.

    Raises:
        ConfigError: if there is no such opponent, or if it sees or does other things than the evaluated policy.
    """
    path = Path(name)
    if name == RANDOM or (":" in name and not path.exists()):
        return FunctionOpponent(name)
    other = load_trained(path, trust=trust, env_kwargs=env_kwargs)
    one, two = (
        (run.task.observation, run.task.agents, run.task.spaces["action_space"], {*run.config.hidden_indices})
        for run in (trained, other)
    )
    require(one == two, f"the opponent {name} was trained with other agents, spaces, or --hide-obs; choose another run")
    return PolicyOpponent(other, stochastic=stochastic)


def with_opponent(trained: TrainedPolicy, seat: str | None) -> TrainedPolicy:
    """Return a policy that plays some of the agents, so that an opponent can play the others.

    seat: the agent that it plays, or "any": one that the seed draws for each episode. None: those that the run's
        `self_play` does not name, or if it names none, any.

    Raises:
        ConfigError: if the environment has no such agent, or only one.
    """
    agents = trained.task.agents
    require(len(agents) > 1, f"{trained.config.env_id} has only one agent; leave out --opponent and --round-robin")
    require(seat in (None, ANY, *agents), f"--seat is {seat}; it must be one of {', '.join(agents)}, or any")
    if seat in agents:
        opponents = tuple(agent for agent in agents if agent != seat)
    else:
        opponents = () if seat == ANY else trained.config.self_play or ()
    config = dataclasses.replace(trained.config, self_play=opponents, **WITHOUT_MINIBATCHES)
    return dataclasses.replace(trained, config=config)


def game_results(episodes: Sequence[EpisodeResult]) -> dict[str, float]:
    """Return the share of wins, draws, and losses, in this order."""
    return {name: fmean(episode.info[PREFIX + name] for episode in episodes) for name in RESULTS}


def round_robin_table(names: Sequence[str], shares: dict[tuple[int, int], dict[str, float]]) -> str:
    """Return the results of a round robin as text: the score of each against each other, in percent, and the mean.

    Args:
        shares: `game_results` of player i against player j, for each pair i < j. A draw scores half a win.
    """
    scores = np.full((len(names), len(names)), np.nan)
    for (i, j), share in shares.items():
        scores[i, j] = 100 * (share["win"] + share["draw"] / 2)
        scores[j, i] = 100 - scores[i, j]
    width = max(map(len, names))
    lines = [" ".join([" " * (width + 4), *(f"{k + 1:>6}" for k in range(len(names))), "  mean"])]
    for k, name in enumerate(names):
        cells = ["     -" if i == k else f"{score:6.1f}" for i, score in enumerate(scores[k])]
        lines.append(" ".join([f"{k + 1:>3} {name:<{width}}", *cells, f"{np.nanmean(scores[k]):6.1f}"]))
    return "\n".join(lines)
