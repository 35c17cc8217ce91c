"""Write a task for a MuJoCo model: `python -m shmppo.new_task robot.xml`."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from string import Template

import tyro

from shmppo.config.checks import require
from shmppo.config.command_line import parse
from shmppo.errors import ConfigError, print_text, run_command
from shmppo.utils.commands import program
from shmppo.utils.files import config_error_if_unwritable, short_path, user_path

TEMPLATES = Path(__file__).parent / "tools" / "templates"


@dataclass(frozen=True)
class NewTaskConfig:
    """Write the first version of a task for a MuJoCo model."""

    model: tyro.conf.Positional[Path]
    """MJCF file of the model."""
    out: Path | None = None
    """Python file to write, in the directory in which you train. None: MODEL_task.py in the current directory."""


_quoted = json.JSONEncoder(ensure_ascii=False).encode
"""Return a text as a literal of Python, which may also stand in a docstring."""


def main() -> int:
    """Run the command and return its exit code."""
    return run_command(_new_task)


def _new_task() -> None:
    options = parse(NewTaskConfig, sys.argv[1:], program("new-task"), example="robot.xml --out my_task.py")
    path = user_path(options.model, "MODEL")
    file = user_path(options.out or re.sub(r"\W", "_", f"{path.stem}_task"), "--out").with_suffix(".py")
    require(not file.exists(), f"{file} exists; remove it, or name another file with --out")
    name = "Task" * path.stem[0].isdigit() + re.sub(r"[\W_]", "", path.stem.title())
    text = _task(path, os.path.relpath(path, file.parent), name)
    with config_error_if_unwritable(file, "name another file with --out"):
        file.write_text(text)
    env = f"{file.stem}:{name}"
    check, train = f"{program('check-env')} {env}", f"{program('train')} --env {env}"
    print_text(f"wrote {short_path(file)}; check it, then train it:\n{check}\n{train}")


def _task(path: Path, relative: str, name: str) -> str:
    """Return the text of a task.

    The policy is rewarded for speed if the robot can move everywhere, otherwise for reaching what is called "target" or
    "goal", otherwise for lifting the last body.
    """
    import mujoco

    try:
        spec = mujoco.MjSpec.from_file(str(path))
        model = spec.compile()
    except ValueError as error:
        raise ConfigError(f"MuJoCo cannot read {path}: {error}") from error
    require(model.nu > 0, f"{path} has no actuators, so no policy can move it; add an <actuator> section")
    kinds = ("joints", "actuators", "sensors", "bodies", "sites")
    names = {kind: [_quoted(part.name) for part in getattr(spec, kind) if part.name] for kind in kinds}
    lines = [f"    {kind}: {', '.join(found)}" for kind, found in names.items() if found]
    goals = [name for name in names["bodies"] if re.search("target|goal", name)]
    hand = [name for name in names["bodies"] if name not in goals][-1]
    free, slide = (model.jnt_type[0] == kind for kind in (mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_SLIDE))
    kind = "walk" if free or (slide and not model.jnt_limited[0]) else "reach" if goals else "lift"
    root, frame_skip = model.jnt_bodyid[0], max(1, round(0.02 / model.opt.timestep))
    data = mujoco.MjData(model)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_kinematics(model, data)
    up = (data.xmat[root, 6:].round(3) + 0.0).tolist()  # the vertical in the coordinates of the root
    text = (TEMPLATES / "task.txt").read_text().replace("$methods", (TEMPLATES / f"task_{kind}.txt").read_text())
    return Template(text).substitute(
        actuators=model.nu, file=_quoted(path.name), frame_skip=frame_skip, goal="".join(goals[:1]), hand=hand,
        name=name, names="\n".join(lines), path=_quoted(relative), place=2 if free else 1, root=root,
        seconds=f"{frame_skip * model.opt.timestep:.3g}", up=up,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
