"""The flag --kl-profile-every."""

from __future__ import annotations

from dataclasses import dataclass

from shmppo.config.extensions import ExtensionOptions
from shmppo.config.option import AT_LEAST_1, neutral_option


@dataclass(frozen=True)
class ProfileOptions(ExtensionOptions):
    """Profiles of the KL divergence within an update."""

    kl_profile_every: int | None = neutral_option(None, AT_LEAST_1)
    """Updates between KL profiles, which are written to kl.csv and kl/*.npz. The first update always has one. None: no
    profiles."""


OPTIONS = ProfileOptions
