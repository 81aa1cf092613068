"""Evaluate the pair on held-out prompts: acceptance, loops and losses."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from build.quantization.corpus import load_corpus
from pipelines.bench.reporting.conditions import conditions
from tools.demo_pair.acceptance import loop_tokens, simulate
from tools.demo_pair.export import load_model
from tools.demo_pair.generate import GREEDY, generate, gumbel_noise
from tools.demo_pair.model import DRAFT, TARGET, ModelConfig, Weights, forward, rotary_tables
from tools.demo_pair.prompts import PROMPT_TOKENS
from tools.demo_pair.tokenizer import encode_documents

DRAFT_TOKENS = (2, 4, 6, 8)
TEMPERATURE = 0.8
PROMPTS = 128
NEW_TOKENS = 128


def validation_loss(weights: Weights, config: ModelConfig, stream: torch.Tensor, context: int = 256) -> float:
    """Return the mean cross-entropy, nats per token, over windows that tile ``stream``."""
    usable = (len(stream) - 1) // context * context
    inputs, goals = stream[:usable].view(-1, context), stream[1 : usable + 1].view(-1, context)
    tables = rotary_tables(config, context)
    total = 0.0
    with torch.inference_mode():
        for rows, goal in zip(inputs.split(16), goals.split(16), strict=True):
            logits = forward(weights, config, rows, tables).flatten(0, 1)
            total += float(functional.cross_entropy(logits, goal.flatten(), reduction="sum"))
    return total / usable


def draft_choices(
    draft: Weights, prompts: torch.Tensor, text: torch.Tensor, temperature: float, seed: int
) -> torch.Tensor:
    """Return the draft's token at each position of the target's text, int64 ``[batch, tokens]``.

    Sampling shares the target's Gumbel noise, as in the server.
    """
    whole = torch.cat([prompts, text], dim=1)
    noise = gumbel_noise(len(prompts), DRAFT.vocabulary, seed)
    with torch.inference_mode():
        logits = forward(draft, DRAFT, whole[:, :-1], rotary_tables(DRAFT, whole.shape[1] - 1))
        logits = logits[:, prompts.shape[1] - 1 :]
        if temperature != GREEDY:
            logits = logits / temperature + torch.stack(
                [noise(index) for index in range(text.shape[1])], dim=1
            )
        return logits.argmax(dim=-1).clone()


def measure(
    target: Weights, draft: Weights, prompts: torch.Tensor, temperature: float, seed: int
) -> dict[str, Any]:
    """Generate text with the target, compare the draft with it, and return the figures."""
    noise = gumbel_noise(len(prompts), TARGET.vocabulary, seed)
    text = generate(target, TARGET, prompts, NEW_TOKENS, temperature, noise)
    matches = (draft_choices(draft, prompts, text, temperature, seed) == text).numpy()
    loops = np.stack([loop_tokens(row) for row in text.numpy()])
    return {
        "token_agreement": round(float(matches.mean()), 4),
        "token_agreement_outside_loops": round(float(matches[~loops].mean()), 4),
        "loop_share_of_tokens": round(float(loops.mean()), 4),
        "all_outputs": {str(count): simulate(matches, count).as_json() for count in DRAFT_TOKENS},
    }


def evaluate(directory: Path, run: dict[str, Any], seed: int) -> dict[str, Any]:
    """Evaluate the pair in ``directory`` on its held-out prompts.

    Args:
        directory: Directory with ``target``, ``draft`` and ``prompts``.
        run: Record of the training, which is included in the conditions.
        seed: Seed of the noise.

    Returns:
        The content of ``evaluation.json``.
    """
    target, draft = load_model(directory / "target"), load_model(directory / "draft")
    tokenizer = Tokenizer.from_file(str(directory / "target" / "tokenizer.json"))
    corpus = load_corpus()
    stream = torch.from_numpy(encode_documents(tokenizer, corpus.held_out))
    lines = (directory / "prompts" / "code.jsonl").read_text(encoding="utf-8").splitlines()[:PROMPTS]
    rows = [tokenizer.encode(json.loads(line)["text"]).ids for line in lines]
    prompts = torch.tensor([row for row in rows if len(row) == PROMPT_TOKENS])
    held_out_bytes = sum(len(document.text.encode()) for document in corpus.held_out)
    losses = {
        "target": round(validation_loss(target, TARGET, stream), 4),
        "draft": round(validation_loss(draft, DRAFT, stream), 4),
    }
    return {
        "validation_loss_nats_per_token": losses,
        "bytes_per_token": round(held_out_bytes / len(stream), 4),
        "greedy": measure(target, draft, prompts, GREEDY, seed),
        "sampled": measure(target, draft, prompts, TEMPERATURE, seed),
        "conditions": conditions(
            "tools.demo_pair.evaluate",
            [],
            prompts=len(prompts),
            prompt_tokens=PROMPT_TOKENS,
            new_tokens=NEW_TOKENS,
            temperature_of_sampled=TEMPERATURE,
            noise_seed=seed,
            torch=torch.__version__,
            corpus_sha256=corpus.sha256,
            training=run,
        ),
    }


def write_evaluation(directory: Path, run: dict[str, Any], seed: int) -> None:
    """Write ``evaluation.json``, and print its main figures as a line of JSON."""
    result = evaluate(directory, run, seed)
    (directory / "evaluation.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    summary = {mode: result[mode]["all_outputs"]["4"] for mode in ("greedy", "sampled")}
    print(json.dumps({"losses": result["validation_loss_nats_per_token"], "num_draft_tokens_4": summary}))


def main(arguments: list[str] | None = None) -> int:
    """Evaluate a pair again, with the record of its training, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", default=Path("engines/demo_pair"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    former = json.loads((options.directory / "evaluation.json").read_text(encoding="utf-8"))
    write_evaluation(options.directory, former["conditions"]["training"], options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
