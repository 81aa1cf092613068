"""Train the demonstration pair from scratch and write it as checkpoints.

Stage 1 trains the target, with the draft as its early exit. Stage 2 trains both towards each other. Stage 3
distills the finished target into the draft. The number of steps is fixed, so the seed decides the result up
to the rounding of the machine's kernels. The pair's prompts and its figures are those of its README.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from build.quantization.corpus import HELD_OUT_MODULES, DemoPairError, load_corpus, standard_library
from pipelines.program import EXIT_PASS, run_program
from tools.demo_pair.batches import plan
from tools.demo_pair.distill import PROMPT, distill
from tools.demo_pair.joint import train_jointly
from tools.demo_pair.model import DRAFT, TARGET, Weights, export_model, rounded, split_pair
from tools.demo_pair.tokenizer import TokenArray, encode_documents, train_tokenizer

STEPS = 1800
BATCH = 8
CONTEXT = 512
SHARE_OF_TESTS = 0.35
DISTILL_CORPUS = 768
DISTILL_WRITTEN = 1024
DISTILL_CONTEXT = 256

Source = tuple[TokenArray, float]


def train_pair(
    sources: list[Source], seed: int, scale: float, report: Callable[[str], None]
) -> tuple[Weights, Weights]:
    """Run the three stages.

    Args:
        sources: Token streams and their shares of the text.
        seed: Seed of weights, of the order of the text, and of sampling.
        scale: Number of steps relative to the published pair.
        report: Called with lines of progress.

    Returns:
        Weights of target and draft, rounded to bfloat16, as float32.
    """
    windows = plan(sources, joint_steps(scale), BATCH, CONTEXT, seed)
    joint = train_jointly(windows, seed, report)
    target, draft = (rounded(part) for part in split_pair(joint, DRAFT.layers))
    texts, written = (max(64, round(count * scale)) for count in (DISTILL_CORPUS, DISTILL_WRITTEN))
    drawn = plan(sources, texts + written, 1, DISTILL_CONTEXT, seed + 1)[:, 0]
    corpus, prompts = drawn[:texts], drawn[texts:, :PROMPT]
    return target, rounded(distill(target, draft, corpus, prompts, seed, report))


def joint_steps(scale: float) -> int:
    """Return the number of steps of stages 1 and 2."""
    return max(8, round(STEPS * scale))


def main(arguments: list[str] | None = None) -> int:
    """Train the pair, print how as a line of JSON, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=Path("engines/demo_pair"), help="folder of the pair (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="steps relative to the published pair; 0.02 takes minutes"
    )
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    return run_program(lambda: _train(options))


def _train(options: argparse.Namespace) -> int:
    torch.set_num_threads(options.threads)
    started = time.monotonic()

    def report(line: str) -> None:
        print(f"[{(time.monotonic() - started) / 60:6.1f} min] {line}", flush=True)

    corpus = load_corpus()
    if not corpus.tests:
        raise DemoPairError(
            f"the standard library has no usable test_*.py under {standard_library() / 'test'}",
            "install them (Debian: libpython3-testsuite), or use another CPython",
        )
    tokenizer = train_tokenizer(corpus.library)
    library = encode_documents(tokenizer, corpus.library)
    tests = encode_documents(tokenizer, corpus.tests)
    report(
        f"corpus {corpus.sha256[:12]}: {len(corpus.library)} modules, {len(library)} tokens; "
        f"{len(corpus.tests)} tests, {len(tests)} tokens"
    )
    sources = [(library, 1 - SHARE_OF_TESTS), (tests, SHARE_OF_TESTS)]
    target, draft = train_pair(sources, options.seed, options.scale, report)
    minutes = (time.monotonic() - started) / 60
    tokenizer_json = tokenizer.to_str(pretty=False)
    export_model(options.output / "target", TARGET, target, tokenizer_json)
    export_model(options.output / "draft", DRAFT, draft, tokenizer_json)
    steps = joint_steps(options.scale)
    run = {
        "seed": options.seed,
        "scale": options.scale,
        "steps": steps,
        "batch": BATCH,
        "context": CONTEXT,
        "target_tokens": steps * BATCH * CONTEXT,
        "minutes": round(minutes, 1),
        "threads": options.threads,
        "library_modules": len(corpus.library),
        "library_tokens": len(library),
        "test_files": len(corpus.tests),
        "test_tokens": len(tests),
        "held_out_modules": len(HELD_OUT_MODULES),
    }
    print(json.dumps(run))
    return EXIT_PASS


if __name__ == "__main__":
    sys.exit(main())
