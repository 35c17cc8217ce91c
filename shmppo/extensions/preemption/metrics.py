"""The metric of --preempt-fraction."""

from __future__ import annotations

from collections.abc import Collection

from shmppo.config.train_config import TrainConfig
from shmppo.extensions.preemption.options import PreemptionOptions

GROUP = "rollout"
GLOSSARY = {
    "preempted_steps": "steps that are missing from this rollout because of `--preempt-fraction`, over all ranks",
}


def columns(config: TrainConfig) -> Collection[str]:
    """Return the metrics that a run has."""
    return () if PreemptionOptions.of(config).preempt_fraction is None else GLOSSARY
