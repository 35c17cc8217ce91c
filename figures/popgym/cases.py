"""The tasks of POPGym and the recurrent cores that are compared, and the results that others have published."""

from __future__ import annotations

from typing import Any, NamedTuple

from shmppo import TrainConfig, preset

TASKS = (
    *(
        f"{family}{difficulty}"
        for family in (
            "RepeatPrevious", "RepeatFirst", "Autoencode", "CountRecall", "HigherLower", "MultiarmedBandit",
            "PositionOnlyCartPole", "NoisyPositionOnlyCartPole",
        )
        for difficulty in ("Easy", "Medium", "Hard")
    ),
    "MineSweeperEasy", "ConcentrationEasy",
)  # fmt: skip
CORES = ("gru", "lstm", "lmu", "lru", "gtrxl")
VARIANTS: dict[str, dict[str, Any]] = {
    "preset": {},
    "seq16": {"seq_len": 16},
    "seq128": {"seq_len": 128},
    "raw_obs": {"normalize_obs": False},
    "raw_reward": {"normalize_reward": False},
    "wide": {"hidden_size": 256, "encoder_sizes": (256,)},
    "deep": {"encoder_sizes": (128, 128)},
    "layers_2": {"num_layers": 2},
    "window128": {"attention_window": 128},
    "no_memory": {"core": "none"},
    "entropy_0": {"entropy_coef": 0.0},
    "entropy_003": {"entropy_coef": 0.03},
    "constant_lr": {"lr_schedule": "constant"},
    "low_lr": {"learning_rate": 3e-4},
    "gamma_0": {"gamma": 0.0},
    "lambda_1": {"gae_lambda": 1.0},
    "large_batch": {"num_envs": 256},
    "truncation_is_termination": {"truncation_is_termination": True},
}
"""Changes to the preset, each of one aspect: name -> fields of `TrainConfig`."""


class Published(NamedTuple):
    """Published returns of a task: 15 million steps, PPO, the maximum over training, 3 trials."""

    gru: float
    best: float
    """Of 13 models."""
    model: str
    """The best model."""


SOURCE = "Morad et al. 2023, arXiv 2303.01859, appendix B, table 3; second-hand transcription"
PUBLISHED = {
    "RepeatPreviousEasy": Published(1.0, 1.0, "GRU"),
    "RepeatPreviousMedium": Published(-0.315, 0.789, "LMU"),
    "RepeatPreviousHard": Published(-0.428, 0.191, "LMU"),
    "RepeatFirstEasy": Published(1.0, 1.0, "GRU"),
    "RepeatFirstMedium": Published(1.0, 1.0, "GRU"),
    "RepeatFirstHard": Published(0.940, 0.969, "IndRNN"),
    "AutoencodeEasy": Published(-0.283, -0.283, "GRU"),
    "AutoencodeMedium": Published(-0.425, -0.420, "IndRNN"),
    "AutoencodeHard": Published(-0.456, -0.448, "IndRNN"),
    "CountRecallEasy": Published(0.177, 0.509, "LSTM"),
    "CountRecallMedium": Published(-0.528, -0.519, "LSTM"),
    "CountRecallHard": Published(-0.475, -0.470, "LSTM"),
    "HigherLowerEasy": Published(0.529, 0.529, "GRU"),
    "HigherLowerMedium": Published(0.511, 0.513, "another model"),
    "HigherLowerHard": Published(0.506, 0.509, "another model"),
    "MultiarmedBanditEasy": Published(0.619, 0.631, "Elman"),
    "MultiarmedBanditMedium": Published(0.538, 0.598, "TCN"),
    "MultiarmedBanditHard": Published(0.516, 0.574, "TCN"),
    "PositionOnlyCartPoleEasy": Published(1.0, 1.0, "GRU"),
    "PositionOnlyCartPoleMedium": Published(1.0, 1.0, "GRU"),
    "PositionOnlyCartPoleHard": Published(1.0, 1.0, "GRU"),
    "NoisyPositionOnlyCartPoleEasy": Published(0.995, 0.995, "GRU"),
    "NoisyPositionOnlyCartPoleMedium": Published(0.642, 0.659, "IndRNN"),
    "NoisyPositionOnlyCartPoleHard": Published(0.390, 0.404, "IndRNN"),
}
"""Returns from SOURCE. The transcription lacks MineSweeperEasy and ConcentrationEasy."""


def config_of(task: str, core: str, variant: str, seed: int, **changes: Any) -> TrainConfig:
    """Return the configuration of a case: the preset `popgym` with a task, a core, and a variant."""
    fields = {"env": f"popgym:popgym-{task}-v0", "seed": seed, "core": core, **VARIANTS[variant], **changes}
    return preset("popgym", **fields)
