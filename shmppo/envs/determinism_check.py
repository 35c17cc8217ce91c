"""The check that an environment is a function of its seed and its actions. `CheckProcesses` starts two processes.

Both processes step the same environment with the same seeds and actions, across resets, and print a line for each reset
and step. These lines must be equal. The processes differ in what must not matter:

- the process id, the hash seed of Python, the state of global random generators, and the time of each call;
- other environments: in the second process, another environment lives in the same vector environment;
- the history: in the second process, the environment has already begun other episodes;
- evaluations: in the second process, an environment with the arguments of evaluations is made between two steps;
- a restoration: after at least three quarters of the steps, the first process restores the environment in a new
  instance, as a new worker would, and continues with it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import spawn
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from shmppo.config.option import fields_with
from shmppo.config.train_config import TrainConfig
from shmppo.config.trust import modules_of
from shmppo.envs.backends import backend_of
from shmppo.envs.schedule import load_schedule
from shmppo.envs.spec import EnvSpec
from shmppo.envs.vector_env import EpisodeToRestore
from shmppo.envs.wrappers import allowed_action, random_action
from shmppo.errors import EnvError
from shmppo.utils import signals
from shmppo.utils.global_generators import NAMES
from shmppo.utils.program import source_digests
from shmppo.utils.rng import DETERMINISM_CHECK, keyed_generator
from shmppo.utils.user_code import FAILURES, describe_error

CHECKED = 1
"""Index of the checked environment. The second process steps environment 0 before it."""
HISTORY_EPISODES, HISTORY_STEPS = 2, 10
RESTORED_LENGTH = 5
"""Steps of an episode before it is restored, if episodes are so long."""
FIRST_OF_HISTORY = 1 << 20
"""Number of the first episode of the history. No checked episode has it."""
SHOWN = 64
"""Vectors of up to this many numbers are printed in full, so that the first number that differs can be named."""
UNROUNDED = "an observation or reward before it is rounded to 32 bits or hidden"
_EPISODES, _ACTIONS = 0, 1  # what the generators of the check are for


@dataclass(frozen=True)
class CheckRequest:
    """What a process of the check gets on its standard input."""

    config: TrainConfig
    """The configuration of the run, with a seed of the check."""
    task: EnvSpec
    steps: int
    """Number of steps, at least 1."""
    alone: bool
    """True in the first process, False in the second one."""


class Outcome(NamedTuple):
    """What one reset or step of the checked environment gave."""

    place: str
    """The step and the episode, for messages."""
    steps: int
    """Number of steps so far."""
    values: dict[str, Any]
    """Flags, reward, and observations (see `_printed`) by name."""
    raised: str = ""
    """What the environment has raised. "" if it has not."""
    problem: str = ""
    """Why there are no further outcomes: another environment has raised. "" if it has not."""


def make_request(config: TrainConfig, task: EnvSpec, steps: int, *, alone: bool) -> CheckRequest:
    """Return the request to check the environment of a run. Its random numbers are of no other use in the run."""
    seed = int(keyed_generator(config.seed, DETERMINISM_CHECK, index=_EPISODES).integers(2**31))
    if backend_of(task).owns_generators:
        task = dataclasses.replace(task, generators=NAMES)
    task = dataclasses.replace(task, distribution=None, added={})  # type: ignore[arg-type] # they would import torch
    return CheckRequest(dataclasses.replace(config, seed=seed), task, steps, alone)


def outcomes(request: CheckRequest) -> Iterator[Outcome]:
    """Yield the outcomes of the checked environment. Whatever prevents further ones becomes a problem."""
    try:
        with contextlib.closing(CheckedEnv(request)) as checked:
            _seed_global_generators(1 if request.alone else 2)
            if not request.alone:
                checked.begin_history()
            yield from checked.outcomes()
    except FAILURES as error:  # an environment cannot be made; or the other environment, or the history, has raised
        problem = error.message if isinstance(error, EnvError) else describe_error(error)
        yield Outcome("", 0, {}, problem=problem)


class CheckedEnv:
    """The checked environment, alone or with another one in the same vector environment."""

    def __init__(self, request: CheckRequest) -> None:
        """Make the environments. Raises EnvError if that fails."""
        self._request = request
        self._low = CHECKED if request.alone else 0
        self._i = CHECKED - self._low
        self._seeded = request.task.seeding == "episode"  # so that an episode must not depend on earlier ones
        self._begun = False
        self._steps = 0
        self._restored = ""  # for messages: how the environment was restored
        self._place = ""  # for messages: the current step and episode of the checked environment
        self._taken: list[Any] = []  # actions of the current episode
        self._envs = self._make()
        # The checked environment is the last one. It has the same generator with and without the other environment.
        streams = reversed(range(len(self._envs.handles)))
        seed = request.config.seed
        self._generators = [keyed_generator(seed, DETERMINISM_CHECK, index=_ACTIONS + n) for n in streams]
        self._spaces = [copy.deepcopy(self._envs.action_space) for _ in self._generators]
        for space, generator in zip(self._spaces, self._generators, strict=True):
            space.seed(int(generator.integers(2**31)))

    def _make(self) -> Any:
        """Make the vector environment."""
        config, task = self._request.config, self._request.task
        envs: Any = backend_of(task).make_checked(config, task, self._low, CHECKED + 1)
        if schedule := load_schedule(config):
            envs.options = schedule(1, {})
        return envs

    def begin_history(self) -> None:
        """Begin some other episodes in all environments. Does nothing if episodes may depend on earlier ones."""
        if not self._seeded:
            return
        before = copy.deepcopy((self._generators, self._spaces))
        self._envs.reset_all(FIRST_OF_HISTORY)
        for k in range(1, HISTORY_EPISODES + 1):
            for _ in range(HISTORY_STEPS):
                self._step()
            self._envs.reset_env(self._i, FIRST_OF_HISTORY + 100 * k)
        self._generators, self._spaces = before
        self._begun = True

    def outcomes(self) -> Iterator[Outcome]:
        """Yield the outcomes of resets and steps, until all steps are done or the environment raises."""
        steps = self._request.steps
        try:
            yield self._reset(0)
            while self._steps < steps:
                yield self._checked_step()
                if self._is_restored_here():
                    yield self._restore()
                if self._seeded and self._envs.handles[self._i].episode == 0 and self._steps == (steps + 1) // 2:
                    yield self._reset(1)  # the first episode is long; others must be checked, too
        except EnvError as error:
            if error.env_index != CHECKED or not self._place:  # the other environment, or the restoration
                raise
            yield Outcome(self._place, self._steps, {}, raised=error.message)

    def _is_restored_here(self) -> bool:
        """Whether the environment is restored after this step: once, and if possible not at an episode's start."""
        steps, length = self._request.steps, self._envs.lengths[self._i]
        due = self._steps >= steps * (3 / 4 if length >= RESTORED_LENGTH else 9 / 10)
        return due and self._seeded and not self._restored

    def _reset(self, episode: int) -> Outcome:
        """Begin an episode. The first call begins it in all environments."""
        self._place = f"at the reset of episode {episode}{self._restored}"
        if self._begun:
            self._envs.reset_env(self._i, episode)
        else:
            self._envs.reset_all(episode)
        self._begun, self._taken = True, []
        return Outcome(self._place, self._steps, self._observed())

    def _checked_step(self) -> Outcome:
        """Step all environments, and return the outcome of the checked one.

        After a quarter of the steps, environment 0 begins another episode, and an evaluation begins, because the
        environments may share an attribute of their class that a reset or a constructor changes.
        """
        if not self._request.alone and self._steps == self._request.steps // 4:
            if self._seeded:
                self._envs.reset_env(0, FIRST_OF_HISTORY)
            self._begin_evaluation()
        episode, step = self._envs.handles[self._i].episode, self._envs.lengths[self._i] + 1
        self._place = f"at step {step} of episode {episode}{self._restored}"
        values = self._step()
        self._steps += 1
        return Outcome(self._place, self._steps, values)

    def _begin_evaluation(self) -> None:
        """Make environments with the arguments of evaluations, if they have own ones, and begin an episode in them."""
        config = self._request.config
        if config.eval_every is not None and config.eval_env_kwargs:
            evaluated, task = config.with_env_kwargs(config.eval_env_kwargs), self._request.task
            with contextlib.closing(backend_of(task).make_checked(evaluated, task, 0, 1)) as envs:
                envs.reset_all(FIRST_OF_HISTORY)

    def _step(self) -> dict[str, Any]:
        """Step all environments, and return the results of the checked one by name.

        Raises:
            EnvError: if an environment raises.
        """
        envs, i = self._envs, self._i
        actions = [self._action(k) for k in range(len(self._spaces))]
        self._taken.append(copy.deepcopy(actions[i]))  # the environment may change its action in place
        rewards, (terminated, truncated) = np.zeros(len(actions)), np.zeros((2, len(actions)), bool)
        ended = {end.i: end for end in envs.step(actions, rewards, terminated, truncated)}
        values = {"terminated": bool(terminated[i]), "truncated": bool(truncated[i]), "reward": float(rewards[i])}
        if i in ended:
            self._taken = []
            values |= self._leaves("final observation", ended[i].final)
        return values | self._observed()

    def _action(self, k: int) -> Any:
        """Draw the next action of environment k. It obeys the mask of --action-masks."""
        space, generator = self._spaces[k], self._generators[k]
        if not self._envs.observation.has_mask:
            return random_action(space)
        return allowed_action(space, self._envs.obs[-1][k], lambda part: generator.choice(np.flatnonzero(part)))

    def _observed(self) -> dict[str, Any]:
        """Return the observation, and the hash of the episode: it covers bits that training does not store."""
        observed = self._leaves("observation", [leaf[self._i] for leaf in self._envs.obs])
        return observed | {UNROUNDED: self._envs.hashes[self._i]}

    def _leaves(self, name: str, arrays: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return the leaves of an observation, as training stores them, by the name of their part."""
        leaves = self._envs.observation.leaves
        names = [f"{name} {leaf.name!r}" if leaf.keys else name for leaf in leaves]
        return dict(zip(names, map(_printed, arrays), strict=False))

    def _restore(self) -> Outcome:
        """Replace the environment by a new instance that is restored. The second process keeps its environment.

        Raises:
            EnvError: if the new instance cannot be made or raises.
        """
        place, self._place = self._place, ""
        restored = [True]
        spec = self._request.task.snapshot
        if self._request.alone:
            old, snapshot = self._envs, None
            handle = old.handles[self._i]
            if spec is not None:
                handle.save_snapshot(snapshot := np.zeros(spec.bytes, np.uint8))
            saved = EpisodeToRestore(handle.episode, self._taken, old.hashes[self._i], snapshot)
            old.close()
            self._envs = self._make()
            restored = self._envs.restore([saved], np.zeros(1, np.int64))
            for leaf, before in zip(self._envs.obs, old.obs, strict=True):
                leaf[:] = before
            for name in ("returns", "lengths", "hashes"):
                getattr(self._envs, name)[:] = getattr(old, name)
        self._restored = f" after a restoration {'from a snapshot' if spec is not None else 'by a replay'}"
        return Outcome(place, self._steps, {"a replay of the episode": restored[0]})

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()


def _printed(array: np.ndarray) -> str:
    """Return the bits of each number of a short vector, separated by spaces, or a digest of another array."""
    if array.ndim == 1 and array.size <= SHOWN:
        return array.tobytes().hex(" ", array.itemsize)
    return hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()


def _seed_global_generators(seed: int) -> None:
    """Give the generators that all code of a process shares other states than in the other process."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the environment may use this generator)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


def main() -> None:
    """Read the request from standard input, and print one line per outcome. The run ends this process."""
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    with os.fdopen(os.dup(1), "w", buffering=1) as lines:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the environment prints
        main_script, request = pickle.load(sys.stdin.buffer)
        spawn.prepare(main_script)  # as in workers
        for outcome in outcomes(request):
            print(json.dumps(outcome), file=lines)


# --- The processes, as the process that starts them sees them

LOWEST_PRIORITY = (
    "os.nice(19); hasattr(os, 'SCHED_IDLE') and os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); "
)
"""Code of a process that then gets only time that no other process needs. On Linux, any other one interrupts it."""
_POLL_SECONDS = 0.02


class Finding(NamedTuple):
    """The result of a check."""

    steps: int
    """Number of steps that were the same."""
    difference: str | None = None
    """What differed first and where. None: nothing."""
    problem: str | None = None
    """Why not all steps were checked. None: all were, or there is a difference."""


class CheckProcesses:
    """The two processes of a check. Call `close` in any case."""

    def __init__(self, config: TrainConfig, task: EnvSpec, steps: int, *, background: bool) -> None:
        """Start the processes.

        Args:
            config: of the run. Its seed decides the seeds and actions of the check.
            task: description of the environment.
            steps: number of steps to compare.
            background: whether the processes get only time that no other process of the machine needs.

        Raises:
            OSError: if the system cannot start a process.
        """
        self._sides: list[_Side] = []
        self._steps = 0
        main = _main_script() if config.num_workers else {}  # without workers, nothing says it has a guard
        for alone in (True, False):
            request = pickle.dumps((main, make_request(config, task, steps, alone=alone)))
            self._sides.append(_Side(request, hash_seed=int(alone), background=background))

    def poll(self) -> Finding | None:
        """Compare what both processes have printed so far. Return the result, or None if it is not known yet."""
        codes = [side.read() for side in self._sides]
        first, second = (side.lines for side in self._sides)
        while first and second:
            outcome = Outcome(*json.loads(first.pop(0)))
            if finding := compare(outcome, Outcome(*json.loads(second.pop(0))), self._steps):
                return finding
            self._steps = outcome.steps
        failed = [code for code, side in zip(codes, self._sides, strict=True) if code and not side.lines]
        if failed:
            return Finding(self._steps, problem=f"a process of the check ended with exit code {failed[0]}")
        return Finding(self._steps) if codes == [0, 0] else None

    def wait(self) -> Finding:
        """Wait for the result, and return it."""
        while (finding := self.poll()) is None:
            time.sleep(_POLL_SECONDS)
        return finding

    def close(self) -> None:
        """Kill and reap the processes."""
        for side in self._sides:
            side.close()


class _Side:
    """One process, and the lines that it has printed and nobody has compared."""

    def __init__(self, request: bytes, *, hash_seed: int, background: bool) -> None:
        # The process first makes sure that it ends with its parent, and lowers its priority. Imports take time. It
        # has its own process group, so that `close` also kills what the environment has started. With its own session,
        # Linux (autogroup) would give it as much time as the run.
        end = (
            f"runpy.run_path({signals.__file__!r})['kill_with_parent'](); os.getppid() == {os.getpid()} or os._exit(1)"
        )
        lower = LOWEST_PRIORITY if background else ""
        run = "from shmppo.envs.determinism_check import main; main()"
        code = f"import os; os.setpgrp(); import runpy, sys; {end}; {lower}sys.path[:] = {sys.path!r}; {run}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
        )
        self.lines: list[bytes] = []
        self._rest = b""
        with contextlib.suppress(BrokenPipeError), cast(IO[bytes], self._process.stdin) as stdin:
            stdin.write(request)
        os.set_blocking(cast(IO[bytes], self._process.stdout).fileno(), False)

    def read(self) -> int | None:
        """Read what the process has printed. Return its exit code, or None if it had not ended before."""
        code = self._process.poll()
        if code is not None or not self.lines:  # a process that is ahead waits when the pipe is full
            *new, self._rest = (self._rest + (cast(IO[bytes], self._process.stdout).read() or b"")).split(b"\n")
            self.lines += new
        return code

    def close(self) -> None:
        """Kill the process, unless it has ended, and what its environment has started."""
        with contextlib.suppress(ProcessLookupError):  # nothing is left, or the group does not exist yet
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        cast(IO[bytes], self._process.stdout).close()


def compare(first: Outcome, second: Outcome, steps: int) -> Finding | None:
    """Compare the outcomes of both processes at one place. Return None if they are the same and others follow.

    steps: number of steps that were the same before.
    """
    if problem := first.problem or second.problem:
        return Finding(steps, problem=problem)
    if bool(first.raised) != bool(second.raised):
        return Finding(steps, f"what the environment raises differs {first.place}")
    if first.raised:
        return Finding(steps, problem=first.raised)
    names = [
        name + _index(first.values.get(name), second.values.get(name))
        for name in dict.fromkeys([*first.values, *second.values])
        if first.values.get(name) != second.values.get(name)
    ]
    names = [name for name in names if name != UNROUNDED] or names
    return Finding(steps, f"{', '.join(names)} differ{'s' * (len(names) == 1)} {first.place}") if names else None


def _index(first: Any, second: Any) -> str:
    """Return the index of the first number that differs in two printed vectors, such as "[3]". "" for other values."""
    numbers = list(zip(str(first).split(), str(second).split(), strict=False))
    return f"[{next(k for k, (a, b) in enumerate(numbers) if a != b)}]" if len(numbers) > 1 else ""


def _main_script() -> dict[str, Any]:
    """Return the file and the arguments of the main script, as workers get them. It may register the environment."""
    data = spawn.get_preparation_data("")
    return {key: value for key, value in data.items() if key.startswith("init_main") or key == "sys_argv"}


# --- Checks that have passed, remembered for later runs in the user's cache directory


class CheckNote:
    """A note about the longest check of an environment. Make it before a check, in case its code changes meanwhile."""

    def __init__(self, config: TrainConfig) -> None:
        modules = modules_of(config.to_json())
        self._code = source_digests(modules)
        self._path = _note(config, [self._code.get(module) for module in modules])

    @property
    def steps(self) -> int:
        """The steps that were the same in the longest check, as a negative number if the next one was not. 0: none."""
        with contextlib.suppress(OSError, ValueError):
            steps, code = json.loads(self._path.read_text())
            if all(code.get(name, digest) == digest for name, digest in self._code.items()):
                return int(steps)
        return 0

    def remember(self, finding: Finding) -> None:
        """Note the result of a check, if the cache directory can be written, unless a longer check has passed."""
        steps = finding.steps if finding.difference is None else -finding.steps - 1
        if finding.problem is None and (steps < 0 or steps > abs(self.steps)):
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._path.write_text(json.dumps([steps, self._code]))


def _note(config: TrainConfig, code: list[str | None]) -> Path:
    """Return the file for an environment. Its name is a digest of what the result of the check depends on.

    This is what makes the environment, the code of the modules that it names, and the versions of all packages. What
    they import stands in the file.
    """
    fields = config.to_json()
    environment = [fields[name] for name in (*fields_with(TrainConfig, makes_env=True), "eval_env_kwargs")]
    packages = sorted(path.name for folder in sys.path for path in Path(folder).glob("*-info"))
    described = [environment, code, packages, sys.version]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache, "shmppo", "checks", hashlib.sha256(json.dumps(described).encode()).hexdigest())
