"""Tests of the rehearsal of published pairs, with small networks and real engines."""

from __future__ import annotations

import json
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.rehearsal import checkpoints, long_prompt, speed
from benchmarks.rehearsal.__main__ import published_ids
from benchmarks.rehearsal.checkpoints import made_up_tokenizer, write_checkpoint
from benchmarks.rehearsal.loaded_pair import LoadedPair
from benchmarks.rehearsal.published import MODELS
from benchmarks.rehearsal.steering import SteeredEngine
from build.checkpoints.token_map import ModelTokens, map_tokens
from build.checkpoints.tokenizer_file import load_tokenizer
from build.hugging_face.config import parse_network_config
from build.networks.memory import num_parameters
from build.networks.source import open_network
from build.recipe import RECIPES, Growth, load_recipe
from pipelines.errors import EngineFailedError, RecipeError, VerificationError
from tests.support.tiny_engines import build_tiny_pair

PUBLISHED_PARAMETERS = {
    "Qwen/Qwen3-8B": 8.19e9,
    "Qwen/Qwen3-4B": 4.02e9,
    "Qwen/Qwen3-0.6B": 0.596e9,
    "Qwen/Qwen2.5-0.5B-Instruct": 0.494e9,
    "meta-llama/Llama-3.1-8B-Instruct": 8.03e9,
    "meta-llama/Llama-3.2-1B-Instruct": 1.236e9,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1.711e9,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 0.1345e9,
    "microsoft/Phi-4-mini-instruct": 3.836e9,
    "google/gemma-3-4b-it": 3.88e9,  # the text model
    "google/gemma-3-270m-it": 0.268e9,
}
CPU_RECIPES = sorted(path.stem for path in RECIPES.glob("*-cpu.yaml"))
SMALL = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 600,
}


@pytest.mark.parametrize("model", MODELS)
def test_the_settings_have_the_published_number_of_parameters(model: str) -> None:
    settings = MODELS[model]
    projections, table = num_parameters(parse_network_config(settings, Path("config.json")))
    found = projections + table * (1 if settings["tie_word_embeddings"] else 2)
    assert found == pytest.approx(PUBLISHED_PARAMETERS[model], rel=0.002)


@pytest.mark.parametrize("name", CPU_RECIPES)
def test_every_recipe_for_cpus_can_be_rehearsed(name: str) -> None:
    assert set(published_ids(load_recipe(name))) == {"target", "draft"}


def test_another_recipe_is_refused_with_what_is_known() -> None:
    with pytest.raises(RecipeError, match=r"shapes of this recipe's models are not known.*Qwen/Qwen3-4B"):
        published_ids(load_recipe("demo"))


@pytest.mark.parametrize("model_type", sorted({settings["model_type"] for settings in MODELS.values()}))
def test_a_random_checkpoint_is_one_that_the_builder_takes(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SHARD_BYTES", 100_000)  # several shards
    settings = next(known for known in MODELS.values() if known["model_type"] == model_type)
    others = {"rope_scaling": None} if model_type == "phi3" else {}
    write_checkpoint(tmp_path / "made", {**settings, **SMALL, **others}, seed=0, num_words=600, num_used=590)
    assert len(list((tmp_path / "made").glob("*.safetensors"))) > 1
    network = open_network(tmp_path / "made").read()
    embedding = network.embedding.to_float32()
    assert np.all(embedding[590:] == 0)
    assert np.sqrt((embedding[:590] ** 2).mean()) == pytest.approx(128**-0.5, rel=0.5)
    layer = network.layer(1)
    gains = layer.norms()
    assert all(np.all(gain == 1) for gain in gains)
    assert np.sqrt((layer.proj.to_float32() ** 2).mean()) == pytest.approx(256**-0.5, rel=0.5)


def test_made_up_tokenizers_of_two_families_are_mapped_to_each_other(tmp_path: Path) -> None:
    for name, count in (("draft", 20_000), ("target", 40_000)):
        (tmp_path / name).write_text(json.dumps(made_up_tokenizer(count)))
    models = (ModelTokens(tmp_path / "draft", 20_000, (0,)), ModelTokens(tmp_path / "target", 40_000, (0,)))
    found = map_tokens(*models)
    assert np.array_equal(found.equal_ids[:20_000], np.arange(20_000))
    assert np.all(found.equal_ids[20_000:] == -1)
    assert found.share > 0.9


def test_a_made_up_tokenizer_encodes_every_text_and_gives_it_back() -> None:
    tokenizer = load_tokenizer(json.dumps(made_up_tokenizer(30_000)))
    assert tokenizer.get_vocab_size() == 30_000
    text = "def f(x):\n\treturn 'Größe' + x  # 2,400 ✓"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("rehearsed")
    growth = Growth(hidden_size=768, num_layers=8, intermediate_size=2048, num_heads=12, num_kv_heads=6)
    engines = build_tiny_pair(folder, draft="random", growth=growth)  # a target that is worth drafting for
    loaded = LoadedPair(*engines, folder, speed.LIMITS, speed.RATES)
    loaded.steps = speed.time_steps(loaded, 1)
    loaded.start()
    yield loaded
    loaded.stop()


def test_steps_are_timed_for_each_number_of_rows(pair: Any) -> None:
    assert list(pair.steps["target"]) == list(speed.ROWS)
    assert all(times["low"] > 0 for role in ("draft", "target") for times in pair.steps[role].values())


@pytest.mark.parametrize(
    "rate", [pytest.param(rate, marks=[pytest.mark.long] * (rate != 0.75)) for rate in speed.RATES]
)
def test_a_random_draft_is_accepted_at_the_stated_rate(pair: Any, rate: float) -> None:
    prompt = np.arange(1, 65, dtype=np.int32)
    expected = pair.alone(prompt, 120)
    answers = [pair.steered(prompt, expected, rate, seed) for seed in range(3)]
    accepted = sum(answer.num_accepted for answer in answers)
    judged = accepted + sum(answer.num_rejected for answer in answers)
    assert judged, "the fewer are judged, the further the share may be from the rate"
    assert accepted / judged == pytest.approx(rate, abs=4 * (rate * (1 - rate) / judged) ** 0.5)


@pytest.mark.parametrize(("rate", "is_right"), [(0.0, False), (1.0, True)])
def test_a_draft_that_agrees_by_itself_is_right_at_the_stated_rate_only(rate: float, is_right: bool) -> None:
    class Agreeing:
        config = None

        def step(self, inputs: Any) -> Any:
            return np.array([[0.0, 5.0, 1.0]], np.float32)  # of the target's own choice, token 1

    engine = SteeredEngine(Agreeing())  # type: ignore[arg-type]
    engine.follow(np.array([1, 1], np.int32), rate, seed=0)
    assert bool(engine.step(None).argmax() == 1) is is_right  # type: ignore[arg-type]


def test_an_answer_that_is_not_the_targets_is_an_error(pair: Any) -> None:
    prompt = np.arange(1, 65, dtype=np.int32)
    expected = pair.alone(prompt, 20)
    wrong = replace(expected, token_ids=(*expected.token_ids[:-1], expected.token_ids[-1] + 1))
    with pytest.raises(EngineFailedError, match="answered differently"):
        pair.steered(prompt, wrong, 0.9, 0)


def test_what_fails_beside_a_long_prompt_fails_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def fail(*request: object) -> None:
        asked.set()
        raise EngineFailedError("a step failed")

    monkeypatch.setattr(long_prompt, "Client", SimpleNamespace(connect=lambda *given: nullcontext()))
    monkeypatch.setattr(long_prompt, "ask", fail)
    with pytest.raises(EngineFailedError, match="a step failed"), long_prompt.asked_beside("", "generate"):
        asked.wait(60)
    monkeypatch.setattr(long_prompt, "ask", lambda *request: threading.Event().wait(0.5))
    with pytest.raises(VerificationError, match="no short answer"), long_prompt.asked_beside("", "generate"):
        pass
