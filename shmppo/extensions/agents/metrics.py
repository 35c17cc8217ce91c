"""The metrics of runs with several agents. They also have `info/return/NAME`, and in self-play `info/win`."""

from __future__ import annotations

from collections.abc import Collection

from shmppo.config.train_config import TrainConfig
from shmppo.extensions.agents.options import AgentOptions

GROUP = "rollout"
GLOSSARY = {
    "agent_steps": "steps at which an agent acted, of all agents: the steps that the policy has learned from",
    "elo": "Elo rating of the policy against its opponents (`--self-play`); the initial weights have 0",
}


def columns(config: TrainConfig) -> Collection[str]:
    """Return the metrics that a run has."""
    options = AgentOptions.of(config)
    return [name for name, has in zip(GLOSSARY, (options.agents, options.slots), strict=True) if has]
