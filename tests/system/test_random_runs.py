"""Random runs: with other workers, one of which is killed, and a stop in between, they give the same numbers."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from cases import numbers_of
from conftest import worker_processes
from helpers import slow_after
from public_helpers import train_in

from shmppo.config.train_config import TrainConfig
from shmppo.runs.launch import resume

TRAINED = Path(__file__).parents[2] / "examples" / "trained"
SPLIT = "shmppo.envs.wrappers:SplitObservation(all=[None], positions=[0, None, 2])"
TASKS: dict[str, dict[str, list[Any]]] = {
    "team": {
        "env": ["agent_environments:Crowd"], "agent_id": [False, True], "self_play": [None, None, ("walker_0",)],
        "env_kwargs": [{"skip": 0.0}, {"skip": 0.8}, {"length": 4}, {"count": 2}],
    },
    "game": {
        "env": ["agent_environments:Nim"], "action_masks": [True], "agent_id": [False, True],
        "self_play": [(), (), ("one",), ("two",), None],
    },
    "teacher": {
        "env": ["CartPole-v1"], "teacher": [str(TRAINED / "cartpole"), str(TRAINED / "cartpole-memory")],
        "teacher_coef": [0.1, 2.0], "teacher_steps": [100, 300], "objective": ["clip"],
    },
    "student": {
        "env": ["CartPole-v1"], "teacher": [str(TRAINED / "cartpole")], "wrappers": [(SPLIT,)],
        "actor_obs": [("positions",)], "critic_obs": [("all",)], "separate_critic": ["all"],
        "objective": ["clip", "distill"], "critic_warmup_steps": [0, 100],
    },
    "curriculum": {
        "env": ["schedules:Scored"], "env_schedule": ["schedules:by_success", "schedules:rising"],
        "prev_action": [False, True], "prev_reward": [False, True], "skip_bad_episodes": [False, True],
    },
    "continuous": {
        "env": ["Pendulum-v1", "InvertedPendulum-v5"], "distribution": ["gaussian", "gaussian", "beta"],
        "ratio": ["joint", "per-dimension"], "objective": ["clip"], "prev_action": [False, True],
    },
    "masks": {"env": ["space_environments:Masked-v0"], "env_kwargs": [{"sizes": [3, 4]}], "action_masks": [True]},
}  # fmt: skip
"""Task -> values of its fields, one of which is drawn."""
CORES: list[dict[str, Any]] = [
    {"core": "lstm"}, {"core": "gru", "separate_critic": "core"}, {"core": "lmu"}, {"core": "none"},
    {"core": "lru", "num_layers": 2}, {"core": "gtrxl", "attention_window": 3},
    {"core": "gru", "kernel": "torch"},
]  # fmt: skip
SIZES = {
    "num_envs": [3, 4, 6, 9], "rollout_steps": [8, 16, 19, 24], "seq_len": [4, 7, 40], "minibatches": [1, 2],
    "epochs": [1, 3], "hidden_size": [4, 12], "encoder_sizes": [(), (5,), (8, 9)], "seed": [1, 2, 3],
}  # fmt: skip
EXTRAS: dict[str, list[Any]] = {
    "activation": ["relu"], "value_clip": [True], "objective": ["penalty"], "lr_schedule": ["kl-adaptive", "constant"],
    "target_kl": [1e-4, 0.01], "advantage_norm": ["global", "none"], "optimizer": ["sgd"],
    "normalize_obs": [False], "normalize_reward": [False], "autocast": ["bf16"], "kl_profile_every": [2],
    "checkpoint_every": [1], "anneal_entropy": [True], "truncation_is_termination": [True],
    "eval_every": [1, 2, 3], "clip_reward": [0.5], "grad_shards": [1, 2],
}  # fmt: skip


def draw_run(draw: random.Random) -> TrainConfig:
    """Draw a configuration of 4 to 9 iterations."""
    task = TASKS[draw.choice(sorted(TASKS))]
    extras = {name: EXTRAS[name] for name in draw.sample(sorted(EXTRAS), 4)}
    fields = draw.choice(CORES) | {name: draw.choice(v) for name, v in (SIZES | extras | task).items()}
    if fields.get("self_play") is not None:
        fields["opponent_every"] = draw.choice([1, 2, 3])
    if "agent_id" in fields and draw.random() < 0.5:
        fields |= {"separate_critic": "all", "critic_state": fields["env"].endswith("Crowd")}
    steps = draw.randint(4, 9) * fields["num_envs"] * fields["rollout_steps"]
    return TrainConfig(**fields, total_steps=steps, eval_episodes=3, quiet=True, check_determinism=0)


@pytest.mark.parametrize("case", slow_after(1, range(40), "4 s per case"))
def test_other_workers_a_kill_and_a_stop_change_no_number(case: int, tmp_path: Path) -> None:
    draw = random.Random(f"run {case}")
    config = draw_run(draw)
    expected = train_in(tmp_path / "undisturbed", config, workers=0)
    workers, later = (draw.randint(0, min(4, config.num_envs)) for _ in range(2))
    stop, kill = draw.randint(1, config.iterations - 1), draw.randint(1, config.iterations)

    def kill_a_worker(row: dict[str, float]) -> None:
        if row["iteration"] == kill and worker_processes():
            os.kill(draw.choice(worker_processes()).pid, signal.SIGKILL)

    run_dir = tmp_path / "disturbed"
    train_in(run_dir, config, workers=workers, stop_at_iteration=stop, callback=kill_a_worker)
    summary = resume(run_dir, workers=later, stop_at_iteration=None)
    assert summary["weights_sha256"] == expected["weights_sha256"]
    assert summary["exact"]
    assert numbers_of(run_dir) == numbers_of(tmp_path / "undisturbed")
