"""Search spaces: what a trial may vary, conditions between options, and one sentence for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import create_trial

from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.search.samplers import SeededSampler, make_sampler
from shmppo.search.space import DEFAULT_SPACE, load_space, parse_space, trial_config
from shmppo.search.view import changes_text

optuna.logging.set_verbosity(optuna.logging.ERROR)


def choices(
    space: dict[str, Any], trials: int = 30, sampler: type[optuna.samplers.BaseSampler] = optuna.samplers.RandomSampler
) -> list[dict[str, Any]]:
    """What random trials of a space vary, on the default job."""
    parsed = parse_space(space, "a space")
    first = parsed.known_values(TrainConfig().fields())
    study = optuna.create_study(sampler=SeededSampler(sampler, 3, first))
    return [parsed.suggest(study.ask(), TrainConfig().fields()) for _ in range(trials)]


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
        assert trial_config(TrainConfig(), fields).seq_len == fields["seq_len"]


@pytest.mark.parametrize("sampler", [optuna.samplers.RandomSampler, optuna.samplers.TPESampler])
def test_the_first_trial_has_the_values_of_the_command_line(sampler: type[optuna.samplers.BaseSampler]) -> None:
    base = TrainConfig()
    space: dict[str, dict[str, Any]] = {
        "learning_rate": {"low": base.learning_rate / 2, "high": base.learning_rate * 2},
        "seq_len": {"low": base.seq_len - 8, "high": base.seq_len + 8, "step": 4},
        "num_envs": {"low": base.num_envs - 1, "high": base.num_envs + 1, "step": 2},
        "encoder_sizes": {"choices": [[4], list(base.encoder_sizes)]},
        "clip": {"choices": [base.clip / 2, base.clip * 2]},
    }
    first, *others = choices(space, 20, sampler)
    assert (first["learning_rate"], first["seq_len"]) == (base.learning_rate, base.seq_len)
    assert first["encoder_sizes"] == base.encoder_sizes
    assert "num_envs" not in first, "no step leads to it"
    assert "clip" not in first
    for name in space:
        assert len({other[name] for other in others}) > 1


@pytest.mark.parametrize("name", ["tpe", "gp", "nsgaii"])
def test_samplers_learn_about_options_that_the_first_trial_lacks(name: str) -> None:
    """Optuna's samplers consider only options that all trials have."""
    if name == "gp":
        pytest.importorskip("scipy")
    sampler, fields = make_sampler(name, 0, {}), TrainConfig().fields()
    space = parse_space({"clip": {"low": 0.3, "high": 0.4}, "gamma": {"low": 0.5, "high": 0.6}}, "a space")
    study = optuna.create_study(sampler=sampler)
    for number in range(4):
        trial = study.ask()
        assert set(space.suggest(trial, fields)) == ({"clip", "gamma"} if number else set())
        study.tell(trial, float(number))
    assert set(sampler.infer_relative_search_space(study, study.ask()._get_latest_trial())) == {"clip", "gamma"}


def test_a_sampler_without_its_package_is_refused_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="--sampler cmaes needs cmaes; pip install cmaes, or use --sampler tpe"):
        make_sampler("cmaes", 0, {})


def test_an_equal_choice_of_another_type_is_that_of_the_space() -> None:
    space = parse_space({"env_kwargs": {"choices": [{"b": 1.0, "a": 2}, {"b": 3}]}}, "a space")
    fields = TrainConfig(env_kwargs={"a": 2, "b": 1}).fields()
    study = optuna.create_study(sampler=make_sampler("random", 0, space.known_values(fields)))
    assert space.suggest(study.ask(), fields) == {"env_kwargs": {"a": 2, "b": 1}}


def test_an_option_varies_only_under_its_condition() -> None:
    space = {
        "core": {"choices": ["lstm", "gru", "none"]},
        "seq_len": {"choices": [8, 32], "when": {"core": ["lstm", "gru"]}},
        "burn_in": {"choices": [2, 4], "when": {"seq_len": 8, "core": "gru"}},
    }
    found = choices(space, 60)
    assert all(("seq_len" in fields) == (fields["core"] != "none") for fields in found)
    assert any("burn_in" in fields for fields in found)
    for fields in found:
        wanted = fields["core"] == "gru" and fields.get("seq_len", TrainConfig().seq_len) == 8
        assert ("burn_in" in fields) == wanted


def test_the_default_space_gives_configurations_that_can_run() -> None:
    for fields in choices(DEFAULT_SPACE, 50):
        trial_config(TrainConfig(), fields)


def test_a_function_can_choose_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_space.py").write_text(
        "def good(trial):\n    return {'gamma': trial.suggest_float('gamma', 0.9, 0.99), 'encoder_sizes': [8]}\n"
        "def seeds(trial):\n    return {'seed': 3}\n"
        "def nothing(trial):\n    pass\n"
        "def fails(trial):\n    raise RuntimeError('no idea')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    trial = optuna.create_study().ask()
    fields = load_space("my_space:good").suggest(trial, {})
    assert 0.9 <= fields["gamma"] <= 0.99
    assert fields["encoder_sizes"] == (8,)
    for name, message in (
        ("seeds", "--seed cannot vary"),
        ("nothing", "nothing returned None; it must return a dict of options"),
        ("fails", "fails raised RuntimeError('no idea')"),
    ):
        with pytest.raises(ConfigError, match=message.replace("(", r"\(").replace(")", r"\)")):
            load_space(f"my_space:{name}").suggest(trial, {})


MISTAKES: list[tuple[Any, str]] = [
    ({}, "is empty; name at least one option"),
    ({"lerning_rate": {"low": 1, "high": 2}}, "there is no field lerning_rate"),
    ({"gamma": 0.9}, "gamma is 0.9; write {choices"),
    ({"gamma": {"low": 0.9}}, "write {choices"),
    ({"gamma": {"low": 0.99, "high": 0.9}}, "low is 0.99 and high is 0.9; low must be smaller"),
    ({"gamma": {"low": 0.9, "high": 0.9}}, "low must be smaller"),
    ({"gamma": {"low": "x", "high": 1}}, "--gamma is 'x'; it must be float"),
    ({"gamma": {"low": 0.9, "high": float("inf")}}, "high is inf; it must be a number"),
    ({"epochs": {"low": 1.5, "high": 3}}, "--epochs is 1.5; it must be int"),
    ({"core": {"low": "lstm", "high": "gru"}}, "it must be a number, use choices"),
    ({"entropy_coef": {"low": 0.0, "high": 0.1, "log": True}}, "a logarithmic range must be positive"),
    ({"epochs": {"low": 1, "high": 9, "log": True, "step": 2}}, "both step and log"),
    ({"epochs": {"low": 1, "high": 9, "step": 20}}, "step is 20; it must be positive"),
    ({"epochs": {"low": 1, "high": 9, "log": "yes"}}, "log is 'yes'; it must be true or false"),
    ({"epochs": {"low": 1, "high": 9, "values": 3}}, "has the key 'values'"),
    ({"epochs": {"choices": [1], "low": 3}}, "has the key 'low'"),
    ({"epochs": {"choices": []}}, "choices is [[]]; write a list"),
    ({"epochs": {"choices": 3}}, "choices is 3; write a list"),
    ({"core": {"choices": ["lstm", "rnn"]}}, "--core is 'rnn'"),
    ({"seed": {"choices": [1, 2]}}, "--seed cannot vary between trials"),
    ({"workers": {"choices": [1, 2]}}, "--workers cannot vary between trials"),
    ({"epochs": {"choices": [1], "when": 3}}, "when is 3; write {OPTION: VALUE}"),
    ({"epochs": {"choices": [1], "when": {"kore": "lstm"}}}, "when: there is no field kore"),
    ({"seq_len": {"choices": [8], "when": {"core": "lstm"}}, "core": {"choices": ["gru"]}}, "which follows it"),
]  # fmt: skip


@pytest.mark.parametrize(("space", "message"), MISTAKES)
def test_each_mistake_is_one_sentence(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=r"^a space") as raised:
        parse_space(space, "a space")
    assert message.replace("[[]]", "[]") in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_space_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n")
    for source, message in (
        (str(tmp_path / "none.yaml"), "cannot be read"),
        (str(tmp_path / "list.yaml"), "is not a mapping"),
        ("no_such_module:space", "No module named"),
    ):
        with pytest.raises(ConfigError, match=f"--space .*{message}"):
            load_space(source)


def test_a_discount_factor_near_one_is_shown_with_its_digits() -> None:
    trial = create_trial(
        value=0.0,
        params={"gamma": 0.9999, "epochs": 4},
        distributions={"gamma": CategoricalDistribution([0.99, 0.9999]), "epochs": CategoricalDistribution([4])},
    )
    assert changes_text(trial) == "gamma=0.9999 epochs=4"
