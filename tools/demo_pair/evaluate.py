"""Evaluate the pair on held-out prompts: acceptance, loops, losses and samples."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from build.quantization.corpus import load_corpus
from pipelines.program import EXIT_PASS, run_program
from tools.demo_pair.acceptance import before_loops, loop_tokens, simulate
from tools.demo_pair.export import load_model
from tools.demo_pair.generate import GREEDY, generate, gumbel_noise
from tools.demo_pair.model import DRAFT, TARGET, ModelConfig, Weights, forward, rotary_tables
from tools.demo_pair.prompts import PROMPT_TOKENS
from tools.demo_pair.readme import write_readme
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
) -> tuple[dict[str, Any], torch.Tensor]:
    """Generate text with the target, compare the draft with it, and return the figures and the text."""
    noise = gumbel_noise(len(prompts), TARGET.vocabulary, seed)
    text = generate(target, TARGET, prompts, NEW_TOKENS, temperature, noise)
    matches = (draft_choices(draft, prompts, text, temperature, seed) == text).numpy()
    loops = np.stack([loop_tokens(row) for row in text.numpy()])
    clean = ~loops.any(axis=1)
    uncut = before_loops(matches, loops)
    first_round = matches[:, :8].cumprod(axis=1).mean(axis=0)
    result: dict[str, Any] = {
        "token_agreement": round(float(matches.mean()), 4),
        "token_agreement_outside_loops": round(float(matches[~loops].mean()), 4),
        "loop_share_of_tokens": round(float(loops.mean()), 4),
        "outputs_without_loop": int(clean.sum()),
        "all_outputs": {str(count): simulate(matches, count).as_json() for count in DRAFT_TOKENS},
        "before_first_loop": {str(count): simulate(uncut, count).as_json() for count in DRAFT_TOKENS},
        "accepted_at_position_of_first_round": [round(float(share), 4) for share in first_round],
        "agreement_by_quarter_of_output": [
            round(float(part.mean()), 4) for part in np.array_split(matches, 4, axis=1)
        ],
    }
    if clean.any():
        result["outputs_without_loop_only"] = {
            str(count): simulate(matches[clean], count).as_json() for count in DRAFT_TOKENS
        }
    return result, text


def _processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _revision() -> str:
    """Return the repository's commit; ``unknown`` outside git."""
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip() or "unknown"


def evaluate(directory: Path, run: dict[str, Any], seed: int, note: str) -> dict[str, Any]:
    """Evaluate the pair in ``directory`` on its held-out prompts.

    Args:
        directory: Directory with ``target``, ``draft`` and ``prompts``.
        run: Record of the training, which is included in the conditions.
        seed: Seed of the noise.
        note: Remark on the conditions.

    Returns:
        The content of ``evaluation.json``.
    """
    started = time.monotonic()
    target, draft = load_model(directory / "target"), load_model(directory / "draft")
    tokenizer = Tokenizer.from_file(str(directory / "target" / "tokenizer.json"))
    corpus = load_corpus()
    stream = torch.from_numpy(encode_documents(tokenizer, corpus.held_out))
    lines = (directory / "prompts" / "code.jsonl").read_text(encoding="utf-8").splitlines()[:PROMPTS]
    rows = [tokenizer.encode(json.loads(line)["text"]).ids for line in lines]
    prompts = torch.tensor([row for row in rows if len(row) == PROMPT_TOKENS])
    held_out_bytes = sum(len(document.text.encode()) for document in corpus.held_out)
    greedy, greedy_text = measure(target, draft, prompts, GREEDY, seed)
    sampled, sampled_text = measure(target, draft, prompts, TEMPERATURE, seed)
    samples = [
        {"temperature": temperature, "prompt": tokenizer.decode(prompts[row].tolist()),
         "continuation": tokenizer.decode(text[row].tolist(), skip_special_tokens=False)}
        for temperature, text in ((GREEDY, greedy_text), (TEMPERATURE, sampled_text))
        for row in range(3)
    ]  # fmt: skip
    losses = {
        "target": round(validation_loss(target, TARGET, stream), 4),
        "draft": round(validation_loss(draft, DRAFT, stream), 4),
    }
    return {
        "validation_loss_nats_per_token": losses,
        "bytes_per_token": round(held_out_bytes / len(stream), 4),
        "greedy": greedy,
        "sampled": sampled,
        "samples": samples,
        "conditions": {
            "prompts": len(prompts),
            "prompt_tokens": PROMPT_TOKENS,
            "new_tokens": NEW_TOKENS,
            "temperature_of_sampled": TEMPERATURE,
            "coupling": "target and draft share Gumbel noise",
            "weights": "bfloat16 as stored, computed in float32",
            "noise_seed": seed,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "processor": _processor(),
            "git": _revision(),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "evaluation_seconds": round(time.monotonic() - started, 1),
            "corpus_sha256": corpus.sha256,
            "training": run,
            "note": note,
        },
    }


def main(arguments: list[str] | None = None) -> int:
    """Write ``evaluation.json`` and the README, print a line of JSON, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", default=Path("engines/demo_pair"))
    parser.add_argument(
        "--run", type=Path, help="run.json of the training (default: that of the former evaluation)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--note", default="", help="remark on the conditions, such as a shared machine")
    options = parser.parse_args(arguments)
    return run_program(lambda: _evaluate_and_write(options))


def _evaluate_and_write(options: argparse.Namespace) -> int:
    torch.set_num_threads(options.threads)
    path = options.directory / "evaluation.json"
    former = json.loads(path.read_text(encoding="utf-8"))["conditions"] if path.exists() else {}
    run = json.loads(options.run.read_text(encoding="utf-8")) if options.run else former.get("training", {})
    result = evaluate(options.directory, run, options.seed, options.note or former.get("note", ""))
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    write_readme(options.directory)
    summary = {mode: result[mode]["all_outputs"]["4"] for mode in ("greedy", "sampled")}
    print(json.dumps({"losses": result["validation_loss_nats_per_token"], "num_draft_tokens_4": summary}))
    return EXIT_PASS


if __name__ == "__main__":
    sys.exit(main())
