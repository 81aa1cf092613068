"""Tests of the parts of the demonstration pair's training that need torch."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is installed for training only", exc_type=ImportError)

from build.checkpoints.tensor_file import read_tensors  # noqa: E402
from tools.demo_pair import model  # noqa: E402
from tools.demo_pair.batches import plan  # noqa: E402
from tools.demo_pair.generate import GREEDY, generate, gumbel_noise  # noqa: E402
from tools.demo_pair.optimizer import Optimizer  # noqa: E402

pytestmark = [pytest.mark.xdist_group("torch"), pytest.mark.long]

SMALL = model.ModelConfig(
    layers=3, hidden=32, heads=4, kv_heads=2, head_size=8, feed_forward=48, vocabulary=96
)


@pytest.fixture
def weights():
    generator = torch.Generator().manual_seed(1)
    weights = model.initial_weights(SMALL, generator)
    for name, tensor in weights.items():
        if "dense" in name or "proj" in name:
            tensor.normal_(std=0.2, generator=generator)
    weights[model.EMBEDDING].mul_(10)
    return weights


def test_cached_generation_equals_the_whole_pass(weights):
    prompts = torch.arange(10).view(2, 5)
    text = generate(weights, SMALL, prompts, 7, GREEDY)
    whole = torch.cat([prompts, text], dim=1)
    logits = model.forward(weights, SMALL, whole[:, :-1], model.rotary_tables(SMALL, whole.shape[1] - 1))
    assert torch.equal(logits[:, 4:].argmax(dim=-1), text)


def test_noise_depends_on_seed_and_position_only(weights):
    noise = gumbel_noise(2, 96, seed=3)
    assert torch.equal(noise(4), gumbel_noise(2, 96, seed=3)(4))
    assert not torch.equal(noise(4), noise(5))
    prompts = torch.arange(10).view(2, 5)
    assert torch.equal(
        generate(weights, SMALL, prompts, 6, 0.8, noise), generate(weights, SMALL, prompts, 6, 0.8, noise)
    )


def test_early_exit_is_the_draft(weights):
    weights[model.EXIT_NORM] = torch.full((SMALL.hidden,), 1.5)
    target, draft = model.split_pair(weights, 2)
    tokens = torch.arange(12).view(2, 6)
    tables = model.rotary_tables(SMALL, 6)
    both = model.forward_both(weights, SMALL, 2, tokens, tables)
    shape = model.ModelConfig(**{**SMALL.__dict__, "layers": 2})
    assert torch.equal(both[0], model.forward(target, SMALL, tokens, tables))
    assert torch.equal(both[1], model.forward(draft, shape, tokens, tables))


def test_export_keeps_what_bfloat16_holds(weights, tmp_path):
    model.export_model(tmp_path / "m", SMALL, weights, '{"version": "1.0"}')
    stored = read_tensors(tmp_path / "m" / "rank0.safetensors")
    assert stored.keys() == weights.keys()
    for name, tensor in model.rounded(weights).items():
        assert np.array_equal(stored[name].to_float32(), tensor.numpy())
    assert json.loads((tmp_path / "m" / "tokenizer.json").read_text())["version"] == "1.0"


def test_optimizer_lowers_a_loss(weights):
    for tensor in weights.values():
        tensor.requires_grad_(True)
    optimizer = Optimizer(weights, SMALL)
    tokens = torch.arange(24).view(2, 12)
    tables = model.rotary_tables(SMALL, 11)
    losses = []
    for _ in range(15):
        logits = model.forward(weights, SMALL, tokens[:, :-1], tables)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step(4e-3, 3e-3)
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


def test_plan_is_fixed_by_its_seed_and_reads_each_source_in_its_share():
    sources = [(np.arange(0, 1000), 0.75), (np.arange(5000, 6000), 0.25)]
    windows = plan(sources, steps=5, batch=4, context=9, seed=7)
    assert windows.shape == (5, 4, 10)
    assert torch.equal(windows, plan(sources, steps=5, batch=4, context=9, seed=7))
    assert int((windows[..., 0] >= 5000).sum()) == 5
    assert bool((windows.diff(dim=-1) == 1).all())
