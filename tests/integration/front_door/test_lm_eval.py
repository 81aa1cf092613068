"""Tests with lm-eval: its scores of texts are those of the same model under transformers.

lm-eval is not locked with the other clients, because three packages that it needs have no wheels.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.families.networks import save_model
from build.recipe import load_recipe
from build.rendering.template_values import calibration_file
from build.repository import render_recipe
from pipelines.deploy.server import Server
from tests.conftest import REPOSITORY_ROOT
from tests.integration.front_door.conftest import url_of
from tests.support.ready_server import ready_server
from tests.support.tiny_engines import DEMO_TOKENIZER, TINY_CALIBRATION

pytestmark = [pytest.mark.triton, pytest.mark.long, pytest.mark.filterwarnings("ignore")]

PROGRAM = REPOSITORY_ROOT / ".venv-clients" / "bin" / "lm_eval"
TOLERANCE = 1e-3
"""In nats, of the sum over a continuation of a few tokens: float32 on both sides."""

DOCUMENTS = [
    {"question": "def add(first, second):\n    return", "choices": [" first + second", " None", " the"]},
    {"question": "The sky is", "choices": [" blue", " a number of words in a row", " green and red"]},
    {"question": "import", "choices": [" os", " this and that"]},
]
TASK = {
    "task": "local_choice",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": 0,
    "target_delimiter": "",
    "metric_list": [{"metric": "acc"}],
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    if not PROGRAM.exists():
        pytest.skip("lm-eval is not installed: .venv-clients/bin/pip install 'lm-eval[api]==0.4.13'")
    folder = tmp_path_factory.mktemp("checkpoints")
    save_model("llama", folder / "target", vocab_size=2048)
    save_model("llama", folder / "draft", vocab_size=2048, num_hidden_layers=1)
    for role in ("target", "draft"):
        shutil.copy(DEMO_TOKENIZER, folder / role)
        settings = '{"tokenizer_class": "PreTrainedTokenizerFast"}'
        (folder / role / "tokenizer_config.json").write_text(settings, encoding="utf-8")
    return folder / "target"


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server of the checkpoint in float32."""
    folder = tmp_path_factory.mktemp("lm_eval")
    recipe = {
        "name": "scored",
        "target": {"checkpoint": str(checkpoint), "quantization": "none"},
        "draft": {"checkpoint": str(checkpoint.parent / "draft"), "quantization": "none"},
        "serving": {"max_batch_size": 4, "max_seq_len": 256},
    }
    path = folder / "scored.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    command = [sys.executable, "-m", "build.engines", "--recipe", path, "--engines", folder / "engines"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY_ROOT, check=True)
    built = json.loads(done.stdout.splitlines()[-1])
    engines = Path(built["draft"]), Path(built["target"])
    TINY_CALIBRATION.write(calibration_file(*engines))
    run = render_recipe(load_recipe(path), *engines, folder / "r").parent
    with ready_server(run, with_openai=True) as running:
        yield running


def scores(url: str, checkpoint: Path, folder: Path) -> list[list[float]]:
    """Return lm-eval's log likelihood of each choice of each document."""
    data = folder / "documents.jsonl"
    data.write_text("".join(json.dumps(each) + "\n" for each in DOCUMENTS), encoding="utf-8")
    task = {**TASK, "dataset_kwargs": {"data_files": {"test": str(data)}}}
    (folder / "task.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    settings = {
        "model": "scored",
        "base_url": f"{url}/v1/completions",
        "tokenizer": checkpoint,
        "tokenizer_backend": "huggingface",
        "num_concurrent": 2,
        "max_retries": 1,
    }
    command = [
        *(PROGRAM, "--model", "local-completions", "--tasks", "local_choice", "--include_path", folder),
        *("--model_args", ",".join(f"{name}={value}" for name, value in settings.items())),
        *("--output_path", folder / "out", "--log_samples"),
    ]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **offline, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    (samples,) = (folder / "out").rglob("samples_*.jsonl")
    found = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    return [[float(response[0]) for response in each["filtered_resps"]] for each in found]


def scores_by_transformers(checkpoint: Path) -> list[list[float]]:
    import torch
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32")
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)

    def score(context: str, choice: str) -> float:
        num_context = len(tokenizer.encode(context, add_special_tokens=False))
        ids = torch.tensor([tokenizer.encode(context + choice, add_special_tokens=False)])
        with torch.no_grad():
            log_probs = torch.log_softmax(model(ids).logits[0, :-1].double(), dim=-1)
        of_tokens = log_probs.gather(1, ids[0, 1:, None])[:, 0]
        return float(of_tokens[num_context - 1 :].sum())

    return [[score(str(each["question"]), choice) for choice in each["choices"]] for each in DOCUMENTS]


def test_scores_are_those_of_transformers(server: Server, checkpoint: Path, tmp_path: Path) -> None:
    found, expected = scores(url_of(server), checkpoint, tmp_path), scores_by_transformers(checkpoint)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=TOLERANCE)
