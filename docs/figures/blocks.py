"""Blocks of pages: which result file or which code each one is made from, and by what."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from docs.code_tables.commands import commands
from docs.code_tables.errors import errors
from docs.code_tables.make_targets import make_settings, make_targets
from docs.code_tables.metrics import metrics
from docs.code_tables.pair_memory import cache_memory, pair_memory
from docs.code_tables.recipe_keys import recipe_keys
from docs.code_tables.upstream import upstream
from docs.figures.acceptance import predicted_acceptance
from docs.figures.bench import every_load, headline
from docs.figures.canary_drills import drills
from docs.figures.demo import demo
from docs.figures.families import families
from docs.figures.fault_drills import fault_drills
from docs.figures.fleet_drills import fleet_drills
from docs.figures.fleet_simulation import fleet_simulation
from docs.figures.front_door import front_door_cost, structured_output
from docs.figures.image import image
from docs.figures.kv_caches import kv_caches
from docs.figures.long_contexts import long_contexts
from docs.figures.long_prompt import long_prompt
from docs.figures.lookup_corpus import lookup_corpus
from docs.figures.memory import server_memory
from docs.figures.operator_steps import operator_steps, prompt_speed
from docs.figures.other_servers import other_server
from docs.figures.pair import pair
from docs.figures.peers import peers
from docs.figures.placement import looks, placement
from docs.figures.quantization import quantized_pair, quantized_steps
from docs.figures.rehearsals import rehearsed_builds, rehearsed_speed, steps_by_size
from docs.figures.router import router_cost
from docs.figures.sampler import sampler
from docs.figures.structured import schema_suite, structured_answers
from docs.figures.token_overlap import token_overlap
from docs.figures.upstream_rollouts import upstream_rollouts
from docs.figures.verify import verdict_line, verify
from docs.figures.versions import versions
from docs.figures.words import Document
from pipelines.bench.report.document import FORMAT

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path("docs/results")
PAIR = Path("engines/demo_pair/evaluation.json")

_BLOCK = re.compile(r"(<!-- figures:([a-z0-9-]+) -->\n).*?(<!-- /figures -->)", re.DOTALL)

BLOCKS: dict[str, tuple[Path, str, Callable[[Document], str]]] = {
    "headline": (RESULTS / "bench-demo-large.json", "make results", headline),
    "every-load": (RESULTS / "bench-demo-large.json", "make results", every_load),
    "headline-xeon": (RESULTS / "bench-demo-large-xeon.json", "make bench RECIPE=demo-large", headline),
    "every-load-xeon": (RESULTS / "bench-demo-large-xeon.json", "make bench RECIPE=demo-large", every_load),
    "every-load-recent": (
        RESULTS / "bench-demo-large-xeon-recent.json",
        "make bench RECIPE=demo-large",
        every_load,
    ),
    "peers-xeon": (RESULTS / "peers-demo-large-xeon.json", "make bench-peers RECIPE=demo-large", peers),
    "headline-avx2": (RESULTS / "bench-demo-large-avx2.json", "make bench RECIPE=demo-large", headline),
    "every-load-avx2": (RESULTS / "bench-demo-large-avx2.json", "make bench RECIPE=demo-large", every_load),
    "peers-avx2": (RESULTS / "peers-demo-large-avx2.json", "make bench-peers RECIPE=demo-large", peers),
    "peers-avx2-many": (
        RESULTS / "peers-demo-large-avx2-many.json",
        "make bench-peers RECIPE=demo-large",
        peers,
    ),
    "peers-avx2-long": (
        RESULTS / "peers-demo-long-avx2.json",
        "python -m benchmarks.peers --recipe demo-long --context 2048",
        peers,
    ),
    "sampled-avx2": (
        RESULTS / "bench-demo-large-sampled-avx2.json",
        "make bench RECIPE=demo-large",
        headline,
    ),
    "sampled": (RESULTS / "bench-demo-large-sampled.json", "make results", headline),
    "peers": (RESULTS / "peers-demo-large.json", "make results", peers),
    "demo": (RESULTS / "demo.json", "make results", demo),
    "verdict": (RESULTS / "verify-demo.json", "make results", verdict_line),
    "verify": (RESULTS / "verify-demo.json", "make results", verify),
    "sampler": (RESULTS / "sampler-demo-large.json", "make results", sampler),
    "acceptance": (RESULTS / "acceptance-demo.json", "make results", predicted_acceptance),
    "router": (RESULTS / "router-demo-large.json", "make results", router_cost),
    "front-door": (RESULTS / "front-door-demo-large.json", "make results", front_door_cost),
    "structured-output": (
        RESULTS / "structured-output-demo-large.json",
        "make results",
        structured_output,
    ),
    "drills": (RESULTS / "canary-drills.json", "make drills", drills),
    "fault-drills": (RESULTS / "fault-drills.json", "make drills-faults", fault_drills),
    "fleet-drills": (RESULTS / "fleet-drills.json", "make drills-fleet", fleet_drills),
    "fleet-simulation": (
        RESULTS / "fleet-simulation.json",
        "python -m benchmarks.fleet_simulation",
        fleet_simulation,
    ),
    "placement": (RESULTS / "placement-demo.json", "python -m benchmarks.placement", placement),
    "looks": (RESULTS / "looks-demo.json", "python -m benchmarks.placement.looks", looks),
    "families": (RESULTS / "families.json", "make results", families),
    "families-gemma": (
        RESULTS / "families-gemma.json",
        "python -m benchmarks.families gemma2 gemma2-heads256",
        families,
    ),
    "prompt-speed": (RESULTS / "attention-steps-demo-large.json", "make results", prompt_speed),
    "steps-by-size": (RESULTS / "rehearsals.json", "make rehearse", steps_by_size),
    "attention-steps": (RESULTS / "attention-steps-demo-large.json", "make results", operator_steps),
    "linear-steps": (
        RESULTS / "linear-steps-demo-large.json",
        "python -m benchmarks.operator_steps linear",
        operator_steps,
    ),
    "linear-steps-int4": (
        RESULTS / "linear-steps-int4-demo-large.json",
        "python -m benchmarks.operator_steps linear --quantization int4",
        operator_steps,
    ),
    "quantized-pair": (RESULTS / "quantized-pair-demo.json", "make results", quantized_pair),
    "quantized-steps": (RESULTS / "quantized-steps-demo-large.json", "make results", quantized_steps),
    "server-memory": (RESULTS / "server-memory.json", "make results", server_memory),
    "rehearsed-builds": (RESULTS / "rehearsals.json", "make rehearse", rehearsed_builds),
    "rehearsed-speed": (RESULTS / "rehearsals.json", "make rehearse", rehearsed_speed),
    "long-prompt": (
        RESULTS / "long-prompt.json",
        "python -m benchmarks.rehearsal.long_prompt --output docs/results/long-prompt.json",
        long_prompt,
    ),
    "long-contexts": (
        RESULTS / "long-contexts-demo-long.json",
        "python -m benchmarks.long_contexts",
        long_contexts,
    ),
    "lookup-corpus": (
        RESULTS / "lookup-corpus-demo-large.json",
        "python -m benchmarks.lookup_corpus --recipe demo-large",
        lookup_corpus,
    ),
    "kv-caches": (RESULTS / "kv-caches-demo-large.json", "python -m benchmarks.kv_caches", kv_caches),
    "kv-caches-avx2": (
        RESULTS / "kv-caches-demo-large-avx2.json",
        "python -m benchmarks.kv_caches",
        kv_caches,
    ),
    "token-overlap": (RESULTS / "token-overlap.json", "make results", token_overlap),
    "schema-suite": (
        RESULTS / "schema-suite.json",
        "python -m benchmarks.schema_suite --suite json/tests",
        schema_suite,
    ),
    "structured-answers": (
        RESULTS / "structured-answers.json",
        "python -m benchmarks.structured_answers --url http://127.0.0.1:9000",
        structured_answers,
    ),
    "upstreams-vllm": (
        RESULTS / "upstreams-vllm.json",
        "python -m benchmarks.other_servers.rollouts --output docs/results/upstreams-vllm.json",
        upstream_rollouts,
    ),
    **{
        f"verify-{engine}": (
            RESULTS / f"verify-{engine}.json",
            f"python -m benchmarks.other_servers --engine {engine} --output {RESULTS}/verify-{engine}.json",
            other_server,
        )
        for engine in ("vllm", "llama-cpp")
    },
    "image": (RESULTS / "image.json", "make image && cp dist/image.json docs/results/", image),
    "versions": (RESULTS / "versions-demo.json", "make bench-versions BEFORE=a943c91", versions),
    "pair": (PAIR, "make evaluate-demo", pair),
}
"""Block name -> result file, the command that makes it, and what turns it into text."""

CODE_BLOCKS: dict[str, Callable[[], str]] = {
    "recipe-keys": recipe_keys,
    "metrics": metrics,
    "errors": errors,
    "commands": commands,
    "make-targets": make_targets,
    "make-settings": make_settings,
    "upstream": upstream,
    "pair-memory": pair_memory,
    "cache-memory": cache_memory,
}
"""Block name -> what reads the code and turns it into text."""


def pages() -> tuple[Path, ...]:
    """Return the documents that have blocks, relative to the repository's root."""
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return tuple(
        page.relative_to(ROOT) for page in documents if _BLOCK.search(page.read_text(encoding="utf-8"))
    )


def render(page: str, root: Path = ROOT) -> str:
    """Return a page's text with every block made anew.

    Args:
        page: The text; blocks of unknown name raise KeyError.
        root: Where the result files lie.
    """
    return _BLOCK.sub(lambda found: f"{found[1]}{_block(found[2], root)}\n{found[3]}", page)


def _block(name: str, root: Path) -> str:
    if name in CODE_BLOCKS:
        return CODE_BLOCKS[name]()
    path, command, write = BLOCKS[name]
    try:
        document = json.loads((root / path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"*Not measured yet: `{command}` writes `{path.as_posix()}`.*"
    if path.name.startswith("bench-") and document.get("format") != FORMAT:
        return f"*Not measured yet with this bench: `{command}` writes `{path.as_posix()}`.*"
    return write(document)
