"""Tests of the row rule on a real engine, bit for bit: docs/decisions/exact-rows.md.

A decode token, which is computed as a row of its own, has exactly the logits of plain decoding, whatever
else the step computes. ``tests/breakages`` plants the two forms that the rule avoids.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from build.checkpoints.tensor_file import Tensor
from build.checkpoints.tensorrt_llm import EMBEDDING
from pipelines.available_resources import has_avx2_alone
from pipelines.errors import EngineLoadError
from pipelines.executor.engine import Engine
from pipelines.executor.engine_config import EngineConfig
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.executor.loading import load_engine
from pipelines.executor.step import Chunk, StepInputs, pack
from pipelines.manifest import EngineFiles
from tests.support.checkpoints import QUANTIZERS, build_checkpoint_engine
from tests.support.compiler import needs_compiler
from tests.support.tiny_engines import (
    build_tiny_engine,
    build_tiny_pair,
    hybrid,
    like_gpt_oss,
    random_weights,
    tiny_config,
)

NUM_BLOCKS = 200
BLOCKS_EACH = 8
PROMPT_LEN = 70
OUTPUT_LEN = 90

CACHES = ("int8, float32", "int8, float16", "int8, int8", "none, int8", "int4, float32")
OWN_ATTENTION = tuple(
    pytest.param(f"{form}, draftproof", marks=needs_compiler) for form in (*CACHES, "none, float32")
)
OWN_PRODUCTS = tuple(
    pytest.param(f"{form}, draftproof", marks=needs_compiler)
    for form in ("int8, float32, openvino", "int4, int8, openvino", "int8, float32, draftproof")
)
LONE_ROW_DIFFERS = ("INT8 head", "few inputs")
Logits = npt.NDArray[np.float32]


@pytest.fixture(
    scope="module", params=[*CACHES, *OWN_ATTENTION, *OWN_PRODUCTS, *LONE_ROW_DIFFERS, *QUANTIZERS]
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Build engines of weights rounded here, of a rounded head alone, and of each form of a checkpoint."""
    directory = tmp_path_factory.mktemp("row_rule")
    form, *settings = request.param.split(", ")
    if settings:
        keys = dict(zip(("kv_cache_dtype", "attention", "linear"), settings, strict=False))
        _, target = build_tiny_pair(directory, quantization=form, hidden_size=256, **keys)
    elif form == "few inputs":
        _, target = build_tiny_pair(directory, hidden_size=64)
    elif form == "INT8 head":  # whose inputs are not rounded, unlike those of int8
        target = build_checkpoint_engine(directory, None, lm_head="int8", hidden_size=256)
    else:
        target = build_checkpoint_engine(directory, form, hidden_size=256)
    return load_engine(EngineFiles(target), NUM_BLOCKS)


@pytest.fixture(scope="module", params=[*OWN_ATTENTION, OWN_PRODUCTS[-1]])
def own_engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Engine]:
    """Return engines with attention of our own, with one thread and with two."""
    names = ("quantization", "kv_cache_dtype", "attention", "linear")
    keys = dict(zip(names, request.param.split(", "), strict=False))
    _, target = build_tiny_pair(tmp_path_factory.mktemp("one_form"), hidden_size=256, **keys)
    files = EngineFiles(target)
    config = EngineConfig.read(files)
    return [
        load_engine(files, NUM_BLOCKS, dataclasses.replace(config, num_threads=count)) for count in (1, 2)
    ]


@pytest.fixture(scope="module")
def decoded(engine: Engine) -> Decoded:
    """Decode plainly once for all tests of an engine."""
    steps = Steps(engine, seed=17)
    prompt, output = steps.tokens(PROMPT_LEN), steps.tokens(OUTPUT_LEN)
    return Decoded(prompt, output, plain_decoding(steps, prompt, output))


class Decoded(NamedTuple):
    """A prompt, its output, and the logits behind the prompt and each token of the output."""

    prompt: npt.NDArray[np.int32]
    output: npt.NDArray[np.int32]
    logits: list[Logits]


class Steps:
    """Computes steps for numbered sequences, each with blocks of its own."""

    def __init__(self, engine: Engine, seed: int, blocks_each: int = BLOCKS_EACH) -> None:
        self.engine = engine
        self.blocks_each = blocks_each
        self.rng = np.random.default_rng(seed)

    def tokens(self, count: int) -> npt.NDArray[np.int32]:
        return self.rng.integers(1, self.engine.config.vocab_size, count).astype(np.int32)

    def piece(
        self, sequence: int, tokens: npt.NDArray[np.int32], start: int, rows: bool, logits: int
    ) -> Chunk:
        blocks = tuple(range(1 + sequence * self.blocks_each, 1 + (sequence + 1) * self.blocks_each))
        return Chunk(tokens, start, blocks, is_decode=rows, num_logits=logits)

    def run(self, *pieces: Chunk, num_tokens: int = 0) -> Logits:
        return self.engine.step(pack(pieces, self.engine.config.kv_block_size, num_tokens)).copy()


def plain_decoding(
    steps: Steps, prompt: npt.NDArray[np.int32], output: npt.NDArray[np.int32]
) -> list[Logits]:
    logits = [steps.run(steps.piece(0, prompt, 0, False, 1))[0]]
    for index in range(len(output)):
        logits.append(steps.run(steps.piece(0, output[index : index + 1], PROMPT_LEN + index, True, 1))[0])
    return logits


@pytest.mark.parametrize("with_decoding", [False, True])
@pytest.mark.parametrize("with_chunks", [False, True])
def test_verified_tokens_equal_plain_decoding_to_the_bit(
    engine: Engine, decoded: Decoded, with_decoding: bool, with_chunks: bool
) -> None:
    steps = Steps(engine, seed=18)
    rng = np.random.default_rng(3)
    prompt, output, expected = decoded
    assert np.array_equal(steps.run(steps.piece(0, prompt, 0, False, 1))[0], expected[0])
    for mate in range(1, 6):
        steps.run(steps.piece(mate, steps.tokens(40 + mate), 0, False, 0))
    done = 0
    while done < OUTPUT_LEN:
        accepted = output[done : done + int(rng.integers(1, 8))]
        rejected = steps.tokens(int(rng.integers(0, 4)))
        tokens = np.concatenate((accepted, rejected))
        mates = []
        if with_decoding:
            mates += [
                steps.piece(mate, steps.tokens(int(rng.integers(1, 6))), 40 + mate, True, 0)
                for mate in range(1, int(rng.integers(2, 7)))
            ]
        if with_chunks:
            mates.append(steps.piece(7, steps.tokens(int(rng.integers(2, 150))), 0, False, 0))
        split = int(rng.integers(0, len(mates) + 1))
        piece = steps.piece(0, tokens, PROMPT_LEN + done, True, len(tokens))
        logits = steps.run(*mates[:split], piece, *mates[split:])
        for offset in range(len(accepted)):
            assert np.array_equal(logits[offset], expected[done + offset + 1]), f"position {done + offset}"
        done += len(accepted)


def test_a_prompt_has_the_same_bits_however_it_is_cut(engine: Engine) -> None:
    steps = Steps(engine, seed=5)
    prompt = steps.tokens(PROMPT_LEN)
    expected = steps.run(steps.piece(0, prompt, 0, False, 1))
    for cut in (2, 31, 32, 33, 68):
        mates = [steps.piece(mate, steps.tokens(3), 0, True, 0) for mate in range(1, 4)]
        steps.run(*mates, steps.piece(0, prompt[:cut], 0, False, 0))
        logits = steps.run(steps.piece(0, prompt[cut:], cut, False, 1), *mates)
        assert np.array_equal(logits, expected), f"cut at {cut}"


@pytest.mark.parametrize("num_dummies", [1, 2, 3, 6, 60])
def test_dummy_rows_beside_a_prompt_change_no_bit(engine: Engine, decoded: Decoded, num_dummies: int) -> None:
    steps = Steps(engine, seed=11)
    prompt, output, expected = decoded.prompt, decoded.output[:8], decoded.logits[:9]
    for cut in (2, 33):
        steps.run(steps.piece(1, prompt[:cut], 0, False, 0), num_tokens=cut + num_dummies)
        rest = steps.piece(1, prompt[cut:], cut, False, 1)
        found = [steps.run(rest, num_tokens=PROMPT_LEN - cut + num_dummies)[0]]
        found.extend(steps.run(steps.piece(1, output, PROMPT_LEN, True, 8), num_tokens=8 + num_dummies))
        assert np.array_equal(np.stack(found), np.stack(expected)), f"cut at {cut}"


def test_with_attention_of_our_own_chunks_and_decode_tokens_have_the_same_bits(
    own_engines: list[Engine],
) -> None:
    """So blocks of an answer may be read as prompt. Contexts cross a cut at 256 positions."""
    for engine in own_engines:
        steps = Steps(engine, seed=17, blocks_each=12)
        prompt, output = steps.tokens(250), steps.tokens(18)
        expected = [steps.run(steps.piece(0, prompt, 0, False, 1))[0]]
        for index in range(len(output)):
            expected.append(steps.run(steps.piece(0, output[index : index + 1], 250 + index, True, 1))[0])
        for count in range(1, 10):
            mates = [
                steps.piece(mate, steps.tokens(4 * mate), 0, mate % 2 == 0, 0) for mate in range(1, count)
            ]
            for is_decode in (True, False):
                found = [
                    steps.run(*mates, steps.piece(0, part, 250 + index * count, is_decode, len(part)))
                    for index, part in enumerate(np.split(output, range(count, len(output), count)))
                ]
                assert np.array_equal(np.concatenate(found), expected[1:]), f"{count} tokens, {is_decode=}"
        for cut, whole in ((1, 150), (2, 100), (9, 0), (64, 0), (249, 0)):
            for is_decode in (True, False):
                steps.run(steps.piece(0, prompt[: max(whole, 2)], 0, False, 0))
                for at in range(whole, 250, cut):
                    last = steps.run(steps.piece(0, prompt[at : at + cut], at, is_decode, 1))
                assert np.array_equal(last, expected[:1]), f"prompt by {cut}, {is_decode=}"


@needs_compiler
@pytest.mark.parametrize("role", ["draft", "target"])
def test_with_all_operators_of_our_own_neither_threads_nor_a_lone_token_change_a_bit(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    directory = tmp_path_factory.mktemp("own_operators")
    pair = build_tiny_pair(directory, hidden_size=256, attention="draftproof", linear="draftproof")
    files = EngineFiles(pair[role == "target"])
    config = EngineConfig.read(files)
    engines = [
        load_engine(files, NUM_BLOCKS, dataclasses.replace(config, num_threads=count)) for count in (1, 2)
    ]
    found = [
        plain_decoding(steps, steps.tokens(PROMPT_LEN), steps.tokens(OUTPUT_LEN))
        for steps in (Steps(engine, seed=17) for engine in engines)
    ]
    assert np.array_equal(*found)
    monkeypatch.setattr("pipelines.executor.engine.with_sequences", lambda inputs, least: inputs)
    for least in (1, 2):
        rules = dataclasses.replace(engines[1].rules, least_tokens=least)
        monkeypatch.setattr(engines[1], "rules", rules)
        steps = Steps(engines[1], seed=17)
        again = plain_decoding(steps, steps.tokens(PROMPT_LEN), steps.tokens(OUTPUT_LEN))
        assert np.array_equal(again, found[0])


@needs_compiler
@pytest.mark.parametrize("role", ["draft", "target"])
def test_fixed_shapes_change_no_bit(tmp_path: Path, role: str) -> None:
    pair = build_tiny_pair(tmp_path, hidden_size=256, attention="draftproof", linear="draftproof")
    engine = load_engine(EngineFiles(pair[role == "target"]), NUM_BLOCKS)
    found = []
    for _ in range(2):
        steps = Steps(engine, seed=17)
        prompt, output = steps.tokens(PROMPT_LEN), steps.tokens(OUTPUT_LEN)
        rows = [plain_decoding(steps, prompt, output)]
        for count in range(1, 11):
            rows.append(steps.run(steps.piece(0, output[:count], PROMPT_LEN, True, count)))
        found.append(np.concatenate(rows))
        while engine.compile_small_network():
            engine.adopt_small_networks()
    assert sorted(engine._small_networks) == (
        [(1, 1, 2), (2, 1, 2), (2, 2, 2), (3, 3, 3), (4, 4, 4)]
        if role == "draft"
        else [(count, count, max(count, 2)) for count in range(1, 10)]
    )
    assert np.array_equal(*found)


@pytest.mark.skipif(not has_avx2_alone(), reason="with AVX-512, rows have the same bits beside any others")
def test_an_engine_whose_keys_have_a_scale_per_block_is_refused(tmp_path: Path) -> None:
    """The plugin's default for 8 bits: a rejected draft token changes the scale of the tokens before it."""
    _, target = build_tiny_pair(tmp_path, hidden_size=256, kv_cache_dtype="int8")
    files = EngineFiles(target)
    config = EngineConfig.read(files)
    by_channel = {**config.compile_properties, "KEY_CACHE_QUANT_MODE": "BY_CHANNEL"}
    with pytest.raises(EngineLoadError, match="other bits among 9 rows than among two"):
        load_engine(files, NUM_BLOCKS, dataclasses.replace(config, compile_properties=by_channel))


@pytest.mark.skipif(not has_avx2_alone(), reason="OpenVINO's products are known to be inexact on AVX2 alone")
def test_steps_of_a_wide_target_are_as_small_as_openvino_is_exact(tmp_path: Path) -> None:
    draft, target = build_tiny_pair(tmp_path, hidden_size=1024)
    assert load_engine(EngineFiles(target), 2).rules.max_num_tokens == 64
    assert (
        load_engine(EngineFiles(draft), 2).rules.max_num_tokens is None
    )  # its proposals may depend on others
    limits = ExecutorLimits(
        max_batch_size=1, max_num_tokens=512, max_seq_len=32, max_queue_size=0, num_kv_blocks=4
    )
    assert Executor.load(target, limits).limits.max_num_tokens == 64


@pytest.mark.parametrize(("most", "expected"), [(128, None), (127, 64), (63, 9), (8, None)])
def test_sizes_of_steps_are_compared_when_a_target_is_loaded(
    most: int, expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, target = build_tiny_pair(tmp_path, hidden_size=64)
    run = Engine.run

    def inexact(engine: Engine, inputs: StepInputs, *others: Any) -> Logits:
        return run(engine, inputs, *others) + np.float32(len(inputs.logits_rows) > most)

    monkeypatch.setattr(Engine, "run", inexact)
    if most >= 9:
        assert load_engine(EngineFiles(target), 2).rules.max_num_tokens == expected
    else:
        with pytest.raises(EngineLoadError, match="other bits among 9 rows than among two"):
            load_engine(EngineFiles(target), 2)


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        (lambda count: np.arange(count), "gives equal rows other bits"),
        (lambda count: np.full(count, np.nan), r"logit is nan in 7 of 7 rows: \[0, 1, 2, 3, 4, 5, 6\]"),
        (lambda count: np.where(np.arange(count) == 5, np.inf, 0), r"is inf in 1 of 7 rows: \[5\], .* \[5\]"),
        (lambda count: np.full(count, np.nan if count == 64 else 0), "logit is nan in 64 of 64 rows"),
    ],
)
def test_a_target_that_computes_no_exact_numbers_is_refused_as_such(
    added: Callable[[int], Any], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, target = build_tiny_pair(tmp_path, hidden_size=64)
    run = Engine.run

    def broken(engine: Engine, inputs: StepInputs, *others: Any) -> Logits:
        logits = run(engine, inputs, *others)
        return logits + added(len(logits))[:, np.newaxis].astype(np.float32)

    monkeypatch.setattr(Engine, "run", broken)
    with pytest.raises(EngineLoadError, match=problem):
        Executor.load(target, ExecutorLimits(1, 64, 32, 0, 4))


_BAD_TOKEN = 1999


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("openvino, openvino, float32", "dense"),
        *(
            pytest.param(f"draftproof, {linear}, {dtype}", kind, marks=needs_compiler)
            for linear, dtype, kind in (
                ("openvino", "float16", "dense"),
                ("draftproof", "int8", "dense"),
                ("draftproof", "float32", "gpt_oss"),
                ("draftproof", "float32", "hybrid"),
            )
        ),
    ],
)
def test_a_draft_token_that_is_no_number_changes_no_token_before_it(
    form: str, kind: str, tmp_path: Path
) -> None:
    """Nor any later one, if it is rejected."""
    attention, linear, kv_cache_dtype = form.split(", ")
    settings = {"attention": attention, "linear": linear, "kv_cache_dtype": kv_cache_dtype}
    config = tiny_config(share_embedding_table=False)
    weights = random_weights(config)
    table = weights[EMBEDDING].to_float32().copy()
    table[_BAD_TOKEN] = np.nan
    weights = {**weights, EMBEDDING: Tensor.from_float32(table, weights[EMBEDDING].dtype)}
    change = {"dense": None, "gpt_oss": like_gpt_oss, "hybrid": hybrid}[kind]
    built = build_tiny_engine(tmp_path, config, weights, change=change, **settings)
    engine = load_engine(EngineFiles(built), 4)
    ids = np.random.default_rng(0).integers(1, _BAD_TOKEN, 60).astype(np.int32)
    slot = 0 if engine.config.state_bytes else None

    def step(tokens: Any, start: int, *, is_decode: bool) -> Logits:
        chunk = Chunk(np.array(tokens, np.int32), start, (1, 2), is_decode, len(tokens), slot=slot)
        return engine.step(pack([chunk], engine.config.kv_block_size)).copy()

    found = []
    for draft_id in (5, _BAD_TOKEN):
        step(ids[:40], 0, is_decode=False)
        together = step([*ids[40:43], draft_id, 7, 8], 40, is_decode=True)
        found.append(np.concatenate((together[:3], step([6], 43, is_decode=True))))
    assert np.isnan(together[3:]).all()
    assert np.array_equal(*found)
