"""Reads the tensors of a request to a text model."""

from __future__ import annotations

from pipelines.errors import InvalidRequestError
from pipelines.triton.backend.tensors import (
    Inputs,
    decode_utf8,
    read_guide,
    read_id,
    read_logit_bias,
    read_num_log_probs,
    read_scalar,
    read_text,
    read_token_ids,
    without_batch,
)
from pipelines.wire.fields import TEXT_INPUTS
from pipelines.wire.request import CompletionRequest

_OF_TEXT = ("add_special_tokens", "parse_special_tokens")


def completion_request(inputs: Inputs) -> CompletionRequest:
    """Build the request that the tensors describe; ranges are checked later.

    Raises:
        InvalidRequestError: There is no prompt or two, or a tensor has an invalid shape, type or value.
    """
    _check_prompt(inputs)
    return CompletionRequest(
        prompt=read_text(inputs, "text_input"),
        prompt_ids=_read_ids(inputs, "input_ids"),
        max_tokens=read_scalar(inputs, "max_tokens", 0),
        temperature=read_scalar(inputs, "temperature", 0.0),
        top_k=read_scalar(inputs, "top_k", 0),
        top_p=read_scalar(inputs, "top_p", 1.0),
        min_p=read_scalar(inputs, "min_p", 0.0),
        seed=read_scalar(inputs, "seed", None),
        repetition_penalty=read_scalar(inputs, "repetition_penalty", 1.0),
        presence_penalty=read_scalar(inputs, "presence_penalty", 0.0),
        frequency_penalty=read_scalar(inputs, "frequency_penalty", 0.0),
        min_tokens=read_scalar(inputs, "min_tokens", 0),
        end_id=read_scalar(inputs, "end_id", None),
        stop_token_ids=read_token_ids(inputs, "stop_token_ids"),
        stop_words=_read_words(inputs, "stop_words"),
        bad_words=_read_words(inputs, "bad_words"),
        logit_bias=read_logit_bias(inputs),
        guide=read_guide(inputs),
        num_log_probs=read_num_log_probs(inputs),
        return_prompt_log_probs=read_scalar(inputs, "return_prompt_log_probs", False),
        num_draft_tokens=read_scalar(inputs, "num_draft_tokens", None),
        use_draft_logits=read_scalar(inputs, "use_draft_logits", False),
        session_id=read_id(inputs, "session_id"),
        cache_salt=read_id(inputs, "cache_salt"),
        prediction=read_text(inputs, "prediction"),
        arm=read_id(inputs, "arm"),
        add_special_tokens=read_scalar(inputs, "add_special_tokens", True),
        parse_special_tokens=read_scalar(inputs, "parse_special_tokens", False),
        skip_special_tokens=read_scalar(inputs, "skip_special_tokens", True),
        resume_output_ids=_read_ids(inputs, "resume_output_ids"),
    )


def refuse_choices(inputs: Inputs, arm: str) -> None:
    """Refuse an arm where one is given, and what the target alone cannot follow.

    Args:
        inputs: Tensors of the request.
        arm: The arm that alone answers the model that the client named; "" for any.

    Raises:
        InvalidRequestError: There is such an input.
    """
    if not arm:
        return
    of_draft = [name for name in inputs if TEXT_INPUTS[name].models == "draft" and arm == "control"]
    if unknown := [*of_draft, *(["arm"] if "arm" in inputs else [])]:
        raise InvalidRequestError(
            f"{', '.join(unknown)} cannot be chosen for this model, which {arm} answers",
            "leave it out, or send the request to router",
        )


def _check_prompt(inputs: Inputs) -> None:
    given = [name for name in ("text_input", "input_ids") if name in inputs]
    if len(given) != 1:
        raise InvalidRequestError(
            f"the request has {' and '.join(given) or 'neither text_input nor input_ids'}, not one prompt",
            "send only one of them" if given else "send text_input with a text",
        )
    if "input_ids" not in inputs:
        return
    if unused := [name for name in _OF_TEXT if name in inputs]:
        raise InvalidRequestError(
            f"{' and '.join(unused)} cannot be sent with input_ids, which are used as they are",
            "leave it out, or send text_input",
        )
    if not inputs["input_ids"].size:
        raise InvalidRequestError("the prompt is empty: input_ids gives 0 tokens", "send a prompt")


def _read_ids(inputs: Inputs, name: str) -> tuple[int, ...]:
    without_batch(inputs, name)
    return read_token_ids(inputs, name)


def _read_words(inputs: Inputs, name: str) -> tuple[str, ...]:
    words = inputs[name].reshape(-1).tolist() if name in inputs else []
    return tuple(decode_utf8(word, name) for word in words)
