"""Search for the fastest flags for a given batch size. Each measurement is a short training run."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shmppo.bench.measured_run import measured_run
from shmppo.bench.options import Dimension, Tune
from shmppo.config.checks import require
from shmppo.config.differences import command, differences
from shmppo.config.train_config import TrainConfig
from shmppo.errors import ConfigError
from shmppo.utils.files import make_parent_directory, write_json
from shmppo.utils.machine import usable_cores

MIN_ROLLOUT_STEPS = 8  # shorter rollouts are not tried
FINALISTS = 3  # number of fastest configurations that are measured again


@dataclass
class Candidate:
    """A configuration and its measurements."""

    config: TrainConfig
    rates: list[float] = dataclasses.field(default_factory=list)
    """Environment steps per second, one number per measurement."""

    @property
    def rate(self) -> float:
        """Median of the measurements, in environment steps per second."""
        return statistics.median(self.rates)


class Search:
    """Coordinate search: improve one dimension after the other while there is time."""

    def __init__(self, options: Tune) -> None:
        """Begin at the configuration in `options`, with one worker per core."""
        self._options = options
        self._until = time.monotonic() + 60 * options.minutes
        self._measured: dict[str, Candidate] = {}  # by the text of `describe`

    def run(self) -> None:
        """Measure neighbors until none is faster, then the fastest configurations again. Stop at the time limit."""
        self._measure(self._options.config(workers=min(usable_cores(), self._options.num_envs)))
        before = None
        while before is not self.best:
            before = self.best
            for dimension in self._options.vary:
                for config in neighbors(self.best.config, dimension):
                    if time.monotonic() >= self._until:
                        return
                    if describe(config) not in self._measured:
                        self._measure(config)
        while time.monotonic() < self._until:
            for candidate in self.ranking()[:FINALISTS]:
                self._measure(candidate.config)

    @property
    def best(self) -> Candidate:
        """The fastest configuration."""
        return self.ranking()[0]

    def ranking(self) -> list[Candidate]:
        """Return the measured configurations, fastest first."""
        return sorted(self._measured.values(), key=lambda candidate: -candidate.rate)

    def _measure(self, config: TrainConfig) -> None:
        rate = measured_run(config, self._options.iterations).median("steps_per_second")
        self._measured.setdefault(describe(config), Candidate(config)).rates.append(rate)
        print(f"{describe(config)}  {rate:10,.0f} steps/s", flush=True)


def neighbors(config: TrainConfig, dimension: Dimension) -> Iterator[TrainConfig]:
    """Yield the valid configurations of the same batch size that differ in one dimension."""
    changes: list[dict[str, Any]] = []
    if dimension == "workers":
        cores = usable_cores()
        changes = [{"workers": w} for w in sorted({0, 1, 2, cores // 2, cores}) if w <= cores]
    elif dimension == "envs":
        for n in (config.num_envs // 2, config.num_envs * 2):
            if n and config.batch_steps % n == 0 and config.batch_steps // n >= MIN_ROLLOUT_STEPS:
                changes.append({"num_envs": n, "rollout_steps": config.batch_steps // n})
    else:
        # Each shard has a fixed cost, so one shard per process is usually fastest.
        counts = {max(config.num_workers, 1), config.shards // 2, config.shards * 2} - {0, config.shards}
        changes = [{"grad_shards": g} for g in sorted(counts)]
    for change in changes:
        try:
            yield dataclasses.replace(config, **change)
        except ConfigError:
            continue  # for example more workers than environments


def describe(config: TrainConfig) -> str:
    """Return the values of all dimensions in one line."""
    learning = "sharded" if config.sharded else "central"
    return (
        f"{config.num_workers:3} workers {config.num_envs:5} environments × {config.rollout_steps:5} steps "
        f"{config.shards:3} shards, {learning}, batches of {config.inference_rows}"
    )


def tune(options: Tune) -> TrainConfig:
    """Search, then print a table of all measurements and the command line of the fastest configuration.

    A signal ends the search early.

    Returns:
        The fastest configuration.

    Raises:
        ConfigError: if an option is invalid, or --out cannot be written.
        KeyboardInterrupt: if a signal ends the search before its first measurement.
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
