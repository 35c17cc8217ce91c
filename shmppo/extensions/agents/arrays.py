"""The shared arrays of self-play: the weights of the opponents."""

from __future__ import annotations

from typing import Any

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import EnvSpec
from shmppo.extensions.agents.options import AgentOptions
from shmppo.parallel.shared_buffers import LEARNER, Published, shared

ARRAYS: dict[type, dict[str, Any]] = {
    Published: {
        "opponents": shared(LEARNER, "PUBLISH", "f4", "F P", "all parameters of each opponent"),
        "opponent_mean": shared(LEARNER, "PUBLISH", "f4", "F D", "obs_mean of each opponent"),
        "opponent_scale": shared(LEARNER, "PUBLISH", "f4", "F D", "obs_scale of each opponent"),
    }
}


def sizes(config: TrainConfig, task: EnvSpec) -> dict[str, int]:
    """Return the lengths of further axes. F: opponents."""
    return {"F": AgentOptions.of(config).slots}
