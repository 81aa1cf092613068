"""Tests of the tool that trains heads: from what a tiny target writes to a head in the published format."""

from __future__ import annotations

import json
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is installed for training only", exc_type=ImportError)

from safetensors.numpy import load_file  # noqa: E402
from torch.nn import functional  # noqa: E402

from build.checkpoints.checkpoint import network_from_checkpoint, read_checkpoint  # noqa: E402
from build.hugging_face.config import read_form  # noqa: E402
from build.hugging_face.weights import Weights  # noqa: E402
from build.quantization.corpus import Document  # noqa: E402
from pipelines.executor.step import StepInputs  # noqa: E402
from tools.demo_pair import model  # noqa: E402
from tools.train_head import collect  # noqa: E402
from tools.train_head import train as training  # noqa: E402
from tools.train_head.head import begin  # noqa: E402
from tools.train_head.shrink import shrink  # noqa: E402

pytestmark = [pytest.mark.xdist_group("torch"), pytest.mark.long]

CONFIG = model.ModelConfig(
    layers=6, hidden=32, heads=4, kv_heads=2, head_size=8, feed_forward=48, vocabulary=96
)
END = 95


class TorchEngine:
    """Computes a text again from its first token in each step; the first block tells texts apart."""

    def __init__(self, weights):
        self.config = SimpleNamespace(kv_block_size=16, end_ids=(END,), state_bytes=0)
        self.states = None
        self.weights = weights
        self.texts: dict[int, list[int]] = {}

    def compute(self, token_ids):
        x = functional.embedding(torch.tensor([token_ids]), self.weights[model.EMBEDDING])
        tables, inputs = model.rotary_tables(CONFIG, len(token_ids)), []
        for layer in range(CONFIG.layers):
            inputs.append(x)
            x = model.block(x, self.weights, layer, CONFIG, tables)
        states = torch.cat([inputs[layer] for layer in (2, 3, 3)], -1)
        return states[0].numpy(), model.logits_of(x, self.weights, model.FINAL_NORM, CONFIG)[0].numpy()

    def step(self, inputs: StepInputs):
        states, logits = [], []
        for begin_at, end, first in zip(
            inputs.subsequence_begins[:-1],
            inputs.subsequence_begins[1:],
            inputs.block_indices[inputs.block_indices_begins[:-1]],
            strict=True,
        ):
            start, new = inputs.position_ids[begin_at], inputs.input_ids[begin_at:end].tolist()
            self.texts[first] = [*self.texts.get(first, [])[:start], *new]
            for kept, made in zip((states, logits), self.compute(self.texts[first]), strict=True):
                kept.append(made[start:])
        self.states = np.concatenate(states)
        return np.concatenate(logits)[inputs.logits_rows]


@pytest.fixture(scope="module")
def weights():
    generator = torch.Generator().manual_seed(1)
    weights = model.initial_weights(CONFIG, generator)
    for name, tensor in weights.items():
        if "dense" in name or "proj" in name:
            tensor.normal_(std=0.2, generator=generator)
    weights[model.EMBEDDING].mul_(10)
    return weights


@pytest.fixture(scope="module")
def network(weights, tmp_path_factory):
    directory = tmp_path_factory.mktemp("target")
    model.export_model(directory, CONFIG, weights, '{"version": "1.0"}')
    return network_from_checkpoint(read_checkpoint(directory))


@pytest.fixture(scope="module")
def texts(weights):
    """Twelve texts, every third of which does not begin with a prompt."""
    random = np.random.default_rng(0)
    given = ((random.integers(0, 90, 5 + number % 4).tolist(), number % 3 != 0) for number in range(12))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "_MAX_TOKENS", 40)
        patch.setattr(collect, "_NUM_TEXTS", 5)
        return list(collect.write_texts(TorchEngine(weights), given))


def test_each_text_has_a_slot_of_recurrent_states(weights, monkeypatch):
    monkeypatch.setattr(collect, "_MAX_TOKENS", 40)
    monkeypatch.setattr(collect, "_NUM_TEXTS", 5)
    engine, step = TorchEngine(weights), TorchEngine.step
    engine.config.state_bytes, places = 1, set()

    def noting(inputs: StepInputs):
        first = inputs.block_indices[inputs.block_indices_begins[:-1]]
        places.update((block, slot) for block, slot in zip(first, inputs.slots, strict=True) if slot >= 0)
        return step(engine, inputs)

    monkeypatch.setattr(engine, "step", noting)
    list(collect.write_texts(engine, [([number, 5, 6], True) for number in range(7)]))
    assert places == {(1 + 3 * slot, slot) for slot in range(5)}


def test_texts_are_what_the_target_computes_of_them_in_one_pass(weights, texts):
    assert len(texts) == 12
    for text in texts:
        states, logits = TorchEngine(weights).compute(text["token_id"].tolist())
        assert np.allclose(text["features"], states, rtol=2e-3, atol=2e-3)
        known = text["expected_ids"][:, 0] >= 0
        assert np.array_equal(text["expected_ids"][known, 0], logits[known].argmax(1))
        assert np.all(known[np.argmax(known) :]) and (known[0] or np.argmax(known) in range(4, 8))
        followed = np.flatnonzero(known[8:-1]) + 8  # behind any prompt
        assert np.array_equal(text["token_id"][followed + 1], text["expected_ids"][followed, 0])
        assert len(text) == 40 or text["expected_ids"][-1, 0] == END


def test_a_step_reads_what_a_server_would_have_cached(network, texts):
    """Each unrolled logit is that of a plain pass over true states, then the head's own outputs."""
    head = begin(network, range(64), 24)
    torch.manual_seed(0)
    for weight in head.weights.values():
        weight.add_(0.1 * torch.randn(weight.shape))
    text, steps = texts[0][:14], 4
    token_ids = torch.from_numpy(text["token_id"].astype(np.int64))
    features = torch.from_numpy(text["features"].astype(np.float32))
    found = list(head.unroll(token_ids, features, torch.arange(13), steps))
    for step, (rows, logits) in enumerate(found):
        assert rows.tolist() == list(range(13 - step))
        for row, logit in zip(rows.tolist(), logits, strict=True):
            assert torch.allclose(_plain(head, token_ids, features, row, step), logit, atol=1e-4)
    thin = list(head.unroll(token_ids, features, torch.arange(0, 13, 2), steps, thinning=2))
    for (rows, logits), (every, expected) in zip(thin, found, strict=True):
        assert torch.allclose(logits, expected[torch.isin(every, rows)], atol=1e-4)
    assert [len(rows) for rows, _ in thin] == [7, 3, 2, 1]


def _plain(head, token_ids, features, row, step):
    """Compute the head's layer over a whole sequence, with attention in loops over heads."""
    weights, size = head.weights, CONFIG.head_size
    hidden = list(functional.linear(features[: row + 1], weights["fc.weight"]))
    for number in range(step + 1):
        x, tokens = torch.stack(hidden), token_ids[1 : row + 2 + number]
        embedded = torch.from_numpy(head.embedding.to_float32())[tokens]
        normed = [
            model.rms_norm(embedded, weights["midlayer.input_layernorm.weight"], CONFIG.epsilon),
            model.rms_norm(x, weights["midlayer.hidden_norm.weight"], CONFIG.epsilon),
        ]
        projected = [torch.cat(normed, 1) @ weights[f"midlayer.self_attn.{n}_proj.weight"].T for n in "qkv"]
        query, key, value = (each.view(len(x), -1, size).transpose(0, 1) for each in projected)
        tables = model.rotary_tables(CONFIG, len(x))
        query, key = model.rotate(query, *tables), model.rotate(key, *tables)
        attended = []
        for index in range(CONFIG.heads):
            group = index * CONFIG.kv_heads // CONFIG.heads
            scores = (query[index, -1] @ key[group].T) * size**-0.5
            attended.append(scores.softmax(0) @ value[group])
        last = x[-1] + torch.cat(attended) @ weights["midlayer.self_attn.o_proj.weight"].T
        normed = model.rms_norm(last, weights["midlayer.post_attention_layernorm.weight"], CONFIG.epsilon)
        gate, up = (normed @ weights[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        last = last + (functional.silu(gate) * up) @ weights["midlayer.mlp.down_proj.weight"].T
        hidden.append(last)
    return model.rms_norm(last, weights["norm.weight"], CONFIG.epsilon) @ weights["lm_head.weight"].T


def test_training_lowers_the_loss_goes_on_and_exports_the_published_format(
    network, texts, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(training, "_BATCH_TOKENS", 150)
    unanswered = next(text for text in texts if text["expected_ids"][0, 0] < 0)
    unanswered = unanswered[: np.argmax(unanswered["expected_ids"][:, 0] >= 0) + 1]
    paths = [tmp_path / f"{number}.npy" for number in range(len(texts) + 1)]
    for path, text in zip(paths, [*texts, unanswered], strict=True):
        np.save(path, text)
    tokens = training.frequent_tokens(paths, 64)
    assert len(set(tokens)) == 64
    head, directory = begin(network, tokens, 32), tmp_path / "head"
    directory.mkdir()
    before = training.acceptance(head, paths)

    def train(head, num_tokens):
        training.train(head, directory, paths, paths[:4], num_tokens, 3e-3)

    train(head, 2_000)
    again = begin(network, range(64), 32)
    train(again, 6_000)
    lines = capsys.readouterr().out.splitlines()
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in lines]
    assert len(losses) == 2 and losses[1] < losses[0] - 0.2, lines
    assert torch.equal(again.token_ids, head.token_ids)
    after = training.acceptance(again, paths)
    assert after[0] > before[0] + 0.1, (before, after)

    stored, config = (
        load_file(directory / "model.safetensors"),
        json.loads((directory / "config.json").read_text()),
    )
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    shape = {name: config[name] for name in ("draft_vocab_size", "num_hidden_layers", "intermediate_size")}
    assert shape == {"draft_vocab_size": 64, "num_hidden_layers": 1, "intermediate_size": 32}
    kept = stored["d2t"] + np.arange(64)
    assert kept.tolist() == sorted(tokens) == np.flatnonzero(stored["t2d"]).tolist()
    assert stored["fc.weight"].shape == (32, 96) and stored["midlayer.self_attn.k_proj.weight"].shape == (
        16,
        64,
    )
    assert set(stored) - {"d2t", "t2d"} == set(again.weights)
    for name, weight in again.weights.items():
        assert np.array_equal(stored[name], weight.detach().numpy().astype(np.float16))

    shrink(directory, tmp_path / "small")
    form = read_form(json.loads((tmp_path / "small" / "config.json").read_text()), tmp_path)
    small = Weights(tmp_path / "small")
    for name in ("fc", "midlayer.mlp.down_proj", "lm_head"):
        values = stored[f"{name}.weight"].astype(np.float32)
        linear = form.read(small, name, *values.shape)()
        assert linear.bits == 4 and linear.zero_point is None
        assert np.square(linear.to_float32() - values).mean() < 0.01 * np.square(values).mean()


def test_prompts_vary_and_are_filled_and_depend_on_the_seed():
    documents = [
        Document(
            "a.py",
            "def area(width, height):\n    '''Multiply.'''\n    "
            + "x = 1\n    " * 12
            + "return width * height\n",
        )
    ]
    made = [list(islice(collect.prompts(documents, collect.random.Random(seed)), 400)) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
    assert len(set(made[0])) == 400
    assert not [text for text in made[0] if "{" in text.split("```")[0]]
    assert any("def area(" in text for text in made[0])
