"""The configuration: derived values, its file, and bad values, each refused in one sentence with flag and advice."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import make_run_directory
from public_helpers import refused

from shmppo.config.checks import integer
from shmppo.config.flags import parse_start
from shmppo.config.resumable import resumed_config
from shmppo.config.train_config import TrainConfig, load_config
from shmppo.errors import ConfigError

DISTILLED = {"objective": "distill", "teacher": "runs/teacher"}
WARM_UP = {"critic_warmup_steps": 9, "separate_critic": "all"}
REFUSED = [
    ({"workers": 5, "num_envs": 4}, r"--workers is 5 but --num-envs is 4; .*lower --workers or raise --num-envs"),
    ({"separate_critic": True}, r"^--separate-critic is True; it must be Literal\['none', 'core', 'all'\]$"),
    ({"separate_critic": "core", "core": "none"}, r"--separate-critic core needs a recurrent core of --core; use none"),
    ({"encoder": "natur"}, r"--encoder natur does not exist; use auto, mlp, nature, a3c, impala, or module:factory$"),
    ({"encoder": "a:b", "network": "a:c"}, r"--encoder a:b has no effect; leave one of them out$"),
    ({"separate_critic": "core", "network": "a:b"}, r"use none or all with --core none or --network$"),
    ({"workers": -1}, r"--workers is -1; it must be 0 or more"),
    ({"num_envs": 2, "rollout_steps": 32, "seq_len": 16, "minibatches": 5},
     r"--minibatches is 5 but 2 environments × 32 steps may give only 4 sequences of up to 16 steps; lower"),
    ({"num_envs": 2, "rollout_steps": 32, "minibatches": 2, "grad_shards": 3}, r"--minibatches 2 × --grad-shards 3"),
    ({"total_steps": 0}, r"--total-steps is 0; it must be at least 1"),
    ({"stop_at_iteration": 0}, r"--stop-at-iteration is 0; it must be at least 1"),
    ({"gamma": 1.5}, r"--gamma is 1.5; it must lie in 0 … 1"),
    ({"learning_rate": 0.0}, r"--learning-rate is 0.0; it must be positive"),
    ({"learning_rate": float("nan")}, r"--learning-rate is nan; it must be positive and below 1e30"),
    ({"entropy_coef": -0.1}, r"--entropy-coef is -0.1; it must be 0 or more and below 1e30"),
    ({"target_kl": 0.0}, r"--target-kl is 0.0; it must be positive"),
    ({"encoder_sizes": (64, 0)}, r"--encoder-sizes is \(64, 0\); each must be at least 1"),
    ({"device": "tpu"}, r"--device is tpu; use cpu or cuda"),
    ({"workers": 0, "learning": "sharded"}, r"--learning sharded needs workers, but --workers is 0"),
    ({"act_on": "device"}, r"--act-on device needs a GPU; add --device cuda, or use --act-on workers"),
    ({"device": "cuda", "grad_shards": 2}, r"but --device is cuda; leave it out, or use --device cpu"),
    ({"device": "cuda", "learning": "sharded"}, r"but it is cuda; use --learning central"),
    ({"device": "cuda", "portable": True}, r"--portable needs --device cpu, but it is cuda; leave out --portable"),
    ({"objective": "penalty", "ratio": "per-dimension"}, r"--ratio per-dimension has no effect with --objective pen"),
    ({"objective": "clone"}, r"--objective clone and --demonstrations need each other; add the other one, or leave"),
    ({"demonstrations": "a.npz"}, r"--objective clone and --demonstrations need each other"),
    ({"objective": "clone", "demonstrations": "a.npz", "env_backend": "vector"},
     r"--demonstrations needs --env-backend gymnasium, but --env-backend is vector; leave one of them out"),
    ({"clip": 3e38}, r"--clip is 3e\+38; it must be positive and below 1e30"),
    ({"desired_kl": 0.0}, r"--desired-kl is 0.0; it must be positive"),
    ({"clip_reward": 0.0}, r"--clip-reward is 0.0; it must be positive"),
    ({"log_std_min": 1.0}, r"--log-std-min is 1.0; it must lie in -20 … --log-std-init 0.0"),
    ({"distribution": "beta", "squash_actions": True},
     r"^--squash-actions changes a Gaussian distribution, but --distribution is beta; leave one of them out$"),
    ({"distribution": "beta", "std": "state"},
     r"^--std state changes a Gaussian distribution, but --distribution is b"),
    ({"distribution": "beta", "log_std_min": -2.0}, r"^--log-std-min -2.0 changes a Gaussian distribution, but"),
    ({"seed": -1}, r"--seed is -1; it must lie in 0"),
    ({"env_schedule": "a:b", "env_backend": "vector"}, "--env-schedule needs --env-backend gymnasium, but .* is vec"),
    ({"preempt_fraction": 0.6, "rollout_steps": 64, "seq_len": 4, "minibatches": 65}, "may give only 64 sequences"),
    ({"objective": "distill"}, "^--objective distill needs a teacher; add --teacher RUN_DIR"),
    ({**DISTILLED, "teacher_steps": 9}, "^--teacher-steps would end the loss of --objective distill; leave it out"),
    ({**WARM_UP, "auxiliary": "module:factory"}, "^--critic-warmup-steps needs no --auxiliary, because "),
    ({"critic_warmup_steps": 9}, "^--critic-warmup-steps needs --separate-critic all, because"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_a_bad_value_is_refused_with_its_numbers(fields: dict[str, Any], message: str) -> None:
    with refused(message):
        TrainConfig(**fields)


WRONG_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"n_steps": 256}, "there is no field n_steps; use rollout_steps"),
    ({"overwrite": True}, r"there is no field overwrite; pass it to the function: train\(config, overwrite=…\)"),
    ({"vf_coef": 0.5}, "there is no field vf_coef; use value_coef, the weight of half"),
    ({"gama": 0.5}, r"there is no field gama \(did you mean gamma\?\); see"),
    ({"learning_rate": lambda progress: progress}, r"--learning-rate is <function .*>; it must be float$"),
    ({"learning_rate": "fast"}, "--learning-rate is 'fast'; it must be float"),
    ({"seed": None}, "--seed is None; it must be int"),
    ({"num_envs": 4.5}, "--num-envs is 4.5; it must be int"),
    ({"encoder_sizes": 64}, r"--encoder-sizes is 64; it must be list\[int\]"),
    ({"track": "tensorboard"}, "--track is 'tensorboard'; it must be list"),
    ({"env": dict}, r"--env is <class 'dict'>; it must be str \| None; name it as 'module:name'"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG_TYPES, ids=[next(iter(fields)) for fields, _ in WRONG_TYPES])
def test_a_field_or_a_type_that_does_not_exist_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        TrainConfig(**fields)
    with pytest.raises(ConfigError, match=f"^{message}"):
        dataclasses.replace(TrainConfig(), **fields)


def test_values_of_other_types_are_converted() -> None:
    values: dict[str, Any] = {"num_envs": np.int64(8), "encoder_sizes": [32, 16], "run_dir": Path("runs/a")}
    config = TrainConfig(gamma=1, learning_rate=np.float32(0.5), **values)
    assert (config.num_envs, config.learning_rate, config.encoder_sizes) == (8, 0.5, (32, 16))
    assert [type(value) for value in (config.num_envs, config.gamma, config.run_dir)] == [int, float, str]
    assert TrainConfig(target_kl="None").target_kl is None  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^--target-kl is array\(\[1, 2\]\); it must be float"):
        TrainConfig(target_kl=np.array([1, 2]))  # type: ignore[arg-type]


def test_integers_may_be_written_as_1e6(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("total_steps: 1e6\nencoder_sizes: [32]\n")  # YAML reads a text
    flags = ["--config", str(tmp_path / "a.yaml"), "--num-envs", "3.2e1", "--seed=1e0"]
    (config, _) = parse_start(flags)
    assert (config.total_steps, config.num_envs, config.seed) == (1_000_000, 32, 1)
    assert TrainConfig(total_steps=2e6).total_steps == 2_000_000  # type: ignore[arg-type]
    for text in ("1.5", "inf", "many"):
        with pytest.raises(ValueError, match=f"^{text} is not an integer$"):
            integer(text)


def test_the_default_job_hides_indices_and_other_environments_do_not() -> None:
    assert TrainConfig().env_id == "CartPole-v1"
    assert TrainConfig().hidden_indices == (1, 3)
    assert TrainConfig(env="CartPole-v1").hidden_indices == ()
    assert TrainConfig(hide_obs=(0,)).hidden_indices == (0,)
    assert dataclasses.replace(TrainConfig(), env="Pendulum-v1").hidden_indices == ()
    assert dataclasses.replace(TrainConfig(), total_steps=5000).anneal_horizon == 5000


def test_a_configuration_is_the_same_after_a_round_trip_through_its_file(tmp_path: Path) -> None:
    config = TrainConfig(env="Pendulum-v1", hide_obs=(2,), target_kl=0.1, run_dir=str(tmp_path / "run"))
    assert load_config(make_run_directory(config)).to_json() == config.to_json()
    assert TrainConfig(**json.loads(json.dumps(config.to_json()))).to_json() == config.to_json()
    with pytest.raises(ConfigError, match="there is no field color"):
        TrainConfig(**{"color": "red"})
    with pytest.raises(ConfigError, match=r"config\.json does not exist"):
        load_config(tmp_path)
    (tmp_path / "run" / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        load_config(tmp_path / "run")


@pytest.mark.parametrize(
    "change",
    [
        {"eval_every": 3}, {"eval_episodes": 3}, {"eval_env_kwargs": {"size": 3}},
        {"eval_opponent": "players:best"},
    ],
)  # fmt: skip
def test_a_resume_cannot_change_an_evaluation_that_a_schedule_may_read(change: dict[str, Any]) -> None:
    config = TrainConfig(eval_every=5, self_play=())
    assert resumed_config(config, change, Path("run")) == dataclasses.replace(config, **change)
    with pytest.raises(ConfigError, match=f"^--{next(iter(change)).replace('_', '-')} cannot change"):
        resumed_config(dataclasses.replace(config, env_schedule="levels:rising"), change, Path("run"))


def test_arguments_of_the_environment_are_what_the_file_of_the_run_gives_back() -> None:
    """np.float64 is a float for Python, but NumPy computes float32 * np.float64 in float64."""
    config = TrainConfig(
        env_kwargs={"force": np.float64(0.3)}, eval_env_kwargs={"force": np.float64(0.3)}, eval_every=1
    )
    assert type(config.env_kwargs["force"]) is type(config.eval_env_kwargs["force"]) is float


def test_numbers_of_numpy_are_arguments_of_an_environment() -> None:
    given = {"a": np.int64(5), "b": np.float32(0.5), "c": np.bool_(True), "d": [np.float64(1.5)]}
    kept = TrainConfig(env="CartPole-v1", env_kwargs=given).env_kwargs
    assert kept == {"a": 5, "b": 0.5, "c": True, "d": [1.5]}
    assert [type(value) for value in kept.values()] == [int, float, bool, list]
    with pytest.raises(ConfigError, match="its values must be finite numbers, text, lists, or mappings of them"):
        TrainConfig(env="CartPole-v1", env_kwargs={"a": np.ones(2)})


def test_literals_of_python_are_arguments_of_an_environment() -> None:
    texts = [
        "a=False", "b=None", "c=.5", "d=[1,'x']", "e=true", "f=abc", "g=1e3", "h=-2", "i=x=y", 'j="quoted"', "k=[",
        "l={'m':1}", "n=1,2",
    ]  # fmt: skip
    config, _ = parse_start(["--env", "CartPole-v1", "--env-kwargs", *texts])
    assert config.env_kwargs == {
        "a": False, "b": None, "c": 0.5, "d": [1, "x"], "e": True, "f": "abc", "g": 1000.0, "h": -2, "i": "x=y",
        "j": "quoted", "k": "[", "l": {"m": 1}, "n": "1,2",
    }  # fmt: skip


def test_a_flag_with_several_values_that_is_given_again_adds_them() -> None:
    line = "--hide-obs 1 --seed 3 --hide-obs=3 --seed 4 --info_keys a --info-keys b c --trust m --trust n"
    more = "--encoder-sizes 8 --env-kwargs a=1 --env-kwargs b=2"
    config, start = parse_start(["--env", "CartPole-v1", *line.split(), *more.split()])
    assert (config.hide_obs, config.seed, config.info_keys, config.encoder_sizes) == ((1, 3), 4, ("a", "b", "c"), (8,))
    assert (config.env_kwargs, start.trust) == ({"a": 1, "b": 2}, ("m", "n"))
