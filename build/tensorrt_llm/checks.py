"""Every rule of the pre-flight of a TensorRT-LLM pair, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from build.tensorrt_llm.built import check_built
from build.tensorrt_llm.pair import Pair
from build.tensorrt_llm.placement_rules import PLACEMENT_RULES, PLACEMENT_WARNINGS
from build.tensorrt_llm.precision_rules import PRECISION_RULES
from build.tensorrt_llm.rules import Finding, findings
from build.tensorrt_llm.size_rules import SIZE_RULES
from build.tensorrt_llm.version_rules import VERSION_RULES
from build.tensorrt_llm.vocabulary_rules import VOCABULARY_RULES
from pipelines.errors import IncompatiblePairError

RULES = (*VERSION_RULES, *VOCABULARY_RULES, *PRECISION_RULES, *SIZE_RULES, *PLACEMENT_RULES)
WARNINGS = PLACEMENT_WARNINGS
"""Rules that a pair may break: what they warn of was read and never tried."""


def check_pair(pair: Pair, built: Mapping[str, Path] | None = None) -> list[Finding]:
    """All rules that a pair breaks, and how engines that exist differ from what is asked for."""
    return [*findings(pair, RULES), *check_built(pair, dict(built or {}))]


def refuse(pair: Pair, found: list[Finding]) -> IncompatiblePairError:
    """One error for everything that was found; the findings themselves have been printed."""
    return IncompatiblePairError(
        f"recipe {pair.recipe.name} does not pass the pre-flight",
        values="; ".join(f"{one.rule} ({one.broken.role}): {one.broken.values}" for one in found),
        limit="; ".join(one.broken.limit for one in found),
        remedy="; ".join(dict.fromkeys(one.broken.remedy for one in found)),
    )
