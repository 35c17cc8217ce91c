"""The metric of auxiliary losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shmppo.extensions.auxiliary.options import AuxiliaryOptions

if TYPE_CHECKING:  # the module of the loss imports this one
    from shmppo.ppo.loss import LossInputs, TermResult


def auxiliary_loss(inputs: LossInputs, _: float | None) -> TermResult:
    """loss of `--auxiliary`, mean over the minibatches"""
    return np.zeros_like(inputs.log_ratio), None, None  # it depends on the features, see `feature_loss`


TERMS = ((auxiliary_loss, None, "losses", lambda config: AuxiliaryOptions.of(config).auxiliary is not None),)
