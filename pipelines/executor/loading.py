"""Loads an engine, and checks that this machine's kernels give a token the same bits in every step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from pipelines.errors import EngineLoadError
from pipelines.executor.engine import Engine, StepRules, cannot_run, run_slowly
from pipelines.executor.engine_config import EngineConfig
from pipelines.executor.kv_cache import SCRATCH_BLOCK
from pipelines.executor.step import NO_SLOT, Chunk, StepInputs, pack
from pipelines.manifest import EngineFiles, sha256_bytes
from pipelines.speculation.token_ids import Logits

_TRIED_SIZES = 2, 9, 64, 128  # tokens of the steps that are compared
_NUM_NAMED = 8  # rows in an error


def load_engine(
    files: EngineFiles,
    num_blocks: int,
    config: EngineConfig | None = None,
    weights_folder: Path | None = None,
    num_slots: int = 1,
) -> Engine:
    """Load an engine and check it.

    Args:
        files: See ``Engine``.
        num_blocks: Likewise.
        config: Likewise.
        weights_folder: Likewise.
        num_slots: Likewise.

    Raises:
        EngineLoadError: As of ``Engine``; or the network does not run, a target is not exact, or it computes
            numbers that are not finite.
    """
    engine = Engine(files, num_blocks, config=config, weights_folder=weights_folder, num_slots=num_slots)
    check(engine)
    return engine


def check(engine: Engine) -> None:
    """Find the rules of an engine's steps by trying some, and give memory back; raises EngineLoadError."""
    try:
        engine.rules = _rules_for_lone_tokens(engine)
        engine.rules = replace(engine.rules, max_num_tokens=_most_exact_tokens(engine))
    except (RuntimeError, TimeoutError) as error:
        engine.cancel()
        raise cannot_run(engine.directory, error) from error
    engine.kernels = sha256_bytes(engine.read_block(SCRATCH_BLOCK))
    engine.release_weights()


def _rules_for_lone_tokens(engine: Engine) -> StepRules:
    """Find out whether a token alone, or a row of logits alone, has the bits that it has with others.

    OpenVINO multiplies a single row by another kernel: that of a layer always, that of the INT8 head if its
    inputs are not rounded, or if there are few (docs/decisions/exact-rows.md). The kernels of this machine
    decide, so they are tried here. Products of our own know rows only.
    """
    rules, block_size = StepRules(), engine.config.kv_block_size
    token_ids = np.arange(7, dtype=np.int32)  # a draft may read fewer tokens than it has logits
    tokens = Chunk(token_ids, 0, (SCRATCH_BLOCK,), is_decode=False, num_logits=7, slot=NO_SLOT)
    together = pack([tokens], block_size)
    expected = _trial(engine, together, rules)[-1].copy()
    found = run_slowly(engine, replace(together, logits_rows=together.logits_rows[-1:]), rules)[0]
    repeats_lone_row = bool(np.ptp(expected) == 0) or not np.array_equal(found, expected)
    rules = replace(rules, repeats_lone_row=repeats_lone_row)
    if engine.config.linear != "draftproof":
        return rules
    # Not the first position, where a dummy row writes.
    token = Chunk(token_ids[-1:], 1, (SCRATCH_BLOCK,), is_decode=True, num_logits=1, slot=NO_SLOT)
    alone = pack([token], block_size)
    expected = run_slowly(engine, alone, rules)[0].copy()
    alone_rules = replace(rules, least_tokens=1)
    return alone_rules if np.array_equal(run_slowly(engine, alone, alone_rules)[0], expected) else rules


def _most_exact_tokens(engine: Engine) -> int | None:
    """Return how many tokens a step may have so that a decode token has the bits that it has among two.

    On AVX2, OpenVINO's INT8 products add the inputs of a row up in another order from 81 rows on, and some
    from five on (docs/decisions/exact-rows.md). None is no limit. What a draft proposes may depend on other
    tokens.

    Raises:
        EngineLoadError: Not even steps of more than two tokens are exact.
    """
    if engine.config.role == "draft" or engine.config.linear == "draftproof":
        return None
    token = Chunk(np.ones(1, np.int32), 1, (SCRATCH_BLOCK,), is_decode=True, num_logits=1, slot=NO_SLOT)
    expected = None
    for exact, count in zip((0, *_TRIED_SIZES), _TRIED_SIZES, strict=False):
        logits = _trial(engine, pack([token] * count, engine.config.kv_block_size), engine.rules)
        expected = logits[0].copy() if expected is None else expected
        if (logits != expected).any():
            if exact <= _TRIED_SIZES[0]:
                raise _is_not_exact(engine.directory, exact)
            return exact
    return None


def _trial(engine: Engine, inputs: StepInputs, rules: StepRules) -> Logits:
    """Compute a step, each of whose rows must have a best token.

    Raises:
        EngineLoadError: A row has none.
    """
    logits = run_slowly(engine, inputs, rules)
    best = logits.max(axis=1)  # NaN if any number of the row is
    bad = np.flatnonzero(~np.isfinite(best))
    if not len(bad):
        return logits
    rows = bad[:_NUM_NAMED].tolist()
    raise EngineLoadError(
        f"the engine {engine.directory} computes numbers that are not finite: the largest logit is "
        f"{best[bad[0]]} in {len(bad)} of {len(logits)} rows: {rows}, of the tokens "
        f"{inputs.input_ids[inputs.logits_rows[rows]].tolist()}",
        "check the checkpoint and its quantization, whose weights or scales may be damaged or too large, and "
        "run 'draftproof engines'",
    )


def _is_not_exact(directory: Path, num_exact: int) -> EngineLoadError:
    found = f"a row other bits among {_TRIED_SIZES[1]} rows than among two"
    return EngineLoadError(
        f"answers of the target {directory} would depend on what else it computes: OpenVINO gives "
        f"{found if num_exact else 'equal rows other bits'}",
        "install g++ where engines are built, set 'linear: draftproof' for the target in the recipe, and run "
        "'draftproof engines'",
    )
