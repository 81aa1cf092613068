"""Stages 1 and 2: train target and draft together, first on the text, then also towards each other."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

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


@dataclasses.dataclass(frozen=True)
class JointSettings:
    """Weights of the losses in stages 1 and 2.

    Attributes:
        agreement_from: Share of the steps after which stage 2 begins.
        agreement_full: Share of the steps after which the divergence has its full weight, which increases
            linearly until then.
        agreement: Full weight of the divergence, KL(target || draft).
        exit_first: Weight of the draft's cross-entropy in stage 1.
        exit_second: Weight of the draft's cross-entropy in stage 2.
    """

    agreement_from: float = 0.45
    agreement_full: float = 0.6
    agreement: float = 1.5
    exit_first: float = 0.3
    exit_second: float = 0.3

    def weights_at(self, step: int, steps: int) -> tuple[float, float]:
        """Return the weights of the draft's cross-entropy and of the divergence at a step."""
        start, full = self.agreement_from * steps, self.agreement_full * steps
        if step < start:
            return self.exit_first, 0.0
        return self.exit_second, self.agreement * min(1.0, (step - start + 1) / max(1.0, full - start))


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


def train_jointly(
    plan: torch.Tensor,
    settings: JointSettings,
    seed: int,
    state_file: Path,
    report: Callable[[str], None],
    save_every: int = 100,
) -> tuple[Weights, float]:
    """Run stages 1 and 2, or resume them.

    Args:
        plan: Token ids ``[steps, batch, context + 1]``.
        settings: Weights of the losses.
        seed: Seed of the initial weights.
        state_file: Written every ``save_every`` steps and at the end; if it exists, the run resumes from it.
        report: Called with lines of progress.
        save_every: Number of steps between two saves.

    Returns:
        The weights of both models, including ``EXIT_NORM``, float32; and the seconds of all steps, including
        those before an interruption.
    """
    weights = initial_weights(TARGET, torch.Generator().manual_seed(seed))
    weights[EXIT_NORM] = torch.ones(TARGET.hidden)
    for tensor in weights.values():
        tensor.requires_grad_(True)
    optimizer = Optimizer(weights, TARGET)
    first, seconds_before = 0, 0.0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        first, seconds_before = int(state["step"]), float(state["seconds"])
        with torch.no_grad():
            for name, tensor in weights.items():
                tensor.copy_(state["weights"][name])
        optimizer.load(state["optimizer"])
        report(f"joint: resumed at step {first} from {state_file}")
    steps, batch, width = plan.shape
    tables = rotary_tables(TARGET, width - 1)
    losses = torch.compile(joint_losses, dynamic=False)
    started = time.monotonic()
    for step in range(first, steps):
        exit_weight, agreement = settings.weights_at(step, steps)
        target, draft, divergence = losses(weights, plan[step], tables)
        (target + exit_weight * draft + agreement * divergence).backward()
        rate = cosine_rate(step, steps)
        optimizer.step(MATRIX_RATE * rate, OTHER_RATE * rate)
        done = step + 1
        if done % 10 == 0 or done == steps:
            seconds = time.monotonic() - started
            speed = (done - first) * batch * (width - 1) / seconds
            left = (steps - done) * seconds / (done - first)
            report(
                f"joint {done}/{steps}: target {float(target.detach()):.3f}, "
                f"draft {float(draft.detach()):.3f}, "
                f"divergence {float(divergence.detach()):.3f} (weight {agreement:.2f}), "
                f"{speed:.0f} tokens/s, {left / 60:.1f} min left"
            )
        if done % save_every == 0 or done == steps:
            save_state(state_file, done, seconds_before + time.monotonic() - started, weights, optimizer)
    seconds = seconds_before + time.monotonic() - started
    return {name: tensor.detach() for name, tensor in weights.items()}, seconds


def save_state(path: Path, step: int, seconds: float, weights: Weights, optimizer: Optimizer) -> None:
    """Write a run's state atomically."""
    temporary = path.with_suffix(".partial")
    detached = {name: tensor.detach() for name, tensor in weights.items()}
    state = {"step": step, "seconds": seconds, "weights": detached, "optimizer": optimizer.state()}
    torch.save(state, temporary)
    temporary.replace(path)
