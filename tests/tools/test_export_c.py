"""An exported C file computes the numbers of `load_policy` bit for bit, with each compiler and on each processor."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from public_helpers import exit_code, train_in

from shmppo import TrainConfig, load_policy
from shmppo.config.train_config import load_config
from shmppo.envs.factory import make_environment
from shmppo.errors import ConfigError
from shmppo.export import main
from shmppo.kernels import c_source
from shmppo.policies.policy import input_names, load_trained
from shmppo.storage.checkpoint_file import load_checkpoint, write_checkpoint
from shmppo.tools.export import export

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
TRAINED = Path(__file__).parents[2] / "examples" / "trained"
POLICIES = (
    "cartpole", "cartpole-memory", "pendulum-memory", "mountaincar-memory", "popgym-count-recall-easy",
    "popgym-repeat-previous-easy", "popgym-autoencode-easy", "tictactoe",
)  # fmt: skip
SMALL = TrainConfig(
    env="CartPole-v1", hide_obs=(1, 3), num_envs=4, rollout_steps=32, minibatches=2, hidden_size=12, workers=0,
    quiet=True, stop_at_iteration=2, check_determinism=0, encoder_sizes=(9,), num_layers=2,
)  # fmt: skip
PENDULUM: dict[str, Any] = {"env": "Pendulum-v1", "hide_obs": ()}
CASES: dict[str, dict[str, Any]] = {
    "lstm": {},
    "gru": PENDULUM | {"core": "gru", "separate_critic": "all", "activation": "relu"},
    "lru": {"core": "lru", "separate_critic": "core"},
    "lmu": PENDULUM | {"core": "lmu", "seq_len": 12},
    "none": PENDULUM | {"core": "none", "normalize_obs": False, "squash_actions": True, "std": "state"},
    "beta": PENDULUM | {"core": "none", "distribution": "beta"},
    "dict": {"env": "space_environments:Shaped", "env_kwargs": {"space": "parts"}, "hide_obs": (), "core": "gru",
     "prev_action": True, "prev_reward": True},
    "masks": {"env": "space_environments:Masked-v0", "env_kwargs": {"sizes": [3, 4]}, "action_masks": True,
     "hide_obs": ()},
    "bits": {"env": "space_environments:Echo-v0", "env_kwargs": {"actions": "multi-binary"}, "hide_obs": ()},
    "joint-beta": {"env": "space_environments:Echo-v0", "env_kwargs": {"actions": "gripper"}, "hide_obs": (),
     "distribution": "beta"},
    "nested": {"env": "space_environments:Echo-v0", "env_kwargs": {"actions": "nested"}, "hide_obs": ()},
    "critic-image": {"env": "space_environments:Shaped", "env_kwargs": {"space": "dict"}, "hide_obs": (),
     "actor_obs": ("inner",), "separate_critic": "all"},
}  # fmt: skip
STRICT = ("-std=c99", "-ffp-contract=off", "-Wall", "-Wextra", "-Wconversion", "-Werror")
DRIVER = """
#include <stdio.h>
#include "policy.h"
int main(void) {
    policy_state state;
    policy_input in;
    policy_output out;
    char begins;
    while (fread(&begins, 1, 1, stdin) == 1 && fread(&in, sizeof in, 1, stdin) == 1) {
        if (begins) policy_reset(&state);
        if (policy_step(&state, &in, &out)) return 1;
        fwrite(&out.action, sizeof out.action, 1, stdout);
        fwrite(&out.params, sizeof out.params, 1, stdout);
        fwrite(&state, sizeof state, 1, stdout);
    }
    return 0;
}
"""
"""Plays the observations of standard input, and writes actions, parameters, and states."""


def fields_of(header: str, name: str) -> np.dtype[Any]:
    """The NumPy type of a structure of the header."""
    body = re.search(rf"typedef struct \{{[^{{}}]*\}} policy_{name};", header)
    assert body is not None
    types = {"float": "f4", "double": "f8", "int32_t": "i4", "uint8_t": "u1"}
    fields = re.findall(r"^    (\w+) (\w+)(?:\[(\d+)\])?;", body[0], re.MULTILINE)
    return np.dtype([(field, types[kind], (int(size or 1),)) for kind, field, size in fields], align=True)


def numbers_of(action: Any) -> np.ndarray:
    """The numbers of an action, whose parts may have parts."""
    if isinstance(action, (dict, tuple)):
        return np.concatenate([numbers_of(part) for part in (action.values() if isinstance(action, dict) else action)])
    return np.ravel(action)


def play(policy_dir: Path, header: str, steps: int, trust: tuple[str, ...]) -> tuple[bytes, list[np.ndarray]]:
    """Play with `load_policy` in the environment, and reset it at each end and now and then.

    Returns:
        (input of DRIVER, actions and states).
    """
    policy = load_policy(policy_dir, trust=trust)
    config = policy.config
    env = make_environment(config)
    space = load_trained(policy_dir, trust=trust).task.observation
    names = [re.sub(r"\W", "_", name) for name in input_names(config, space)]
    record = np.zeros((), fields_of(header, "input"))
    written, results, ended, obs, state = b"", [], True, None, policy.initial_state()
    for step in range(steps):
        begins = ended or step % 97 == 0
        if begins:
            obs, _ = env.reset(seed=step)
            state = policy.initial_state()
        for leaf, name in zip(space.leaves, names, strict=True):
            if name in record.dtype.fields:
                record[name] = leaf.to_storage(leaf.extract(obs))
        written += bytes([begins]) + record.tobytes()
        action, state = policy.act(obs, state)
        results += [numbers_of(action), state]
        obs, _, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated
    env.close()
    return written, results


def compiled(source: Path, command: tuple[str, ...], *flags: str) -> Path:
    """Compile DRIVER and an exported policy."""
    driver = source.with_name("driver.c")
    driver.write_text(DRIVER)
    program = source.with_name("program")
    subprocess.run([*command, *flags, str(source), str(driver), "-o", str(program), "-lm"], check=True)
    return program


def assert_same(output: bytes, header: str, results: list[np.ndarray]) -> None:
    """Assert that the output of DRIVER contains the actions and states of `play`."""
    out, state = fields_of(header, "output"), fields_of(header, "state")
    params = out["params"].shape[0]
    row = np.dtype([("action", out["action"]), ("params", "f4", (params,)), ("state", state["numbers"])])
    rows = np.frombuffer(output, row)
    assert len(rows) == len(results) // 2 > 0
    for own, action, after in zip(rows, results[::2], results[1::2], strict=True):
        np.testing.assert_array_equal(own["action"], action)
        assert own["state"].tobytes()[: after.nbytes] == after.tobytes()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("c")
    for name, changes in CASES.items():
        train_in(root / name, SMALL, **changes)
    return root


@pytest.mark.parametrize("name", CASES)
def test_actions_and_states_are_those_of_the_policy(name: str, runs: Path, tmp_path: Path) -> None:
    trust = ("space_environments",)
    path = export(runs / name, format="c", out=tmp_path / "policy.c", trust=trust)
    header = path.with_suffix(".h").read_text()
    written, results = play(runs / name, header, 200, trust)
    program = compiled(path, ("gcc",), *STRICT, "-O1")
    assert_same(subprocess.run([program], input=written, capture_output=True, check=True).stdout, header, results)


def test_weights_in_a_file_give_the_same_bits_as_in_the_source(runs: Path, tmp_path: Path) -> None:
    for weights in ("static", "binary"):
        path = export(runs / "lru", format="c", out=tmp_path / "policy.c", weights=weights)
        subprocess.run(["gcc", *STRICT, "-DTEST", path, "-o", tmp_path / "program"], check=True)
        done = subprocess.run([tmp_path / "program"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == "16 steps have the same bits\n"
    numbers = np.fromfile(tmp_path / "policy.bin", "<f4")
    assert f"#define policy_WEIGHTS {len(numbers)} " in (tmp_path / "policy.h").read_text()


def test_the_test_vectors_find_another_weight(runs: Path, tmp_path: Path) -> None:
    path = export(runs / "gru", format="c", out=tmp_path / "policy.c", weights="binary")
    subprocess.run(["gcc", "-DTEST", "-ffp-contract=off", path, "-o", tmp_path / "program"], check=True)
    numbers = np.fromfile(tmp_path / "policy.bin", "<f4")
    numbers[len(numbers) // 2] += np.float32(1e-3)
    numbers.tofile(tmp_path / "policy.bin")
    done = subprocess.run([tmp_path / "program"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.endswith(" differs\n")


@pytest.mark.parametrize(
    ("name", "field", "value"), [("gru", "obs", np.nan), ("gru", "obs", -np.inf), ("masks", "action_mask", 2)]
)
def test_invalid_inputs_change_nothing(name: str, field: str, value: float, runs: Path, tmp_path: Path) -> None:
    path = export(runs / name, format="c", out=tmp_path / "policy.c", trust=("space_environments",))
    subprocess.run(["gcc", *STRICT, "-shared", "-fPIC", path, "-o", tmp_path / "policy.so"], check=True)
    library = ctypes.CDLL(str(tmp_path / "policy.so"))
    header = path.with_suffix(".h").read_text()
    given, state, out = (np.zeros((), fields_of(header, kind)) for kind in ("input", "state", "output"))
    state["numbers"] = 0.25
    if name == "masks":
        given["action_mask"] = 1
    given[field][-1] = value
    before = state.tobytes(), out.tobytes()
    assert library.policy_step(*(ctypes.c_void_p(array.ctypes.data) for array in (state, given, out))) == -1
    assert (state.tobytes(), out.tobytes()) == before
    given[field] = 1
    assert library.policy_step(*(ctypes.c_void_p(array.ctypes.data) for array in (state, given, out))) == 0
    assert (state.tobytes(), out.tobytes()) != before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"core": "gtrxl"}, "because it has no core gtrxl; use --format onnx"),
        ({"network": "networks:leaky"}, "because torch computes the network"),
        (
            {"env": "space_environments:Shaped", "env_kwargs": {"space": "image"}, "hide_obs": ()},
            "cannot encode images",
        ),
        ({"kernel": "torch"}, "because torch computes the network, or its --encoder; use --format onnx"),
    ],
    ids=["gtrxl", "network", "image", "torch"],
)
def test_what_c_cannot_express_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_in(run, SMALL, **changes, stop_at_iteration=1)
    with pytest.raises(ConfigError, match=re.escape(message)):
        export(run, format="c", trust=("space_environments", "networks"))
    assert not (run / "policy.c").exists()


def test_names_of_others_become_names_of_c(tmp_path: Path) -> None:
    """The environment's id and the keys of its observations may contain anything, also code."""
    config = dataclasses.replace(SMALL, env="space_environments:Shaped", env_kwargs={"space": "odd-keys"}, hide_obs=())
    train_in(tmp_path / "run", config, stop_at_iteration=1)
    state = load_checkpoint(tmp_path / "run" / "checkpoint.pt")
    odd = json.loads(state["config"]) | {"env": "space_environments:Shaped */ int system(const char *); /*"}
    write_checkpoint(tmp_path / "run" / "checkpoint.pt", state | {"config": json.dumps(odd)})
    path = export(tmp_path / "run", format="c", out=tmp_path / "1 für alle.c", trust=("space_environments",))
    assert "system(" not in path.read_text() + path.with_suffix(".h").read_text()
    subprocess.run(["gcc", *STRICT, "-DTEST", path, "-o", tmp_path / "program"], check=True)
    subprocess.run([tmp_path / "program"], cwd=tmp_path, check=True)
    subprocess.run(
        ["g++", "-x", "c++", "-c", "-ffp-contract=off", "-Wall", path, "-o", tmp_path / "object"], check=True
    )


def test_the_command(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "my-policy.c"
    assert exit_code(main, [str(runs / "lstm"), "--format", "c", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert "void my_policy_reset(my_policy_state *state);" in out.with_suffix(".h").read_text()


FMA = """
#include <stdio.h>
%s
static uint64_t x = 88172645463325252u;
static float next(int special) { /* any bits; special: near the limits of floats */
    static const uint32_t edges[] = {0, 1, 0x7fffff, 0x800000, 0x3f800000, 0x7f7fffff,
                                     0x7f800000, 0x7fc00000, 0x34000000};
    uint32_t bits;
    float value;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    bits = special ? edges[x %% 9] ^ (uint32_t)(x >> 60 & 1) << 31 : (uint32_t)(x >> 16);
    if (!special && x & 1) bits = (bits & 0x807fffff) | (0x3f800000 + (uint32_t)((x >> 50 & 31) - 16) * 0x800000);
    memcpy(&value, &bits, 4);
    return value;
}
int main(void) {
    for (long i = 0; i < %d; i++) {
        float a = next(i %% 8 == 0), b = next(i %% 8 < 2), c = next(i %% 8 < 3), own = fma_of_one(a, b, c), exact;
        exact = __builtin_fmaf(a, b, c);
        if (memcmp(&own, &exact, 4) && (own == own || exact == exact)) {
            printf("%%a %%a %%a: %%a, not %%a\\n", a, b, c, own, exact);
            return 1;
        }
    }
    return 0;
}
"""


@pytest.mark.parametrize("triples", [1_000_000, pytest.param(100_000_000, marks=pytest.mark.slow(reason="10 s"))])
def test_the_multiply_add_for_processors_without_one_is_exact(triples: int, tmp_path: Path) -> None:
    source, program = tmp_path / "fma.c", tmp_path / "fma"
    source.write_text(FMA % (c_source.forward_source({"fma_of_one"}).replace("__FP_FAST_FMAF", "NEVER"), triples))
    subprocess.run(["gcc", "-O2", "-mfma", "-ffp-contract=off", source, "-o", program, "-lm"], check=True)
    assert subprocess.run([program], capture_output=True, text=True, check=False).stdout == ""


COMPILERS = {
    "x86-64": [
        (compiler, *flags, level)
        for compiler in ("gcc", "clang")
        for level in ("-O0", "-O3")
        for flags in ((), ("-mfma",))
    ],
    "aarch64": [("aarch64-linux-gnu-gcc", "-static", level) for level in ("-O0", "-O3")],
    "arm": [("arm-linux-gnueabihf-gcc", "-static", level) for level in ("-O0", "-O3")],
    "riscv64": [("riscv64-linux-gnu-gcc", "-static", level) for level in ("-O0", "-O3")],
}


@pytest.mark.slow(reason="about 3 min per policy")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", POLICIES)
def test_trained_policies_have_the_same_bits_on_each_processor(name: str, tmp_path: Path) -> None:
    """10,000 steps on x86-64, and 1,000 on emulated processors."""
    trust = ("popgym", "pettingzoo")
    module, colon, _ = load_config(TRAINED / name).env.partition(":")
    if colon:
        pytest.importorskip(module.partition(".")[0])
    path = export(TRAINED / name, format="c", out=tmp_path / "policy.c", trust=trust)
    header = path.with_suffix(".h").read_text()
    written, results = play(TRAINED / name, header, 10_000, trust)
    output = b""
    for processor, commands in COMPILERS.items():
        for command in commands:
            if shutil.which(command[0]) is None:
                continue
            program = compiled(path, command[:1], "-std=c99", "-ffp-contract=off", *command[1:])
            emulator = [] if processor == "x86-64" else [f"qemu-{processor}-static"]
            given = written if processor == "x86-64" else written[: len(written) // 10]
            found = subprocess.run([*emulator, program], input=given, capture_output=True, check=True).stdout
            output = output or found
            assert found == output[: len(output) * len(given) // len(written)], command
    assert_same(output, header, results)
