"""The command new-task: the tasks that it writes can be trained as they are."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import mujoco
import pytest
from public_helpers import exit_code

from shmppo import TrainConfig, check_env, new_task, train
from shmppo.envs.inspection import inspect_task

ASSETS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
ARM = Path(__file__).parents[2] / "examples" / "own_robot.xml"
REWARDS = {
    ASSETS / "ant.xml": ("class Ant(", "return 1 + speed", "(sim.xmat[:, 1, 6:] * [0.0, 0.0, 1.0]).sum(axis=1) < 0.5"),
    ASSETS / "inverted_pendulum.xml": ("class InvertedPendulum(", 'height = sim.xipos["pole"][:, 2]'),
    ARM: ("class OwnRobot(", 'sim.xipos["target"] - sim.xipos["payload"]'),
}
WRONG = {
    "<mujoco><worldbody/></mujoco>": "has no actuators, so no policy can move it; add an <actuator> section",
    "<mujoco>": "MuJoCo cannot read ",
}


@pytest.fixture(autouse=True)
def in_new_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("model", REWARDS, ids=lambda path: path.stem)
def test_the_task_has_the_names_of_the_model_and_a_reward(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(new_task.main, [str(model)]) == 0
    file = Path(f"{model.stem}_task.py")
    text = file.read_text()
    compile(text, file.name, "exec")
    assert [part for part in REWARDS[model] if part not in text] == []
    loaded = mujoco.MjModel.from_xml_path(str(model))
    assert [name for i in range(loaded.njnt) if (name := loaded.joint(i).name) not in text] == []
    assert f"train --env {file.stem}:{REWARDS[model][0][6:-1]}\n" in capsys.readouterr().out


def test_names_may_have_quotes_and_backslashes() -> None:
    text = (ASSETS / "inverted_pendulum.xml").read_text()
    for name, other in {"pole": '"""', "hinge": "C:\\hinge\\"}.items():
        assert f'name="{name}"' in text
        text = text.replace(f'name="{name}"', f"name='{other}'").replace(f'joint="{name}"', f"joint='{other}'")
    Path('a "robot".xml').write_text(text)
    assert exit_code(new_task.main, ['a "robot".xml']) == 0
    assert inspect_task(TrainConfig(env="a__robot__task:ARobot")).backend == "mujoco"


@pytest.mark.parametrize(("euler", "up"), {"90 0 0": "[0.0, 1.0, 0.0]", "0 45 0": "[-0.707, 0.0, 0.707]"}.items())
def test_a_robot_may_begin_tilted(euler: str, up: str) -> None:
    text = (ASSETS / "ant.xml").read_text()
    assert 'name="torso" pos="0 0 0.75"' in text
    Path("ant.xml").write_text(text.replace('name="torso"', f'name="torso" euler="{euler}"'))
    assert exit_code(new_task.main, ["ant.xml"]) == 0
    assert f"return (sim.xmat[:, 1, 6:] * {up}).sum(axis=1) < 0.5" in Path("ant_task.py").read_text()


@pytest.mark.long
@pytest.mark.parametrize("model", list(REWARDS)[::2], ids=lambda path: path.stem)
def test_the_task_is_reproducible_and_trains(model: Path) -> None:
    assert exit_code(new_task.main, [str(model)]) == 0
    env = f"{model.stem}_task:{REWARDS[model][0][6:-1]}"
    assert exit_code(check_env.main, [env, "--steps", "50"]) == 0
    config = TrainConfig(env=env, rollout_steps=16, stop_at_iteration=2, workers=2, quiet=True, run_dir="run")
    assert train(config)["iterations"] == 2


@pytest.mark.parametrize("text", WRONG)
def test_a_model_without_a_task_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("model.xml").write_text(text)
    assert exit_code(new_task.main, ["model.xml"]) == 2
    assert WRONG[text] in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["model.xml"]


def test_a_file_that_exists_stays(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ant_task.py").write_text("mine")
    assert exit_code(new_task.main, [str(ASSETS / "ant.xml")]) == 2
    assert "ant_task.py exists; remove it, or name another file with --out" in capsys.readouterr().err
    assert Path("ant_task.py").read_text() == "mine"
