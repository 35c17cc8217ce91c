"""The flag --auxiliary."""

from __future__ import annotations

from dataclasses import dataclass

from shmppo.config.checks import require
from shmppo.config.extensions import ExtensionOptions
from shmppo.config.option import option


@dataclass(frozen=True)
class AuxiliaryOptions(ExtensionOptions):
    """Losses that help the network to find features."""

    auxiliary: str | None = option(None, code=True, only_for_learning=True)
    """`module:factory` of a module that computes an auxiliary loss from the actor's features
    (docs/guides/auxiliary-losses.md). Cannot be combined with --critic-warmup-steps. None: no auxiliary loss."""

    def check(self) -> None:
        require(
            self.auxiliary is None or not getattr(self, "critic_warmup_steps", 0),
            "--critic-warmup-steps needs no --auxiliary, because otherwise the policy would change, too; leave one of "
            "them out",
        )

    def uses_torch(self) -> bool:
        return self.auxiliary is not None


OPTIONS = AuxiliaryOptions
