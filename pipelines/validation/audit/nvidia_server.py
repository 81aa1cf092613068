"""Client of any Triton server with NVIDIA's tensor names.

Each model gets only inputs that its configuration on the server has; ``not_checked`` lists what it lacks.
NVIDIA's ``ensemble`` and ``tensorrt_llm_bls`` return text and no token ids.

Three rules come from NVIDIA's BLS loop (TensorRT-LLM release/1.2,
``triton_backend/all_models/inflight_batcher_llm/tensorrt_llm_bls``): ``stream`` is always sent, because its
check fails without it; greedy is ``top_k`` = 1; and ``exclude_input_in_output`` is never sent, because its
loop then drops the prompt. So an answer may begin with the prompt, which is removed.

A margin is the target's certainty at the first difference of two answers. The server's engine gets the
common start of both answers (teacher forcing) and returns one token with its logits. If that is not
possible, the margin is unknown, which never counts as a tie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipelines.client import CompletionRequest, Generation
from pipelines.client.models import ModelCalls, ModelSpec, Tensors
from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError, InternalError, InvalidRequestError, VerificationError
from pipelines.validation.audit.arms import Margin


@dataclass(frozen=True)
class ModelNames:
    """Names of the models of a server.

    Attributes:
        candidate: Model of draft and target together.
        control: Model of the target alone.
        engine: Engine of the target, which takes token ids and returns logits.
        preprocessing: Model that converts text to token ids.
    """

    candidate: str = "tensorrt_llm_bls"
    control: str = "ensemble"
    engine: str = "tensorrt_llm"
    preprocessing: str = "preprocessing"


class ForeignServer:
    """Sends greedy requests; use one object per thread.

    Args:
        calls: Connection to the server.

    Attributes:
        not_checked: Notes on inputs and outputs that a model lacks, in order.
        silent_on_drafting: Models that answered without a count of draft tokens.
    """

    def __init__(self, calls: ModelCalls) -> None:
        self._calls = calls
        self._specs: dict[str, ModelSpec] = {}
        self.not_checked: dict[str, None] = {}  # a set that keeps its order
        self.silent_on_drafting: set[str] = set()

    def generate(self, request: CompletionRequest, model: str) -> Generation:
        """Request a whole greedy answer.

        Args:
            request: Request, of which prompt, ``max_tokens`` and ``num_draft_tokens`` are used.
            model: Name of NVIDIA's ``ensemble`` or ``tensorrt_llm_bls``, or of one of our models.

        Returns:
            The answer, without ``output_ids`` and ``finish_reason`` if the model does not return them.

        Raises:
            DraftproofError: The error that the server returned.
        """
        if request.temperature > 0:
            raise ValueError("NVIDIA's loop repeats the seed every round, so sampled answers are meaningless")
        spec = self.spec(model)
        responses = self._calls.infer(spec, self._inputs(spec, request))
        if not responses or "text_output" not in responses[-1]:
            raise InternalError(
                f"model {model} returned no text",
                values=f"{len(responses)} responses",
                limit="an output text_output",
                remedy="read the log of the server",
            )
        if "total_draft_tokens" not in responses[-1]:
            self.silent_on_drafting.add(model)
        return self._generation(responses, request)

    def spec(self, model: str) -> ModelSpec:
        """Return the model's configuration, which is requested once."""
        if model not in self._specs:
            self._specs[model] = self._calls.describe(model)
        return self._specs[model]

    def has(self, model: str) -> bool:
        """Return whether the server has the model."""
        try:
            self.spec(model)
        except InvalidRequestError:
            return False
        return True

    def infer(self, model: str, values: Mapping[str, list[Any]]) -> Tensors:
        """Send one request to any model and return its last response.

        Args:
            model: Name of the model.
            values: Input -> values; an input that the model lacks is an error.
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
            "return_perf_metrics": True,  # NVIDIA returns counts of draft tokens only on request
        }
        if request.num_draft_tokens is not None:
            values["num_draft_tokens"] = request.num_draft_tokens
        lacking = [name for name in ("text_input", "max_tokens") if name not in spec.inputs]
        unknown = [
            name for name, tensor in spec.inputs.items() if not tensor.is_optional and name not in values
        ]
        if lacking or unknown:
            raise VerificationError(
                f"model {spec.name} has other inputs",
                values=f"lacks {lacking}, requires {unknown}",
                limit="inputs text_input and max_tokens, all others optional or known",
                remedy="name the models to compare with --model and --control-model",
            )
        if "top_k" not in spec.inputs:
            self.not_checked[f"{spec.name} has no input top_k, so it may not answer greedily"] = None
        if "num_draft_tokens" in values and "num_draft_tokens" not in spec.inputs:
            self.not_checked[f"{spec.name} has no input num_draft_tokens, so it chooses the length"] = None
        return {name: spec.tensor(name, [value]) for name, value in values.items() if name in spec.inputs}

    def _generation(self, responses: list[Tensors], request: CompletionRequest) -> Generation:
        """Join the responses, which are parts of the answer in order."""
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


class Tokens(Protocol):
    """Converts text to token ids of the engine."""

    end_id: int | None

    def encode(self, text: str) -> list[int]:
        """Return the token ids that the server's preprocessing would return."""


class TokenizerFile:
    """Tokenizer from a ``tokenizer.json`` on this machine.

    Raises:
        InvalidRequestError: The file cannot be read.
    """

    end_id: int | None = None  # the file does not specify which special token ends an answer

    def __init__(self, path: Path) -> None:
        from pipelines.text.prompt_tokenizer import PromptTokenizer

        try:
            self._tokenizer = PromptTokenizer(path.read_bytes(), path)
        except Exception as error:  # the package tokenizers raises no specific class
            raise InvalidRequestError(
                "the tokenizer cannot be read",
                values=f"{path}: {error}",
                limit="a tokenizer.json of Hugging Face tokenizers",
                remedy="name another file with --tokenizer, or omit it",
            ) from error

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        return self._tokenizer.encode(text)


class ServerTokens:
    """Tokenizer that calls the server's model ``preprocessing``, with NVIDIA's tensors or ours."""

    def __init__(self, server: ForeignServer, model: str) -> None:
        self._server = server
        self._model = model
        self.end_id: int | None = None

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        if "QUERY" in self._server.spec(self._model).inputs:
            outputs = self._server.infer(self._model, {"QUERY": [text], "REQUEST_OUTPUT_LEN": [1]})
            if "OUT_END_ID" in outputs:
                self.end_id = int(outputs["OUT_END_ID"].ravel()[0])
            return [int(token) for token in outputs["INPUT_ID"].ravel()]
        outputs = self._server.infer(self._model, {"text_input": [text], "max_tokens": [1]})
        return [int(token) for token in outputs["input_ids"].ravel()]


class Replay:
    """Requests logits of the engine after a given text.

    Args:
        server: Server that gave the answers.
        names: Names of its models.
        tokens: Tokenizer; None for the server's ``preprocessing``.
    """

    def __init__(self, server: ForeignServer, names: ModelNames, tokens: Tokens | None = None) -> None:
        self._server = server
        self._engine = names.engine
        self._tokens = tokens or ServerTokens(server, names.preprocessing)

    def margin(self, prompt: Prompt, expected: Generation, actual: Generation) -> Margin:
        """Compare the two tokens at the first difference of two answers to ``prompt``."""
        try:
            return self._margin(prompt.text, expected, actual)
        except (DraftproofError, KeyError) as error:
            return Margin(None, f"the engine did not return logits: {error}")

    def _margin(self, prompt: str, expected: Generation, actual: Generation) -> Margin:
        prompt_ids = self._tokens.encode(prompt)
        if expected.output_ids or actual.output_ids:
            ids, other_ids = [*prompt_ids, *expected.output_ids], [*prompt_ids, *actual.output_ids]
        else:
            ids, other_ids = (self._tokens.encode(prompt + answer.text) for answer in (expected, actual))
        place = _first_difference(ids, other_ids)
        if place < len(prompt_ids):
            return Margin(None, "the answers change how their prompt is tokenized")
        if place == len(ids) == len(other_ids):
            return Margin(None, "both answers have the same tokens")
        pair = [
            sequence[place] if place < len(sequence) else self._tokens.end_id for sequence in (ids, other_ids)
        ]
        if None in pair:
            return Margin(None, "one answer had ended, and its end token is unknown")
        logits = self._logits(ids[:place])
        return _margin_of(logits, *(int(token) for token in pair if token is not None))

    def _logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float64]:
        """Request the logits of the token after ``token_ids``: float64 [vocabulary]."""
        wanted: dict[str, list[Any]] = {
            "input_ids": list(token_ids),
            "input_lengths": [len(token_ids)],
            "request_output_len": [1],
            "runtime_top_k": [1],
            "return_generation_logits": [True],
        }
        outputs = self._server.infer(self._engine, wanted)
        return np.asarray(outputs["generation_logits"], np.float64).ravel()


def _margin_of(logits: npt.NDArray[np.float64], expected_id: int, actual_id: int) -> Margin:
    if max(expected_id, actual_id) >= len(logits):
        return Margin(None, f"the engine returned {len(logits)} logits, too few for these tokens")
    likeliest = int(np.argmax(logits))
    difference = float(logits[expected_id] - logits[actual_id])
    if likeliest not in (expected_id, actual_id):
        return Margin(None, f"the engine now prefers a third token, {likeliest}")
    if not math.isfinite(difference):
        return Margin(None, "a logit is infinite")
    return Margin(difference)


def _first_difference(ids: Sequence[int], other_ids: Sequence[int]) -> int:
    place = 0
    while place < min(len(ids), len(other_ids)) and ids[place] == other_ids[place]:
        place += 1
    return place
