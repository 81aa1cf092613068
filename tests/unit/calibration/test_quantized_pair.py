"""Tests of a Hugging Face pair through ModelOpt to the real loop: the output is the target's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import build.quantize as quantize
from build.checkpoints.tensor_file import Tensor
from build.engines import build_engines
from pipelines.bench.calibration.pair_acceptance import answer_prompts
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.executor.step_loop import StepLoop
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.speculation.token_ids import TokenIds
from tests.support.hugging_face_checkpoints import change_weights, make_hugging_face, pair_recipe
from tests.support.modelopt_in_process import run_in_process, worker

LIMITS = ExecutorLimits(
    max_batch_size=8, max_num_tokens=256, max_seq_len=160, max_queue_size=0, num_kv_blocks=64
)
PROMPTS = [np.arange(3 + number, 30 + 3 * number, dtype=np.int32) for number in range(6)]
MAX_TOKENS = 32


@pytest.fixture(scope="module", autouse=True)
def in_process() -> Iterator[None]:
    worker()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize, "_run_worker", run_in_process)
        yield


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a target and, as its draft, a noisy copy, so that some drafts are accepted."""
    folder = tmp_path_factory.mktemp("sources")
    target, draft = (make_hugging_face(folder / role) for role in ("target", "draft"))

    def disturb(tensors: dict[str, Tensor]) -> None:
        rng = np.random.default_rng(3)
        for name, tensor in list(tensors.items()):
            if name.endswith("_proj.weight"):
                values = tensor.to_float32()
                values += 0.05 * values.std() * rng.standard_normal(values.shape, dtype=np.float32)
                tensors[name] = Tensor.from_float32(values, "BF16")

    change_weights(draft, disturb)
    return draft, target


def alone(target: Executor, temperature: float) -> list[TokenIds]:
    loop = StepLoop((target,))
    loop.start()

    async def answer(number: int) -> TokenIds:
        sampling = SamplingParams(temperature=temperature, seed=number)
        request = GenerationRequest(
            str(number), PROMPTS[number], MAX_TOKENS, sampling=sampling, end_ids=target.config.end_ids
        )
        return (await target.complete(request)).token_ids

    async def answer_all() -> list[TokenIds]:
        return [await answer(number) for number in range(len(PROMPTS))]  # one after another

    try:
        return loop.spawn(answer_all()).result()
    finally:
        loop.stop()


@pytest.mark.parametrize("quantization", ["fp8", "int8_sq"])
def test_answers_are_those_of_the_quantized_target(
    quantization: str, sources: tuple[Path, Path], tmp_path: Path
) -> None:
    sections = [{"checkpoint": str(path), "quantization": quantization, "num_threads": 2} for path in sources]
    recipe = pair_recipe(tmp_path, *sections)
    quantize.quantize_recipe(recipe, tmp_path / "engines", lambda line: None)
    built = build_engines(recipe, tmp_path / "engines", lambda line: None)
    assert sorted(built["built"]) == ["draft", "target"]
    assert build_engines(recipe, tmp_path / "engines", lambda line: None)["built"] == []
    for temperature in (0.0, 0.8):
        draft, target = (Executor.load(Path(built[role]), LIMITS) for role in ("draft", "target"))
        answers = answer_prompts(
            draft, target, PROMPTS, num_draft_tokens=3, max_tokens=MAX_TOKENS, temperature=temperature
        )
        expected = alone(Executor.load(Path(built["target"]), LIMITS), temperature)
        for mine, theirs in zip(answers.token_ids, expected, strict=True):
            assert np.array_equal(mine, theirs)
        assert 0.05 < answers.acceptance_rate < 1  # drafts were accepted, and rejected
