"""Search spaces: what a trial may vary, and one sentence for each mistake."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import optuna
import pytest

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.search.options import SearchOptions
from shmppo.search.space import DEFAULT_SPACE, load_space, parse_space
from shmppo.search.study import SearchStudy

optuna.logging.set_verbosity(optuna.logging.ERROR)


def choices(space: dict[str, Any], trials: int = 30, base: TrainConfig | None = None) -> list[dict[str, Any]]:
    """What trials of a space vary."""
    options = SearchOptions(trials=trials, rungs=1, sampler="random", search_seed=3)
    with tempfile.TemporaryDirectory() as directory:
        study = SearchStudy(options, base or TrainConfig(), parse_space(space, "a space"), Path(directory))
        return [trial.user_attrs["options"] for _ in range(trials) for trial in study.next_bracket()]


def test_ranges_and_choices_have_the_type_of_their_option() -> None:
    space = {
        "learning-rate": {"low": "1e-4", "high": 1e-2, "log": True},
        "seq_len": {"low": 8, "high": 32, "step": 8},
        "encoder_sizes": {"choices": [[16], [32, 32]]},
        "target_kl": {"choices": [None, 0.02]},
    }
    found = choices(space)[1:]  # the first trial has the values of the command line
    assert all(1e-4 <= fields["learning_rate"] <= 1e-2 for fields in found)
    assert sum(fields["learning_rate"] < 1e-3 for fields in found) > 8, "half of a logarithmic range is below 1e-3"
    assert {fields["seq_len"] for fields in found} == {8, 16, 24, 32}
    assert {fields["encoder_sizes"] for fields in found} == {(16,), (32, 32)}
    assert {fields["target_kl"] for fields in found} == {None, 0.02}
    for fields in found:
        assert dataclasses.replace(TrainConfig(), **fields).seq_len == fields["seq_len"]


def test_the_first_trial_has_the_values_of_the_command_line() -> None:
    base = TrainConfig()
    space: dict[str, dict[str, Any]] = {
        "learning_rate": {"low": base.learning_rate / 2, "high": base.learning_rate * 2},
        "seq_len": {"low": base.seq_len - 8, "high": base.seq_len + 8, "step": 4},
        "num_envs": {"low": base.num_envs - 1, "high": base.num_envs + 1, "step": 2},
        "encoder_sizes": {"choices": [[4], list(base.encoder_sizes)]},
        "clip": {"choices": [base.clip / 2, base.clip * 2]},
    }
    first, *others = choices(space, 20)
    assert (first["learning_rate"], first["seq_len"]) == (base.learning_rate, base.seq_len)
    assert first["encoder_sizes"] == base.encoder_sizes
    assert "num_envs" not in first, "no step leads to it"
    assert "clip" not in first
    for name in space:
        assert len({other[name] for other in others}) > 1


def test_the_default_space_gives_configurations_that_can_run() -> None:
    for fields in choices(DEFAULT_SPACE, 50):
        dataclasses.replace(TrainConfig(), **fields)
    assert "seq_len" not in load_space(None, TrainConfig(core="none")).distributions


def test_a_function_can_choose_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_space.py").write_text(
        "def good(trial):\n    return {'gamma': trial.suggest_float('gamma', 0.9, 0.99), 'encoder_sizes': [8]}\n"
        "def seeds(trial):\n    return {'seed': 3}\n"
        "def nothing(trial):\n    pass\n"
        "def fails(trial):\n    raise RuntimeError('no idea')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    trial = optuna.create_study().ask()
    fields = load_space("my_space:good", TrainConfig()).options(trial)
    assert 0.9 <= fields["gamma"] <= 0.99
    assert fields["encoder_sizes"] == (8,)
    for name, message in (
        ("seeds", "--seed cannot vary"),
        ("nothing", "nothing returned None; it must return a dict of options"),
        ("fails", "fails raised RuntimeError('no idea')"),
    ):
        with pytest.raises(ConfigError, match=message.replace("(", r"\(").replace(")", r"\)")):
            load_space(f"my_space:{name}", TrainConfig()).options(trial)


MISTAKES: list[tuple[Any, str]] = [
    ({}, "is empty; name at least one option"),
    ({"lerning_rate": {"low": 1, "high": 2}}, "there is no field lerning_rate"),
    ({"gamma": 0.9}, "gamma: 'float' object is not iterable; write {choices"),
    ({"gamma": {"low": 0.9}}, "write {choices"),
    ({"gamma": {"low": 0.99, "high": 0.9}}, "gamma: `low <= high` must hold"),
    ({"gamma": {"low": "x", "high": 1}}, "--gamma is 'x'; it must be float"),
    ({"epochs": {"low": 1.5, "high": 3}}, "--epochs is 1.5; it must be int"),
    ({"core": {"low": "lstm", "high": "gru"}}, "core: `low <= high` must hold"),
    ({"entropy_coef": {"low": 0.0, "high": 0.1, "log": True}}, "entropy_coef: "),
    ({"epochs": {"low": 1, "high": 9, "log": True, "step": 2}}, "epochs: "),
    ({"epochs": {"low": 1, "high": 9, "values": 3}}, "'values'; write {choices"),
    ({"epochs": {"choices": [1], "low": 3}}, "epochs: --epochs is (1,); it must be int"),
    ({"epochs": {"choices": []}}, "epochs: The `choices` must contain"),
    ({"epochs": {"choices": 3}}, "is not iterable; write {choices"),
    ({"core": {"choices": ["lstm", "rnn"]}}, "--core is 'rnn'"),
    ({"seed": {"choices": [1, 2]}}, "--seed cannot vary between trials"),
    ({"workers": {"choices": [1, 2]}}, "--workers cannot vary between trials"),
]  # fmt: skip


@pytest.mark.parametrize(("space", "message"), MISTAKES)
def test_each_mistake_is_one_sentence(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=r"^a space") as raised:
        parse_space(space, "a space")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_arguments_of_the_environment_are_added_to_those_of_the_command_line() -> None:
    base = TrainConfig(env="CartPole-v1", env_kwargs={"fast": False, "scale": 3})
    found = choices({"env_kwargs": {"choices": [{"scale": 1}, {"wind": 2}]}}, base=base)[1:]
    expected = [{"fast": False, "scale": 1}, {"fast": False, "scale": 3, "wind": 2}]
    assert [one for one in expected if one in [fields["env_kwargs"] for fields in found]] == expected
    assert all(fields["env_kwargs"] in expected for fields in found)
