"""Command line: trains the demonstration pair from nothing and writes it as checkpoints.

Stage 1 trains the target, with the draft as its early exit; stage 2 pulls the two towards each other; stage 3 lets the
draft alone learn from the finished target. The number of steps is fixed, so a seed decides the result up to the
machine's rounding.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from build.demo_pair.batches import plan
from build.demo_pair.corpus import load_corpus
from build.demo_pair.distill import DistillSettings, distill
from build.demo_pair.export import export_model
from build.demo_pair.joint import JointSettings, train_jointly
from build.demo_pair.model import DRAFT, TARGET, Weights, rounded, split_pair
from build.demo_pair.tokenizer import encode_documents, train_tokenizer

STEPS = 1800
BATCH = 8
CONTEXT = 512
SHARE_OF_TESTS = 0.35
DISTILL_CORPUS = 1536
DISTILL_WIDTH = 257


def main(arguments: list[str] | None = None) -> int:
    """Trains the pair; returns the process's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("engines/demo_pair"), help="folder of the checkpoints")
    parser.add_argument("--work", type=Path, default=Path(".demo_pair"), help="folder of the run's states")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the steps; 0.02 gives a pair in minutes")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()

    def report(line: str) -> None:
        print(f"[{(time.monotonic() - started) / 60:6.1f} min] {line}", flush=True)

    corpus = load_corpus()
    tokenizer = train_tokenizer(corpus.library)
    library = encode_documents(tokenizer, corpus.library)
    tests = encode_documents(tokenizer, corpus.tests)
    report(
        f"corpus {corpus.sha256[:12]}: {len(corpus.library)} modules, {len(library)} tokens; "
        f"{len(corpus.tests)} tests, {len(tests)} tokens"
    )
    sources = [(library, 1 - SHARE_OF_TESTS), (tests, SHARE_OF_TESTS)]
    steps = max(8, round(STEPS * options.scale))
    windows = plan(sources, steps, BATCH, CONTEXT, options.seed)
    joint_state = options.work / "joint.pt"
    weights = train_jointly(windows, JointSettings(), options.seed, joint_state, report)
    target, draft = (rounded(part) for part in split_pair(weights, DRAFT.layers))
    tokenizer_json = tokenizer.to_str(pretty=False)
    write_pair(options.output, target, draft, tokenizer_json)
    report("joint stages done, checkpoints written")

    base = DistillSettings()
    settings = DistillSettings(generated=max(64, round(base.generated * options.scale)))
    count = max(settings.generated, round(DISTILL_CORPUS * options.scale))
    corpus_windows = plan(sources, count, 1, DISTILL_WIDTH - 1, options.seed + 1)[:, 0]
    draft = rounded(distill(target, draft, corpus_windows, settings, options.seed, report))
    write_pair(options.output, target, draft, tokenizer_json)
    minutes = (time.monotonic() - started) / 60
    run = {"seed": options.seed, "scale": options.scale, "steps": steps, "batch": BATCH, "context": CONTEXT,
           "target_tokens": steps * BATCH * CONTEXT, "minutes": round(minutes, 1), "threads": options.threads,
           "corpus_sha256": corpus.sha256}  # fmt: skip
    (options.work / "run.json").write_text(json.dumps(run, indent=2) + "\n", encoding="utf-8")
    report("done")
    return 0


def write_pair(output: Path, target: Weights, draft: Weights, tokenizer_json: str) -> None:
    """Writes both checkpoints, each with the tokenizer."""
    export_model(output / "target", TARGET, target, tokenizer_json)
    export_model(output / "draft", DRAFT, draft, tokenizer_json)


if __name__ == "__main__":
    raise SystemExit(main())
