"""The processors on which a run gives the same weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import shmppo
from shmppo import ConfigError, TrainConfig
from shmppo.kernels import supported_variants
from shmppo.utils.machine import fingerprint, processor_type
from shmppo.utils.machine import same_bits_on as same_bits_on_all
from shmppo.utils.portable import INSTRUCTION_VARIABLES, NUMPY, PROCESSORS, TORCH

pytestmark = pytest.mark.skipif("avx2" not in supported_variants(), reason="this processor has no AVX2")

PINNED = (*NUMPY, *TORCH)
X86_64 = PROCESSORS["x86_64"]
EVERY = f"{X86_64}, arm64"
SMALL = {
    "env": "environments:Exponential", "num-envs": 2, "rollout-steps": 8, "minibatches": 1, "epochs": 1,
    "hidden-size": 4, "encoder-sizes": 4, "workers": 0, "check-determinism": 0,
}  # fmt: skip
FLAGS = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))] + ["--quiet"]
"""A run whose results depend on NumPy's functions. In the middle of an episode, it stops after its first iteration."""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python without the variables that this process has set."""
    environment = {name: value for name, value in os.environ.items() if name not in PINNED}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)


def same_bits_on(run_dir: Path) -> str:
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["exact"]
    return str(summary["same_bits_on"]["processor"])


def train(run_dir: Path, *flags: str) -> str:
    done = python("-m", "shmppo.train", *FLAGS, "--run-dir", str(run_dir), "--stop-at-iteration", "1", *flags)
    assert done.returncode == 0, done.stderr
    return same_bits_on(run_dir)


def resume(run_dir: Path) -> str:
    done = python(
        "-m", "shmppo.train", "--resume", str(run_dir), "--stop-at-iteration", "2", "--quiet", "--trust", "environments"
    )
    assert done.returncode == 0, done.stderr
    return same_bits_on(run_dir)


@pytest.mark.slow(reason="about 45 s")
def test_a_run_says_on_which_processors_its_weights_are_the_same_also_after_a_resume(tmp_path: Path) -> None:
    assert train(tmp_path / "native") == EVERY
    assert resume(tmp_path / "native") == EVERY
    assert train(tmp_path / "portable", "--kernel", "torch", "--portable") == X86_64
    assert resume(tmp_path / "portable") == X86_64
    one_type = train(tmp_path / "torch", "--kernel", "torch")
    assert one_type not in (EVERY, X86_64)
    assert resume(tmp_path / "torch") == one_type
    auxiliary = ("--kernel", "native", "--auxiliary", "networks:Predict")
    assert train(tmp_path / "auxiliary", *auxiliary) == one_type
    assert train(tmp_path / "portable-auxiliary", *auxiliary, "--portable") == X86_64


@pytest.mark.slow(reason="10 s")
def test_a_run_whose_numpy_was_imported_first_is_continued_with_the_same_numpy(tmp_path: Path) -> None:
    flags = [*FLAGS, "--stop-at-iteration", "1", "--run-dir", str(tmp_path)]
    code = f"import numpy, sys, shmppo.train; sys.argv[1:] = {flags!r}; sys.exit(shmppo.train.main())"
    code = code.replace("shmppo.train.main()", "sys.modules['shmppo.train'].main()")
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    before = same_bits_on(tmp_path)
    assert resume(tmp_path) == before


@pytest.mark.slow(reason="15 s")
def test_workers_have_the_numpy_of_a_program_that_imported_it_first(tmp_path: Path) -> None:
    code = (
        "import numpy, shmppo, sys\n"
        "if __name__ == '__main__':\n"
        "    config = {config} | {{'workers': int(sys.argv[1]), 'run_dir': sys.argv[2] + sys.argv[1]}}\n"
        "    print(shmppo.train(shmppo.TrainConfig(**config))['weights_sha256'])"
    )
    config = {name.replace("-", "_"): value for name, value in SMALL.items()}
    config |= {"encoder_sizes": (4,), "quiet": True, "total_steps": 48}
    one, two = (python("-c", code.format(config=config), str(workers), str(tmp_path / "run")) for workers in (0, 2))
    assert len(one.stdout.strip()) == 64, one.stderr
    assert one.stdout == two.stdout, two.stderr


def test_portable_is_refused_after_torch_was_imported() -> None:
    """The tests have imported it. `test_reference_hashes.py` calls it before."""
    for call in (shmppo.portable, lambda: shmppo.train(TrainConfig(portable=True))):
        with pytest.raises(ConfigError, match=r"call shmppo\.portable\(\) before the program imports torch"):
            call()


@pytest.mark.long
def test_importing_shmppo_pins_numpy_but_keeps_what_the_user_has_set() -> None:
    names = tuple(NUMPY)
    code = f"import os, shmppo; print([os.environ.get(name) for name in {names}])"
    assert python("-c", code).stdout.strip() == str([NUMPY[name] for name in names])
    own = "import os; os.environ['OPENBLAS_CORETYPE'] = 'Zen'; " + code
    assert python("-c", own).stdout.strip() == str([NUMPY[names[0]], "Zen", NUMPY[names[2]]])
    assert python("-c", f"import numpy; {code}").stdout.strip() == "[None, None, None]"


@pytest.mark.parametrize("name", INSTRUCTION_VARIABLES)
def test_variables_that_limit_vector_instructions_belong_to_the_processor(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    before = processor_type("torch")
    monkeypatch.setenv(name, "AVX2")
    assert processor_type("torch") != before
    assert f"{name}=AVX2" in processor_type("torch")


def test_only_what_computes_numbers_of_a_run_decides_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmppo.utils.machine.processor_type", lambda kernel: X86_64)
    monkeypatch.delitem(sys.modules, "mujoco", raising=False)
    native = fingerprint("native")
    assert native.keys() == {"python", "shmppo", "gymnasium", "numpy", "processor"}
    assert same_bits_on_all(native)["processor"] == EVERY
    by_torch = fingerprint("torch")
    assert by_torch.keys() - native.keys() == {"torch"}
    assert same_bits_on_all(by_torch)["processor"] == X86_64
    monkeypatch.setitem(sys.modules, "mujoco", ModuleType("mujoco"))
    assert fingerprint("native").keys() - native.keys() == {"mujoco"}
    assert same_bits_on_all(fingerprint("native"))["processor"] == X86_64
