"""Every kind of draft, with a short and a whole output head, from files and directories, asked once."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.engines import build_engines
from build.gguf.translate import translate
from pipelines.errors import CheckpointError, DraftproofError, RecipeError
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from tests.golden.families import save_family
from tests.support.compiler import needs_compiler
from tests.support.gguf_files import CONTROL, byte_pairs, convert, pieces, write_gguf
from tests.support.hugging_face_checkpoints import change_config, make_hugging_face, pair_recipe
from tests.support.recording_engine import request, rounds_of, tokens_of
from tests.support.recording_engine import run as run_loop
from tests.support.trained_heads import HIDDEN, VOCAB, RandomHead
from tests.unit.build.test_mtp import mtp_recipe

LIMITS = ExecutorLimits(
    max_batch_size=2, max_num_tokens=64, max_seq_len=128, max_queue_size=4, num_kv_blocks=32
)
PAIRS = {
    "draft model": ("target", "draft"),
    "another tokenizer": ("target", "other"),
    "trained head": ("target", "head"),
    "trained head in a file": ("target", "head_in_a_file"),
    "hybrid target": ("hybrid", "small"),
    "hybrid draft": ("small", "hybrid"),
    "hybrid with its own module": ("mtp", "mtp"),
}
NO_GGUF = (CheckpointError, "general.architecture=.*; supported: llama")
REFUSED: dict[tuple[str, str, str], tuple[type[DraftproofError], str]] = {
    ("trained head", "short", "directory"): (RecipeError, "trained head, .* draft.lm_head_rows"),
    ("trained head", "short", "gguf"): (RecipeError, "trained head, .* draft.lm_head_rows"),
    **{("hybrid draft", rows, "directory"): (RecipeError, "recurrent layers") for rows in ("short", "whole")},
    **{
        (pair, rows, "gguf"): NO_GGUF
        for pair in ("hybrid target", "hybrid draft", "hybrid with its own module", "trained head in a file")
        for rows in ("short", "whole")
    },
}


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with each model as ``NAME`` and ``NAME.gguf``."""
    folder = tmp_path_factory.mktemp("pairs")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("build.recipe.TRANSLATED", folder / "translated")
        tokens = byte_pairs(VOCAB)  # the last is special, and has a number that no token of ``other`` has
        tokens["tokenizer.ggml.tokens"][-1] = "<|last|>"
        tokens["tokenizer.ggml.token_type"][-1] = CONTROL
        other = pieces()
        for name, tokenizer, size, sizes in (
            ("target", tokens, VOCAB, {"num_hidden_layers": 6}),
            ("draft", tokens, VOCAB, {"seed": 1}),
            ("other", other, len(other["tokenizer.ggml.tokens"]), {"seed": 2}),
            ("small", byte_pairs(512), 512, {"seed": 3}),
        ):
            directory = make_hugging_face(folder / name, hidden_size=HIDDEN, vocab_size=size, **sizes)
            made = translate(convert(directory, folder / f"{name}.gguf", **tokenizer), folder / "translated")
            for document in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
                shutil.copy(made / document, directory)
        RandomHead().save(folder / "head", "specforge")
        mtp_recipe(folder / "of_mtp")
        shutil.move(folder / "of_mtp" / "target", folder / "mtp")
        save_family("qwen3_5_text", folder / "hybrid")
        shutil.copy(folder / "small" / "tokenizer.json", folder / "hybrid")
        change_config(folder / "hybrid", eos_token_id=1)
        for name, architecture in (("hybrid", "qwen35"), ("mtp", "qwen35"), ("head_in_a_file", "eagle3")):
            write_gguf(folder / f"{name}.gguf", {"general.architecture": architecture}, {})
        yield folder


def _cases() -> Iterator[Any]:
    for pair, rows, form in itertools.product(PAIRS, ("short", "whole"), ("directory", "gguf")):
        if (pair, form) != ("trained head in a file", "directory"):
            is_long = (rows, form) == ("whole", "gguf") and (pair, rows, form) not in REFUSED
            marks = [needs_compiler] * ("hybrid" in pair) + [pytest.mark.long] * is_long
            yield pytest.param(pair, rows, form, marks=marks)


@pytest.mark.parametrize(("pair", "rows", "form"), list(_cases()))
def test_a_pair_is_built_and_answers_as_its_target_or_is_refused(
    pair: str, rows: str, form: str, folder: Path
) -> None:
    checkpoints = [_named(folder, name, form) for name in PAIRS[pair]]
    target, draft = ({"checkpoint": str(path), "num_threads": 2} for path in checkpoints)
    draft |= {"quantization": "int4", "lm_head": "int4", **({"lm_head_rows": 100} if rows == "short" else {})}
    if "hybrid" in pair:
        target["attention"] = "draftproof"
    recipe = pair_recipe(folder, draft, target)
    if (refused := REFUSED.get((pair, rows, form))) is not None:
        with pytest.raises(refused[0], match=refused[1]):
            build_engines(recipe, folder / "engines", lambda line: None)
        return
    built = build_engines(recipe, folder / "engines", lambda line: None)
    executors = [Executor.load(Path(built[role]), LIMITS) for role in ("draft", "target")]
    alone = Executor.load(Path(built["target"]), LIMITS)
    asked = request(list(range(3, 23)), 16)
    found = run_loop(executors, lambda: rounds_of(asked, executors[0].complete, executors[1], 3))
    assert sum(part.num_draft_tokens for part in found) > 10
    answer = run_loop([alone], lambda: alone.complete(asked)).token_ids
    np.testing.assert_array_equal(tokens_of(found), answer)


def _named(folder: Path, name: str, form: str) -> Any:
    is_file = form == "gguf" and name != "head"
    return folder / f"{name}.gguf" if is_file else folder / name
