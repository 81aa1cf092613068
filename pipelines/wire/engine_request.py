"""Reads the tensors of a request to an engine; ``request.ENGINE_INPUTS`` declares them.

Names, types and shapes are those of TensorRT-LLM's model ``tensorrt_llm``. Ranges are checked later, where
the limits are known.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field

from pipelines.errors import InvalidRequestError
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import MAX_LOGIT_BIASES, SamplingParams, draw_seed
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds
from pipelines.text.guides import GUIDE_TYPES, Guide
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.request import PASSED_ON, CompletionRequest
from pipelines.wire.tensors import Inputs, decode_utf8, read_id, read_scalar, read_token_ids, without_batch
from pipelines.wire.word_list import WordKind, unpack_words

_GUIDE_TENSORS = "guided_decoding_guide_type", "guided_decoding_guide"
BIAS_TENSORS = "logit_bias_ids", "logit_bias_values"
MAX_STOP_TOKEN_IDS = 32
MAX_PREDICTION_IDS = 1 << 20

_SAMPLING = {
    field.name: (PASSED_ON[request_field.metadata["tensors"][0].name], type(request_field.default))
    for field in dataclasses.fields(SamplingParams)
    for request_field in dataclasses.fields(CompletionRequest)
    if request_field.name == field.name != "logit_bias"
}
"""Name at engines and type of each number of ``SamplingParams``."""


@dataclass(frozen=True)
class GenerationCall:
    """A request as it was received.

    Attributes:
        request: The request to the engine.
        streaming: Whether the answer is sent in chunks.
        num_draft_tokens: Draft tokens per round; None for the server's default.
        use_draft_logits: Whether draft tokens are accepted by the ratio rule, with the draft's logits.
        prediction_ids: int32 [n], what the client expects as the answer; may be empty.
        session_id: Session whose requests share acceptance rates and earlier answers; "" for none.
        guide: Limits the output; None for none.
    """

    request: GenerationRequest
    streaming: bool
    num_draft_tokens: int | None
    use_draft_logits: bool
    session_id: str
    prediction_ids: TokenIds = field(default_factory=lambda: NO_TOKENS)
    guide: Guide | None = None


def parse_call(
    inputs: Inputs, request_id: str, vocabulary: Vocabulary, end_ids: tuple[int, ...], timeout_us: int = 0
) -> GenerationCall:
    """Build the request that the tensors describe.

    Args:
        inputs: Tensors by name; optional ones may be absent.
        request_id: Id of the request inside the server.
        vocabulary: Bytes of the tokens, for stop words and bad words.
        end_ids: Default end tokens. The request's own ``end_id`` replaces them; a negative one means none.
        timeout_us: The client's time limit in microseconds; 0 for none.

    Raises:
        InvalidRequestError: A tensor has an invalid shape or value.
    """
    input_ids = read_token_ids(inputs, "input_ids")
    num_input = read_scalar(inputs, "input_lengths", int, len(input_ids))
    if num_input != len(input_ids):
        raise InvalidRequestError(
            "input_lengths does not match input_ids",
            values=f"input_lengths={num_input}, input_ids has {len(input_ids)} tokens",
            limit="they must be equal: one request per call, no padding",
            remedy="send the number of tokens in input_ids",
        )
    own_end_id = read_scalar(inputs, "end_id", int, None)
    if own_end_id is not None:
        end_ids = (own_end_id,) if own_end_id >= 0 else ()
    stop_token_ids = _read_tokens(inputs, "stop_token_ids", MAX_STOP_TOKEN_IDS, vocabulary)
    end_ids = (*end_ids, *stop_token_ids.tolist())
    request = GenerationRequest(
        request_id=request_id,
        input_ids=input_ids,
        max_tokens=read_scalar(inputs, "request_output_len", int, 0),
        prompt_length=read_scalar(inputs, "prompt_length", int, num_input),
        sampling=_read_sampling(inputs),
        end_ids=end_ids,
        stop_words=_read_words(inputs, vocabulary, WordKind.STOP),
        bad_words=_read_words(inputs, vocabulary, WordKind.BAD),
        num_log_probs=_read_num_log_probs(inputs),
        prompt_log_probs=read_scalar(inputs, "return_prompt_log_probs", bool, False),
        deadline_s=time.monotonic() + timeout_us / 1e6 if timeout_us else None,
    )
    return GenerationCall(
        request=request,
        streaming=read_scalar(inputs, "streaming", bool, False),
        num_draft_tokens=read_scalar(inputs, "num_draft_tokens", int, None),
        use_draft_logits=read_scalar(inputs, "use_draft_logits", bool, False),
        session_id=read_id(inputs, "session_id"),
        prediction_ids=_read_tokens(inputs, "prediction_ids", MAX_PREDICTION_IDS, vocabulary),
        guide=_read_guide(inputs),
    )


def _read_words(inputs: Inputs, vocabulary: Vocabulary, kind: WordKind) -> tuple[bytes, ...]:
    matrix = without_batch(inputs, kind.list_tensor)
    return () if matrix is None else unpack_words(matrix, vocabulary, kind)


def _read_guide(inputs: Inputs) -> Guide | None:
    kind, text = (decode_utf8(read_scalar(inputs, name, bytes, b""), name) for name in _GUIDE_TENSORS)
    if not kind and not text:
        return None
    if not kind or (not text and kind != "json"):
        raise InvalidRequestError(
            "a guide needs its type and its text",
            values=f"{_GUIDE_TENSORS[0]}={kind!r:.100}, {_GUIDE_TENSORS[1]} of {len(text)} characters",
            limit=f"both tensors; the type is one of {', '.join(GUIDE_TYPES)}, and only json has no text",
            remedy="send both, or neither",
        )
    return Guide(kind, text)


def _read_num_log_probs(inputs: Inputs) -> int | None:
    if read_scalar(inputs, "return_log_probs", bool, False):
        num_log_probs: int = read_scalar(inputs, "num_log_probs", int, 0)
        return num_log_probs
    if "num_log_probs" in inputs:
        raise InvalidRequestError(
            "num_log_probs needs return_log_probs",
            values="num_log_probs without return_log_probs=true",
            limit="num_log_probs is the number of alternatives returned with the log probabilities",
            remedy="send return_log_probs=true, or leave num_log_probs out",
        )
    return None


def check_bias(inputs: Inputs) -> None:
    """Refuse a bias that is too long, or whose ids and values differ in number, before it is read.

    Raises:
        InvalidRequestError: There are more than ``MAX_LOGIT_BIASES`` entries, or the tensors differ in
            length.
    """
    num_ids, num_values = (inputs[name].size if name in inputs else 0 for name in BIAS_TENSORS)
    if num_ids != num_values:
        raise InvalidRequestError(
            "logit_bias_ids and logit_bias_values have different lengths",
            values=f"{num_ids} ids, {num_values} values",
            limit="one value for each id",
            remedy="send both with the same length, or neither",
        )
    if num_ids > MAX_LOGIT_BIASES:
        raise InvalidRequestError(
            "logit_bias has too many entries",
            values=f"{num_ids} ids",
            limit=f"at most {MAX_LOGIT_BIASES}",
            remedy="send the most important ones; use bad_words to forbid texts",
        )


def _read_sampling(inputs: Inputs) -> SamplingParams:
    """Read the sampling parameters; without ``seed`` one is drawn. Ranges are checked later."""
    given = {
        name: read_scalar(inputs, tensor, float if kind is float else int, None)
        for name, (tensor, kind) in _SAMPLING.items()
        if tensor in inputs
    }
    given.setdefault("seed", draw_seed())
    return SamplingParams(**given, logit_bias=_read_logit_bias(inputs))


def _read_tokens(inputs: Inputs, name: str, most: int, vocabulary: Vocabulary) -> TokenIds:
    """Return at most so many ids, each of a token."""
    ids = read_token_ids(inputs, name)
    if len(ids) > most or (ids.size and (ids.min() < 0 or ids.max() >= vocabulary.size)):
        raise InvalidRequestError(
            f"{name} cannot be used",
            values=f"{len(ids)} ids: {ids[:20].tolist()!r:.200}",
            limit=f"at most {most}, each from 0 to {vocabulary.size - 1}",
            remedy="send tokens of the model's vocabulary",
        )
    return ids


def _read_logit_bias(inputs: Inputs) -> tuple[tuple[int, float], ...]:
    check_bias(inputs)
    ids, values = (inputs[name].reshape(-1).tolist() if name in inputs else [] for name in BIAS_TENSORS)
    return tuple(zip(ids, values, strict=True))
