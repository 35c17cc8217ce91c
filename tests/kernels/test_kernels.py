"""The kernels: they compute what torch does in float64, with the same bits in each variant, batch, and build."""

from __future__ import annotations

import copy
import ctypes
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from helpers import CORES, DISTRIBUTION, assert_near, random_states, small_network

import shmppo.kernels
from shmppo.config.train_config import TrainConfig, load_config
from shmppo.errors import ConfigError
from shmppo.kernels import Batch, Layer, constants, kernels, rows, supported_variants
from shmppo.loggers.summary import summary_text
from shmppo.models.actor_critic import ActorCritic, parameter_offsets, parameter_views
from shmppo.models.native import NativeNetwork
from shmppo.policies.evaluation import evaluate
from shmppo.runs.launch import resume, train
from shmppo.sampling.actor import Actor
from shmppo.spaces.observations import observation_spec

DIGEST = Path(__file__).with_name("layer_digest.py")
COMPILE = ["gcc", "-std=c11", "-fPIC", "-shared", "-ffp-contract=off", "-Wno-psabi"]
FLAGS = {
    "avx512bf16": ["-mavx512f", "-mavx2", "-mfma", "-mavx512bf16"],
    "avx512": ["-mavx512f", "-mavx2", "-mfma"],
    "avx2": ["-mavx2", "-mfma"],
}
STORED, SHARDS = 40, 3  # stored observations, and shards of a batch
MEAN, SCALE = np.full(67, 0.1, np.float32), np.full(67, 4.0, np.float32)  # the largest observations are limited


@dataclass
class Case:
    """A network and a batch. Axes: R rows, J sequences, D numbers of an observation."""

    model: ActorCritic
    obs: np.ndarray
    """[STORED, D]"""
    index: np.ndarray
    """[R]"""
    lengths: np.ndarray
    """[J], the longest first."""
    state: np.ndarray
    shards: np.ndarray
    """The shard of each sequence, [J]. No sequence has the middle one."""
    by_params: np.ndarray
    by_values: np.ndarray

    @property
    def active(self) -> np.ndarray:
        """[L]"""
        return (self.lengths > np.arange(self.lengths[0])[:, np.newaxis]).sum(1, dtype=np.int32)

    @property
    def member(self) -> np.ndarray:
        """The sequence of each row, [R]."""
        return np.concatenate([np.arange(count) for count in self.active])

    @property
    def shard(self) -> np.ndarray:
        """The shard of each row, [R]."""
        return self.shards[self.member]

    def alone(self, sequence: int) -> Case:
        """The batch with only one sequence."""
        own = self.member == sequence
        chosen = {name: getattr(self, name)[own] for name in ("index", "by_params", "by_values")}
        first = {name: getattr(self, name)[sequence : sequence + 1] for name in ("lengths", "state", "shards")}
        return replace(self, **chosen, **first)


def make_case(core: str, layers: int, separate: str, seed: int) -> Case:
    """Sizes, lengths, and all numbers are random. The activation alternates."""
    rng = np.random.default_rng(seed)
    size, hidden, *encoder = (int(n) for n in rng.integers(1, 68, 4))
    longest = 13
    if core == "gtrxl":  # it divides sequences after 32 steps. With more units, the relu of one would be near its step
        hidden, longest = 4 * (hidden % 12 + 1), 75
    config = TrainConfig(
        core=core, num_layers=layers, separate_critic=separate, hidden_size=hidden,  # type: ignore[arg-type]
        encoder_sizes=tuple(encoder[: seed % 3]),
        activation=("tanh", "relu")[seed % 2], seq_len=int(rng.integers(2, 9)),
        attention_window=int(rng.integers(1, 50)),
    )  # fmt: skip
    torch.manual_seed(seed)
    model = ActorCritic(config, observation_spec(spaces.Box(-9, 9, (size,)), "a test"), DISTRIBUTION)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    lengths = np.sort(rng.integers(1, longest + 1, int(rng.integers(1, 20))))[::-1]
    R, J = int(lengths.sum()), len(lengths)

    def numbers(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    obs, state, shards = numbers(STORED, size), random_states(model, J, seed).numpy(), 2 * rng.integers(0, 2, J)
    return Case(model, obs, rng.integers(0, STORED, R), lengths, state, shards, numbers(R, 4), numbers(R))


def computed(case: Case, network: NativeNetwork, gradients: np.ndarray) -> list[np.ndarray]:
    """Policy parameters [R, P], values [R], and gradients [SHARDS, P'], computed by the kernels."""
    R = len(case.index)
    network.state[: len(case.state)] = case.state
    network.load()
    network.forward(case.active, case.index)
    outputs = [network.params[:R].copy(), network.values[:R, 0].copy()]
    network.by_params[:R], network.by_values[:R, 0] = case.by_params, case.by_values
    bounds = np.searchsorted(np.sort(case.shard), np.arange(SHARDS + 1))
    network.backward(range(1, SHARDS + 1), np.argsort(case.shard, kind="stable"), bounds)
    assert (gradients[0] == 7).all(), "the gradients of another shard have changed"
    return [*outputs, gradients[1:].copy()]


def make_network(
    case: Case, variant: str | None, rows: int, sequences: int, bf16: bool = False
) -> tuple[NativeNetwork, np.ndarray]:
    """A network and the memory of its gradients."""
    gradients = np.zeros((SHARDS + 1, parameter_offsets(case.model)[1]), np.float32)
    gradients[0] = 7
    made = NativeNetwork(
        case.model, [case.obs], [(MEAN, SCALE)], row_count=rows, sequences=sequences, gradients=gradients,
        bf16=bf16, variant=variant,
    )  # fmt: skip
    return made, gradients


def reference(case: Case, dtype: torch.dtype = torch.float64) -> list[np.ndarray]:
    """The same outputs by torch, and the gradients of each shard by parameter."""
    model, D = copy.deepcopy(case.model).to(dtype), case.obs.shape[1]
    step = np.repeat(np.arange(len(case.active)), case.active)
    x = np.zeros((len(case.active), len(case.lengths), D))
    x[step, case.member] = np.clip((case.obs[case.index] - MEAN[:D].astype(np.float64)) * SCALE[:D], -10, 10)
    params, values, _ = model([torch.from_numpy(x).to(dtype)], torch.from_numpy(case.state).to(dtype))
    params, values = params[step, case.member], values[step, case.member]
    by_row = (params * torch.from_numpy(case.by_params)).sum(1) + values * torch.from_numpy(case.by_values)
    results = [params.detach(), values.detach()]
    for s in range(SHARDS):
        results += torch.autograd.grad(by_row[case.shard == s].sum(), list(model.parameters()), retain_graph=True)
    return [result.double().numpy() for result in results]


NETWORKS = [
    (core, layers, separate)
    for core, layers in CORES
    for separate in ("none", "core", "all")
    if (core, separate) != ("none", "core")
]
CASES = [(*network, seed) for seed, network in enumerate(NETWORKS * 2)]
"""Each network with two seeds. The fast tests have every third pair, so every core, except the slowest."""
SLOWEST = (("gtrxl", 2, "core"), ("gtrxl", 1, "core"), ("gtrxl", 2, "none"))
OTHERS = pytest.mark.slow(reason="1 s per case")


def by_all_variants(case: Case, bf16: bool) -> list[np.ndarray]:
    """Compute a case with each variant. Return the results, which are the same."""
    size = len(case.index), len(case.lengths)
    first, *others = [computed(case, *make_network(case, variant, *size, bf16)) for variant in supported_variants()]
    for other in others:
        assert all(a.tobytes() == b.tobytes() for a, b in zip(first, other, strict=True))
    return first


@pytest.mark.parametrize(
    ("core", "layers", "separate", "seed"),
    [case if case[-1] % 3 == 0 and case[:3] not in SLOWEST else pytest.param(*case, marks=OTHERS) for case in CASES],
)
def test_all_variants_compute_the_same_bits_and_nearly_what_torch_does(
    core: str, layers: int, separate: str, seed: int
) -> None:
    case = make_case(core, layers, separate, seed)
    results = by_all_variants(case, bf16=False)
    by_parameter = [view for shard in torch.from_numpy(results[2]) for view in parameter_views(shard, case.model)]
    found, expected, by_torch = [*results[:2], *by_parameter], reference(case), reference(case, torch.float32)
    for i, (own, wanted, other) in enumerate(zip(found, expected, by_torch, strict=True)):
        rounding = np.abs(other - wanted).max() / max(np.abs(wanted).max(), 1e-30)
        assert_near(own, wanted, max(1e-6 if i < 2 else 1e-5, 4 * float(rounding)))
    in_bf16 = by_all_variants(case, bf16=True)
    for found, wanted in zip(in_bf16, results, strict=True):
        assert np.linalg.norm(found - wanted) <= (0.2 if core == "gtrxl" else 0.1) * np.linalg.norm(wanted)
    has_products = any(True for trunk in case.model.trunk_list for _ in trunk.parameters())
    assert np.array_equal(in_bf16[0], results[0]) != has_products


@pytest.mark.parametrize("seed", range(6))
def test_bf16_products_are_those_of_rounded_inputs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    R, inputs, outputs = (int(n) for n in rng.integers(1, 300, 3))
    shapes = (R, inputs), (outputs, inputs), (outputs,), (R, outputs)
    x, weight, bias, by_y = (rng.standard_normal(shape, np.float32) for shape in shapes)
    y, by_x, by_weight, by_bias = (np.zeros_like(array) for array in (by_y, x, weight, bias))
    layer = Layer(
        kind=constants()["linear"], inputs=inputs, outputs=outputs, bf16=1, into_y=1, into_by_x=1, trains=1,
        x=rows(x), y=rows(y),
        by_x=rows(by_x), by_y=rows(by_y), weight=weight.ctypes.data, bias=bias.ctypes.data,
        by_weight=by_weight.ctypes.data, by_bias=by_bias.ctypes.data,
    )  # fmt: skip
    native = kernels()
    packed = np.zeros(native.packed_size(ctypes.addressof(layer)), np.float32)
    memory = np.zeros(native.memory_size(ctypes.addressof(layer), R, 1), np.float32)
    layer.packed, layer.memory = packed.ctypes.data, memory.ctypes.data
    active, order, bounds = np.array([R], np.int32), np.arange(R), np.array([0, R])
    batch = Batch(
        rows=R, steps=1, sequences=R, active=active.ctypes.data, shards=1, order=order.ctypes.data,
        bounds=bounds.ctypes.data,
    )  # fmt: skip
    native.load_weights(ctypes.byref(layer), 1)
    native.forward(ctypes.byref(layer), 1, ctypes.byref(batch))
    native.backward(ctypes.byref(layer), 1, ctypes.byref(batch))
    x, weight, by_y = (torch.from_numpy(array).bfloat16().double().numpy() for array in (x, weight, by_y))
    assert_near(y, x @ weight.T + bias, 1e-6)
    assert_near(by_x, by_y @ weight, 1e-6)
    assert_near(by_weight, by_y.T @ x, 1e-6)


@pytest.mark.parametrize(("core", "layers"), CORES)
def test_results_do_not_depend_on_other_sequences_on_the_capacity_or_on_the_batch_before(
    core: str, layers: int
) -> None:
    case = make_case(core, layers, "all", 123)
    R, J = len(case.index), len(case.lengths)
    params, values, gradients = computed(case, *make_network(case, None, R, J))
    larger, memory = make_network(case, None, R + 37, J + 5)
    for sequence in (J - 1, 0):
        alone = computed(case.alone(sequence), larger, memory)
        own = case.member == sequence
        assert alone[0].tobytes() == params[own].tobytes()
        assert alone[1].tobytes() == values[own].tobytes()
    assert computed(case, larger, memory)[2].tobytes() == gradients.tobytes()


@pytest.mark.parametrize("variant", supported_variants())
@pytest.mark.parametrize(("core", "layers"), CORES)
def test_acting_gives_a_row_the_same_bits_in_any_batch(core: str, layers: int, variant: str) -> None:
    _, model = small_network(core, layers, "all")
    rng = np.random.default_rng(0)
    obs, state = rng.standard_normal((64, 5), np.float32), random_states(model, 64, 0).numpy()

    def act(chosen: slice) -> np.ndarray:
        own = state[chosen].copy()
        network = NativeNetwork(
            model, [obs[chosen].copy()], [None], row_count=len(own), sequences=len(own), state=own, variant=variant
        )
        network.load()
        network.forward()
        return np.hstack([network.params, network.values, own])

    whole = act(slice(None))
    assert not np.array_equal(whole[:, -model.state_size :], state) or not model.state_size
    for count in (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63):  # kernels compute up to 16 numbers at once
        for chosen in (slice(count), slice(64 - count, None)):
            assert act(chosen).tobytes() == whole[chosen].tobytes(), chosen


SMALL = TrainConfig(
    env="CartPole-v1", num_envs=2, rollout_steps=8, minibatches=1, epochs=1, hidden_size=4, encoder_sizes=(4,),
    workers=0, quiet=True, stop_at_iteration=1,
)  # fmt: skip


def test_networks_that_the_kernels_cannot_compute(tmp_path: Path) -> None:
    config = replace(SMALL, network="networks:leaky", run_dir=str(tmp_path / "run"))
    reason = "because the kernels cannot compute --network; use --kernel auto"
    with pytest.raises(ConfigError, match=f"^--kernel native cannot be used, {reason}$"):
        train(replace(config, kernel="native"))
    assert not (tmp_path / "run").exists()
    assert kernel_of_run(config) == "torch"


def kernel_of_run(config: TrainConfig) -> str:
    """Train, and return the kernel that config.json says."""
    train(config)
    return load_config(Path(str(config.run_dir))).kernel


def test_a_run_belongs_to_its_kernel_and_torch_computes_without_a_library(tmp_path: Path, request: Any) -> None:
    native = replace(SMALL, run_dir=str(tmp_path / "native"))
    assert kernel_of_run(native) == "native"
    with pytest.raises(ConfigError, match=r"^--kernel cannot change when a run is resumed; "):
        resume(tmp_path / "native", kernel="torch", stop_at_iteration=2)
    request.getfixturevalue("not_compiled")
    reason = "the kernels were not compiled; run `pip install -e .` with a C compiler"
    with pytest.raises(ConfigError, match=f"^--kernel native cannot be used, because {reason}$"):
        resume(tmp_path / "native", stop_at_iteration=2)
    assert kernel_of_run(replace(SMALL, run_dir=str(tmp_path / "torch"))) == "torch"
    summary = resume(tmp_path / "torch", stop_at_iteration=2)
    assert summary["exact"]
    assert "kernel         torch, which is slower; see --kernel" in summary_text(
        TrainConfig(**summary["config"]), summary, tmp_path
    )


def test_a_worker_never_computes_a_native_run_with_torch(not_compiled: Any) -> None:
    """It would, if it imported a copy of shmppo without kernels, such as the source tree in its directory."""
    config, model = small_network("lstm", 1)
    obs = np.zeros((3, model.observation.leaves[0].input_size), np.float32)
    Actor(replace(config, kernel="auto"), model, DISTRIBUTION, [obs], low=0)
    with pytest.raises(ConfigError, match=r"has no compiled kernels; run `pip install -e .` with a C compiler$"):
        Actor(replace(config, kernel="native"), model, DISTRIBUTION, [obs], low=0)


def test_a_policy_of_a_native_run_acts_without_a_library(tmp_path: Path, request: Any) -> None:
    assert kernel_of_run(replace(SMALL, run_dir=str(tmp_path / "run"))) == "native"
    returns = evaluate(tmp_path / "run", episodes=2).returns
    request.getfixturevalue("not_compiled")
    assert evaluate(tmp_path / "run", episodes=2).returns == returns


def layer_digest(library: Path | None, variant: str, *, command: tuple[str, ...] = (), **environment: str) -> str:
    """The hash of the results of all layers, computed in another process. library: None: the installed one."""
    library = library or shmppo.kernels._library_path()
    done = subprocess.run(
        [*command, sys.executable, str(DIGEST), str(library), variant],
        env=os.environ | environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def compiled(path: Path, variant: str, *flags: str) -> Path:
    """Compile one variant."""
    sources = [str(Path(str(shmppo.kernels.__file__)).with_name(name)) for name in ("network.c", "float64.c")]
    flags = (*FLAGS.get(variant, ()), f"-DVARIANT={variant}", *flags)
    subprocess.run([*COMPILE, *flags, *sources, "-o", str(path), "-lm"], check=True)
    return path


needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")


@pytest.mark.slow(reason="about 20 s per build")
@needs_gcc
@pytest.mark.parametrize("build", [("-O2", f"-DGENERIC_LANES={n}") for n in (2, 8, 16)] + [("-O0",)], ids=str)
def test_vectors_of_other_widths_and_other_builds_give_the_same_bits(build: tuple[str, ...], tmp_path: Path) -> None:
    expected = layer_digest(None, supported_variants()[0])
    assert layer_digest(compiled(tmp_path / "library.so", "generic", *build), "generic") == expected


@pytest.mark.slow(reason="about 2 min per processor")
@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="qemu-user is not installed")
@pytest.mark.parametrize("processor", ["Haswell", "EPYC"])
def test_emulated_processors_compute_the_same_bits(processor: str) -> None:
    expected = layer_digest(None, supported_variants()[0])
    for variant in ("avx2", "generic"):
        assert layer_digest(None, variant, command=("qemu-x86_64", "-cpu", processor)) == expected
