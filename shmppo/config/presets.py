"""Presets: tested options for known environments. `--preset auto` chooses by --env."""

from __future__ import annotations

from typing import Any

from shmppo.config.checks import nearest
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError

AUTO = "auto"

_MUJOCO: dict[str, Any] = {
    "core": "none",
    "encoder_sizes": (64, 64),
    "separate_critic": "all",
    "num_envs": 1,
    "rollout_steps": 2048,
    "minibatches": 32,
    "epochs": 10,
    "learning_rate": 3e-4,
    "log_std_init": -0.7,
    "total_steps": 1_000_000,
}
"""Common hyperparameters for MuJoCo tasks: separate networks, iterations of 2048 steps, and 10 epochs.

Small actions at the start and a value loss without clipping are recommendations of arXiv 2006.05990.
"""
_BALANCING: dict[str, Any] = _MUJOCO | {"gamma": 0.995, "gae_lambda": 0.98}
"""For Hopper and Walker2d, where an action may cause a fall many steps later."""
_CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "total_steps": 200_000}
_PENDULUM: dict[str, Any] = {
    "env": "Pendulum-v1",
    "num_envs": 4,
    "rollout_steps": 512,
    "epochs": 10,
    "gamma": 0.9,
    "gae_lambda": 0.9,
    "total_steps": 200_000,
}
_MOUNTAIN_CAR: dict[str, Any] = {
    "env": "MountainCarContinuous-v0",
    "wrappers": ("shmppo.envs.wrappers:RepeatAction(steps=8)",),
    "num_envs": 8,
    "seq_len": 16,
    "total_steps": 300_000 // 8,
}

_BOARD_GAME: dict[str, Any] = {
    "action_masks": True,
    "self_play": (),
    "opponent_every": 5,
    "core": "none",
    "activation": "relu",
    "num_envs": 64,
    "normalize_obs": False,
    "normalize_reward": False,
    "gamma": 1.0,
}
"""Common options of board games by self-play. A policy without memory sees the whole board."""

PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": _CARTPOLE,
    "CartPole-v1-memory": _CARTPOLE | {"hide_obs": (1, 3)},
    "Pendulum-v1": _PENDULUM,
    "Pendulum-v1-memory": _PENDULUM
    | {
        "hide_obs": (2,),
        "core": "gru",
        "minibatches": 16,
        "gamma": 0.97,
        "gae_lambda": 0.95,
        "normalize_obs": False,
    },
    "MountainCarContinuous-v0": _MOUNTAIN_CAR,
    "MountainCarContinuous-v0-memory": _MOUNTAIN_CAR | {"hide_obs": (1,)},
    # Found by a search of 30 trials (figures/search). The three hidden numbers are the velocities.
    "InvertedDoublePendulum-v5-memory": {
        "env": "InvertedDoublePendulum-v5",
        "hide_obs": (5, 6, 7),
        "num_envs": 4,
        "minibatches": 4,
        "hidden_size": 128,
        "epochs": 8,
        "learning_rate": 4.3e-3,
        "entropy_coef": 5.3e-3,
        "value_coef": 0.96,
        "max_grad_norm": 0.3,
        "total_steps": 100_000,
    },
    "LunarLander-v3": {
        "env": "LunarLander-v3",
        "core": "none",
        "encoder_sizes": (64, 64),
        "separate_critic": "all",
        "num_envs": 16,
        "rollout_steps": 1024,
        "minibatches": 256,
        "epochs": 4,
        "learning_rate": 3e-4,
        "gamma": 0.999,
        "gae_lambda": 0.98,
        "entropy_coef": 0.01,
        "total_steps": 1_000_000,
    },
    "HalfCheetah-v5": _MUJOCO | {"env": "HalfCheetah-v5"},
    "Hopper-v5": _BALANCING | {"env": "Hopper-v5"},
    "Walker2d-v5": _BALANCING | {"env": "Walker2d-v5"},
    # The hyperparameters of the other MuJoCo tasks hardly learn here: a stroke pays much later.
    "Swimmer-v5": {
        "env": "Swimmer-v5",
        "core": "none",
        "encoder_sizes": (64, 64),
        "separate_critic": "all",
        "num_envs": 4,
        "rollout_steps": 1024,
        "minibatches": 16,
        "epochs": 10,
        "gamma": 0.9999,
        "gae_lambda": 0.995,
        "learning_rate": 6e-4,
        "lr_schedule": "constant",
        "total_steps": 1_000_000,
    },
    "Ant-v5": _MUJOCO | {"env": "Ant-v5"},
    "Humanoid-v5": _MUJOCO | {"env": "Humanoid-v5"},
    "MiniGrid-MemoryS9-v0": {
        "env": "minigrid:MiniGrid-MemoryS9-v0",
        "wrappers": (
            "minigrid.wrappers:OneHotPartialObsWrapper",
            "minigrid.wrappers:ImgObsWrapper",
            "FlattenObservation",
            "shmppo.envs.wrappers:FirstActions(count=3)",
        ),
        "hidden_size": 128,
        "encoder_sizes": (128,),
        "gamma": 0.995,
        "learning_rate": 5e-4,
        "entropy_coef": 0.01,
        "total_steps": 1_000_000,
    },
    "ALE/Pong-v5": {
        "env": "ale_py:ALE/Pong-v5",
        # AtariPreprocessing reads the screen itself; a gray observation is the fastest one that it ignores.
        "env_kwargs": {"frameskip": 1, "repeat_action_probability": 0.0, "obs_type": "grayscale"},
        "wrappers": ("AtariPreprocessing()",),
        "encoder": "a3c",
        "hidden_size": 128,
        "num_envs": 8,
        "rollout_steps": 128,
        "minibatches": 8,
        "grad_shards": 4,
        "epochs": 4,
        "clip": 0.1,
        "value_clip": True,
        "entropy_coef": 0.01,
        "clip_reward": 1.0,
        "normalize_reward": False,
        "total_steps": 1_000_000,
        "anneal_steps": 10_000_000,
    },
    "tictactoe_v3": _BOARD_GAME
    | {
        "env": "pettingzoo.classic.tictactoe_v3:env",
        "encoder_sizes": (256, 256),
        "rollout_steps": 64,
        "learning_rate": 1e-3,
        "entropy_coef": 0.1,
        "total_steps": 1_500_000,
    },
    "connect_four_v3": _BOARD_GAME
    | {
        "env": "pettingzoo.classic.connect_four_v3:raw_env",
        "encoder_sizes": (512, 512),
        "rollout_steps": 128,
        "learning_rate": 7e-4,
        "entropy_coef": 0.08,
        "anneal_entropy": True,
        "total_steps": 25_000_000,
    },
    "pybullet-occluded": {
        "env": "pybullet_envs_gymnasium:HopperBulletEnv-v0",
        "hide_obs": (3, 4, 5, 9, 11, 13),
        "wrappers": ("shmppo.envs.wrappers:ResetOnce",),
        "core": "lru",
        "hidden_size": 128,
        "encoder_sizes": (128,),
        "separate_critic": "all",
        "epochs": 10,
        "learning_rate": 3e-4,
        "log_std_init": -0.7,
        "gae_lambda": 0.9,
        "total_steps": 1_500_000,
    },
    "popgym": {
        "env": "popgym:popgym-RepeatPreviousEasy-v0",
        "prev_action": True,
        "core": "gru",
        "hidden_size": 128,
        "encoder_sizes": (128,),
        "num_envs": 64,
        "rollout_steps": 128,
        "seq_len": 64,
        "minibatches": 8,
        "grad_shards": 2,
        "entropy_coef": 0.01,
        "total_steps": 15_000_000,
    },
}
"""Fields of `TrainConfig` by the name of the preset: the environment's id without `module:`, or for PettingZoo the name
of its module. `popgym` and `pybullet-occluded` are for all tasks of a suite: add --env, and for the second also
--hide-obs.

A name that ends in `-memory` is a variant of the task: the policy does not see some numbers of the observation, so it
needs memory."""


def preset(name: str, **changes: Any) -> TrainConfig:
    """Return the configuration of a preset.

    Args:
        name: name of the preset, for example "HalfCheetah-v5" or "Pendulum-v1-memory". `module:` before it is ignored.
        changes: fields of the configuration to change, for example seed=2.

    Raises:
        ConfigError: if there is no such preset, or if the configuration cannot run.
    """
    return TrainConfig(**{**preset_fields(name), **changes})


def preset_fields(name: str, env: str | None = None) -> dict[str, Any]:
    """Return the fields that a preset sets.

    Args:
        name: name of the preset, or "auto" for the preset of an environment.
        env: the environment, for "auto".

    Raises:
        ConfigError: if there is no such preset.
    """
    if name == AUTO and env is None:
        raise ConfigError("--preset auto chooses by --env, which is missing; add --env, or name a preset")
    wanted = str(env if name == AUTO else name)
    module, _, attribute = wanted.rpartition(":")
    fields = PRESETS.get(attribute, PRESETS.get(module.rpartition(".")[2]))
    if fields is not None:
        return dict(fields)
    what = f"--preset auto knows no options for --env {wanted}" if name == AUTO else f"there is no --preset {wanted}"
    names = ", ".join(PRESETS)
    advice = f"choose one of {names}, or leave --preset out (docs/guides/hyperparameters.md has recipes)"
    raise ConfigError(f"{what}{nearest(wanted, PRESETS)}; {advice}")
