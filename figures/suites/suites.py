"""The suites, and how each is installed and named."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Environment:
    """One environment of a suite."""

    env: str
    """The value of --env."""
    flags: tuple[str, ...] = ()
    """Flags that the environment needs, for example wrappers."""
    reproducible: bool = True
    """Whether it is a function of its seed and its actions."""


@dataclass(frozen=True)
class Suite:
    """A suite of environments."""

    name: str
    packages: tuple[str, ...]
    """Arguments of `pip install`."""
    environments: tuple[Environment, ...]

    @property
    def install(self) -> str:
        """The command that installs the suite."""
        return "pip install " + " ".join(f'"{name}"' if set(name) & set("[<>") else name for name in self.packages)


SUITES = (
    Suite(
        "POPGym",
        ("popgym",),
        (
            Environment("popgym:popgym-RepeatPreviousEasy-v0"),
            Environment("popgym:popgym-NoisyPositionOnlyCartPoleEasy-v0"),
        ),
    ),
    Suite(
        "MiniGrid",
        ("minigrid",),
        (
            Environment(
                "minigrid:MiniGrid-MemoryS7-v0",
                ("--wrappers", "FilterObservation(filter_keys=['image', 'direction'])"),
            ),
            Environment("minigrid:MiniGrid-Empty-5x5-v0", ("--wrappers", "minigrid.wrappers:ImgObsWrapper")),
        ),
    ),
    Suite(
        "ALE",
        ("ale-py", "opencv-python-headless"),
        (
            Environment("ale_py:ALE/Pong-v5", ("--env-kwargs", "frameskip=1", "--wrappers", "AtariPreprocessing()")),
            Environment("ale_py:ALE/Breakout-v5", ("--env-kwargs", "obs_type=ram", "--encoder", "mlp")),
        ),
    ),
    Suite(
        "Gymnasium-Robotics",
        ("gymnasium-robotics", "mujoco<3.12"),
        (
            Environment("gymnasium_robotics:FetchReach-v4"),
            Environment("gymnasium_robotics:PointMaze_UMaze-v3"),
        ),
    ),
    Suite(
        "Meta-World",
        ("metaworld",),
        (
            Environment(
                "metaworld:Meta-World/MT1",
                ("--env-kwargs", "env_name=reach-v3", "--allow-out-of-bounds"),
                reproducible=False,
            ),
            Environment(
                "metaworld:Meta-World/MT1",
                (
                    "--env-kwargs",
                    "env_name=reach-v3",
                    "seed=1",
                    "--allow-out-of-bounds",
                    "--wrappers",
                    "figures.suites.wrappers:SeededGoals",
                ),
            ),
        ),
    ),
    Suite(
        "Crafter",
        ("crafter",),
        (
            Environment("figures.suites.crafter_env:make", reproducible=False),
            Environment("figures.suites.crafter_env:make", ("--env-kwargs", "ordered=true")),
        ),
    ),
    Suite(
        "Box2D",
        ("box2d",),
        (
            Environment("LunarLander-v3"),
            Environment("BipedalWalker-v3", reproducible=False),
            Environment("BipedalWalker-v3", ("--wrappers", "figures.suites.wrappers:NewWorld")),
        ),
    ),
    Suite(
        "DeepMind Control",
        ("shimmy[dm-control]", "mujoco<4"),
        (
            Environment("shimmy:dm_control/cartpole-swingup-v0"),
            Environment("shimmy:dm_control/walker-walk-v0"),
        ),
    ),
)
