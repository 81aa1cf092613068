"""Tests of trained heads: what they compute beside torch, how they are read, and which are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.checkpoints.tensor_file import Tensor
from build.engines import build_engines, checkpoint_digests, engine_identity
from build.networks.weight_only import apply_quantization
from build.own_pair import write_recipe
from build.preflight import check_recipe, check_settings, engine_memory
from build.recipe import Recipe, load_recipe
from pipelines.errors import CheckpointError, DraftproofError, IncompatiblePairError, RecipeError
from pipelines.executor.engine import Engine
from pipelines.executor.loading import load_engine
from pipelines.executor.step import Chunk, pack
from pipelines.manifest import EngineFiles
from tests.support.checkpoints import make_checkpoint
from tests.support.compiler import needs_compiler
from tests.support.hugging_face_checkpoints import change_weights, make_hugging_face, pair_recipe
from tests.support.quantized_checkpoints import quantize_checkpoint
from tests.support.trained_heads import HIDDEN, VOCAB, RandomHead
from tests.unit.build.test_openvino_engine import engine_of
from tests.unit.build.test_quantized_hugging_face import CASES

HEADS = {
    "specforge": RandomHead(),
    "specforge whole vocabulary": RandomHead(heads=2, kv_heads=2, size=64, rows=VOCAB, norms_residual=True),
    "speculators": RandomHead(norms_residual=True, layers=(0, 6)),
    "speculators norms of heads": RandomHead(has_head_norms=True, kv_heads=4),
    "angelslim": RandomHead(size=80, kv_heads=1, theta=1e6),
}
NUM_PROMPT, NUM_KNOWN, NUM_TOKENS = 24, 30, 34  # as a chunk, with features, in all


def make_target(folder: Path) -> Path:
    return make_hugging_face(folder / "target", hidden_size=HIDDEN, num_hidden_layers=6)


def recipe_of(folder: Path, draft: dict[str, Any] | None = None, **target: Any) -> Recipe:
    sections: list[dict[str, Any]] = [
        {"checkpoint": str(folder / role), "quantization": "none", "num_threads": 2}
        for role in ("head", "target")
    ]
    return pair_recipe(folder, {**sections[0], **(draft or {})}, {**sections[1], **target})


@pytest.fixture(scope="module", name="target")
def _target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("pair"))


def run(engine: Engine, ids: Any, features: Any) -> tuple[Any, Any]:
    """Compute a prompt and rows with features, then drafted tokens, the first beside a row with features."""
    logits, hidden = [], []

    def step(*chunks: Chunk) -> Any:
        logits.append(engine.step(pack(chunks, engine.config.kv_block_size)).copy())
        assert engine.states is not None
        hidden.append(engine.states.copy())
        return hidden[-1][-1:]

    def chunk(begin: int, end: int, **more: Any) -> Chunk:
        return Chunk(ids[begin:end], begin, (3, 5), begin > 0, end - begin, **more)

    step(chunk(0, NUM_PROMPT, features=features[:NUM_PROMPT]))
    last = step(chunk(NUM_PROMPT, NUM_KNOWN, features=features[NUM_PROMPT:]))
    again = chunk(NUM_KNOWN - 1, NUM_KNOWN, features=features[-1:])
    last = step(again, chunk(NUM_KNOWN, NUM_KNOWN + 1, hidden=last))
    logits[-1], hidden[-1] = logits[-1][1:], hidden[-1][1:]
    for position in range(NUM_KNOWN + 1, NUM_TOKENS):
        last = step(chunk(position, position + 1, hidden=last))
    return np.concatenate(logits), np.concatenate(hidden)


@pytest.mark.parametrize(
    ("name", "quantization", "linear"),
    [
        *((name, "none", "openvino") for name in HEADS),
        ("specforge", "int8", "openvino"),
        pytest.param("specforge", "int8", "draftproof", marks=needs_compiler),
        pytest.param("speculators", "int4", "draftproof", marks=needs_compiler),
    ],
)
def test_a_head_returns_what_torch_does(
    name: str, quantization: str, linear: str, target: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    head = HEADS[name]
    (tmp_path / "target").symlink_to(target)
    head.save(tmp_path / "head", name.split()[0])
    source, its_target = check_recipe(recipe_of(tmp_path))
    assert its_target.network.config.feature_layers == head.layers
    network = source.network.read()
    lm_head = "checkpoint" if quantization == "none" else quantization
    quantized = apply_quantization(network, quantization, lm_head)
    engine = engine_of(tmp_path, quantized, dynamic=quantization != "none", linear=linear)
    rng = np.random.default_rng(1)
    ids = rng.integers(0, VOCAB, NUM_TOKENS).astype(np.int32)
    features = rng.standard_normal((NUM_KNOWN, len(head.layers) * HIDDEN)).astype(np.float32)
    logits, hidden = run(engine, ids, features)
    expected, expected_hidden = head.reference(network.embedding.to_float32(), ids, features)
    share = {"none": 3e-6, "int8": 0.05, "int4": 0.3}[quantization]  # of the standard deviation
    never = np.isneginf(expected)
    assert (np.isneginf(logits) == never).all()
    assert never.mean() == pytest.approx(1 - head.rows / VOCAB)
    for found, right in ((logits[~never], expected[~never]), (hidden, expected_hidden)):
        assert np.abs(found - right).max() < 20 * share * right.std()
        assert np.sqrt(np.mean((found - right) ** 2)) < share * right.std()


@pytest.mark.parametrize("layers", [(0, 2, 1), (2,)])
def test_features_enter_their_layers_and_change_no_bit_of_the_logits(
    layers: tuple[int, ...], tmp_path: Path
) -> None:
    network = make_checkpoint(tmp_path / "checkpoint")

    def outputs(folder: str, count: int, *of: int) -> tuple[Any, Any]:
        (tmp_path / folder).mkdir()
        config = replace(network.config, layers=network.config.layers[:count], feature_layers=of)
        engine = engine_of(tmp_path / folder, replace(network, config=config))
        chunk = Chunk(np.arange(9, dtype=np.int32), 0, (1,), is_decode=False, num_logits=9)
        return engine.step(pack([chunk], engine.config.kv_block_size)), engine.states

    logits, states = outputs("whole", 2, *layers)
    np.testing.assert_array_equal(logits, outputs("plain", 2)[0])
    for found, layer in zip(np.split(states, len(layers), axis=1), layers, strict=True):
        if layer == 0:
            np.testing.assert_array_equal(found, network.embedding.to_float32()[:9])
        else:  # a network that ends there has these logits
            mean_square = (found**2).mean(1, keepdims=True)
            normed = found / np.sqrt(mean_square + network.config.norm_epsilon) * network.final_norm
            shorter, _ = outputs(str(layer), layer)
            np.testing.assert_allclose(normed @ network.lm_head.to_float32().T, shorter, atol=1e-4)


def test_a_head_may_read_embedding_and_output_rows_of_its_target(target: Path, tmp_path: Path) -> None:
    (tmp_path / "target").symlink_to(target)
    RandomHead(rows=VOCAB).save(tmp_path / "head", "specforge")
    change_weights(tmp_path / "head", lambda tensors: tensors.pop("lm_head.weight"))
    source, its_target = check_recipe(recipe_of(tmp_path))
    network, theirs = source.network.read(), its_target.network.read()
    assert network.embedding.data.tobytes() == theirs.embedding.data.tobytes()
    assert network.lm_head.weight.data.tobytes() == theirs.lm_head.weight.data.tobytes()
    own = Tensor("F32", (VOCAB, HIDDEN), np.ones((VOCAB, HIDDEN), np.float32))
    change_weights(tmp_path / "head", lambda tensors: tensors.update({"embed_tokens.weight": own}))
    assert (check_recipe(recipe_of(tmp_path))[0].network.read().embedding.data == 1).all()


def test_a_head_may_be_stored_in_four_bits(target: Path, tmp_path: Path) -> None:
    (tmp_path / "target").symlink_to(target)
    HEADS["specforge"].save(tmp_path / "head", "specforge")
    _, form, pack_weight, _ = CASES["compressed-tensors"]
    values = quantize_checkpoint(tmp_path / "head", form, pack_weight, "down_proj", "lm_head")
    layer = check_recipe(recipe_of(tmp_path))[0].network.read().layer(0)
    assert (layer.fc.bits, layer.qkv[0].weight.shape[1]) == (4, 2 * HIDDEN)
    np.testing.assert_array_equal(layer.fc.to_float32(), values["midlayer.mlp.gate_proj.weight"])


def test_engines_of_a_head_and_its_target_are_built(target: Path, tmp_path: Path) -> None:
    (tmp_path / "target").symlink_to(target)
    HEADS["specforge"].save(tmp_path / "head", "specforge")
    recipe = recipe_of(tmp_path, {"quantization": "int8", "linear": "openvino"}, linear="openvino")
    assert check_settings(recipe)[0].network.config.feature_layers == (2, 3, 3)
    built = build_engines(recipe, tmp_path / "engines", lambda _: None)
    descriptions = [
        json.loads((Path(built[role]) / "engine.json").read_text()) for role in ("draft", "target")
    ]
    for description in descriptions:
        assert (description["feature_layers"], description["hidden_size"]) == ([2, 3, 3], HIDDEN)
        assert description["vocab_size"] == VOCAB
    assert [each.get("reads_features") for each in descriptions] == [True, None]
    planned = engine_memory(recipe.draft, check_recipe(recipe)[0]).weights
    assert (Path(built["draft"]) / "engine.bin").stat().st_size == pytest.approx(planned, rel=0.1)
    engine = load_engine(EngineFiles(Path(built["draft"])), 4)
    assert engine.config.num_layers == 1
    names = {path.name for path in Path(built["draft"]).iterdir()}
    assert "tokenizer.json" in names


def test_try_writes_the_recipe_of_a_head(target: Path, tmp_path: Path) -> None:
    HEADS["speculators"].save(tmp_path / "head", "speculators")
    path, lines = tmp_path / "own.yaml", list[str]()
    write_recipe(str(target), str(tmp_path / "head"), path, "auto", None, 32e9, lines.append)
    recipe = load_recipe(path)
    assert (recipe.draft.lm_head_rows, recipe.serving.max_seq_len) == (None, 2048)
    assert not any("warning" in line for line in lines)


def test_only_pairs_with_a_head_have_it_in_their_identity(target: Path, tmp_path: Path) -> None:
    (tmp_path / "target").symlink_to(target)
    HEADS["specforge"].save(tmp_path / "head", "specforge")
    recipe = recipe_of(tmp_path, linear="openvino")
    sources = check_recipe(recipe)
    digests = checkpoint_digests(sources, lambda _: None)
    engine = replace(recipe.target, linear="openvino")
    draft, its_target = (engine_identity("target", engine, each, VOCAB, digests) for each in sources)
    alone = {"checkpoint": str(tmp_path / "target")}
    plain = check_recipe(pair_recipe(tmp_path, alone, alone))[1]
    without = engine_identity("target", engine, plain, VOCAB, digests)
    assert not {"feature_layers", "target"} & set(without)
    assert its_target == {**without, "feature_layers": [2, 3, 3]}
    assert draft["target"] == {path.name: digests[path] for path in plain.network.files}


def _drop(name: str) -> Any:
    return lambda tensors: tensors.pop(name)


def _raise_offsets(tensors: dict[str, Tensor]) -> None:
    tensors["d2t"].data[-1] = VOCAB


@pytest.mark.parametrize(
    ("changes", "damage", "draft", "error", "words"),
    [
        ({"hidden_size": 256}, None, {}, IncompatiblePairError, "hidden_size=256"),
        ({"target_hidden_size": 256}, None, {}, IncompatiblePairError, "target_hidden_size=256"),
        ({"vocab_size": 4096}, None, {}, IncompatiblePairError, "vocab_size=4096"),
        ({"max_position_embeddings": 128}, None, {}, IncompatiblePairError, "max_seq_len"),
        ({"num_hidden_layers": 2}, None, {}, CheckpointError, "num_hidden_layers=2"),
        ({"rope_scaling": {"rope_type": "mrope"}}, None, {}, CheckpointError, "mrope"),
        ({"head_dim": 64}, None, {}, CheckpointError, "q_proj"),
        ({}, _drop("fc.weight"), {}, CheckpointError, "missing fc.weight"),
        (
            {},
            _drop("midlayer.hidden_norm.weight"),
            {},
            CheckpointError,
            "missing midlayer.hidden_norm.weight",
        ),
        ({}, _drop("d2t"), {}, CheckpointError, "missing d2t"),
        ({}, _drop("lm_head.weight"), {}, CheckpointError, "missing lm_head.weight"),
        ({}, _raise_offsets, {}, CheckpointError, "d2t names"),
        ({}, None, {"lm_head_rows": 100}, RecipeError, "draft.lm_head_rows"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(
    changes: dict[str, Any],
    damage: Any,
    draft: dict[str, Any],
    error: type[DraftproofError],
    words: str,
    target: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "target").symlink_to(target)
    HEADS["specforge"].save(tmp_path / "head", "specforge", **changes)
    if damage is not None:
        change_weights(tmp_path / "head", damage)
    with pytest.raises(error, match=words):
        check_recipe(recipe_of(tmp_path, draft))


def test_a_target_with_too_few_layers_is_refused(tmp_path: Path) -> None:
    make_hugging_face(tmp_path / "target", hidden_size=HIDDEN)
    HEADS["angelslim"].save(tmp_path / "head", "angelslim")
    with pytest.raises(IncompatiblePairError, match="2 layers of the target"):
        check_recipe(recipe_of(tmp_path))
