"""The options of environments with several agents, and what the core derives from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from shmppo.config.checks import flag, require
from shmppo.config.extensions import ExtensionOptions
from shmppo.config.info_keys import PREFIX, InfoKey
from shmppo.config.option import AT_LEAST_1, fields_with, option
from shmppo.errors import printable

OPPONENTS = 4  # at a time, in self-play
RANDOM = "random"
"""The opponent that plays at random."""
STATE_KEY = "state"
"""Key of what only the critic sees with --critic-state."""
RESULTS = ("win", "draw", "loss")
"""Results of a game. It is won if the policy's agents have a higher mean return than those of its opponents."""


@dataclass(frozen=True)
class AgentOptions(ExtensionOptions):
    """Environments with several agents, from PettingZoo (extra `pettingzoo`)."""

    agent_id: bool = False
    """Add the index of the agent to its observation, as a one-hot vector: one policy can then play different roles."""
    critic_state: bool = False
    """Show the critic the state of the whole environment, `state()`, beside the agent's observation (MAPPO). Actors,
    exports, and load_policy do not need it. Needs --separate-critic all."""
    self_play: tuple[str, ...] | None = None
    """Agents that opponents with earlier weights play. Without names: all but one, which the seed chooses for each
    episode. None: the policy plays all agents."""
    opponent_every: int = option(10, AT_LEAST_1, branchable=True)
    """Iterations after which the opponents get other weights: two of them the current ones, and two any earlier ones.
    The current weights then join those to choose from."""
    eval_opponent: str = option(RANDOM, resumable=True, read_by_schedule=True, code=True)
    """What plays the agents of --self-play in evaluations: random, or `module:function`, which gets (observation,
    action space, NumPy generator) and returns an action."""
    agents: Annotated[tuple[str, ...], tyro.conf.Fixed, tyro.conf.Suppress] = option((), derived=True, inherited=False)
    """Names of the agents that an environment may have. Empty: an environment of Gymnasium."""

    @property
    def slots(self) -> int:
        """F, number of opponents with weights of their own at a time. 0 without self-play."""
        return 0 if self.self_play is None else OPPONENTS

    def slot_of(self, row: int) -> int:
        """Return the index of the opponent of a column's environment. row: index of the column among all ranks."""
        return row // len(self.agents) % OPPONENTS

    def check(self) -> None:
        config: Any = self  # it has all options
        if self.agents and self.self_play is not None:
            unknown = [name for name in self.self_play if name not in self.agents]
            require(
                not unknown and len(set(self.self_play)) < len(self.agents) > 1,
                f"--self-play names {' '.join(unknown or self.self_play) or 'none'} of the agents "
                f"{', '.join(self.agents)}; name some of them, but not all, or none",
            )
        possible = self.self_play is not None or self.eval_opponent == RANDOM
        require(possible, "--eval-opponent needs --self-play; add --self-play, or --eval-opponent random")
        for name in fields_with(type(self), one_column=True) if self.agents else ():
            require(
                not getattr(self, name), f"{flag(name)} does not support environments with several agents; leave it out"
            )
        require(
            not self.critic_state or config.separate_critic == "all",
            "--critic-state needs a critic of its own; add --separate-critic all",
        )

    def idle_columns(self) -> int:
        return len(self.agents)

    def acting_steps(self, steps: int) -> int:
        """In self-play, the agents are expected to act equally often."""
        return steps if self.self_play is None else max(1, steps // max(len(self.agents), 1))

    def added_info(self) -> list[InfoKey]:
        """The return of each agent, and in self-play the results of games, also of those against each opponent."""
        named = [f"return/{agent}" for agent in self.agents] + list(RESULTS if self.slots else ())
        per_slot = [f"{result}/{slot}" for slot in range(self.slots) for result in RESULTS]
        return [InfoKey((), "last", name in named, PREFIX + printable(name)) for name in named + per_slot]

    def added_parts(self) -> dict[str, bool]:
        parts = {"agent_id": self.agent_id, STATE_KEY: self.critic_state}
        return {key: key == STATE_KEY for key, is_added in parts.items() if is_added}

    def evaluate_flags(self) -> dict[str, Any]:
        return {} if self.self_play is None else {"opponent": self.eval_opponent}


OPTIONS = AgentOptions
