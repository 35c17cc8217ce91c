"""The sizes of the shared arrays of a run, which follow from its configuration, its environment, and the loss."""

from __future__ import annotations

from shmppo.config.extensions import added
from shmppo.config.option import MAX_OPTION_BYTES
from shmppo.config.train_config import TrainConfig
from shmppo.envs.spec import EnvSpec
from shmppo.models.actor_critic import build_meta_model, parameter_offsets
from shmppo.parallel.shared_buffers import Field, layout
from shmppo.ppo.loss import Loss
from shmppo.utils.phase_timer import PHASES


def run_fields(config: TrainConfig, task: EnvSpec) -> tuple[Field, ...]:
    """Return the layout table of a run (see `layout`)."""
    observation, distribution = task.observation, task.distribution
    model = build_meta_model(config, observation, distribution)
    _, parameters = parameter_offsets(model)
    loss = Loss(config, distribution)
    sizes = {
        "T": config.rollout_steps,
        "N": config.rows,
        "X": config.rows if config.has_idle_steps else 0,
        "Y": config.rows if config.act_on == "device" else 0,
        "W": max(config.num_workers, 1),
        "K": config.epochs,
        "M": config.minibatches,
        "G": config.shards,
        "B": 0 if config.device == "cpu" else config.minibatches,
        "C": config.state_slots,
        "I": len(config.reported_info),
        "D": observation.normalized_size,
        "A": distribution.action_size,
        "P": parameters,
        "S": model.state_size,
        "Q": distribution.action_size if config.ratio == "per-dimension" else 1,
        "Z": distribution.num_params,
        "O": distribution.num_params if config.objective != "clip" else 0,
        "E": len(config.own_eval_episodes),
        "options": 0 if config.env_schedule is None else MAX_OPTION_BYTES,
        "snapshot": 0 if task.snapshot is None else task.snapshot.bytes,
        "phases": len(PHASES),
        "terms": len(loss.metrics),
        "coefficients": len(loss.coefficient_metrics),
    }
    for module in added("arrays"):
        sizes |= module.sizes(config, task)
    return layout(sizes, observation.leaves)
