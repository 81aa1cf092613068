"""How far apart two tokens were for the target: tells a near tie from a wrong answer.

The server offers no logits, so the target's engine is loaded once more here and given the target's own
answer up to the place in question, computed as the executor computes it: the prompt in one chunk, the
generated tokens as rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipelines.errors import DraftproofError
from pipelines.text.vocabulary import Vocabulary
from pipelines.validation.proof import Finding


@dataclass(frozen=True)
class Explanation:
    """What is known of the two tokens at a divergence.

    Attributes:
        expected_text: What the target's token spells; "<end>" for ``end_id``.
        actual_text: What the other one spells.
        logit_margin: Logit of the target's token minus that of the other; None if there are no two
            tokens, or if ``why_no_margin`` says so.
        why_no_margin: "" if ``logit_margin`` is there.
    """

    expected_text: str
    actual_text: str
    logit_margin: float | None
    why_no_margin: str = ""


def explain(finding: Finding, engine_dir: Path | None) -> Explanation:
    """Look the two tokens of a divergence up.

    Args:
        finding: With a divergence.
        engine_dir: The target's engine on this machine; None if it is not here.
    """
    divergence = finding.divergence
    if divergence is None or divergence.kind in ("finish_reason", "text"):
        return Explanation("", "", None, "the tokens are equal")
    if engine_dir is None or not engine_dir.is_dir():
        return Explanation("", "", None, "the target's engine is not on this machine")
    try:
        return _explain(finding, engine_dir)
    except (DraftproofError, ImportError, OSError, RuntimeError) as error:
        return Explanation("", "", None, f"the target's engine could not be run: {error}")


def _explain(finding: Finding, engine_dir: Path) -> Explanation:
    from pipelines.executor.engine import EngineConfig

    config = EngineConfig.read(engine_dir)
    vocabulary = Vocabulary.from_file(engine_dir / "tokenizer.json")
    assert finding.divergence is not None
    # An answer that ended here ended by choosing end_id: max_tokens is the same for both.
    expected_id = config.end_id if finding.divergence.expected_id is None else finding.divergence.expected_id
    actual_id = config.end_id if finding.divergence.actual_id is None else finding.divergence.actual_id
    logits = _target_logits(finding, engine_dir, config.kv_block_size)

    def spell(token_id: int) -> str:
        spelled = vocabulary.join([token_id]).decode("utf-8", errors="backslashreplace")
        return "<end>" if token_id == config.end_id else spelled

    margin = float(logits[expected_id]) - float(logits[actual_id])
    return Explanation(spell(expected_id), spell(actual_id), margin)


def _target_logits(finding: Finding, engine_dir: Path, block_size: int) -> npt.NDArray[np.float32]:
    """float32 [vocab_size], the target's logits for the output position of the divergence."""
    from tokenizers import Tokenizer

    from pipelines.executor.engine import Engine
    from pipelines.executor.step import Chunk, pack

    assert finding.divergence is not None
    tokenizer = Tokenizer.from_file(str(engine_dir / "tokenizer.json"))
    prompt_ids = np.array(tokenizer.encode(finding.prompt.text).ids, np.int32)
    output_ids = np.array(finding.expected.output_ids[: finding.divergence.position], np.int32)
    num_blocks = 1 + -(-(len(prompt_ids) + len(output_ids) + 1) // block_size)
    engine = Engine(engine_dir, num_blocks + 1)
    blocks = range(1, num_blocks + 1)  # block 0 is the scratch block
    prompt = Chunk(prompt_ids, 0, blocks, as_rows=len(prompt_ids) == 1, num_logits=1)
    logits = engine.step(pack([prompt], block_size))
    if len(output_ids):
        rows = Chunk(output_ids, len(prompt_ids), blocks, as_rows=True, num_logits=1)
        logits = engine.step(pack([rows], block_size))
    return np.array(logits[0])
