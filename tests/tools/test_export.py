"""Exported policies compute the same actions, values, and states as the policy itself."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from public_helpers import SIX_ITERATIONS, exit_code, refused, summary_of, train_in

from shmppo import load_policy
from shmppo.envs.factory import make_environment
from shmppo.errors import ConfigError
from shmppo.export import main
from shmppo.policies.policy import load_trained
from shmppo.runs.launch import train
from shmppo.spaces.action_spaces import distribution_for
from shmppo.tools.export import ExportedPolicy, export

SMALL = dataclasses.replace(SIX_ITERATIONS, hide_obs=(1, 3), total_steps=4 * 32 * 4)
CASES = {
    "cartpole-lstm": SMALL,
    "pendulum-gru-2": dataclasses.replace(
        SMALL, env="Pendulum-v1", hide_obs=(), core="gru", num_layers=2, separate_critic="all"
    ),
    "dict-gru": dataclasses.replace(
        SMALL, env="space_environments:Shaped", env_kwargs={"space": "dict"}, hide_obs=(), core="gru", prev_action=True
    ),
    "own-encoder": dataclasses.replace(
        SMALL, env="space_environments:Shaped", env_kwargs={"space": "dict"}, hide_obs=(), encoder="networks:look"
    ),
    "pendulum-std": dataclasses.replace(SMALL, env="Pendulum-v1", hide_obs=(2,), std="state"),
    "pendulum-beta": dataclasses.replace(SMALL, env="Pendulum-v1", hide_obs=(2,), distribution="beta"),
    "pendulum-lmu-2": dataclasses.replace(
        SMALL, env="Pendulum-v1", hide_obs=(2,), core="lmu", num_layers=2, separate_critic="all", seq_len=12
    ),
    "cartpole-lru-2": dataclasses.replace(SMALL, core="lru", num_layers=2),
    "cartpole-gtrxl-2": dataclasses.replace(SMALL, core="gtrxl", num_layers=2, attention_window=7),
    "cartpole-none": dataclasses.replace(SMALL, core="none", normalize_obs=False),
}
Step = Callable[..., list[np.ndarray]]
Runs = Callable[[str], Path]


def onnx_step(path: Path) -> Step:
    """The exported step, computed by onnxruntime."""
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    names = [one.name for one in session.get_inputs()]
    return lambda *inputs: session.run(None, dict(zip(names, inputs, strict=True)))


def torchscript_step(path: Path) -> Step:
    """The exported step, computed by TorchScript."""
    module = torch.jit.load(path)
    return lambda *inputs: [out.numpy() for out in module(*map(torch.from_numpy, inputs))]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The directory of the run of a case, which is trained when a test needs it."""
    root = tmp_path_factory.mktemp("runs")

    @cache
    def trained(case: str) -> Path:
        train_in(root / case, CASES[case])
        return root / case

    return trained


@pytest.mark.slow(reason="about 6 s per case")
@pytest.mark.parametrize("format", ["onnx", "torchscript"])
@pytest.mark.parametrize("case", CASES)
def test_an_exported_policy_agrees_with_the_policy_over_an_episode(case: str, format: str, runs: Runs) -> None:
    if format == "onnx":
        pytest.importorskip("onnxscript")
    step = {"onnx": onnx_step, "torchscript": torchscript_step}[format](export(runs(case), format=format))
    policy, network = load_policy(runs(case)), ExportedPolicy(load_trained(runs(case)))
    leaves = load_trained(runs(case)).task.observation.leaves
    env = make_environment(CASES[case])
    obs, _ = env.reset(seed=3)
    state, ended, recurrent, steps = policy.initial_state(), False, CASES[case].recurrent, 0
    exported_state = state[None]
    while not ended:
        parts = [leaf.to_storage(leaf.extract(obs)).astype(leaf.dtype)[None] for leaf in leaves]
        inputs = [*parts, *([exported_state] if recurrent else [])]
        outputs = step(*inputs)
        expected = network(*map(torch.from_numpy, inputs))
        for got, wanted in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(got, wanted.numpy(), atol=1e-5, rtol=0)
        action, state = policy.act(obs, state)
        np.testing.assert_allclose(outputs[0][0], action, atol=1e-5, rtol=0)
        assert outputs[0].dtype == np.asarray(action).dtype
        if recurrent:
            exported_state = outputs[3]  # it continues with its own state, including rounding errors
            np.testing.assert_allclose(exported_state[0], state, atol=1e-5, rtol=0)
        obs, _, terminated, truncated, _ = env.step(action)
        ended, steps = terminated or truncated, steps + 1
    env.close()
    assert steps >= 6


INPUTS = {
    "dict": ({"prev_action": True}, "obs/camera obs/flags obs/inner/0 obs/inner/1 obs/inner/2/x prev_action"),
    "masks": (
        {"env": "space_environments:Masked-v0", "env_kwargs": {}, "action_masks": True, "prev_reward": True},
        "obs prev_reward action_mask",
    ),
}


@pytest.mark.slow(reason="14 s")
@pytest.mark.parametrize("case", INPUTS)
def test_the_inputs_of_an_exported_file_have_the_names_of_the_environment(case: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    changes, names = INPUTS[case]
    config = dataclasses.replace(CASES["dict-gru"], prev_action=False, run_dir=str(tmp_path / "run"), total_steps=128)
    train(dataclasses.replace(config, **changes))
    expected = [*names.split(), "state"]
    model = onnx.load(export(tmp_path / "run"))
    assert [one.name for one in model.graph.input] == expected
    files = {"shmppo": ""}
    torch.jit.load(export(tmp_path / "run", format="torchscript"), _extra_files=files)
    about = json.loads(files["shmppo"], parse_constant=pytest.fail)
    assert about == json.loads((tmp_path / "run" / "policy.json").read_text())
    found = [[one["name"] for one in about[part]] for part in ("inputs", "outputs")]
    assert found == [expected, [one.name for one in model.graph.output]]


@pytest.mark.parametrize("case", ["cartpole-lstm", "dict-gru", "cartpole-none"])
def test_the_steps_of_the_manifest_are_those_of_the_exported_file(case: str, runs: Runs, tmp_path: Path) -> None:
    path = export(runs(case), format="torchscript", out=tmp_path / "policy.pt", trust=("space_environments",))
    about = json.loads(path.with_suffix(".json").read_text())
    assert about["weights_sha256"] == summary_of(runs(case))["weights_sha256"]
    assert "action_space" in about
    step, steps = torchscript_step(path), about["steps"]
    assert len(steps) == 3
    if case == "cartpole-lstm":
        found = load_policy(runs(case)).distribution(np.array(steps[0]["inputs"]["obs"], np.float32))["probabilities"]
        np.testing.assert_allclose(found, steps[0]["distribution"]["probabilities"], rtol=1e-5)
    for given, after in zip(steps, steps[1:] + steps[:1], strict=True):
        rows = [np.array([given["inputs"][one["name"]]], one["type"]) for one in about["inputs"]]
        assert [list(row.shape[1:]) for row in rows] == [one["shape"][1:] for one in about["inputs"]]
        for one, found in zip(about["outputs"], step(*rows), strict=True):
            assert (str(found.dtype), list(found.shape[1:])) == (one["type"], one["shape"][1:])
            np.testing.assert_allclose(found[0], given["outputs"][one["name"]], rtol=1e-5, atol=1e-6)
        for own, following in about["next"].items():
            assert after is steps[0] or after["inputs"][own] == given["outputs"][following]


SPACES = [
    spaces.Box(-2, 3, (2, 2), np.float64),
    spaces.Discrete(3, start=-1),
    spaces.MultiBinary(3),
    spaces.MultiDiscrete([2, 3]),
    spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))]),
]


@pytest.mark.parametrize("kind", ["", "squash", "beta"])
@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_actions_as_a_tensor_are_those_that_the_environment_gets(space: spaces.Space, kind: str) -> None:
    distribution = distribution_for(space, "here", squash=kind == "squash", beta=kind == "beta")
    params = torch.randn(5, distribution.num_params, generator=torch.Generator().manual_seed(0)) * 3
    actions = distribution.to_env(distribution.mode(params.numpy()))
    parts = [action if isinstance(action, tuple) else (action,) for action in actions]
    given = [np.concatenate([np.ravel(part) for part in action]) for action in parts]
    tensor = distribution.best_action(params)
    np.testing.assert_allclose(tensor.reshape(5, -1).numpy(), np.stack(given), atol=1e-6)


@pytest.mark.long
def test_a_network_that_cannot_be_exported_is_named(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    train_in(tmp_path / "run", SMALL, network="networks:Branching")
    with refused(r"^--network networks:Branching cannot be exported as onnx: .*; "):
        export(tmp_path / "run")
    with pytest.warns(torch.jit.TracerWarning):
        export(tmp_path / "run", format="torchscript")


def test_an_export_that_is_not_possible_is_refused_in_a_sentence(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="none does not exist"):
        export(tmp_path / "none")
    with pytest.raises(ConfigError, match="the format is ONNX; use onnx or torchscript"):
        export(runs("cartpole-none"), format="ONNX")
    with pytest.raises(ConfigError, match="weights is inline; use static or binary"):
        export(runs("cartpole-none"), format="c", weights="inline")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--out .*/file/a\.pt cannot be written: .*; name another file"):
        export(runs("cartpole-none"), format="torchscript", out=tmp_path / "file" / "a.pt")
    assert export(runs("cartpole-none"), format="torchscript", out=tmp_path / "new" / "a.pt").exists()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert exit_code(main, [runs("cartpole-none")]) == 2
    assert capsys.readouterr().err == "error: --format onnx needs onnx and onnxscript; pip install 'shmppo[export]'\n"
