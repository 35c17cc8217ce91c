"""The options of environments with several agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from shmppo.config.checks import require
from shmppo.config.option import AT_LEAST_1, option


@dataclass(frozen=True)
class AgentOptions:
    """Environments with several agents, from PettingZoo (extra `pettingzoo`)."""

    agent_id: bool = False
    """Add the index of the agent to its observation, as a one-hot vector: one policy can then play different roles."""
    critic_state: bool = False
    """Show the critic the state of the whole environment, `state()`, beside the agent's observation (MAPPO). Actors,
    exports, and load_policy do not need it. Needs --separate-critic all."""
    self_play: tuple[str, ...] | None = None
    """Agents that opponents with earlier weights play. Without names: all but one, which the seed chooses for each
    episode. Four opponents with weights of their own share the environments, and give no training data. None: the
    policy plays all agents."""
    opponent_every: int = option(10, AT_LEAST_1)
    """Iterations after which the opponents get other weights: two of them the current ones, and two any earlier ones.
    The current weights then join those to choose from."""
    agents: Annotated[tuple[str, ...], tyro.conf.Fixed, tyro.conf.Suppress] = option((), derived=True, inherited=False)
    """Names of the agents that an environment may have. Empty: an environment of Gymnasium."""

    def check(self) -> None:
        """Raise ConfigError if one of these options is invalid."""
        if self.agents and self.self_play is not None:
            unknown = [name for name in self.self_play if name not in self.agents]
            require(
                not unknown and len(set(self.self_play)) < len(self.agents) > 1,
                f"--self-play names {' '.join(unknown or self.self_play) or 'none'} of the agents "
                f"{', '.join(self.agents)}; name some of them, but not all, or none",
            )
