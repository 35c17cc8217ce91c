"""The flag --record of `evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shmppo.config.checks import require
from shmppo.config.extensions import EvaluationFlags
from shmppo.utils.files import user_path


@dataclass(frozen=True)
class RecordingFlags(EvaluationFlags):
    """The recording of episodes."""

    record: Path | None = None
    """Write the observations, actions, and rewards of all episodes to this NPZ file, for --demonstrations of train.
    None: no file."""

    def prepare(self, trained: Any, arguments: Mapping[str, Any]) -> Any:
        """Check that the environments have one column each. Raises ConfigError otherwise."""
        possible = self.record is None or not trained.config.idle_columns()
        require(possible, "--record does not support several agents; leave it out")
        return super().prepare(trained, arguments)

    def recorder(self) -> Any:
        from shmppo.extensions.teaching.demonstrations import Recorder

        return None if self.record is None else Recorder(user_path(self.record, "--record"))


EVALUATION = RecordingFlags
