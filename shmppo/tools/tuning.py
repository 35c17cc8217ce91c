"""Finding fast flags: `python -m shmppo.tune --env …` times whole iterations of the trainer, for a given batch."""

from __future__ import annotations

import dataclasses
import json
import shlex
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shmppo.bench.measured_run import JobOptions, measured_run
from shmppo.config.options import flag, require
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.utils.files import make_parent_directory, write_json
from shmppo.utils.machine import usable_cores

Dimension = Literal["workers", "envs", "shards"]
LEAST_ROLLOUT = 8  # steps; shorter rollouts are not tried
FINALISTS = 3


@dataclass(frozen=True)
class Tune(JobOptions):
    """Try numbers of workers, environments × rollout steps, and gradient shards, one after the other, keep the fastest.

    The batch, --num-envs × --rollout-steps, stays as it is. Workers change only the speed; environments × rollout steps
    and shards change the run too: look at the returns.
    """

    vary: tuple[Dimension, ...] = ("workers", "envs", "shards")
    """What to try. workers alone leaves every run's weights as they are."""
    minutes: float = 3.0
    """Time to spend; at least one measurement is made."""
    iterations: int = 9
    """Iterations of a measurement, the first 3 of which are not counted."""
    out: Path | None = None
    """File to write the best configuration to, for train --config. None: none."""


@dataclass
class Candidate:
    """A configuration and what was measured of it."""

    config: TrainConfig
    rates: list[float] = dataclasses.field(default_factory=list)
    """Environment steps per second, one number per measurement."""

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


class Search:
    """Coordinate search from the configuration given: each dimension in turn, as long as it helps and time is left."""

    def __init__(self, options: Tune) -> None:
        self._options = options
        self._until = time.monotonic() + 60 * options.minutes
        self._measured: dict[str, Candidate] = {}  # by what `describe` says of it
        self._start = options.config(workers=min(usable_cores(), options.num_envs))

    def run(self) -> None:
        """Measure until nothing helps or time is up, then the fastest ones again while time is left."""
        self._measure(self._start)
        improved = True
        while improved:
            before = self.best
            for dimension in self._options.vary:
                for config in neighbors(self.best.config, dimension):
                    if not self._time_is_left():
                        return
                    if describe(config) not in self._measured:
                        self._measure(config)
            improved = self.best is not before
        while self._time_is_left():
            for candidate in self.ranking()[:FINALISTS]:
                self._measure(candidate.config)

    @property
    def best(self) -> Candidate:
        return self.ranking()[0]

    def ranking(self) -> list[Candidate]:
        """What was measured, the fastest first."""
        return sorted(self._measured.values(), key=lambda candidate: -candidate.rate)

    def _time_is_left(self) -> bool:
        return time.monotonic() < self._until

    def _measure(self, config: TrainConfig) -> None:
        rate = measured_run(config, self._options.iterations).median("steps_per_second")
        self._measured.setdefault(describe(config), Candidate(config)).rates.append(rate)
        print(f"{describe(config)}  {rate:10,.0f} steps/s", flush=True)


def neighbors(config: TrainConfig, dimension: Dimension) -> Iterator[TrainConfig]:
    """Configurations of the same batch that differ in one dimension, those that can run."""
    changes: list[dict[str, Any]] = []
    if dimension == "workers":
        cores = usable_cores()
        changes = [{"workers": w} for w in sorted({0, 1, 2, cores // 2, cores}) if w <= cores]
    elif dimension == "envs":
        for n in (config.num_envs // 2, config.num_envs * 2):
            if n and config.batch_steps % n == 0 and config.batch_steps // n >= LEAST_ROLLOUT:
                changes.append({"num_envs": n, "rollout_steps": config.batch_steps // n})
    else:
        # A shard for each process costs least, since each has fixed costs; more only serve more workers.
        counts = {max(config.num_workers, 1), config.shards // 2, config.shards * 2} - {0, config.shards}
        changes = [{"grad_shards": g} for g in sorted(counts)]
    for change in changes:
        try:
            yield dataclasses.replace(config, **change)
        except ConfigError:
            continue  # more workers than environments, or fewer rows than minibatches


def describe(config: TrainConfig) -> str:
    """The numbers that are searched over, in one line."""
    learning = "sharded" if config.sharded else "central"
    return (
        f"{config.num_workers:3} workers {config.num_envs:5} environments × {config.rollout_steps:5} steps "
        f"{config.shards:3} shards, {learning}"
    )


def differences(config: TrainConfig) -> dict[str, Any]:
    """Fields in which a configuration differs from the defaults."""
    default = TrainConfig()
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return {name: value for name, value in fields.items() if value != getattr(default, name)}


def command(config: TrainConfig) -> str:
    """The command line that trains this configuration."""
    words = ["python", "-m", "shmppo.train"]
    for name, value in differences(config).items():
        if isinstance(value, bool):
            words.append(flag(name) if value else flag("no_" + name))
        elif isinstance(value, dict):
            words += [flag(name), *(f"{key}={json.dumps(part)}" for key, part in value.items())]
        elif isinstance(value, tuple):
            words += [flag(name), *map(str, value)]
        else:
            words += [flag(name), str(value)]
    return shlex.join(words)


def tune(options: Tune) -> TrainConfig:
    """Search, print the table and the best command line; returns the fastest configuration.

    A signal ends the search, with what has been measured until then; KeyboardInterrupt if that is nothing.
    """
    require(options.minutes > 0, f"--minutes is {options.minutes}; it must be positive")
    if options.out is not None:
        make_parent_directory(options.out, "--out")
    search = Search(options)
    try:
        search.run()
    except KeyboardInterrupt:
        if not search.ranking():
            raise
    print("\nmedian steps/s   measured")
    for candidate in search.ranking():
        print(f"{candidate.rate:14,.0f}{len(candidate.rates):8} ×  {describe(candidate.config)}")
    best = search.best.config
    print(f"\n{command(best)}")
    if options.out is not None:
        write_json(options.out, differences(best))
        print(f"python -m shmppo.train --config {options.out}")
    return best
