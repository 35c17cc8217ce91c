"""Hints for flags of other trainers: the table, and the sentences that it gives."""

from __future__ import annotations

import itertools

import pytest

from docs.generate import option_types
from shmppo.config.command_line import flags_of
from shmppo.config.hints import EXPLAINED, RENAMED, field_hint, flags_in, refuse_foreign_flags, remedy_for
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError


def spellings(command: str) -> set[str]:
    """All flags of a command."""
    return {f"--{flag.field.replace('_', '-')}" for flag in flags_of(OPTIONS[command]) if not flag.positional}


OPTIONS = option_types()
TRAIN = spellings("train")

# The names that the style guide lists, and the flag that the hint names first.
WELL_KNOWN = {
    "--lr": "--learning-rate", "--n-steps": "--rollout-steps", "--num-steps": "--rollout-steps",
    "--batch-size": "--minibatches", "--vf-coef": "--value-coef", "--ent-coef": "--entropy-coef",
    "--clip-range": "--clip", "--clip-coef": "--clip", "--update-epochs": "--epochs", "--n-epochs": "--epochs",
    "--rnn-type": "--core", "--env-id": "--env", "--cuda": "--device", "--bptt-horizon": "--seq-len",
}  # fmt: skip


@pytest.mark.parametrize("given", WELL_KNOWN)
def test_flags_of_other_trainers_get_the_flag_of_this_one(given: str) -> None:
    right = WELL_KNOWN[given]
    for variant in (given, "--" + given[2:].replace("-", "_"), f"--train.{given[2:]}", given.upper()):
        remedy = remedy_for(variant, TRAIN)
        assert remedy.startswith("use "), variant
        assert flags_in(remedy)[0] == right


def test_a_hint_says_how_to_compute_a_value_that_means_something_else() -> None:
    assert remedy_for("--batch-size", TRAIN) == (
        "use --minibatches; M = --num-envs * --rollout-steps / B gives minibatches of B steps"
    )
    assert "twice the vf_coef of Stable-Baselines3" in remedy_for("--vf-coef", TRAIN)
    assert remedy_for("--gSDE", TRAIN).startswith("use --std state, ")
    assert remedy_for("--use_sde", TRAIN) == remedy_for("--gSDE", TRAIN)
    assert "WANDB_MODE=offline" in remedy_for("--wandb-mode", TRAIN)
    assert remedy_for("--features_extractor", TRAIN) == "use --encoder, which can also name a module of your own"
    assert remedy_for("--cuda", TRAIN) == "use --device cuda"


def test_all_foreign_flags_of_a_command_line_get_their_hints_in_one_line() -> None:
    words = ["--n-steps", "8", "--learning_rate", "3", "--clip-obs=10", "--no-normalize-obs", "--toal-steps", "5"]
    with pytest.raises(ConfigError) as raised:
        refuse_foreign_flags(words, TRAIN)
    assert str(raised.value) == (
        "there is no flag --n-steps; use --rollout-steps; there is no flag --clip-obs; leave it out: normalized "
        "observations are always clipped to -10 ... 10"
    )
    refuse_foreign_flags(["--toal-steps", "5", "--seed", "3"], TRAIN)  # tyro names the nearest flag


@pytest.mark.parametrize(
    ("name", "hint"), [("n_steps", "; use rollout_steps"), ("num_evns", " (did you mean num_envs?)"), ("xyzzy", "")]
)
def test_unknown_fields_of_python_get_hints_too(name: str, hint: str) -> None:
    assert field_hint(name, TrainConfig().fields()) == hint


def test_every_hint_can_appear() -> None:
    known = set().union(*map(spellings, OPTIONS))
    for remedy in (*RENAMED, *EXPLAINED):
        assert set(flags_in(remedy)) <= known, remedy


def test_no_name_of_the_table_is_a_flag_of_train_or_stands_twice() -> None:
    remedies = {remedy: names for remedy, names in (RENAMED | EXPLAINED).items() if set(flags_in(remedy)) <= TRAIN}
    names = list(itertools.chain(*remedies.values()))
    assert not {name for name in names if names.count(name) > 1}
    assert not {f"--{name}" for name in names} & TRAIN
