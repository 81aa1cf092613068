"""All rules that preflight checks for a TensorRT-LLM pair."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from build.tensorrt_llm.built import check_built
from build.tensorrt_llm.rules.pair import Pair
from build.tensorrt_llm.rules.placement import PLACEMENT_RULES, PLACEMENT_WARNINGS
from build.tensorrt_llm.rules.precision import PRECISION_RULES
from build.tensorrt_llm.rules.rule import Finding, findings
from build.tensorrt_llm.rules.sizes import SIZE_RULES
from build.tensorrt_llm.rules.versions import VERSION_RULES
from build.tensorrt_llm.rules.vocabulary import VOCABULARY_RULES
from pipelines.errors import IncompatiblePairError

RULES = (*VERSION_RULES, *VOCABULARY_RULES, *PRECISION_RULES, *SIZE_RULES, *PLACEMENT_RULES)
WARNINGS = PLACEMENT_WARNINGS
"""Rules that only warn, because the problem is documented but has not been reproduced."""


def check_pair(pair: Pair, built: Mapping[str, Path] | None = None) -> list[Finding]:
    """Return all violations of the rules, and differences between existing engines and the recipe."""
    return [*findings(pair, RULES), *check_built(pair, dict(built or {}))]


def refuse(pair: Pair, found: list[Finding]) -> IncompatiblePairError:
    """Return one error for all findings, which have been printed already."""
    return IncompatiblePairError(
        f"recipe {pair.recipe.name} does not pass preflight",
        values="; ".join(f"{one.rule} ({one.violation.role}): {one.violation.values}" for one in found),
        limit="; ".join(one.violation.limit for one in found),
        remedy="; ".join(dict.fromkeys(one.violation.remedy for one in found)),
    )
