"""Train a head on collected texts, with the unrolled steps of EAGLE-3's training-time test."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import mul
from pathlib import Path

import numpy as np
import torch

from build.networks.source import open_network
from build.recipe import EngineRecipe
from tools.demo_pair.batches import cosine_rate
from tools.train_head.collect import PARTS, Text
from tools.train_head.head import FROZEN, Head, begin

_BATCH_TOKENS = 512  # between two changes of the weights: with few tokens, more changes teach more
_STEP_WEIGHT = 0.8  # of each step relative to the one before, as in SpecForge
_NUM_STEPS, _THINNING = 3, 2  # see ``Head.unroll``
_MEASURED_STEPS = 4
_PAUSE_S = 900.0  # between two checkpoints


def frequent_tokens(paths: Sequence[Path], count: int) -> list[int]:
    """Return the tokens that the target expects most often, filled up with the first of the vocabulary."""
    counts = Counter[int]()
    for path in paths:
        counts.update(np.load(path, mmap_mode="r")["expected_ids"][:, 0].tolist())
    del counts[-1]
    return list(dict.fromkeys([*(token_id for token_id, _ in counts.most_common()), *range(count)]))[:count]


def unrolled(
    head: Head, text: Text, num_steps: int, thinning: int = 1
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield for each step rows, the last position that the head has read behind each, and its logits."""
    token_ids = torch.from_numpy(text["token_id"].astype(np.int64))
    features = torch.from_numpy(text["features"].astype(np.float32))
    known = torch.from_numpy(np.flatnonzero(text["expected_ids"][1:, 0] >= 0))
    for step, (rows, logits) in enumerate(head.unroll(token_ids, features, known, num_steps, thinning)):
        yield rows, rows + step + 1, logits


def loss_of(head: Head, text: Text) -> torch.Tensor:
    """Return the cross entropy beside what the target expects, in nats per token, of all steps together."""
    index_of = torch.full((head.target.vocab_size + 1,), -1)  # the last entry is for the id -1
    index_of[head.token_ids] = torch.arange(len(head.token_ids))
    ids = index_of[text["expected_ids"]]
    logits = torch.from_numpy(text["logits"].astype(np.float32)).masked_fill(ids < 0, -torch.inf)
    # Where the head lacks the likeliest token, there is nothing to learn.
    shares = torch.where(ids[:, :1] >= 0, logits.softmax(1), 0)
    loss = torch.zeros(())
    for step, (_, last, proposed) in enumerate(unrolled(head, text, _NUM_STEPS, _THINNING)):
        logs = proposed.log_softmax(1).gather(1, ids[last].clamp(min=0))
        loss = loss - _STEP_WEIGHT**step * (shares[last] * logs).sum(1).mean()
    return loss


def acceptance(head: Head, paths: Sequence[Path]) -> list[float]:
    """Return, for each step, how often its token is the one that the target expects most.

    Rows count as long as the tokens proposed before are those of the text.
    """
    counts = np.zeros((_MEASURED_STEPS, 2))
    for text in map(np.load, paths):
        follows, token_ids = np.ones(len(text), bool), np.append(text["token_id"], -1)
        with torch.no_grad():
            for step, (rows, last, logits) in enumerate(unrolled(head, text, _MEASURED_STEPS)):
                proposed, some = head.token_ids[logits.argmax(1)].numpy(), follows[rows]
                counts[step] += (some & (proposed == text["expected_ids"][last, 0])).sum(), some.sum()
                follows[rows] &= proposed == token_ids[last + 1]
    accepted, measured = counts.T
    shares: list[float] = (accepted / np.maximum(measured, 1)).tolist()
    return shares


def train(
    head: Head,
    directory: Path,
    texts: Sequence[Path],
    held_out: Sequence[Path],
    num_tokens: int,
    rate: float,
) -> None:
    """Train a head, from where an earlier run stopped, and print losses and acceptance at checkpoints.

    Args:
        head: Its weights change.
        directory: Gets the head in its published format, and the state of the training.
        texts: Read in random order, and again as often as it takes.
        held_out: Texts to measure acceptance on.
        num_tokens: Tokens to train on, over all runs.
        rate: Highest learning rate.
    """
    trained = [weight.requires_grad_() for name, weight in head.weights.items() if name != FROZEN]
    optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0.0)
    done, path = 0, directory / "training.pt"
    if path.exists():
        state = torch.load(path, weights_only=True)
        done = state["done"]
        optimizer.load_state_dict(state["optimizer"])
        head.token_ids.copy_(state["token_ids"])
        for name, weight in state["weights"].items():
            head.weights[name].data.copy_(weight)
    begun, pending, losses = done, 0, list[float]()
    started = noted = time.monotonic()
    for text in _shuffled(texts, seed=done):
        loss = loss_of(head, text)
        (loss * len(text) / _BATCH_TOKENS).backward()
        losses.append(float(loss.detach()))
        pending += len(text)
        if pending < _BATCH_TOKENS:
            continue
        optimizer.param_groups[0]["lr"] = rate * cosine_rate(done, num_tokens)
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        done, pending = done + pending, 0
        if time.monotonic() - noted < _PAUSE_S and done < num_tokens:
            continue
        speed = (done - begun) / (time.monotonic() - started)
        head.write(directory)
        state = {"done": done, "optimizer": optimizer.state_dict()}
        torch.save({**state, "token_ids": head.token_ids, "weights": head.weights}, path)
        shares = acceptance(head, held_out)
        print(
            f"{done:,} of {num_tokens:,} tokens, {speed:.0f} tokens/s, loss {np.mean(losses):.3f}, "
            f"acceptance by step {', '.join(f'{share:.3f}' for share in shares)}, "
            f"{1 + sum(accumulate(shares, mul)):.2f} tokens per round",
            flush=True,
        )
        losses, noted = [], time.monotonic()
        if done >= num_tokens:
            return


def _shuffled(paths: Sequence[Path], seed: int) -> Iterator[Text]:
    chance = random.Random(seed)
    while True:
        yield from map(np.load, chance.sample(paths, len(paths)))


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_head.train", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="the target: a directory, or a GGUF file")
    parser.add_argument("data", type=Path, help="folder of collected texts")
    parser.add_argument("head", type=Path, help="folder of the head; a further run goes on from there")
    parser.add_argument("--tokens", type=int, required=True, help="tokens to train on; 0: only begin a head")
    parser.add_argument(
        "--vocabulary", type=int, default=16_384, help="tokens that it proposes (%(default)s)"
    )
    parser.add_argument("--intermediate-size", type=int, help="neurons of its MLP (the target's)")
    parser.add_argument("--rate", type=float, default=5e-4, help="highest learning rate (%(default)s)")
    options = parser.parse_args(arguments)
    held_out, texts = (sorted((options.data / part).glob("*.npy")) for part in PARTS)
    target = open_network(EngineRecipe(str(options.checkpoint.resolve())).unpack_checkpoint()).read()
    head = begin(target, frequent_tokens(texts, options.vocabulary), options.intermediate_size)
    head.write(options.head)
    if options.tokens:
        train(head, options.head, texts, held_out, options.tokens, options.rate)
    return 0


if __name__ == "__main__":
    sys.exit(main())
