"""What --env-backend vector refuses. The extension has no flags of its own."""

from __future__ import annotations

from dataclasses import dataclass

from shmppo.config.checks import flag, require
from shmppo.config.extensions import ExtensionOptions
from shmppo.config.option import fields_with


@dataclass(frozen=True)
class VectorOptions(ExtensionOptions):
    """Vector environments of the user."""

    def check(self) -> None:
        if getattr(self, "env_backend", "") != "vector":
            return
        for name in fields_with(type(self), gymnasium=True):
            require(
                not getattr(self, name),
                f"{flag(name)} needs --env-backend gymnasium, but --env-backend is vector; leave one of them out",
            )


OPTIONS = VectorOptions
VALUES = {
    "env_backend": {
        "vector": "vector: --env names a `gymnasium.vector.VectorEnv`, of which each worker makes one.",
    }
}
