"""Checks of combinations of options. The classes of options check each option alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmppo.config.bounds import check_bounds
from shmppo.config.checks import flag, require

if TYPE_CHECKING:
    from shmppo.config.train_config import TrainConfig

NEED_ONE_AGENT = (
    "wrappers", "demonstrations", "teacher", "prev_action", "prev_reward", "skip_bad_episodes", "refresh_states",
    "preempt_fraction", "eval_videos",
)  # fmt: skip
"""Options that environments with several agents refuse."""


def check(config: TrainConfig) -> None:
    """Check all options and their combinations.

    Raises:
        ConfigError: if the configuration cannot run. The message names flag, value, and remedy in one sentence.
    """
    check_bounds(config)
    config.check_task()
    config.check_agents()
    config.check_network()
    config.check_update()
    config.check_objective()
    config.check_processes()
    config.check_evaluation()
    _check_combinations(config)
    _check_workers(config)
    _check_minibatches(config)
    _check_agents(config)


def _check_combinations(c: TrainConfig) -> None:
    require(
        c.recurrent or not (c.burn_in or c.refresh_states),
        "--burn-in and --refresh-states need recurrent states, but --core is none; leave them out",
    )
    require(
        c.env_backend not in ("envpool", "vector") or not c.action_masks,
        f"--action-masks needs --env-backend gymnasium, but --env-backend is {c.env_backend}; leave it out",
    )
    require(
        c.preempt_fraction is None or not c.refresh_states,
        f"--preempt-fraction {c.preempt_fraction} ends rollouts early, but --refresh-states needs complete rollouts; "
        "leave one of them out",
    )
    require(
        not c.critic_warmup_steps or (c.separate_critic == "all" and not c.weight_decay and c.auxiliary is None),
        "--critic-warmup-steps needs --separate-critic all and neither --weight-decay nor --auxiliary, because "
        "otherwise the policy would change, too; change these flags, or leave it out",
    )


def _check_workers(c: TrainConfig) -> None:
    require(
        c.num_workers <= c.num_envs,
        f"--workers is {c.num_workers} but --num-envs is {c.num_envs}; "
        "each worker needs an environment: lower --workers or raise --num-envs",
    )
    require(
        not c.portable or (c.device == "cpu" and c.env_backend != "envpool"),
        "--portable needs --device cpu and no --env-backend envpool, which differ between processors; leave out "
        "--portable",
    )
    if c.learning == "sharded":
        require(c.num_workers >= 1, f"--learning sharded needs workers, but --workers is {c.num_workers}; use central")
        require(
            c.device == "cpu",
            f"--learning sharded needs --device cpu, but it is {c.device}; use --learning central",
        )


def _check_minibatches(c: TrainConfig) -> None:
    require(
        c.num_envs % c.block == 0,
        f"--num-envs {c.num_envs} is not a multiple of --env-block {c.block}; choose a block that divides it",
    )
    block_sequences = c.block * c.min_env_sequences
    require(
        c.minibatches <= block_sequences,
        f"--minibatches is {c.minibatches} but {c.block} environments × {c.min_steps} steps may give only "
        f"{block_sequences} sequences of up to {c.sequence_steps} steps; lower --minibatches, or raise "
        f"{'--num-envs' if c.env_block is None else '--env-block'} or --rollout-steps",
    )
    require(
        c.minibatches * c.shards <= c.min_sequences,
        f"--minibatches {c.minibatches} × --grad-shards {c.shards} needs {c.minibatches * c.shards} sequences, but a "
        f"rollout may give only {c.min_sequences}; lower one of them",
    )


def _check_agents(c: TrainConfig) -> None:
    for name in NEED_ONE_AGENT if c.agents else ():
        require(not getattr(c, name), f"{flag(name)} does not support environments with several agents; leave it out")
    require(
        not c.critic_state or c.separate_critic == "all",
        "--critic-state needs a critic of its own; add --separate-critic all",
    )
