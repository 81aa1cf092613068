"""Probes of the running server, where the audit expects a defect."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from build.recipe import REPOSITORY_ROOT, load_recipe
from build.tensorrt_llm.memory_plan import plan_memory
from build.tensorrt_llm.pair import read_pair
from pipelines.client import Client, CompletionRequest
from pipelines.errors import DraftproofError, InvalidRequestError
from tests.gpu.finding import Finding

_GREEDY = CompletionRequest("def main(", max_tokens=48, num_draft_tokens=4)
_SAMPLED = dataclasses.replace(_GREEDY, temperature=0.8, seed=5, use_draft_logits=True)
_SAMPLES = 4


def memory(recipe: str, url: str) -> Finding:
    """W5: what ``nvidia-smi`` counts, beside the plan of ``draftproof preflight``."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Finding("inconclusive", "no nvidia-smi")
    query = [program, "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"]
    said = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    used = {int(index): int(mib) for index, mib in (line.split(",") for line in said.splitlines())}
    plan = plan_memory(read_pair(load_recipe(recipe, "tensorrt_llm"), REPOSITORY_ROOT / "engines"))
    planned = {
        device: sum(
            engine.static_bytes + engine.max_tokens_in_paged_kv_cache * engine.kv_bytes_per_token
            for engine in (plan.target, plan.draft)
            if device in engine.devices
        )
        >> 20
        for device in {*plan.target.devices, *plan.draft.devices}
    }
    more = {device: used.get(device, 0) - mib for device, mib in planned.items()}
    worst = max(more.values())
    seen = {"used_mib": used, "planned_mib": planned, "plan": dataclasses.asdict(plan)}
    return Finding(
        "pass" if worst <= 0 else "fail",
        f"{abs(worst)} MiB {'less' if worst <= 0 else 'more'} in use than planned, on the fullest GPU",
        seen,
    )


def sampling(recipe: str, url: str) -> Finding:
    """W1: sampled requests with the draft's logits, and greedy speculation before and after them."""
    with Client.connect(url) as client:
        before = client.generate(_GREEDY)
        sampled = [
            _asked(client, dataclasses.replace(_SAMPLED, seed=seed), "generate") for seed in range(_SAMPLES)
        ]
        after = client.generate(_GREEDY)
    drafted = [answer.get("drafted", 0) for answer in sampled]
    seen = {
        "greedy_before": {
            "drafted": before.total_draft_tokens,
            "accepted": before.total_accepted_draft_tokens,
        },
        "sampled": sampled,
        "greedy_after": {"drafted": after.total_draft_tokens, "accepted": after.total_accepted_draft_tokens},
    }
    if before.total_draft_tokens == 0:
        return Finding("fail", "greedy speculation did not draft at all", seen)
    if after.total_draft_tokens == 0:
        return Finding("fail", "after sampled requests, greedy requests are not drafted for any more", seen)
    if not all(drafted):
        return Finding(
            "fail", f"{drafted.count(0)} of {len(drafted)} sampled requests were not drafted for", seen
        )
    return Finding("pass", "sampled requests are drafted for, and so are greedy ones afterwards", seen)


def log_probs(recipe: str, url: str) -> Finding:
    """W2: log probabilities of the target alone and with the draft: real, refused, or zeros."""
    request = dataclasses.replace(_GREEDY, num_log_probs=0)
    with Client.connect(url) as client:
        seen = {
            "generate": _asked(client, request, "generate"),
            "generate_target": _asked(
                client, dataclasses.replace(request, num_draft_tokens=None), "generate_target"
            ),
        }
    kinds = {name: kind_of_log_probs(answer) for name, answer in seen.items()}
    text = "; ".join(f"{name}: {kind}" for name, kind in kinds.items())
    is_right = all(kind.startswith(("real", "refused")) for kind in kinds.values())
    return Finding("pass" if is_right else "fail", text, seen)


def kind_of_log_probs(answer: Mapping[str, Any]) -> str:
    """Say what came in place of log probabilities."""
    if "refused" in answer:
        return f"refused, {answer['refused'][:160]}"
    values = answer.get("log_probs", [])
    if not values:
        return f"failed, {answer.get('failed', 'no values')[:160]}"
    if not any(values):
        return f"{len(values)} zeros"
    # Tokens of a greedy answer: none certain to the last bit, none impossible.
    is_real = all(-50 < value <= 0 for value in values) and len(set(values)) > 1
    return (
        f"real, {min(values):.3f} to {max(values):.3f}" if is_real else f"not log probabilities: {values[:4]}"
    )


def _asked(client: Client, request: CompletionRequest, model: str) -> dict[str, Any]:
    """An answer, or the words of its refusal or failure."""
    try:
        answer = client.generate(request, model)
    except InvalidRequestError as error:
        return {"refused": str(error)}
    except DraftproofError as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    return {
        "tokens": len(answer.output_ids),
        "drafted": answer.total_draft_tokens,
        "accepted": answer.total_accepted_draft_tokens,
        "draft_length": answer.draft_length,
        "log_probs": [*answer.log_probs],
    }


SERVING_PROBES: Mapping[str, Callable[[str, str], Finding]] = {
    "memory": memory,
    "sampling": sampling,
    "log-probs": log_probs,
}
"""By name: recipe, address of the server -> finding."""
