"""An optimizer: Muon for weight matrices, AdamW for all other weights.

Muon replaces a matrix's momentum by the nearest orthogonal matrix, found with five Newton-Schulz steps
(https://kellerjordan.github.io/posts/muon/). Matrices of the same shape are processed together, in bfloat16.
"""

from __future__ import annotations

from typing import Any

import torch

from tools.demo_pair.model import ModelConfig, Weights

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5
_MOMENTUM = 0.95
_BETAS = (0.9, 0.95)
_EPSILON = 1e-8
_WEIGHT_DECAY = 0.1
_MAX_NORM = 1.0


def orthogonalise(stack: torch.Tensor) -> torch.Tensor:
    """Approximate the nearest semi-orthogonal matrix of each matrix in ``[count, rows, columns]``."""
    x = stack.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).contiguous()
    first, second, third = _COEFFICIENTS
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = x @ x.transpose(1, 2)
        x = first * x + torch.baddbmm(second * gram, gram, gram, alpha=third) @ x
    return (x.transpose(1, 2) if tall else x).float()


class Optimizer:
    """Optimizer that updates a dictionary of weights in place."""

    def __init__(self, weights: Weights, config: ModelConfig) -> None:
        """Initialize the state.

        Args:
            weights: Tensors that require gradients, the same in every step.
            config: The model's shape, for splitting the fused query, key and value weights.
        """
        self._weights = weights
        key = config.kv_heads * config.head_size
        self._fused = [config.heads * config.head_size, key, key]
        self._matrices = [
            name for name in weights if name.startswith("transformer.layers.") and "norm" not in name
        ]
        self._others = [name for name in weights if name not in self._matrices]
        self._state: dict[str, Any] = {"step": 0}
        for name in self._matrices:
            self._state[name] = torch.zeros_like(weights[name])
        for name in self._others:
            self._state[name] = [torch.zeros_like(weights[name]), torch.zeros_like(weights[name])]

    def step(self, matrix_rate: float, other_rate: float) -> None:
        """Clip the gradients to norm 1, update the weights, and clear the gradients."""
        with torch.no_grad():
            gradients = [weight.grad for weight in self._weights.values()]
            norm = torch.stack(torch._foreach_norm(gradients)).norm()
            torch._foreach_mul_(gradients, min(1.0, _MAX_NORM / (float(norm) + 1e-6)))
            self._state["step"] += 1
            self._muon(matrix_rate)
            self._adamw(other_rate)
            for weight in self._weights.values():
                weight.grad = None

    def _muon(self, rate: float) -> None:
        groups: dict[tuple[int, ...], list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for name in self._matrices:
            weight, momentum = self._weights[name], self._state[name]
            momentum.mul_(_MOMENTUM).add_(weight.grad)
            update = weight.grad + _MOMENTUM * momentum
            fused = name.endswith("attention.qkv.weight")
            weight.mul_(1 - rate * _WEIGHT_DECAY)
            for part, slot in zip(
                update.split(self._fused) if fused else [update],
                weight.split(self._fused) if fused else [weight],
                strict=True,
            ):
                groups.setdefault(tuple(part.shape), []).append((part, slot))
        for shape, members in groups.items():
            updates = orthogonalise(torch.stack([part for part, _ in members]))
            scale = 0.2 * max(shape) ** 0.5
            torch._foreach_add_([slot for _, slot in members], list(updates.unbind(0)), alpha=-rate * scale)

    def _adamw(self, rate: float) -> None:
        step = self._state["step"]
        for name in self._others:
            weight, (mean, square) = self._weights[name], self._state[name]
            mean.lerp_(weight.grad, 1 - _BETAS[0])
            square.mul_(_BETAS[1]).addcmul_(weight.grad, weight.grad, value=1 - _BETAS[1])
            denominator = (square / (1 - _BETAS[1] ** step)).sqrt_().add_(_EPSILON)
            weight.addcdiv_(mean, denominator, value=-rate / (1 - _BETAS[0] ** step))
