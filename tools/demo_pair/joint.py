"""Stages 1 and 2: train target and draft together, first on the text, then also towards each other."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn import functional

from tools.demo_pair.batches import cosine_rate
from tools.demo_pair.model import (
    DRAFT,
    EXIT_NORM,
    TARGET,
    Weights,
    forward_both,
    initial_weights,
    rotary_tables,
)
from tools.demo_pair.optimizer import Optimizer

MATRIX_RATE = 4e-3
OTHER_RATE = 3e-3


AGREEMENT_FROM = 0.45
"""Share of the steps after which stage 2 begins."""

AGREEMENT_FULL = 0.6
"""Share of the steps until which the weight of the divergence increases."""

AGREEMENT = 1.5
"""Full weight of the divergence, KL(target || draft)."""

EXIT = 0.3
"""Weight of the draft's cross-entropy."""


def agreement_at(step: int, steps: int) -> float:
    """Return the weight of the divergence at a step."""
    start, full = AGREEMENT_FROM * steps, AGREEMENT_FULL * steps
    return 0.0 if step < start else AGREEMENT * min(1.0, (step - start + 1) / max(1.0, full - start))


def joint_losses(
    weights: Weights, tokens: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the target's and the draft's cross-entropy and KL(target || draft), in nats per token.

    The divergence has gradients for both models: the target learns to be predictable, and the draft to
        predict it.
    """
    with torch.autocast("cpu", dtype=torch.bfloat16):
        target, draft = forward_both(weights, TARGET, DRAFT.layers, tokens[:, :-1], tables)
    goal = tokens[:, 1:].flatten()
    target_logs = functional.log_softmax(target.float(), dim=-1).flatten(0, 1)
    draft_logs = functional.log_softmax(draft.float(), dim=-1).flatten(0, 1)
    divergence = (target_logs.exp() * (target_logs - draft_logs)).sum(dim=-1).mean()
    return functional.nll_loss(target_logs, goal), functional.nll_loss(draft_logs, goal), divergence


def train_jointly(plan: torch.Tensor, seed: int, report: Callable[[str], None]) -> Weights:
    """Run stages 1 and 2.

    Args:
        plan: Token ids ``[steps, batch, context + 1]``.
        seed: Seed of the initial weights.
        report: Called with lines of progress.

    Returns:
        The weights of both models, including ``EXIT_NORM``, float32.
    """
    weights = initial_weights(TARGET, torch.Generator().manual_seed(seed))
    weights[EXIT_NORM] = torch.ones(TARGET.hidden)
    for tensor in weights.values():
        tensor.requires_grad_(True)
    optimizer = Optimizer(weights, TARGET)
    steps, batch, width = plan.shape
    tables = rotary_tables(TARGET, width - 1)
    losses = torch.compile(joint_losses, dynamic=False)
    started = time.monotonic()
    for step in range(steps):
        agreement = agreement_at(step, steps)
        target, draft, divergence = losses(weights, plan[step], tables)
        (target + EXIT * draft + agreement * divergence).backward()
        rate = cosine_rate(step, steps)
        optimizer.step(MATRIX_RATE * rate, OTHER_RATE * rate)
        done = step + 1
        if done % 10 == 0 or done == steps:
            seconds = time.monotonic() - started
            report(
                f"joint {done}/{steps}: target {float(target.detach()):.3f}, "
                f"draft {float(draft.detach()):.3f}, "
                f"divergence {float(divergence.detach()):.3f} (weight {agreement:.2f}), "
                f"{done * batch * (width - 1) / seconds:.0f} tokens/s, "
                f"{(steps - done) * seconds / done / 60:.1f} min left"
            )
    return {name: tensor.detach() for name, tensor in weights.items()}
