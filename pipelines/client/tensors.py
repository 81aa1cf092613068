"""Turns a request into the tensors of a text model, and a response's tensors into a chunk (KServe v2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2
from tritonclient.utils import triton_to_np_dtype

from pipelines.client.connection import Timeouts
from pipelines.client.generation import inconsistent
from pipelines.wire.chunk import Chunk, SpeculationCounts, TopLogProbs
from pipelines.wire.request import CompletionRequest


@dataclass(frozen=True)
class Input:
    """One tensor [1, n] of a request.

    Attributes:
        name: Its name.
        datatype: KServe's name of its type.
        values: Its n values.
        is_list: Whether it may have any number of values, and not just one.
    """

    name: str
    datatype: str
    values: Sequence[Any] | npt.NDArray[np.int32]
    is_list: bool = False


def inputs_of(request: CompletionRequest, *, streaming: bool) -> list[Input]:
    """Return the tensors of a request; what has its default is left out.

    Raises:
        InvalidRequestError: A value cannot be transmitted.
    """
    request.check()
    found = [
        Input("max_tokens", "INT32", [request.max_tokens]),
        Input("stream", "BOOL", [streaming]),
    ]

    def add(name: str, datatype: str, value: Any, default: Any) -> None:
        if value != default:
            found.append(Input(name, datatype, [value]))

    def add_list(name: str, datatype: str, values: Any) -> None:
        if len(values):
            found.append(Input(name, datatype, values, is_list=True))

    if request.prompt or not len(request.prompt_ids):
        found.append(Input("text_input", "BYTES", [request.prompt]))
    add_list("input_ids", "INT32", request.prompt_ids)
    add("temperature", "FP32", request.temperature, 0.0)
    add("top_k", "INT32", request.top_k, 0)
    add("top_p", "FP32", request.top_p, 1.0)
    add("min_p", "FP32", request.min_p, 0.0)
    add("seed", "UINT64", request.seed, None)
    add("repetition_penalty", "FP32", request.repetition_penalty, 1.0)
    add("presence_penalty", "FP32", request.presence_penalty, 0.0)
    add("frequency_penalty", "FP32", request.frequency_penalty, 0.0)
    add("min_tokens", "INT32", request.min_tokens, 0)
    add("end_id", "INT32", request.end_id, None)
    add_list("stop_token_ids", "INT32", request.stop_token_ids)
    add_list("stop_words", "BYTES", request.stop_words)
    add_list("bad_words", "BYTES", request.bad_words)
    add_list("logit_bias_ids", "INT32", [token_id for token_id, _ in request.logit_bias])
    add_list("logit_bias_values", "FP32", [value for _, value in request.logit_bias])
    kind, guide = request.guide or ("", "")
    add("guided_decoding_guide_type", "BYTES", kind, "")
    add("guided_decoding_guide", "BYTES", guide, "")
    add("return_log_probs", "BOOL", request.num_log_probs is not None, False)
    add("num_log_probs", "INT32", request.num_log_probs, None)
    add("return_prompt_log_probs", "BOOL", request.return_prompt_log_probs, False)
    add("num_draft_tokens", "INT32", request.num_draft_tokens, None)
    add("use_draft_logits", "BOOL", request.use_draft_logits, False)
    add("session_id", "BYTES", request.session_id, "")
    add("cache_salt", "BYTES", request.cache_salt, "")
    add("prediction", "BYTES", request.prediction, "")
    add("arm", "BYTES", request.arm, "")
    add("add_special_tokens", "BOOL", request.add_special_tokens, True)
    add("parse_special_tokens", "BOOL", request.parse_special_tokens, False)
    add("skip_special_tokens", "BOOL", request.skip_special_tokens, True)
    add_list("resume_output_ids", "INT32", request.resume_output_ids)
    return found


def infer_message(request: CompletionRequest, model: str, timeouts: Timeouts, *, streaming: bool) -> Any:
    """Build the ``ModelInferRequest`` for a model.

    Raises:
        InvalidRequestError: The request cannot be sent.
    """
    message = service_pb2.ModelInferRequest(model_name=model)
    # Request the marked last response even if it is empty; without it, an end without tensors would
    # never arrive.
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    message.parameters["timeout"].int64_param = timeouts.total_us
    for each in inputs_of(request, streaming=streaming):
        message.inputs.add(name=each.name, datatype=each.datatype, shape=[1, len(each.values)])
        message.raw_input_contents.append(raw_contents(each.datatype, each.values))
    return message


def raw_contents(datatype: str, values: Sequence[Any] | npt.NDArray[Any]) -> bytes:
    """Encode the values of a tensor, flattened; the inverse of ``tensor_values``."""
    if datatype == "BYTES":
        encoded = [str(value).encode("utf-8") for value in values]
        return b"".join(len(item).to_bytes(4, "little") + item for item in encoded)
    return np.asarray(values, triton_to_np_dtype(datatype)).tobytes()


def chunk_of(response: Any, received_at_s: float) -> Chunk:
    """Return the chunk in a ``ModelInferResponse``; see ``chunk_from_outputs``."""
    # tritonclient's InferResult does the same in three times the time; this runs for every chunk of a stream.
    outputs = {
        output.name: tensor_values(output.datatype, raw)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }
    return chunk_from_outputs(outputs, received_at_s)


def tensor_values(datatype: str, raw: bytes) -> list[Any]:
    """Decode the raw values of a tensor, flattened; text as ``bytes``."""
    if datatype != "BYTES":
        values: list[Any] = np.frombuffer(raw, triton_to_np_dtype(datatype)).tolist()
        return values
    items, start = [], 0
    while start < len(raw):
        stop = start + 4 + int.from_bytes(raw[start : start + 4], "little")
        items.append(raw[start + 4 : stop])
        start = stop
    return items


def chunk_from_outputs(outputs: Mapping[str, Sequence[Any]], received_at_s: float) -> Chunk:
    """Convert the outputs of one response to a chunk.

    Args:
        outputs: Tensor name -> values, flattened; text as ``str`` or UTF-8 ``bytes``.
        received_at_s: Time of arrival on ``time.monotonic``'s clock.

    Raises:
        InternalError: An output is missing, or the response is inconsistent.
    """
    try:
        counts = None
        if "num_rounds" in outputs:
            counts = SpeculationCounts(
                num_rounds=int(outputs["num_rounds"][0]),
                total_draft_tokens=int(outputs["total_draft_tokens"][0]),
                total_accepted_draft_tokens=int(outputs["total_accepted_draft_tokens"][0]),
                accepted_per_position=tuple(int(count) for count in outputs["accepted_per_position"]),
                accepted_prediction_tokens=int(outputs.get("accepted_prediction_tokens", (0,))[0]),
                rejected_prediction_tokens=int(outputs.get("rejected_prediction_tokens", (0,))[0]),
            )
        output_ids = tuple(int(token_id) for token_id in outputs["output_ids"])
        of_prompt = outputs.get("prompt_log_probs", ())
        chunk = Chunk(
            text=_text(outputs["text_output"]),
            output_ids=output_ids,
            accepted_mask=tuple(bool(accepted) for accepted in outputs.get("accepted_mask", ()))
            or (False,) * len(output_ids),
            finish_reason=_text(outputs["finish_reason"]),
            received_at_s=received_at_s,
            sequence_length=int(outputs["sequence_length"][0]),
            counts=counts,
            drafted_per_round=tuple(int(num) for num in outputs.get("drafted_per_round", ())),
            seed=int(outputs["output_seed"][0]) if "output_seed" in outputs else None,
            num_cached=int(outputs.get("cached_prompt_tokens", (0,))[0]),
            draft_length=_text(outputs["draft_length"]) if "draft_length" in outputs else "",
            log_probs=tuple(float(value) for value in outputs.get("output_log_probs", ())),
            top_log_probs=_top_log_probs(outputs, len(output_ids)),
            prompt_log_probs=tuple(map(float, of_prompt)),
            prompt_top_log_probs=_top_log_probs(outputs, len(of_prompt), "prompt_"),
            arm=_text(outputs.get("arm", ("",))),
            fallback_from=tuple(filter(None, _text(outputs.get("fallback_from", ("",))).split(","))),
            token_sources=tuple(int(source) for source in outputs.get("token_sources", ()))
            or (0,) * len(output_ids),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise inconsistent(f"{error!r} in a response with outputs {sorted(outputs)}") from error
    for name in ("accepted_mask", "token_sources", "log_probs"):
        found = getattr(chunk, name)
        if len(found) != len(output_ids) and (found or name != "log_probs"):
            raise inconsistent(f"{len(found)} of {name} for {len(output_ids)} tokens")
    return chunk


def _top_log_probs(outputs: Mapping[str, Sequence[Any]], num_tokens: int, of: str = "") -> TopLogProbs:
    """Split the row of alternatives into equally many for each token."""
    ids = [int(token_id) for token_id in outputs.get(f"{of}top_log_prob_ids", ())]
    values = [float(value) for value in outputs.get(f"{of}top_log_probs", ())]
    if not ids and not values:
        return ()
    if not num_tokens or len(ids) % num_tokens or len(ids) != len(values):
        raise ValueError(f"{len(ids)} ids and {len(values)} log probs of alternatives, {num_tokens} tokens")
    pairs = tuple(zip(ids, values, strict=True))
    step = len(pairs) // num_tokens
    return tuple(pairs[start : start + step] for start in range(0, len(pairs), step))


def _text(values: Sequence[Any]) -> str:
    value = values[0]
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
