"""One question to the machine or the server: ``python -m tests.gpu.probe NAME --recipe R [--url URL]``.

The last line of standard output is JSON: ``verdict``, ``finding`` (a sentence) and what was seen. Exit codes:
0 as it should be; 1 not so; 3 nothing could be shown.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from build.recipe import load_recipe
from build.tensorrt_llm.memory_plan import plan_memory
from build.tensorrt_llm.pair import read_pair
from pipelines.client import Client, CompletionRequest
from pipelines.command_line.running_server import known_key
from pipelines.deploy.gpu_doctor import READY, gpu_checks
from pipelines.deploy.server import run_directory
from pipelines.errors import DraftproofError
from pipelines.places import ENGINES
from pipelines.program import EXIT_CODES, run_program

_GREEDY = CompletionRequest("def main(", max_tokens=48, num_draft_tokens=4)
_SAMPLED = dataclasses.replace(_GREEDY, temperature=0.8, use_draft_logits=True)
_SAMPLES = 4


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a probe: ``pass``, ``fail`` or ``inconclusive``, one sentence, and what was seen."""

    verdict: str
    text: str
    seen: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def machine(recipe: str, url: str) -> Finding:
    """Return the findings of ``make doctor``: driver, GPUs, containers."""
    found = gpu_checks()
    seen = {finding.name: finding.value for finding in found}
    return Finding("pass" if found[-1].value == READY else "fail", found[-1].value, seen)


def memory(recipe: str, url: str) -> Finding:
    """Compare what ``nvidia-smi`` counts with the plan of ``draftproof preflight``."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Finding("inconclusive", "no nvidia-smi")
    query = [program, "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"]
    said = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    used = {int(index): int(mib) for index, mib in (line.split(",") for line in said.splitlines())}
    plan = plan_memory(read_pair(load_recipe(recipe, "tensorrt_llm"), ENGINES))
    planned = {
        device: sum(
            engine.static_bytes + engine.max_tokens_in_paged_kv_cache * engine.kv_bytes_per_token
            for engine in (plan.target, plan.draft)
            if device in engine.devices
        )
        >> 20
        for device in {*plan.target.devices, *plan.draft.devices}
    }
    worst = max(used.get(device, 0) - mib for device, mib in planned.items())
    return Finding(
        "pass" if worst <= 0 else "fail",
        f"{abs(worst)} MiB {'less' if worst <= 0 else 'more'} in use than planned, on the fullest GPU",
        {"used_mib": used, "planned_mib": planned, "plan": dataclasses.asdict(plan)},
    )


def sampling(recipe: str, url: str) -> Finding:
    """Ask for sampled answers with the draft's logits, between greedy ones."""
    with Client.connect(url) as client:
        before = client.generate(_GREEDY).total_draft_tokens
        sampled = [_drafted(client, dataclasses.replace(_SAMPLED, seed=seed)) for seed in range(_SAMPLES)]
        after = client.generate(_GREEDY).total_draft_tokens
    seen = {"greedy_before": before, "sampled": sampled, "greedy_after": after}
    if not before:
        return Finding("fail", "greedy speculation did not draft at all", seen)
    if not after:
        return Finding("fail", "after sampled requests, greedy requests are not drafted for any more", seen)
    if not all(isinstance(drafted, int) and drafted for drafted in sampled):
        return Finding("fail", "sampled requests were not drafted for", seen)
    return Finding("pass", "sampled requests are drafted for, and so are greedy ones afterwards", seen)


def traps(recipe: str, url: str) -> Finding:
    """Ask an OpenAI-compatible server of TensorRT-LLM's PyTorch backend what its speculation may ignore.

    Penalties are ignored by versions before ``enable_penalty``, and requests without a seed may share a
    stream of random numbers (NVIDIA/TensorRT-LLM#17701, #19487).
    """
    with httpx.Client(base_url=url, timeout=120) as server:
        model = server.get("/v1/models").json()["data"][0]["id"]

        def text(**fields: Any) -> str:
            body = {"model": model, "prompt": "One, two, one, two, one,", "max_tokens": 48, **fields}
            answer = server.post("/v1/completions", json=body)
            return answer.json()["choices"][0]["text"] if answer.is_success else f"HTTP {answer.status_code}"

        plain, penalized = text(temperature=0), text(temperature=0, frequency_penalty=2.0)
        samples = [text(temperature=1.0) for _ in range(_SAMPLES)]
    ignored = [
        *(["penalties"] if plain == penalized else []),
        *(["the randomness of requests without a seed"] if len(set(samples)) < _SAMPLES else []),
    ]
    seen = {"plain": plain, "penalized": penalized, "samples": samples}
    if ignored:
        return Finding("fail", f"the server ignores {' and '.join(ignored)}", seen)
    return Finding("pass", "penalties change answers, and samples differ", seen)


def _drafted(client: Client, request: CompletionRequest) -> int | str:
    """Return the draft tokens of an answer, or the words of its failure."""
    try:
        return client.generate(request).total_draft_tokens
    except DraftproofError as error:
        return f"{type(error).__name__}: {error}"


PROBES: Mapping[str, Callable[[str, str], Finding]] = {
    "machine": machine,
    "memory": memory,
    "sampling": sampling,
    "traps": traps,
}
"""By name: recipe, address of the server -> finding."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.probe", description=__doc__)
    parser.add_argument("name", choices=PROBES)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--url", default="", help="server, for the probes that ask one")
    options = parser.parse_args(arguments)

    def work() -> int:
        with known_key(run_directory(options.recipe)):
            found = PROBES[options.name](options.recipe, options.url)
        print(json.dumps({"verdict": found.verdict, "finding": found.text, **found.seen}))
        return EXIT_CODES[found.verdict]

    return run_program(work, result={"verdict": "fail"})


if __name__ == "__main__":
    sys.exit(main())
