"""The core `gru` for learning: torch.nn.GRU with a recurrence that needs few operations per step.

On a CPU, torch.nn.GRU records about ten operations per step, each with a node for its derivative. Here the derivative
is written by hand. The products with the inputs and the gradients of the weights are computed for all steps at once.
Only the product with the state, and the gates, are computed at each step.

Axes: L steps, J sequences, H hidden units. The gates are r, z, n.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd
from torch.nn.functional import linear


class _Recurrence(torch.autograd.Function):
    """The recurrence of one layer, with the formulas of torch.nn.GRU. Under autocast it is in float32."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(ctx: Any, from_input: Tensor, state: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Compute the outputs [L, J, H].

        Args:
            ctx: for the backward pass.
            from_input: W x + b of the inputs, [L, J, 3 H].
            state: h before the first step, [J, H].
            weight: of the state, [3 H, H].
            bias: of the state, [3 H].
        """
        hidden = weight.shape[1]
        gates, from_state = from_input.clone(), bias.repeat(*from_input.shape[:2], 1)
        outputs = from_input.new_empty(*from_input.shape[:2], hidden)
        transposed, previous = weight.t().contiguous(), state
        parts = (gates[..., : 2 * hidden], *gates.chunk(3, -1))
        products = (from_state, from_state[..., : 2 * hidden], from_state[..., 2 * hidden :])
        steps = zip(*(part.unbind() for part in (*parts, *products, outputs)), strict=True)
        for rz, r, z, n, product, rz_product, n_product, output in steps:
            product.addmm_(previous, transposed)
            rz.add_(rz_product).sigmoid_()
            n.addcmul_(r, n_product).tanh_()
            torch.lerp(n, previous, z, out=output)  # h = n + z·(h − n)
            previous = output
        ctx.save_for_backward(gates, from_state, outputs, state, weight)
        return outputs

    @staticmethod
    @custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute the gradients of the arguments. grads: of the outputs."""
        gates, from_state, outputs, state, weight = ctx.saved_tensors
        r, z, n = gates.chunk(3, -1)
        by_n = (1 - n * n).mul_(1 - z)
        # Derivatives of the output h with respect to the products W h + b of r, z, and n: [L, J, 3, H].
        factors = from_state.new_empty(*outputs.shape[:2], 3, outputs.shape[2])
        by_r, by_z, by_state_of_n = factors.unbind(2)
        torch.mul(by_n, r, out=by_state_of_n)
        torch.mul(by_state_of_n, from_state.chunk(3, -1)[2], out=by_r).mul_(1 - r)
        torch.sub(state, n[0], out=by_z[0])
        torch.sub(outputs[:-1], n[1:], out=by_z[1:])
        by_z.mul_(z).mul_(1 - z)
        of_h, of_products = torch.empty_like(outputs), torch.empty_like(factors)
        carried = torch.zeros_like(state)
        steps = zip(*(part.unbind() for part in (grads[0], of_h, factors, of_products, z)), strict=True)
        for grad, total, factor, of_product, kept in reversed(list(steps)):
            torch.add(grad, carried, out=total)
            torch.mul(factor, total.unsqueeze(1), out=of_product)
            torch.mul(total, kept, out=carried)
            carried.addmm_(of_product.flatten(1), weight)
        later, first = of_products[1:].flatten(0, 1).flatten(1), of_products[0].flatten(1)
        of_weight = torch.addmm(first.t() @ state, later.t(), outputs[:-1].flatten(0, 1))
        of_bias = of_products.sum((0, 1)).flatten()
        of_input = of_products  # the same memory; only n differs, whose W x + b is not multiplied by r
        torch.mul(of_h, by_n, out=of_input[:, :, 2])
        return of_input.flatten(2), carried, of_weight, of_bias


class Gru(nn.GRU):
    """torch.nn.GRU with a faster backward pass on a CPU. It has biases, but no dropout, and the time comes first."""

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Map x [L, J, inputs] and the state [layers, J, H] to features [L, J, H] and the state after the last step."""
        if x.device.type != "cpu" or not torch.is_grad_enabled():
            result: tuple[Tensor, Tensor] = super().forward(x, state)
            return result
        after = []
        for layer, before in enumerate(state.unbind()):
            w_ih, w_hh, b_ih, b_hh = self.all_weights[layer]
            x = _Recurrence.apply(linear(x, w_ih, b_ih), before, w_hh, b_hh)  # type: ignore[no-untyped-call]
            after.append(x[-1])
        return x, torch.stack(after)
