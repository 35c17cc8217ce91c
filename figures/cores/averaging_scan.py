"""The recurrence of `MinGru` with its gradient: one fused operation per step, forward and backward."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor


class _AveragingScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, candidate: Tensor, state: Tensor) -> Tensor:
        share = torch.sigmoid(logits)
        outputs = torch.empty_like(share)
        previous = state
        for z, c, output in zip(share.unbind(), candidate.unbind(), outputs.unbind(), strict=True):
            torch.lerp(previous, c, z, out=output)
            previous = output
        ctx.save_for_backward(share, state, outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        share, state, outputs = ctx.saved_tensors
        keep = 1 - share
        grad = _accumulate(grads[0].clone(memory_format=torch.contiguous_format), keep)
        # dh[t] / dlogits[t] = (c − h[t−1])·z·(1 − z) = (h[t] − h[t−1])·(1 − z)
        of_logits = torch.empty_like(outputs)
        torch.sub(outputs[0], state, out=of_logits[0])
        torch.sub(outputs[1:], outputs[:-1], out=of_logits[1:])
        of_state = grad[0] * keep[0]
        of_logits.mul_(keep.mul_(grad))
        return of_logits, grad.mul_(share), of_state


def _accumulate(grad: Tensor, decay: Tensor) -> Tensor:
    """Add to each step of grad [L, …] what comes back from later steps: grad[t] += decay[t + 1]·grad[t + 1]."""
    steps, decays = grad.unbind(), decay.unbind()
    for t in range(len(steps) - 2, -1, -1):
        torch.addcmul(steps[t], decays[t + 1], steps[t + 1], out=steps[t])
    return grad


def averaging_scan(logits: Tensor, candidate: Tensor, state: Tensor) -> Tensor:
    """Compute h[t] = (1 − z[t])·h[t−1] + z[t]·candidate[t] for all steps, with z = σ(logits). All numbers are real.

    Args:
        logits: [L, J, …].
        candidate: [L, J, …].
        state: [J, …], h before the first step.

    Returns:
        h after each step [L, J, …].
    """
    return cast(Tensor, _AveragingScan.apply(logits, candidate, state))
