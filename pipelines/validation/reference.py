"""Compare the target's greedy answers with what transformers computes of the checkpoint.

The proofs compare a server with its own target: a projection or a position that the build took for another
answers wrongly in both. ``build/reference.py`` computes the same tokens from the checkpoint, in float32.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace

from pipelines.bench.reporting.section import Section, Table, Verdict
from pipelines.building import build_recipe
from pipelines.client import Client, CompletionRequest
from pipelines.client.connection import TARGET_ALONE
from pipelines.command_line.prompt_lengths import encode_prompts, fitting_prompts, read_tokenizer
from pipelines.command_line.prompts import Prompts
from pipelines.command_line.running_server import engine_directories
from pipelines.validation.stopping import cancelled_when_stopped

LEAST_AGREEMENT, MOST_DIVERGENCE = 0.85, 0.2
"""Bars of an engine that rounds: share of tokens that are the reference's, and mean KL divergence, nats."""

TIES_NATS = {"embedded": 0.01, "tensorrt_llm": 0.3}
"""How much likelier the reference's token may be if nothing rounds; TensorRT-LLM computes in bfloat16."""

_PROMPTS, _PROMPT_TOKENS, _ANSWER_TOKENS, _ALTERNATIVES = 8, 512, 32, 20
_LEAST_TOKENS = 64  # of all answers; fewer show little
_LEAST = 1e-9  # probability that counts


def compare_with_reference(url: str, recipe: str, prompts: Prompts, report: Callable[[str], None]) -> Section:
    """Ask the target a few prompts, and compare its answers with transformers.

    Args:
        url: Address of the server, on this machine.
        recipe: Its recipe.
        prompts: Prompts to draw from; each is cut to a few hundred tokens.
        report: Gets lines of progress.

    Raises:
        DraftproofError: The server does not answer, or the reference cannot be computed.
    """
    with Client.connect(url) as client, cancelled_when_stopped(client.close):
        is_gpu = client.model_parameters("speculative").get("engine_access") == "tensorrt_llm"
        used = fitting_prompts(prompts, client, _ANSWER_TOKENS).draw(_PROMPTS).all
        ids = encode_prompts(used, read_tokenizer(engine_directories(client)["target"]), _PROMPT_TOKENS)
        # NVIDIA's engines tell no probabilities here.
        plain = CompletionRequest(max_tokens=_ANSWER_TOKENS, num_log_probs=None if is_gpu else _ALTERNATIVES)
        answers = [client.generate(replace(plain, prompt_ids=each), TARGET_ALONE) for each in ids.values()]
    tops = [list(top) for answer in answers for top in answer.top_log_probs or [()] * len(answer.output_ids)]
    left = iter(tops)
    texts = [
        {
            "prompt": prompt,
            "answer": answer.output_ids,
            "asked": [[token for token, _ in next(left)] for _ in answer.output_ids],
        }
        for prompt, answer in zip(ids.values(), answers, strict=True)
    ]
    runtime = "tensorrt_llm" if is_gpu else "embedded"
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(texts, file)
        file.flush()
        options = "--runtime", runtime, "--texts", file.name
        found = build_recipe("build.reference", recipe, report, options)
    gaps = [best - own for best, own, *_ in found["rows"]]
    pairs = zip(found["rows"], tops, strict=True)
    divergences = [divergence(row[2:], [log_prob for _, log_prob in top]) for row, top in pairs if top]
    return judge(gaps, divergences, None if found["is_rounded"] else TIES_NATS[runtime])


def divergence(reference: Sequence[float], server: Sequence[float]) -> float:
    """Return the KL divergence from the reference, nats; tokens beside the server's likeliest count as one.

    Args:
        reference: Log probabilities of the server's likeliest tokens.
        server: The server's own.
    """
    parts = [(math.exp(p), math.exp(q)) for p, q in zip(reference, server, strict=True)]
    parts.append((1 - sum(p for p, _ in parts), 1 - sum(q for _, q in parts)))
    return sum(p * math.log(p / max(q, _LEAST)) for p, q in parts if p > _LEAST)


def judge(gaps: Sequence[float], divergences: Sequence[float], tie: float | None) -> Section:
    """Judge the tokens of an engine.

    Args:
        gaps: For each token, how much likelier the reference finds its own, nats; 0 where it is the same.
        divergences: KL divergence at each of them; empty if the server tells no probabilities.
        tie: Largest gap of an engine that rounds nothing, nats; None for one that rounds.
    """
    num, largest = len(gaps), max(gaps, default=0.0)
    agreement = gaps.count(0) / max(1, num)
    mean = sum(divergences) / len(divergences) if divergences else None
    if tie is None:
        is_alike, most = agreement >= LEAST_AGREEMENT, MOST_DIVERGENCE
        bar = f"an engine that rounds has at least {LEAST_AGREEMENT:.0%} of the reference's tokens"
    else:
        is_alike, most = largest <= tie, tie
        bar = f"an engine that rounds nothing differs only where two tokens are within {tie:g} nats"
    is_alike = is_alike and (mean or 0) <= most
    verdict: Verdict = "fail" if not is_alike else "pass" if num >= _LEAST_TOKENS else "inconclusive"
    rows = (
        ("the reference's own", f"{agreement:.1%} of {num}"),
        ("largest gap to that", f"{largest:.2g} nats"),
        ("mean KL divergence", "not told" if mean is None else f"{mean:.2g} nats"),
    )
    document = {"tokens": num, "agreement": agreement, "largest_gap": largest, "divergence": mean}
    summary = f"{bar}, and a mean KL divergence of at most {most:g} nats where the server tells probabilities"
    table = Table(("tokens of the target", "found"), rows)
    return Section("Target beside transformers", verdict, summary, table, document=document)
