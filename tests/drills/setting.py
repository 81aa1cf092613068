"""Where a drill takes place: a pair, the plan and the limits of its rollout, and what clients ask."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from build.manifest import sha256_file, sha256_json, write_manifest
from build.recipe import parse_recipe
from build.repository import render_recipe
from build.template_values import calibration_file
from build.tokenizer_file import read_tokenizer
from pipelines.canary.analysis.limits import Limit, Limits, read_limits
from pipelines.canary.plan import Plan, Shadow, Step
from pipelines.client import CompletionRequest
from pipelines.prompts import HELD_OUT, read_prompts
from pipelines.routing.arms import Bands

_NUM_PROMPTS = 300
_MAX_TOKENS = 16

ONE_BAND = Bands(1000, 1001)
"""The load of a drill is always the same."""

# The step has no replays, and both pairs get as many requests: few clients that wait for their answers meet
# less of their own kind at the stable pair than at a candidate whose replays come on top of them.
PLAN = Plan(
    limits="limits.yaml",
    slo_ttft_s=0.5,
    slo_itl_s=0.05,
    control_weight=0.1,
    bands=ONE_BAND,
    slow_after_s=3.0,
    shadow=Shadow(1.0, 100.0, 4, 32, min_pairs=400, bake_s=5.0),
    steps=(Step(0.45, 200, 5.0),),
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
    """The default ones, as far as a few minutes of requests on a small machine can show that they hold."""
    return replace(
        read_limits(),
        quantile=0.9,
        tokens=Limit(0.015, 0.003),
        timeouts=Limit(0.03, 0.01),
        goodput=Limit(0.2, 0.2),
        ttft=Limit(0.5, 0.3),
        itl=Limit(0.18, 0.1),
        e2e_tail=Limit(0.9, 0.5),
        speed_up=dict.fromkeys(("low", "medium", "high"), Limit(0.5, 0.5)),
    )


def demo_requests() -> tuple[CompletionRequest, ...]:
    """Greedy and seeded in turn; a greedy one names no seed, so the router draws another each time."""
    return tuple(
        CompletionRequest(prompt.text[:200], max_tokens=_MAX_TOKENS, end_id=-1)
        if number % 2
        else CompletionRequest(
            prompt.text[:200], max_tokens=_MAX_TOKENS, end_id=-1, temperature=0.8, seed=number
        )
        for number, prompt in enumerate(read_prompts(HELD_OUT, _NUM_PROMPTS))
    )


@dataclass(frozen=True)
class Setting:
    """One for all drills.

    Attributes:
        recipe: Of the pair in service, as a recipe's file has it.
        draft: Engine directory.
        target: Engine directory.
        requests: Of the clients, over and over.
        plan: Of the rollout; names the limits ``limits.yaml``.
        limits: Of the rollout.
    """

    recipe: dict[str, Any]
    draft: Path
    target: Path
    requests: tuple[CompletionRequest, ...]
    plan: Plan
    limits: Limits

    def render(self, folder: Path) -> Path:
        """The pair in service; returns the run directory."""
        recipe = parse_recipe(self.recipe, folder / "recipe.yaml")
        return render_recipe(recipe, self.draft, self.target, folder).parent

    def write_plan(self, folder: Path) -> Path:
        """Plan and limits as files; returns that of the plan."""
        plan = folder / "canary.yaml"
        plan.write_text(yaml.safe_dump({**asdict(self.plan), "steps": list(map(asdict, self.plan.steps))}))
        plan.with_name(self.plan.limits).write_text(yaml.safe_dump(asdict(self.limits)))
        return plan

    def candidate_recipe(self) -> dict[str, Any]:
        """The same pair with another queue, which makes it another pair."""
        serving = self.recipe["serving"]
        queue = serving["max_queue_size"] + 1
        return {**self.recipe, "name": "drill-candidate", "serving": {**serving, "max_queue_size": queue}}

    def candidate_engines(self, folder: Path, *, has_other_tokenizer: bool) -> tuple[Path, Path]:
        """Copies of both engines, draft first.

        No acceptance was measured at their build: the cold start would refuse what the analysis is to find.
        """
        copies = [Path(shutil.copytree(engine, folder / engine.name)) for engine in (self.draft, self.target)]
        calibration = json.loads(calibration_file(self.draft, self.target).read_text())
        calibration.pop("baseline", None)
        calibration_file(copies[0], copies[1]).write_text(json.dumps(calibration))
        if has_other_tokenizer:
            for copy in copies:
                _exchange_two_tokens(copy)
        return copies[0], copies[1]


def _exchange_two_tokens(engine: Path) -> None:
    """As a build from checkpoints with such a tokenizer leaves the engine."""
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
