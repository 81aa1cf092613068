"""The MTP module of a hybrid, named as the draft of its own checkpoint, beside transformers' layer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.checkpoints.tensor_file import Float32Array, Tensor
from build.preflight import check_recipe, check_settings
from build.recipe import Recipe
from pipelines.errors import CheckpointError, DraftproofError, RecipeError
from tests.golden.families import config_of, save_family, weights_of
from tests.support.hugging_face_checkpoints import (
    change_config,
    change_weights,
    make_hugging_face,
    pair_recipe,
)
from tests.unit.build.test_openvino_engine import engine_of
from tests.unit.build.test_trained_head import NUM_KNOWN, NUM_TOKENS, run

HYBRID, HIDDEN, VOCAB = "qwen3_5_text", 256, 512


def module() -> dict[str, Float32Array]:
    """Return random weights under the published names: a layer like that with attention, and four more."""
    layer = "model.layers.3."
    shapes = {name: each.shape for name, each in weights_of(HYBRID).items() if name.startswith(layer)}
    shapes = {name.replace(layer, "mtp.layers.0."): list(shape) for name, shape in shapes.items()}
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        shapes[f"mtp.{name}.weight"] = [HIDDEN]
    shapes["mtp.fc.weight"] = [HIDDEN, 2 * HIDDEN]
    return weights_of(HYBRID, shapes)


def mtp_recipe(folder: Path, **changes: Any) -> Recipe:
    target, tokenizer = folder / "target", make_hugging_face(folder / "other", vocab_size=VOCAB)
    save_family(HYBRID, target)
    shutil.copy(tokenizer / "tokenizer.json", target)
    change_config(target, **{"eos_token_id": 0, "mtp_num_hidden_layers": 1, **changes})
    tensors = {name: Tensor("F32", each.shape, each) for name, each in module().items()}
    change_weights(target, lambda stored: stored.update(tensors))
    engine = {"checkpoint": str(target), "quantization": "none"}
    return pair_recipe(folder, engine, {**engine, "attention": "draftproof"})


def reference(ids: Any, features: Float32Array) -> tuple[Float32Array, Float32Array]:
    """Return logits and hidden states of all positions, each computed anew with transformers' layer."""
    import torch
    from transformers.models.qwen3_5 import modeling_qwen3_5 as theirs

    config = theirs.Qwen3_5TextConfig(**config_of(HYBRID))
    config._attn_implementation = "eager"
    of_target = {name: torch.tensor(each) for name, each in weights_of(HYBRID).items()}
    of_module = {name: torch.tensor(each) for name, each in module().items()}
    layer = theirs.Qwen3_5DecoderLayer(config, 3).eval()
    prefix = "mtp.layers.0."
    layer.load_state_dict(
        {name.removeprefix(prefix): each for name, each in of_module.items() if name.startswith(prefix)}
    )
    rotary = theirs.Qwen3_5TextRotaryEmbedding(config)

    def normed(x: Any, gain: Any) -> Any:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + config.rms_norm_eps) * (1 + gain)

    states = list(normed(torch.tensor(features), of_target["model.norm.weight"]))
    outputs = []
    with torch.no_grad():
        embedded = of_target["model.embed_tokens.weight"][torch.tensor(np.asarray(ids, np.int64))]
        for count in range(1, len(ids) + 1):
            state = normed(torch.stack(states[:count]), of_module["mtp.pre_fc_norm_hidden.weight"])
            tokens = normed(embedded[:count], of_module["mtp.pre_fc_norm_embedding.weight"])
            x = (torch.cat([tokens, state], -1) @ of_module["mtp.fc.weight"].T)[None]
            mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
            made = layer(x, rotary(x, torch.arange(count)[None]), attention_mask=mask)
            outputs.append(normed(made[0, -1], of_module["mtp.norm.weight"]))
            if count >= len(features):
                states.append(outputs[-1])
        hidden = torch.stack(outputs)
        return (hidden @ of_target["lm_head.weight"].T).numpy(), hidden.numpy()


@pytest.mark.long
@pytest.mark.xdist_group("torch")
@pytest.mark.filterwarnings("ignore")
def test_it_returns_what_its_layer_does_in_transformers(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    ids = rng.integers(0, VOCAB, NUM_TOKENS).astype(np.int32)
    features = 3 * rng.standard_normal((NUM_KNOWN, HIDDEN)).astype(np.float32)
    source, target = check_recipe(mtp_recipe(tmp_path))
    assert source.network.config.feature_layers == target.network.config.feature_layers == (4,)
    expected = reference(ids, features)
    found = run(engine_of(tmp_path, source.network.read()), ids, features)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < 1e-4 * np.abs(theirs).max()


def test_settings_alone_say_what_it_reads(tmp_path: Path) -> None:
    recipe = mtp_recipe(tmp_path)
    assert [each.network.config for each in check_settings(recipe)] == [
        each.network.config for each in check_recipe(recipe)
    ]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"mtp_num_hidden_layers": 0}, RecipeError, "recurrent layers"),
        ({"mtp_num_hidden_layers": 2}, CheckpointError, "mtp_num_hidden_layers=2"),
        (
            {"layer_types": ["linear_attention"] * 4},
            CheckpointError,
            "4 recurrent layers, and none with full_attention",
        ),
    ],
)
def test_a_module_that_cannot_draft_is_refused(
    changes: dict[str, Any], error: type[DraftproofError], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        check_recipe(mtp_recipe(tmp_path, **changes))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    recipe = mtp_recipe(tmp_path)
    change_weights(tmp_path / "target", lambda tensors: tensors.pop("mtp.fc.weight"))
    with pytest.raises(CheckpointError, match=r"mtp\.fc\.weight"):
        check_recipe(recipe)
