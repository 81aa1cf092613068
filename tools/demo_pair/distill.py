"""Stage 3: distill the finished target into the draft, on the corpus and on the target's own text."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn import functional

from tools.demo_pair.batches import cosine_rate
from tools.demo_pair.generate import GREEDY, generate, gumbel_noise
from tools.demo_pair.model import DRAFT, TARGET, Weights, forward, rotary_tables
from tools.demo_pair.optimizer import Optimizer

MATRIX_RATE = 1e-3
OTHER_RATE = 5e-4
PROMPT = 64
"""Tokens of the corpus that begin each text of the target."""

Tables = tuple[torch.Tensor, torch.Tensor]


GREEDY_SHARE = 0.4
"""Share of the target's texts at temperature 0; the others are at ``TEMPERATURE``."""

TEMPERATURE = 0.8
EPOCHS = 2
BATCH = 16
DISTANCE = 1.0
"""Weight of the total variation distance relative to the divergence."""


def write_texts(
    target: Weights, prompts: torch.Tensor, width: int, seed: int, side_by_side: int = 256
) -> torch.Tensor:
    """Let the target continue prompts ``[count, PROMPT]``, and return token ids ``[count, width]``."""
    greedy = round(len(prompts) * GREEDY_SHARE)
    texts: list[torch.Tensor] = []
    for part, temperature in ((prompts[:greedy], GREEDY), (prompts[greedy:], TEMPERATURE)):
        for chunk in part.split(side_by_side) if len(part) else ():
            noise = gumbel_noise(len(chunk), TARGET.vocabulary, seed + 1 + len(texts))
            written = generate(target, TARGET, chunk, width - chunk.shape[1], temperature, noise)
            texts.append(torch.cat([chunk, written], dim=1))
    return torch.cat(texts)


def teacher_logits(target: Weights, windows: torch.Tensor, tables: Tables) -> torch.Tensor:
    """Compute the target's logits, bfloat16 ``[windows, width - 1, vocabulary]``."""
    compiled = torch.compile(forward, dynamic=False)
    kept = torch.empty((len(windows), windows.shape[1] - 1, TARGET.vocabulary), dtype=torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for begin in range(0, len(windows), BATCH):
            chosen = windows[begin : begin + BATCH, :-1]
            kept[begin : begin + BATCH] = compiled(target, TARGET, chosen, tables)
    return kept


def distillation_loss(
    draft: Weights, tokens: torch.Tensor, teacher: torch.Tensor, tables: Tables
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the loss, KL(target || draft) in nats per token, and the share of equal argmax tokens."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = forward(draft, DRAFT, tokens[:, :-1], tables)
    draft_logs = functional.log_softmax(logits.float(), dim=-1)
    target_logs = functional.log_softmax(teacher.float(), dim=-1)
    wanted = target_logs.exp()
    divergence = (wanted * (target_logs - draft_logs)).sum(dim=-1).mean()
    variation = 0.5 * (wanted - draft_logs.exp()).abs().sum(dim=-1).mean()
    equal = (logits.argmax(dim=-1) == teacher.argmax(dim=-1)).float().mean()
    return divergence + DISTANCE * variation, divergence, equal


def distill(
    target: Weights,
    draft: Weights,
    corpus: torch.Tensor,
    prompts: torch.Tensor,
    seed: int,
    report: Callable[[str], None],
) -> Weights:
    """Run stage 3.

    Args:
        target: Weights of the finished target, rounded to bfloat16; they do not change.
        draft: Initial weights of the draft.
        corpus: Windows of the corpus, token ids ``[count, width]``.
        prompts: Beginnings of the target's texts, from other windows of the corpus, ``[count, PROMPT]``.
        seed: Seed of the sampled text and of the order of the windows.
        report: Called with lines of progress.

    Returns:
        The draft's weights, float32.
    """
    started = time.monotonic()
    width = corpus.shape[1]
    report(f"distil: the target writes {len(prompts)} texts of {width - PROMPT} tokens")
    written = write_texts(target, prompts, width, seed)
    windows = torch.cat([corpus, written])
    windows = windows[: len(windows) - len(windows) % BATCH]
    tables = rotary_tables(TARGET, width - 1)
    report(f"distil: {time.monotonic() - started:.0f} s; target's logits on {len(windows)} windows")
    teacher = teacher_logits(target, windows, tables)
    report(f"distil: {time.monotonic() - started:.0f} s; training the draft")

    weights = {name: tensor.clone().requires_grad_(True) for name, tensor in draft.items()}
    optimizer = Optimizer(weights, DRAFT)
    loss_of = torch.compile(distillation_loss, dynamic=False)
    order = torch.Generator().manual_seed(seed)
    per_epoch = len(windows) // BATCH
    steps = EPOCHS * per_epoch
    began = time.monotonic()
    for step in range(steps):
        if step % per_epoch == 0:
            shuffled = torch.randperm(len(windows), generator=order).view(per_epoch, BATCH)
        chosen = shuffled[step % per_epoch]
        loss, divergence, equal = loss_of(weights, windows[chosen], teacher[chosen], tables)
        loss.backward()
        rate = cosine_rate(step, steps)
        optimizer.step(MATRIX_RATE * rate, OTHER_RATE * rate)
        done = step + 1
        if done % 20 == 0 or done == steps:
            seconds = time.monotonic() - began
            report(
                f"distil {done}/{steps}: divergence {float(divergence.detach()):.3f}, "
                f"equal {float(equal):.3f}, "
                f"{done * BATCH * (width - 1) / seconds:.0f} tokens/s, "
                f"{(steps - done) * seconds / done / 60:.1f} min left"
            )
    return {name: tensor.detach() for name, tensor in weights.items()}
