"""Any Triton server with NVIDIA's tensor names, asked like our own.

Each model is asked only for what its configuration, read from the server, says it has; what it lacks is
listed in ``not_checked`` and never left out in silence. NVIDIA's ``ensemble`` and ``tensorrt_llm_bls`` give
text and no token ids.

Three rules come from NVIDIA's BLS loop (TensorRT-LLM release/1.2,
``triton_backend/all_models/inflight_batcher_llm/tensorrt_llm_bls``): ``stream`` is always sent, for its
check fails without; greedy is ``top_k`` = 1; and ``exclude_input_in_output`` is never sent, for its loop
loses the prompt with it. So an answer may begin with the prompt, which is then cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.client import CompletionRequest, Generation
from pipelines.client.any_model import ModelCalls, ModelSpec, Tensors
from pipelines.errors import InternalError, InvalidRequestError, VerificationError


@dataclass(frozen=True)
class ModelNames:
    """Which models of the server are compared.

    Attributes:
        candidate: Draft and target together.
        control: The target alone.
        engine: The target's engine, from token ids to token ids; asked for logits.
        preprocessing: From text to token ids.
    """

    candidate: str = "tensorrt_llm_bls"
    control: str = "ensemble"
    engine: str = "tensorrt_llm"
    preprocessing: str = "preprocessing"


class ForeignServer:
    """Answers greedy requests; one object per thread.

    Args:
        calls: The server.

    Attributes:
        not_checked: What a model could not be asked or did not tell, in the order it was found.
        silent_on_drafting: Models of which an answer came without a count of draft tokens.
    """

    def __init__(self, calls: ModelCalls) -> None:
        self._calls = calls
        self._specs: dict[str, ModelSpec] = {}
        self.not_checked: dict[str, None] = {}  # a set that keeps its order
        self.silent_on_drafting: set[str] = set()

    def generate(self, request: CompletionRequest, model: str) -> Generation:
        """Ask for a whole greedy answer.

        Args:
            request: Its prompt, ``max_tokens`` and ``num_draft_tokens`` are used.
            model: NVIDIA's ``ensemble`` or ``tensorrt_llm_bls``, by whatever name, or one of ours.

        Returns:
            ``output_ids`` are empty and ``finish_reason`` is "" where the model does not tell them.

        Raises:
            DraftproofError: As the server answered.
        """
        if request.temperature > 0:
            raise ValueError("NVIDIA's loop repeats the seed every round: sampled answers mean nothing")
        spec = self.spec(model)
        responses = self._calls.infer(spec, self._inputs(spec, request))
        if not responses or "text_output" not in responses[-1]:
            raise InternalError(
                f"model {model} gave no text",
                values=f"{len(responses)} responses",
                limit="an output text_output",
                remedy="look into the log of the server",
            )
        if "total_draft_tokens" not in responses[-1]:
            self.silent_on_drafting.add(model)
        return self._generation(responses, request)

    def spec(self, model: str) -> ModelSpec:
        """The model's configuration, asked for once."""
        if model not in self._specs:
            self._specs[model] = self._calls.describe(model)
        return self._specs[model]

    def has(self, model: str) -> bool:
        """Whether the server has the model."""
        try:
            self.spec(model)
        except InvalidRequestError:
            return False
        return True

    def infer(self, model: str, values: Mapping[str, list[Any]]) -> Tensors:
        """Send one request to any model and return its last response.

        Args:
            model: Its name.
            values: By input; those that the model does not have are an error.
        """
        spec = self.spec(model)
        responses = self._calls.infer(
            spec, {name: spec.tensor(name, value) for name, value in values.items()}
        )
        return responses[-1] if responses else {}

    def close(self) -> None:
        """Close all connections."""
        self._calls.close()

    def _inputs(self, spec: ModelSpec, request: CompletionRequest) -> Tensors:
        values: dict[str, Any] = {
            "text_input": request.prompt,
            "max_tokens": request.max_tokens,
            "stream": False,
            "top_k": 1,
            "return_perf_metrics": True,  # NVIDIA counts draft tokens only for who asks for them
        }
        if request.num_draft_tokens is not None:
            values["num_draft_tokens"] = request.num_draft_tokens
        lacking = [name for name in ("text_input", "max_tokens") if name not in spec.inputs]
        unknown = [
            name for name, tensor in spec.inputs.items() if not tensor.is_optional and name not in values
        ]
        if lacking or unknown:
            raise VerificationError(
                f"model {spec.name} cannot be asked",
                values=f"lacks {lacking}, requires {unknown}",
                limit="inputs text_input and max_tokens, all others optional or known to us",
                remedy="name the models to compare with --model and --control-model",
            )
        if "top_k" not in spec.inputs:
            self.not_checked[
                f"{spec.name} has no input top_k: whether it answers greedily is its own choice"
            ] = None
        if "num_draft_tokens" in values and "num_draft_tokens" not in spec.inputs:
            self.not_checked[f"{spec.name} has no input num_draft_tokens: the length is its own choice"] = (
                None
            )
        return {name: spec.tensor(name, [value]) for name, value in values.items() if name in spec.inputs}

    def _generation(self, responses: list[Tensors], request: CompletionRequest) -> Generation:
        """One response holds the whole answer; more are its parts, in order."""
        text = "".join(_text(response["text_output"]) for response in responses)
        last = responses[-1]
        num_drafted = _number(last, "total_draft_tokens")
        num_accepted = _number(last, "total_accepted_draft_tokens")
        ids = [
            int(token) for response in responses for token in response.get("output_ids", np.empty(0)).ravel()
        ]
        return Generation(
            text=text.removeprefix(request.prompt),
            output_ids=tuple(ids),
            accepted_mask=(),
            finish_reason=_text(last["finish_reason"]) if "finish_reason" in last else "",
            num_rounds=_number(last, "num_rounds"),
            total_draft_tokens=num_drafted,
            total_accepted_draft_tokens=num_accepted,
            accepted_per_position=(),
            ttft_s=None,
            e2e_latency_s=0.0,
        )


def _text(array: Any) -> str:
    return str(array.ravel()[0]) if array.size else ""


def _number(response: Tensors, name: str) -> int:
    array = response.get(name)
    return int(array.ravel()[0]) if array is not None and array.size else 0
