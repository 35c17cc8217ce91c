"""Tasks with a MuJoCo model of the user's own."""

from __future__ import annotations

import dataclasses
import shutil
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import mujoco_tasks
import numpy as np
import pytest
from conftest import summary_of
from gymnasium.envs.classic_control import CartPoleEnv
from helpers import Saboteur
from public_helpers import wait_for_the_check

from shmppo.config.train_config import TrainConfig
from shmppo.envs.factory import make_environment
from shmppo.envs.inspection import inspect_evaluation, inspect_task
from shmppo.envs.sync_vector_env import SyncVectorEnv
from shmppo.errors import ConfigError, EnvError
from shmppo.extensions.mujoco.vector_env import MujocoVectorEnv
from shmppo.runs.launch import resume, train
from shmppo.storage.checkpoint_file import load_checkpoint
from shmppo.tools.export_policy import export_policy

SMALL = TrainConfig(
    env="mujoco_tasks:RandomArm", num_envs=6, rollout_steps=32, minibatches=2, seq_len=8, hidden_size=8,
    encoder_sizes=(8,), workers=0, quiet=True, total_steps=6 * 32 * 4, separate_critic="all", actor_obs=("seen",),
    info_keys=("distance:mean", "success"),
)  # fmt: skip
PLAIN = dataclasses.replace(SMALL, separate_critic="none", actor_obs=None, info_keys=())


def task_of(name: str, **changes: Any) -> TrainConfig:
    return dataclasses.replace(PLAIN, env=f"mujoco_tasks:{name}", **changes)


def envs_of(config: TrainConfig, low: int = 0, high: int = 3) -> MujocoVectorEnv:
    task = inspect_task(config)
    assert task.backend == "mujoco"
    return MujocoVectorEnv(config, task, low, high)


def stepped(envs: Any, steps: int, column: int = 0) -> list[bytes]:
    """The bits of one column of some steps."""
    rng = np.random.default_rng(5)
    count, found = len(envs.handles), []
    rewards, flags = np.zeros(count), np.zeros((2, count), bool)
    for _ in range(steps):
        action = rng.uniform(-1, 1, 2).astype(np.float32)
        envs.step([action] * count, rewards, *flags)
        found.append(b"".join(part[column].tobytes() for part in (*envs.obs, rewards, *flags)))
    return found


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of a run with randomized models, without workers."""
    run_dir = tmp_path_factory.mktemp("arm") / "run"
    return str(train(dataclasses.replace(SMALL, run_dir=str(run_dir)))["weights_sha256"])


@pytest.mark.long
@pytest.mark.usefixtures("background_check")
@pytest.mark.parametrize("changes", [{"workers": 2}, {"workers": 3}, {"env_backend": "gymnasium"}], ids=str)
def test_weights_depend_neither_on_workers_nor_on_the_backend(
    changes: dict[str, Any], reference: str, tmp_path: Path
) -> None:
    config = dataclasses.replace(SMALL, run_dir=str(tmp_path / "run"), check_determinism=200, **changes)
    summary = train(config, callback=wait_for_the_check)
    assert (summary["weights_sha256"], summary["exact"]) == (reference, True), summary


@pytest.mark.long
@pytest.mark.parametrize("backend", ["mujoco", "gymnasium"])
def test_a_killed_worker_and_a_resume_change_no_bit(
    backend: Any, reference: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = dataclasses.replace(SMALL, run_dir=str(tmp_path / "run"), env_backend=backend, workers=1)
    assert inspect_task(config).snapshot is not None, "nothing is replayed"
    saboteur = Saboteur(monkeypatch, at_round=4, number=signal.SIGKILL, delay=0.02)
    train(dataclasses.replace(config, stop_at_iteration=3))
    assert saboteur.hit
    summary = resume(tmp_path / "run", workers=2)
    assert summary["weights_sha256"] == reference
    assert summary["inexact_reasons"] == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("env", "name"), [("HalfCheetah-v5", "Cheetah"), ("Ant-v5", "Ant"), ("Humanoid-v5", "Humanoid")]
)
def test_a_task_of_gymnasium_written_as_own_one_has_the_same_weights(env: str, name: str, tmp_path: Path) -> None:
    config = dataclasses.replace(PLAIN, num_envs=4, rollout_steps=64, info_keys=("x_velocity:sum",), total_steps=1024)
    runs = [
        dataclasses.replace(config, env=one, run_dir=str(tmp_path / one[:6])) for one in (env, f"mujoco_tasks:{name}")
    ]
    assert len({train(run)["weights_sha256"] for run in runs}) == 1
    assert len({(Path(str(run.run_dir)) / "episodes.csv").read_text() for run in runs}) == 1


def test_together_and_one_by_one_give_the_same_bits() -> None:
    config = dataclasses.replace(SMALL, num_envs=3)
    task = inspect_task(config)
    with closing(MujocoVectorEnv(config, task, 0, 3)) as together, closing(SyncVectorEnv(config, task, 0, 3)) as single:
        for envs in (together, single):
            envs.reset_all(0)
        assert stepped(together, 60) == stepped(single, 60)
        assert together.hashes == single.hashes
        assert together.episode_info(range(3)) == single.episode_info(range(3))


def test_an_episode_does_not_depend_on_earlier_ones() -> None:
    with closing(envs_of(SMALL)) as fresh, closing(envs_of(SMALL)) as used:
        fresh.reset_all(7)
        used.reset_all(0)
        for episode in range(1, 8):
            stepped(used, 3)
            used.reset_all(episode)
        assert [a.tobytes() for a in fresh.obs] == [a.tobytes() for a in used.obs]
        models = [envs.handles[1].env.unwrapped.model for envs in (fresh, used)]
        assert models[0].body("upper").mass != envs_nominal_mass(fresh)
        saved = [np.zeros(mujoco.mj_sizeModel(model), np.uint8) for model in models]
        for model, buffer in zip(models, saved, strict=True):
            mujoco.mj_saveModel(model, None, buffer)
        assert np.array_equal(*saved)
        assert stepped(fresh, 20, 1) == stepped(used, 20, 1)


def envs_nominal_mass(envs: MujocoVectorEnv) -> Any:
    return envs._sim.model.body("upper").mass


def test_a_randomize_that_changes_nothing_gives_the_same_bits() -> None:
    with closing(envs_of(task_of("Arm"))) as plain, closing(envs_of(task_of("UnchangedArm"))) as unchanged:
        for envs in (plain, unchanged):
            envs.reset_all(0)
        assert stepped(plain, 40) == stepped(unchanged, 40)
        assert len({id(model) for model in unchanged._sim.models}) == 3
        assert len({id(model) for model in plain._sim.models}) == 1, "they share one model"


def test_fields_and_their_named_parts() -> None:
    env = mujoco_tasks.RandomArm().as_gymnasium()
    env.reset(seed=3)
    sim, data = env.unwrapped.sim, env.unwrapped.data
    before = data.site_xpos.copy()
    env.step(np.array([1.0, -1.0], np.float32))
    assert sim.qpos["knee"].tolist() == [data.qpos[1]]
    assert np.array_equal(sim.qpos, data.qpos[np.newaxis])
    assert sim.sensordata["speed"].tolist() == [data.sensordata.tolist()]
    assert sim.xpos["lower"].tolist() == [data.body("lower").xpos.tolist()]
    assert sim.xmat["lower"].shape == (1, 9)
    assert sim.before.site_xpos["tip"].tolist() == before.tolist()
    assert sim.body_mass["upper"].tolist() == env.unwrapped.model.body("upper").mass.tolist()
    assert sim.body_mass["upper"] != sim.model.body("upper").mass
    assert sim.geom_size["bone"].shape == (1, 3)
    assert data.time == pytest.approx(0.03)
    with pytest.raises(ValueError, match="read-only"):
        sim.qpos[:][0] = 1.0
    with pytest.raises(KeyError, match="userdata has no parts with names"):
        sim.userdata["hip"]


def test_options_of_a_schedule_reach_the_task() -> None:
    with closing(envs_of(task_of("Arm"))) as envs:
        envs.options = {"height": 5.0}
        envs.reset_all(0)
        assert envs._sim.data[0].userdata[0] == pytest.approx(5.0, abs=0.5)


def test_a_field_has_the_same_value_in_each_reset() -> None:
    env = mujoco_tasks.Pushed().as_gymnasium()
    first, second = (env.reset(seed=3)[0]["seen"] for _ in range(2))
    assert first[:2].tolist() == second[:2].tolist() == [0.0, 0.0], "the force before the change"


def test_a_repeated_reset_has_the_options_and_the_numbers_of_the_first_one() -> None:
    env = mujoco_tasks.Popping().as_gymnasium()
    states = []
    for _ in range(2):
        observation = env.reset(seed=3, options={"mass": 3.0})[0]
        states.append((str(observation), env.np_random.bit_generator.state))
    assert states[0] == states[1]


def test_a_task_of_one_environment_is_not_that_of_the_others() -> None:
    with pytest.raises(ConfigError, match="because the parameter env_index makes a task for each"):
        inspect_task(task_of("Indexed", env_backend="mujoco"))


def test_evaluations_have_the_backend_of_the_training() -> None:
    config = task_of("arm_with_limit", env_kwargs={"steps": 4}, eval_every=1, eval_env_kwargs={"wrapped": True})
    with pytest.raises(ConfigError, match="are stepped by gymnasium, but training by mujoco; use --env-backend gym"):
        inspect_evaluation(config, inspect_task(config))


def test_a_function_may_return_a_task() -> None:
    config = task_of("arm_with_limit", env_kwargs={"steps": 4})
    with closing(envs_of(config)) as envs:
        envs.reset_all(0)
        stepped(envs, 4)
        assert [handle.episode for handle in envs.handles] == [1, 1, 1]
    made = make_environment(config, "rgb_array")
    assert made.unwrapped.render_mode == "rgb_array"


class Convertible(CartPoleEnv):
    """An environment that has a method of this name for its own purposes."""

    def as_gymnasium(self) -> None:
        raise AssertionError


def test_an_environment_is_not_converted() -> None:
    made = make_environment(TrainConfig(env="test_mujoco_task:Convertible"), "rgb_array")
    assert (type(made.unwrapped), made.unwrapped.render_mode) == (Convertible, "rgb_array")


def test_wrappers_step_a_task_one_by_one() -> None:
    for changes in ({"prev_action": True, "prev_reward": True}, {"wrappers": ("FlattenObservation",)}):
        assert inspect_task(task_of("RandomArm", **changes)).backend == "gymnasium"
    limited = task_of("Arm", wrappers=("TimeLimit(max_episode_steps=4)",))
    with closing(envs_of(limited)) as envs:
        envs.reset_all(0)
        stepped(envs, 4)
        assert [handle.episode for handle in envs.handles] == [1, 1, 1]


@pytest.mark.parametrize(("name", "function"), [("Weights", "observe"), ("Stateful", "reward"), ("Mixing", "reward")])
def test_a_function_that_gives_other_bits_for_several_simulations_is_found(
    name: str, function: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert inspect_task(task_of(name)).backend == "gymnasium"
    assert f"Gymnasium steps mujoco_tasks:{name}, because {function} gives other bits" in caplog.text
    with pytest.raises(ConfigError, match=f"{function} gives other bits for several simulations than for one"):
        inspect_task(task_of(name, env_backend="mujoco"))


def test_an_unstable_simulation_ends_its_episode_as_failed() -> None:
    config = task_of("Vanishing", num_envs=3)
    with closing(envs_of(config)) as envs:
        envs.reset_all(0)
        with pytest.raises(EnvError, match="huge value in QVEL at DOF 0"):
            stepped(envs, 300)
    with closing(envs_of(dataclasses.replace(config, skip_bad_episodes=True))) as envs:
        envs.reset_all(0)
        numbers = np.zeros(3)
        flags = np.zeros((2, 3), bool)
        ends = [end for _ in range(80) for end in envs.step([np.zeros(2, np.float32)] * 3, numbers, *flags)]
        failed = [end for end in ends if end.failed]
        assert 0 < len(failed) < len(ends)
        assert not envs.unrepeated.any(), "each fails again in a new simulation"


class Broken(mujoco_tasks.Arm):
    """A task with one mistake, which `mistake` names."""

    def __init__(self, mistake: str) -> None:
        self.mistake = mistake
        if mistake == "range":
            self.model = mujoco.MjSpec.from_string(mujoco_tasks.ARM.replace('ctrlrange="-1 1"', "", 1))
        if mistake in ("nothing.xml", __file__, "None"):
            self.model = None if mistake == "None" else mistake
        self.camera = "sidee" if mistake == "camera" else None
        if mistake == "sizes":
            sites = "".join(f'<site name="{k}"/>' for k in range(next(COUNT)))
            self.model = mujoco.MjSpec.from_string(mujoco_tasks.ARM.replace("<worldbody>", f"<worldbody>{sites}"))

    def observe(self, sim: Any) -> Any:
        if self.mistake == "name":
            return sim.qpos["hipp"][:, np.newaxis]
        if self.mistake == "field":
            return sim.qposs[:]
        if self.mistake == "part" and sim.data[0].time > 0:
            return {"seen": sim.qpos[:]}
        return super().observe(sim)

    def reward(self, sim: Any, action: Any) -> Any:
        if self.mistake in ("qpos", "body_mass"):
            getattr(sim.before, self.mistake)
        rewards, info = super().reward(sim, action)
        if self.mistake == "pair":
            return rewards
        return (rewards[:1] if self.mistake == "rows" else rewards), info

    def control(self, sim: Any, action: Any) -> Any:
        return sim.xpos["lower"] if self.mistake == "control" else action

    def reset(self, sim: Any, index: int, generator: Any, options: Any) -> None:
        if self.mistake == "reset":
            raise IndexError("no such leg")


COUNT = iter(range(100))
MISTAKES = {
    "nothing.xml": "Broken.model .*tests.extensions.nothing.xml does not compile: .*rror opening file",
    __file__: "does not compile: XML",
    "None": "Broken.model is None; set it to the path of an MJCF file",
    "range": "Broken: actuators 0 have no ctrlrange; add one, or set action_space",
    "camera": "Broken.camera is 'sidee'; set it to the name of a camera of the model",
    "sizes": "has another model each time that it is made; change models in `randomize`",
    "name": "Invalid name 'hipp'. Valid names: ..hip., .knee.",
    "field": r"sim has no field qposs \(did you mean qpos",
    "part": "observe must return a dict with hidden, seen",
    "qpos": "could not be made: .*`before` of the task has no field qpos; it has site_xpos, sensordata",
    "body_mass": "`before` of the task has no field body_mass",
    "pair": r"reward must return \(rewards \[n\], info\)",
    "rows": r"for several simulations at once, raised .*reward returned shape \(1,\), but it must return shape \(32,\)",
    "control": "the state, which control reads, has no field xpos",
    "reset": "no such leg",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_before_workers_start(mistake: str) -> None:
    config = dataclasses.replace(PLAIN, env="test_mujoco_task:Broken", env_kwargs={"mistake": mistake})
    with pytest.raises(ConfigError, match=MISTAKES[mistake]):
        inspect_task(config)


@pytest.mark.long
def test_a_run_refuses_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "arm.xml"
    path.write_text(mujoco_tasks.ARM)
    monkeypatch.setattr(mujoco_tasks.Arm, "model", path)
    config = dataclasses.replace(SMALL, run_dir=str(tmp_path / "run"))
    train(dataclasses.replace(config, stop_at_iteration=2))
    state = load_checkpoint(tmp_path / "run" / "checkpoint.pt")
    assert len(state["fingerprint"]["content_sha256"]) == 64
    exported = export_policy(tmp_path / "run")
    assert state["fingerprint"]["content_sha256"] in load_checkpoint(exported / "checkpoint.pt")["spaces"]
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    path.write_text(mujoco_tasks.ARM.replace('damping="0.1"', 'damping="0.2"'))
    with pytest.raises(ConfigError, match="the model of --env mujoco_tasks:RandomArm differs from that of the run"):
        resume(tmp_path / "run")
    path.write_text(mujoco_tasks.ARM)
    resume(tmp_path / "copy")
    assert summary_of(tmp_path / "copy")["inexact_reasons"] == []


def test_other_tools_get_an_environment_of_gymnasium() -> None:
    env = mujoco_tasks.Cheetah().as_gymnasium()
    assert isinstance(env, gymnasium.Env)
    assert (env.observation_space.shape, env.action_space.shape) == ((17,), (6,))
    assert env.metadata["render_fps"] == 20


def test_the_digest_of_a_model_does_not_depend_on_its_folder(tmp_path: Path) -> None:
    mesh = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
    asset, digests = '<asset><mesh name="m" file="mesh.obj"/></asset>', set()
    for folder, scale in (("a", 1), ("longer/name", 1), ("other", 2)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "mesh.obj").write_text(mesh.replace("v 1", f"v {scale}"))
        text = mujoco_tasks.ARM.replace("<worldbody>", f'{asset}<worldbody><geom type="mesh" mesh="m"/>')
        (tmp_path / folder / "arm.xml").write_text(text)
        task = mujoco_tasks.Arm()
        task.model = tmp_path / folder / "arm.xml"
        digests.add(task.as_gymnasium().unwrapped.content_sha256)
    assert len(digests) == 2, "only the mesh of one folder differs"
