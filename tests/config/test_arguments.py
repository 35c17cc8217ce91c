"""The check of a command line: one sentence for each mistake."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shmppo import cli
from shmppo.config.arguments import check_arguments
from shmppo.errors import ConfigError

FLAGS = cli.flag_reference()


def check(command: str, arguments: str) -> None:
    flags = [flag for group in FLAGS[command] for flag in group.flags]
    check_arguments(arguments.split(), flags, f"shmppo {command}")


REFUSED = [
    ("train", "--lr 3e-4", "there is no flag --lr; use --learning-rate"),
    ("train", "--lr=3e-4", "there is no flag --lr; use --learning-rate"),
    ("train", "--toal-steps 5", "there is no flag --toal-steps (did you mean --total-steps?); see shmppo train --help"),
    ("train", "--n-steps 8 --lr 1e-3", "there are no flags --n-steps, --lr; use those named above"),
    ("train", "--xyzzy", "there is no flag --xyzzy; see shmppo train --help"),
    ("train", "--num-envs abc", "--num-envs is 'abc'; it must be an integer"),
    ("train", "--total-steps 1e6", "--total-steps is '1e6'; it must be an integer; write 1000000"),
    ("train", "--gamma=x", "--gamma is 'x'; it must be a number"),
    ("train", "--gamma None", "--gamma is 'None'; it must be a number"),
    ("train", "--core gur", "--core is 'gur' (did you mean gru?); it must be one of lstm, gru, lmu, lru, none"),
    ("train", "--hide-obs 1 x", "--hide-obs is 'x'; it must be an integer"),
    ("train", "--num-envs", "--num-envs needs a value: --num-envs INT"),
    ("train", "--env --seed 3", "--env needs a value: --env ENV; write a value that begins with a hyphen as "
     "--env=--seed"),
    ("train", "--track", "--track needs a value: --track tensorboard or --track wandb"),
    ("train", "--quiet True", "--quiet takes no value, but 'True' follows it; write --quiet or --no-quiet"),
    ("train", "--no-normalize-obs=1", "--no-normalize-obs takes no value, but '1' follows it; write --normalize-obs or "
     "--no-normalize-obs"),
    ("train", "env=CartPole-v1", "env=CartPole-v1 is not a flag; write it with two hyphens: --env CartPole-v1"),
    ("train", "num_envs 4", "num_envs is not a flag; write it with two hyphens: --num-envs"),
    ("train", "lr=3e-4", "lr=3e-4 is not a flag; use --learning-rate"),
    ("train", "CartPole-v1", "CartPole-v1 does not belong to a flag; write a flag before it, for example "
     "--env CartPole-v1 (see shmppo train --help)"),
    ("train", "--seed 1 2", "2 does not belong to a flag; write a flag before it, for example --env 2 (see shmppo "
     "train --help)"),
    ("evaluate", "", "shmppo evaluate needs RUN_DIR: directory of the run"),
    ("evaluate", "--run-dir runs/a", "there is no flag --run-dir; name RUN_DIR without a flag: shmppo evaluate "
     "RUN_DIR"),
    ("evaluate", "runs/a runs/b", "runs/b does not belong to a flag; write a flag before it (see shmppo evaluate "
     "--help)"),
    ("plot", "--run-dir a b", "there is no flag --run-dir; name RUN_DIR ... without a flag: shmppo plot RUN_DIR ..."),
]  # fmt: skip


@pytest.mark.parametrize(("command", "arguments", "message"), REFUSED, ids=[f"{c} {a}" for c, a, _ in REFUSED])
def test_a_mistake_gets_one_sentence(command: str, arguments: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check(command, arguments)
    assert str(raised.value) == message


def test_each_of_several_unknown_flags_gets_its_hint() -> None:
    with pytest.raises(ConfigError) as raised:
        check("train", "--n-steps 8 --clip-obs 10 --toal-steps 5 --xyzzy a b")
    assert raised.value.details.splitlines() == [
        "--n-steps: use --rollout-steps",
        "--clip-obs: leave it out: normalized observations are always clipped to -10 ... 10",
        "--toal-steps: did you mean --total-steps?",
        "--xyzzy: no similar flag",
    ]


ACCEPTED = [
    ("train", ""),
    ("train", "--num-envs 4 --num_envs=5 --seed 1_000"),
    ("train", "--log-std-init -1 --gamma 1e-3 --target-kl None --hide-obs None"),
    ("train", "--hide-obs 1 3 --wrappers --env-kwargs a=1 b=-2 --quiet --no-normalize-obs --normalize_reward"),
    ("train", "--track tensorboard wandb --resume runs/a --config a.yaml"),
    ("evaluate", "runs/a --episodes 3 --json"),
    ("evaluate", "--episodes 3 runs/a"),
    ("plot", "a b --out c.svg"),
    ("bench scaling", "--workers 1 2 --learning central --modes strong"),
]


@pytest.mark.parametrize(("command", "arguments"), ACCEPTED, ids=[f"{c} {a}" for c, a in ACCEPTED])
def test_a_correct_command_line_passes(command: str, arguments: str) -> None:
    check(command, arguments)


def test_a_mistake_ends_the_command_with_one_line_and_code_2() -> None:
    command = [sys.executable, "-m", "shmppo.train", "--lr", "3e-4"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: there is no flag --lr; use --learning-rate\n"
