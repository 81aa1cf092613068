"""The setting of a drill: a pair, the plan and limits of its rollout, and the clients' requests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from build.checkpoints.tokenizer_file import read_tokenizer
from build.files import write_manifest
from build.recipe import parse_recipe
from build.repository import render_recipe
from pipelines.canary.controller.plan import Plan, Shadow, Step
from pipelines.canary.judge.limits import Limit, Limits, read_limits
from pipelines.manifest import sha256_file, sha256_json
from pipelines.router.arms import Bands
from tests.support.damaged_engines import writable_copy
from tests.support.demo_prompts import held_out_prompts

_NUM_PROMPTS = 300
_MAX_TOKENS = 16

ONE_BAND = Bands(1000, 1001)
"""A drill's load is constant, so one band of load is enough."""

# The step has no replays, and both servers get the same number of requests. With few clients that wait for
# their answers, replays on top would make the candidate's concurrency higher than the stable server's.
PLAN = Plan(
    limits="limits.yaml",
    slo_ttft_s=0.5,
    slo_itl_s=0.05,
    bands=ONE_BAND,
    slow_after_s=3.0,
    shadow=Shadow(1.0, 100.0, 4, 32, min_pairs=400, bake_s=5.0),
    steps=(Step(0.5, 200, 5.0),),
    hold_s=60.0,
    idle_s=60.0,
    max_pairs=6000,
    down_after_s=1.5,
    drain_s=10.0,
    watch_s=3.0,
    lease_s=5.0,
    tick_s=1.0,
)


def drill_limits() -> Limits:
    """Return the default limits, wider where a few minutes on a small machine are not enough evidence."""
    return replace(
        read_limits(),
        quantile=0.9,
        answers=Limit(0.015, 0.003),
        timeouts=Limit(0.03, 0.01),
        goodput=Limit(0.2, 0.2),
        ttft=Limit(0.5, 0.3),
        itl=Limit(0.18, 0.1),
        e2e_tail=Limit(0.9, 0.5),
        pauses=Limit(0.03, 0.005),
        resources_s=40.0,
    )


def questions_of(prompts: Iterable[str], max_tokens: int = _MAX_TOKENS) -> tuple[dict[str, Any], ...]:
    """Return greedy and seeded requests of OpenAI's API in turn; one in five asks for log probabilities."""
    common = {"max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True}
    return tuple(
        {
            **common,
            "prompt": prompt,
            **({"temperature": 0} if number % 2 else {"temperature": 0.8, "seed": number}),
            **({"logprobs": 2} if number % 5 == 0 else {}),
        }
        for number, prompt in enumerate(prompts)
    )


def demo_questions() -> tuple[dict[str, Any], ...]:
    """Return questions about the demonstration pair's prompts."""
    return questions_of(prompt.text[:200] for prompt in held_out_prompts(_NUM_PROMPTS))


@dataclass(frozen=True)
class Setting:
    """The setting that all drills share.

    ``plan``: the rollout's plan; it names the limits ``limits.yaml``.
    """

    recipe: dict[str, Any]
    draft: Path
    target: Path
    questions: tuple[dict[str, Any], ...]
    plan: Plan
    limits: Limits

    def render(self, folder: Path) -> Path:
        """Render the pair in service and return the run directory."""
        recipe = parse_recipe(self.recipe, folder / "recipe.yaml")
        return render_recipe(recipe, self.draft, self.target, folder).parent

    def write_plan(self, folder: Path) -> Path:
        """Write plan and limits to files and return the plan's path."""
        plan = folder / "canary.yaml"
        plan.write_text(yaml.safe_dump({**asdict(self.plan), "steps": list(map(asdict, self.plan.steps))}))
        plan.with_name(self.plan.limits).write_text(yaml.safe_dump(asdict(self.limits)))
        return plan

    def candidate_recipe(self) -> dict[str, Any]:
        """Return the same recipe with another queue size, which makes it another pair."""
        serving = self.recipe["serving"]
        queue = serving["max_queue_size"] + 1
        return {**self.recipe, "name": "drill-candidate", "serving": {**serving, "max_queue_size": queue}}

    def candidate_engines(self, folder: Path, *, has_other_tokenizer: bool) -> tuple[Path, Path]:
        """Copy both engines, draft first."""
        copies = [writable_copy(engine, folder / engine.name) for engine in (self.draft, self.target)]
        if has_other_tokenizer:
            for copy in copies:
                _exchange_two_tokens(copy)
        return copies[0], copies[1]


def _exchange_two_tokens(engine: Path) -> None:
    """Exchange two tokens in an engine, as a build from a checkpoint with another tokenizer would."""
    path = engine / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = document["model"]["vocab"]
    one, other = list(vocabulary)[-2:]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    manifest = json.loads((engine / "manifest.json").read_text(encoding="utf-8"))
    identity = read_tokenizer(path).sha256
    write_manifest(
        engine,
        {
            **manifest,
            "fingerprint": sha256_json([manifest["fingerprint"], identity]),
            "tokenizer_sha256": sha256_file(path),
            "tokenizer_identity_sha256": identity,
        },
    )
