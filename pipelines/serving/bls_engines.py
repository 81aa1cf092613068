"""Draft and target as models of the same server: the loop's callables as BLS requests.

Not the default, and not for service on Triton 2.51: see ``local_calls`` for the defect of its Python
backend that ends the process, under Python 3.12 at once and before that after some hundred calls.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pipelines.errors import EngineFailedError, RepositoryError, RequestTimeoutError
from pipelines.executor.engine import EngineConfig
from pipelines.executor.step_loop import StepLoop
from pipelines.serving.contract import GenerationCall
from pipelines.serving.generation_model import Outputs
from pipelines.serving.parameters import ModelParameters
from pipelines.serving.sampling_tensors import sampling_tensors
from pipelines.serving.triton_wire import TritonWire, scalar_tensor
from pipelines.serving.word_list import WordKind, pack_words
from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.loop import EngineStream
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.text.vocabulary import Vocabulary


class BlsEngines:
    """Calls the models ``draft`` and ``target``.

    Raises:
        RepositoryError: Under this Python the calls would crash.
    """

    def __init__(self, parameters: ModelParameters, wire: TritonWire) -> None:
        if sys.version_info >= (3, 12):
            raise RepositoryError(
                "the engines cannot be reached through BLS",
                values=f"engine_access=bls, Python {sys.version_info[0]}.{sys.version_info[1]}",
                limit="Python 3.10 or 3.11: Triton 2.51's BLS crashes under newer ones",
                remedy="set engine_access: in_process in the recipe",
            )
        self._max_seq_len = parameters.integer("max_seq_len")
        engine_dir = parameters.path("target_engine_dir")
        config = EngineConfig.read(engine_dir)
        self._vocab_size = config.vocab_size
        self.vocabulary = Vocabulary.from_file(engine_dir / "tokenizer.json")
        self.end_ids = config.end_ids
        self.carries_margins = False
        self.draft = BlsEngine("draft", wire, self.vocabulary, self.end_ids)
        self.target = BlsEngine("target", wire, self.vocabulary, self.end_ids)
        self.stream: EngineStream | None = None
        self.stream_alone: EngineStream | None = None
        self.loop = StepLoop(())
        self._max_calls = parameters.integer("max_batch_size")

    def start(self) -> None:
        """Start the loop, with a thread for each call that may be open at once."""
        self.loop.start()
        use_threads_for_calls(self.loop, self._max_calls)

    def check(self, call: GenerationCall) -> None:
        """Refuse what the engines would refuse, before the first call."""
        call.request.validate(self._max_seq_len, self._vocab_size)

    def reason_for_target_alone(self, call: GenerationCall) -> str:
        """These engines draft for every request."""
        return ""


class BlsEngine:
    """One model as a callable of the loop.

    Args:
        model_name: Of it.
        wire: Sends and receives.
        vocabulary: Bytes of its tokens.
        end_ids: Its own end tokens.
    """

    def __init__(
        self, model_name: str, wire: TritonWire, vocabulary: Vocabulary, end_ids: tuple[int, ...]
    ) -> None:
        self._model_name = model_name
        self._wire = wire
        self._end_ids = end_ids
        self._spell = _ByteSpelling(vocabulary)

    async def __call__(self, request: GenerationRequest) -> Output:
        """Send one request to the model and return its whole output.

        Raises:
            DraftproofError: What the model answered.
            RequestTimeoutError: The deadline passed before the call.
        """
        responses = await self._wire.call(
            self._model_name,
            self._tensors(request),
            _output_names(request),
            request_id=request.request_id,
            timeout_us=_remaining_us(request),
        )
        if not responses:
            raise EngineFailedError(
                f"model '{self._model_name}' gave no answer",
                values=f"request {request.request_id}",
                limit="one response",
                remedy="the server's log has the cause",
            )
        return _join(responses)

    def _tensors(self, request: GenerationRequest) -> Outputs:
        tensors: Outputs = {
            "input_ids": request.input_ids.reshape(1, -1),
            "input_lengths": scalar_tensor(len(request.input_ids), np.int32),
            "request_output_len": scalar_tensor(request.max_tokens, np.int32),
            "prompt_length": scalar_tensor(request.num_prompt_tokens, np.int32),
            "return_generation_logits": scalar_tensor(request.return_generation_logits, np.bool_),
            "independent_noise": scalar_tensor(request.independent_noise, np.bool_),
            **sampling_tensors(request.sampling),
        }
        if request.end_ids != self._end_ids:  # then the request had one of its own, or none
            tensors["end_id"] = scalar_tensor(request.end_ids[0] if request.end_ids else -1, np.int32)
        if len(request.draft_input_ids):
            tensors["draft_input_ids"] = request.draft_input_ids.reshape(1, -1)
        if request.draft_logits is not None:
            tensors["draft_logits"] = request.draft_logits[np.newaxis]
        if request.num_log_probs is not None:
            tensors["return_log_probs"] = scalar_tensor(True, np.bool_)
            tensors["num_log_probs"] = scalar_tensor(request.num_log_probs, np.int32)
        for kind, words in ((WordKind.STOP, request.stop_words), (WordKind.BAD, request.bad_words)):
            if words:
                tensors[kind.list_tensor] = pack_words([self._spell(word) for word in words])[np.newaxis]
        return tensors


class _ByteSpelling:
    """Spells text with single-byte tokens: any spelling will do, words are matched by their bytes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._token_of = {
            token_bytes[0]: token_id
            for token_id, token_bytes in enumerate(vocabulary.bytes_of)
            if len(token_bytes) == 1
        }

    def __call__(self, text: Iterable[int]) -> list[int]:
        return [self._token_of[byte] for byte in text]


def use_threads_for_calls(loop: StepLoop, max_calls: int) -> None:
    """Give a loop one thread per call: Triton's ``async_exec`` waits in the loop's default executor."""

    async def install() -> None:
        pool = ThreadPoolExecutor(max_calls, thread_name_prefix="bls")
        asyncio.get_running_loop().set_default_executor(pool)

    loop.spawn(install()).result()


def _output_names(request: GenerationRequest) -> list[str]:
    """Outputs that the request needs; each one more costs time in Triton."""
    names = ["output_ids", "finish_reason"]
    if request.num_log_probs is not None:
        names += ["output_log_probs", "top_log_prob_ids", "top_log_probs"]
    if request.return_generation_logits:
        names.append("generation_logits")
    return names


def _join(responses: list[Outputs]) -> Output:
    """One output of all the responses of an answer."""
    reason: bytes = responses[-1]["finish_reason"].reshape(-1)[0]
    token_ids = np.concatenate([response["output_ids"].reshape(-1) for response in responses])
    log_probs, logits = None, None
    if "output_log_probs" in responses[0]:
        log_probs = LogProbs.concatenate(
            [
                LogProbs(
                    response["output_log_probs"].reshape(-1),
                    response["top_log_prob_ids"][0],
                    response["top_log_probs"][0],
                )
                for response in responses
            ]
        )
    if "generation_logits" in responses[0]:
        logits = np.concatenate([response["generation_logits"][0, 0] for response in responses])
    return Output(token_ids.astype(np.int32), reason.decode(), True, log_probs, logits)


def _remaining_us(request: GenerationRequest) -> int:
    if request.deadline_s is None:
        return 0
    remaining_s = request.deadline_s - time.monotonic()
    if remaining_s <= 0:
        raise RequestTimeoutError(
            "the request's deadline passed",
            values=f"request {request.request_id}, {-remaining_s:.3f} s late",
            limit="the timeout sent with the request",
            remedy="allow more time, lower max_tokens, or add capacity",
        )
    return max(1, int(remaining_s * 1e6))
