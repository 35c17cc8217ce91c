"""The shared arrays of a teacher. Axes: U numbers of its recurrent state, V policy parameters (0 without --teacher)."""

from __future__ import annotations

from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import EnvSpec
from shmppo.extensions.teaching.options import TeachingOptions
from shmppo.parallel.shared_buffers import Carry, Rollout, collected

ARRAYS = {
    Rollout: {"teacher_params": collected("f4", "T N V", "policy parameters of the teacher")},
    Carry: {"teacher_state": collected("f4", "N U", "recurrent state of the teacher")},
}


def sizes(config: TrainConfig, task: EnvSpec) -> dict[str, int]:
    """Return the lengths of the axes."""
    is_taught, loaded = TeachingOptions.of(config).teacher is not None, task.added.get("teacher")
    return {"U": loaded.state_size if loaded else 0, "V": task.distribution.num_params if is_taught else 0}
