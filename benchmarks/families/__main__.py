"""Compare every supported family of networks with transformers: ``python -m benchmarks.families``.

Networks are small and random, and have every feature of their family. For each, the program compares the
logits of the float32 engine and 64 greedy tokens with transformers in float32, on texts longer than the
attention windows; counts rows of a verification whose bits differ from those of plain decoding, and positions
of a prompt whose bits depend on how it is cut; and measures how far INT8 and INT4 are from float32, which
random weights exaggerate. Exit codes: 0 success; 1 a family differs; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.families.engines import (
    Logits,
    TokenIds,
    attention_for,
    compile_network,
    decoded_rows,
    greedy_tokens,
    log_softmax,
    prompt_logits,
)
from benchmarks.families.networks import FAMILY_CONFIGS, save_model
from benchmarks.harness import Result, markdown, run_benchmark, say
from build.networks.source import open_network
from pipelines.bench.reporting.conditions import conditions
from pipelines.executor.step import NO_SLOT, Chunk
from pipelines.program import EXIT_FAIL, EXIT_PASS

EXACT = 1e-4
"""Largest difference between float32 logits; those of our networks are at most about 130."""

NUM_GREEDY = 64

_NUM_TOKENS, _NUM_PROMPT, _NUM_ROWS, _MAX_SEQ_LEN = 200, 130, 20, 256
_OTHER_CUTS = 2, 63, 148
_OTHER = Chunk(np.arange(7, dtype=np.int32), 20, tuple(range(10, 14)), True, num_logits=7, slot=NO_SLOT)


def mean_kl(reference: Logits, logits: Logits) -> float:
    """Return the mean over positions of KL(reference || logits), nats."""
    p, q = log_softmax(reference), log_softmax(logits)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


@dataclass(frozen=True)
class Closeness:
    """A quantized network beside its float32 one.

    Attributes:
        kl: Mean over positions of a random text of KL(float32 || quantized), nats.
        same_argmax: Share of positions with the same most likely token.
        num_rows_differing: As ``count_rows_differing`` counts them.
    """

    kl: float
    same_argmax: float
    num_rows_differing: int


@dataclass(frozen=True)
class Family:
    """One network beside transformers.

    Attributes:
        largest_error: Largest difference between float32 logits.
        num_greedy_equal: Greedy tokens that are equal, from the first on.
        num_rows_differing: As in ``Closeness``, of the float32 engine.
        int8: INT8 beside float32.
        int4: INT4 beside float32.
    """

    largest_error: float
    num_greedy_equal: int
    num_rows_differing: int
    int8: Closeness
    int4: Closeness

    @property
    def is_exact(self) -> bool:
        """Return whether the family is computed as transformers does, and whether rows are independent."""
        rows = (self.num_rows_differing, self.int8.num_rows_differing, self.int4.num_rows_differing)
        return self.largest_error < EXACT and self.num_greedy_equal == NUM_GREEDY and not any(rows)


def compare(name: str, folder: Path) -> Family:
    """Compare one network of ``FAMILY_CONFIGS`` with transformers.

    Args:
        name: Its name.
        folder: Empty folder for checkpoint and engines.
    """
    import torch

    model = save_model(name, folder / "checkpoint")
    vocab_size = FAMILY_CONFIGS[name]["vocab_size"]
    ids = np.random.default_rng(1).integers(0, vocab_size, _NUM_TOKENS, dtype=np.int32)
    with torch.no_grad():
        truth = model(torch.tensor(ids[None].astype(np.int64))).logits[0].numpy()
    prompt = ids[:_NUM_PROMPT]
    network = open_network(folder / "checkpoint", _MAX_SEQ_LEN).read()
    attention = attention_for(network.config)
    exact = compile_network(folder / "none", network, "none", attention)
    logits = prompt_logits(exact, ids, _NUM_PROMPT)

    def closeness(quantization: str) -> Closeness:
        engine = compile_network(folder / quantization, network, quantization, attention)
        found = prompt_logits(engine, ids, _NUM_PROMPT)
        same_argmax = float((logits.argmax(axis=1) == found.argmax(axis=1)).mean())
        return Closeness(mean_kl(logits, found), same_argmax, count_rows_differing(engine, ids))

    return Family(
        largest_error=float(np.abs(logits - truth).max()),
        num_greedy_equal=_num_equal(
            greedy_tokens(exact, prompt, NUM_GREEDY), _transformers_tokens(model, prompt.tolist(), NUM_GREEDY)
        ),
        num_rows_differing=count_rows_differing(exact, ids),
        int8=closeness("int8"),
        int4=closeness("int4"),
    )


def count_rows_differing(engine: Any, ids: TokenIds) -> int:
    """Count positions of 150 tokens whose bits depend on what is computed beside them, or in which steps.

    Rows of a verification are compared with plain decoding, and a prompt with the same prompt cut elsewhere.
    """
    ids = ids[: _NUM_PROMPT + _NUM_ROWS]
    prompt, *cut_elsewhere = (prompt_logits(engine, ids, first) for first in (_NUM_PROMPT, *_OTHER_CUTS))
    alone = decoded_rows(engine, ids, _NUM_PROMPT, 1)
    together = [decoded_rows(engine, ids, _NUM_PROMPT, rows, _OTHER) for rows in (2, 5, 10)]
    pairs = [*((alone, rows) for rows in together), *((prompt, chunks) for chunks in cut_elsewhere)]
    return int(sum((one != other).any(axis=1).sum() for one, other in pairs))


def _transformers_tokens(model: Any, prompt: list[int], count: int) -> list[int]:
    """Decode greedily without a cache, so that no shortcut of transformers is the reference."""
    import torch

    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def _num_equal(first: list[int], second: list[int]) -> int:
    """Return how many tokens are equal, from the first on."""
    pairs = enumerate(zip(first, second, strict=True))
    return next((index for index, (one, other) in pairs if one != other), len(first))


def _compare_all(options: argparse.Namespace, command_line: list[str]) -> Result:
    about = conditions("benchmarks.families", command_line)
    found = {}
    for name in options.names or FAMILY_CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = compare(name, Path(folder))
        say(f"{name}: {'exact' if found[name].is_exact else 'NOT EXACT'}")
    rows = [
        [
            f"`{name}`",
            f"{family.largest_error:.1e}",
            f"{family.num_greedy_equal} of {NUM_GREEDY}",
            *(f"{each.kl:.1e}, {each.same_argmax:.1%}" for each in (family.int8, family.int4)),
            sum(each.num_rows_differing for each in (family, family.int8, family.int4)),
        ]
        for name, family in found.items()
    ]
    heads = ["Family", "Float32: largest difference of a logit", "Greedy tokens equal"]
    heads += ["INT8: KL, same argmax", "INT4: KL, same argmax", "Rows whose bits differ"]
    families = {name: {**asdict(family), "is_exact": family.is_exact} for name, family in found.items()}
    is_exact = all(family.is_exact for family in found.values())
    document = {"limit": EXACT, "families": families, "conditions": about}
    return Result(markdown(heads, rows), document, EXIT_PASS if is_exact else EXIT_FAIL)


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__)
    names = ", ".join(FAMILY_CONFIGS)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{names} (default: all)")
    options, _ = parser.parse_known_args(arguments)
    if unknown := sorted(set(options.names) - set(FAMILY_CONFIGS)):
        parser.error(f"there is no network {unknown[0]}")
    return run_benchmark(parser, _compare_all, arguments)


if __name__ == "__main__":
    sys.exit(main())
