"""Hints for flags of other trainers: the table, and the sentences that it gives."""

from __future__ import annotations

import pytest

from shmppo import cli
from shmppo.config.hints import EXPLAINED, RENAMED, flags_in, suggestion


def spellings(command: str) -> set[str]:
    """All flags of a command."""
    return {spelling for group in FLAGS[command] for flag in group.flags for spelling in flag.spellings}


FLAGS = cli.flag_reference()
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
        hint = suggestion(variant, TRAIN)
        assert hint.startswith("; use "), variant
        assert flags_in(hint)[0] == right


def test_a_hint_says_how_to_compute_a_value_that_means_something_else() -> None:
    assert suggestion("--batch-size", TRAIN) == (
        "; use --minibatches; M = --num-envs * --rollout-steps / B gives minibatches of B steps"
    )
    assert "twice the vf_coef of Stable-Baselines3" in suggestion("--vf-coef", TRAIN)
    assert suggestion("--cuda", TRAIN) == "; use --device cuda"


def test_a_flag_of_this_trainer_with_a_prefix_or_another_spelling_is_named() -> None:
    assert suggestion("--train.learning-rate", TRAIN) == "; use --learning-rate"
    assert suggestion("--vec.num_envs", TRAIN) == "; use --num-envs"
    assert suggestion("-gamma", TRAIN) == "; use --gamma"


def test_a_misspelled_flag_gets_the_nearest_one_and_the_beginning_of_a_flag_the_whole() -> None:
    assert suggestion("--toal-steps", TRAIN) == " (did you mean --total-steps?)"
    assert suggestion("--total", TRAIN) == " (did you mean --total-steps?)"
    assert suggestion("--xyzzy", TRAIN) == ""


def test_a_hint_names_only_flags_that_the_command_has() -> None:
    assert suggestion("--n-eval-episodes", spellings("evaluate")) == "; use --episodes"
    assert suggestion("--n-eval-episodes", TRAIN) == "; use --eval-episodes"
    assert suggestion("--lr", spellings("evaluate")) == ""
    for command in FLAGS:
        known = spellings(command)
        for name in " ".join((*RENAMED.values(), *EXPLAINED.values())).split():
            assert set(flags_in(suggestion(f"--{name}", known))) <= known, (command, name)


def test_every_hint_can_appear() -> None:
    known = set().union(*map(spellings, FLAGS))
    for remedy in (*RENAMED, *EXPLAINED):
        assert set(flags_in(remedy)) <= known, remedy


def test_no_name_of_the_table_is_a_flag_of_train_or_stands_twice() -> None:
    remedies = {remedy: names for remedy, names in (RENAMED | EXPLAINED).items() if set(flags_in(remedy)) <= TRAIN}
    names = " ".join(remedies.values()).split()
    assert not {name for name in names if names.count(name) > 1}
    assert not {f"--{name}" for name in names} & TRAIN
