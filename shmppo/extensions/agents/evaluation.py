"""Evaluations against opponents, and round robins of trained policies: flags of `evaluate`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from shmppo.config.checks import require
from shmppo.config.extensions import EvaluationFlags
from shmppo.config.info_keys import PREFIX
from shmppo.config.train_config import TrainConfig
from shmppo.extensions.agents.options import RANDOM, RESULTS, AgentOptions
from shmppo.utils.files import user_path

ANY = "any"
"""The seat that the seed draws for each episode."""


@dataclass(frozen=True)
class AgentEvaluation(EvaluationFlags):
    """Opponents in evaluations."""

    opponent: str | None = None
    """With several agents, what plays those that the policy does not play: random, the directory of a run, or
    `module:function`, which gets (observation, action space, NumPy generator) and returns an action. None: the policy
    plays all agents."""
    seat: str | None = None
    """With --opponent, the agent that the policy plays. any: one that the seed draws for each episode. None: those
    that the run's --self-play does not name, or if it names none, any."""
    round_robin: bool = False
    """Let all runs RUN_DIR play against each other, and print their scores. Each pair plays --episodes games with seats
    that the seed draws, and each of them again with the seats exchanged."""

    def __post_init__(self) -> None:
        alone = self.seat is not None and self.opponent is None
        require(not alone, "--seat needs an opponent; add --opponent, or leave out --seat")
        if self.opponent not in (None, RANDOM) and Path(self.opponent).exists():
            # The user's code may change the working directory.
            object.__setattr__(self, "opponent", str(user_path(self.opponent, "--opponent")))

    @staticmethod
    def others(config: TrainConfig) -> Any:
        from shmppo.extensions.agents.players import FunctionOpponent

        options = AgentOptions.of(config)
        return FunctionOpponent(options.eval_opponent, "--eval-opponent") if options.slots else None

    def prepare(self, trained: Any, arguments: Mapping[str, Any]) -> Any:
        """Let an opponent play some of the agents, or the policy all of them.

        Raises:
            ConfigError: if there is no such opponent or agent, if the opponent sees or does other things than the
                policy, or if there is only one agent.
        """
        from shmppo.extensions.agents.players import load_opponent
        from shmppo.policies.policy import WITHOUT_MINIBATCHES

        trained = super().prepare(trained, arguments)
        agents = AgentOptions.of(trained.config).agents
        if self.opponent is None:
            own: dict[str, Any] = {"self_play": None, "eval_opponent": RANDOM}
            return replace(trained, config=replace(trained.config, **own))
        other = load_opponent(self.opponent, trained, arguments)
        require(len(agents) > 1, f"{trained.config.env_id} has only one agent; leave out --opponent and --round-robin")
        known = self.seat in (None, ANY, *agents)
        require(known, f"--seat is {self.seat}; it must be one of {', '.join(agents)}, or any")
        if self.seat in agents:
            played = tuple(agent for agent in agents if agent != self.seat)
        else:
            played = () if self.seat == ANY else trained.config.self_play or ()
        config = replace(trained.config, self_play=played, **WITHOUT_MINIBATCHES)
        return replace(trained, config=config, others=other)

    def compare(self, arguments: dict[str, Any]) -> str | None:
        """Let each pair of runs play, with --round-robin."""
        if not self.round_robin:
            return None
        from shmppo.policies.evaluation import evaluate
        from shmppo.policies.policy import load_trained

        options: Any = self
        require(len(options.run_dir) > 1, "--round-robin compares several runs; give several RUN_DIR")
        for name in ("opponent", "seat", "video", "record"):
            require(getattr(options, name, None) is None, f"--{name} is of no use with --round-robin; leave it out")
        require(options.checkpoint == "last", "--round-robin compares the last checkpoints; leave out --checkpoint")
        names = list(map(str, options.run_dir))
        runs = [str(user_path(name, "run_dir")) for name in names]  # an environment may change the working directory
        trained = load_trained(runs[0], trust=options.trust, env_kwargs=options.env_kwargs)
        agents = AgentOptions.of(trained.config).agents
        require(len(agents) <= 2, f"--round-robin needs a game of 2 agents, not {len(agents)}; use --opponent")
        shares = {}
        for i, j in itertools.combinations(range(len(runs)), 2):
            one, two = (
                game_results(evaluate(runs[player], **arguments | {"opponent": runs[other], "seat": ANY}).episodes)
                for player, other in ((i, j), (j, i))
            )
            shares[i, j] = {own: (one[own] + two[reverse]) / 2 for own, reverse in zip(one, reversed(one), strict=True)}
        if options.json:
            return json.dumps([{"runs": [names[i], names[j]], **share} for (i, j), share in shares.items()])
        return round_robin_table(names, shares)


def game_results(episodes: Sequence[Any]) -> dict[str, float]:
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


EVALUATION = AgentEvaluation
