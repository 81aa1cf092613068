"""Declares the fields of a request, once: tensors at text models and engines, defaults, ranges, effects.

``config.pbtxt``, the client's tensors, the messages to engines, the fields of OpenAI's API that are passed on
as they are, and the table in ``docs/reference/requests.md`` are made from these declarations. A new parameter
is one more field here, the code that gives it meaning, and a test.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError

_INT32_LIMIT = 2**31
_UINT64_LIMIT = 2**64
_DTYPES = {"BOOL": np.bool_, "INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32, "BYTES": np.object_}


@dataclass(frozen=True)
class InputTensor:
    """One tensor of a request.

    Attributes:
        name: Name at the text models.
        datatype: KServe's name of the type: BOOL, INT32, UINT64, FP32 or BYTES.
        limits: Values that are accepted, for the reference.
        effect: What it does, for the reference.
        dims: Shape without the batch dimension, as ``config.pbtxt`` has it; -1 for any size.
        engine: Name at engines, as TensorRT-LLM has it; "" if it ends at the text models.
        part: Engines that have it: all, or those with a draft.
        is_required: Whether every request has it.
    """

    name: str
    datatype: str
    limits: str = ""
    effect: str = ""
    dims: tuple[int, ...] = (1,)
    engine: str = ""
    part: Literal["all", "draft"] = "all"
    is_required: bool = False

    @property
    def is_list(self) -> bool:
        """Whether it has any number of values."""
        return self.dims == (-1,)

    def config(self, *, at_engine: bool) -> str:
        """Return its line in ``config.pbtxt``."""
        name = self.engine if at_engine else self.name
        kind = "STRING" if self.datatype == "BYTES" else self.datatype
        optional = "" if self.is_required else " optional: true"
        return f'input [{{ name: "{name}" data_type: TYPE_{kind} dims: {list(self.dims)}{optional} }}]'

    def checked(self, values: Iterable[Any], field: str) -> tuple[Any, ...]:
        """Return the values of a field as they are sent.

        Raises:
            InvalidRequestError: One cannot be sent.
        """
        if self.datatype == "BOOL":
            return tuple(map(bool, values))
        if self.datatype == "FP32":
            return tuple(_finite(field, value) for value in values)
        if self.datatype == "BYTES":
            return tuple(_utf8(field, value) for value in values)
        limits = (0, _UINT64_LIMIT) if self.datatype == "UINT64" else (-_INT32_LIMIT, _INT32_LIMIT)
        return tuple(_integer(field, value, *limits) for value in values)


def _sent(default: Any, *tensors: InputTensor, openai: bool = False) -> Any:
    return dataclasses.field(default=default, metadata={"tensors": tensors, "openai": openai})


def _sampling(
    default: Any,
    name: str,
    datatype: str,
    limits: str,
    effect: str,
    *,
    engine: str = "",
    part: Literal["all", "draft"] = "all",
    dims: tuple[int, ...] = (1,),
    openai: bool = True,
) -> Any:
    """Declare a field that is passed on as it is, from the client to the engine."""
    tensor = InputTensor(name, datatype, limits, effect, dims, engine or name, part)
    return _sent(default, tensor, openai=openai)


@dataclass(frozen=True)
class CompletionRequest:
    """A text or tokens to continue, and the sampling parameters.

    The server validates the values; the client refuses only what cannot be transmitted. The declaration of
    each field says what it does.
    """

    prompt: str = _sent(
        "",
        InputTensor(
            "text_input",
            "BYTES",
            "this or `input_ids`; at least 1 token, at most `max_seq_len` times the longest one",
            "text to continue; the answer does not repeat it",
        ),
    )
    max_tokens: int = _sent(
        64,
        InputTensor(
            "max_tokens",
            "INT32",
            "1 to `max_seq_len` less the prompt",
            "longest answer",
            engine="request_output_len",
            is_required=True,
        ),
    )
    temperature: float = _sampling(
        *(0.0, "temperature", "FP32", "at least 0"),
        "divides the logits; 0 is greedy, and `min_p`, `top_k` and `top_p` do not apply",
    )
    top_k: int = _sampling(
        *(0, "top_k", "INT32", "at least 0"),
        "keeps this many of the most likely tokens; 0 keeps all",
        engine="runtime_top_k",
    )
    top_p: float = _sampling(
        *(1.0, "top_p", "FP32", "above 0, to 1"),
        "keeps the smallest set of most likely tokens whose probabilities reach this sum",
        engine="runtime_top_p",
    )
    seed: int | None = _sampling(
        *(None, "seed", "UINT64", "all"),
        "key of the noise: the same seed gives the same answer; without it the server draws one, "
        "which the last response returns as `output_seed`",
    )
    stop_words: tuple[str, ...] = _sent(
        (),
        InputTensor(
            *("stop_words", "BYTES", "32 of up to 256 bytes"),
            "the text ends before the first of them, however it is spelled in tokens",
            dims=(-1,),
            engine="stop_words_list",
        ),
    )
    end_id: int | None = _sampling(
        *(None, "end_id", "INT32", "a token; below 0: none"),
        "ends the answer and is not part of it; replaces all end tokens of the engine",
        openai=False,
    )
    num_draft_tokens: int | None = _sampling(
        *(None, "num_draft_tokens", "INT32", "0 to `max_draft_len`"),
        "draft tokens in each round, 0 for none; absent: the server's setting",
        part="draft",
    )
    min_p: float = _sampling(
        *(0.0, "min_p", "FP32", "0 to 1"),
        "keeps tokens whose probability is at least this fraction of the largest one",
    )
    repetition_penalty: float = _sampling(
        *(1.0, "repetition_penalty", "FP32", "above 0"),
        "logits of tokens in prompt or answer: divided by it above 0, multiplied by it below",
    )
    presence_penalty: float = _sampling(
        *(0.0, "presence_penalty", "FP32", "-2 to 2"),
        "subtracted once from the logits of tokens in the answer",
    )
    frequency_penalty: float = _sampling(
        *(0.0, "frequency_penalty", "FP32", "-2 to 2"),
        "subtracted for each time that the token is in the answer",
    )
    min_tokens: int = _sampling(
        *(0, "min_tokens", "INT32", "0 to `max_tokens`"),
        "no end token before this many tokens; stop words must begin after them",
    )
    bad_words: tuple[str, ...] = _sent(
        (),
        InputTensor(
            *("bad_words", "BYTES", "32 of up to 256 bytes"),
            "the answer contains none of them, however they are spelled in tokens",
            dims=(-1,),
            engine="bad_words_list",
        ),
        openai=True,
    )
    logit_bias: tuple[tuple[int, float], ...] = _sent(
        (),
        InputTensor(
            *("logit_bias_ids", "INT32", "1024 token ids, each once"),
            "tokens to whose logits `logit_bias_values` are added",
            dims=(-1,),
            engine="logit_bias_ids",
        ),
        InputTensor(
            *("logit_bias_values", "FP32", "-100 to 100"),
            "one value for each of `logit_bias_ids`",
            dims=(-1,),
            engine="logit_bias_values",
        ),
    )
    guide: tuple[str, str] | None = _sent(
        None,
        InputTensor(
            *("guided_decoding_guide_type", "BYTES", "see structured output"),
            "what `guided_decoding_guide` contains",
            engine="guided_decoding_guide_type",
        ),
        InputTensor(
            *("guided_decoding_guide", "BYTES", "up to 262144 bytes"),
            "the answer follows the guide",
            engine="guided_decoding_guide",
        ),
    )
    num_log_probs: int | None = _sent(
        None,
        InputTensor(
            *("return_log_probs", "BOOL", "true, false"),
            "fills `output_log_probs` and `cum_log_probs`, of the raw logits, which no parameter changes",
            engine="return_log_probs",
        ),
        InputTensor(
            *("num_log_probs", "INT32", "0 to 20"),
            "fills `top_log_prob_ids` and `top_log_probs` with this many entries per token; "
            "needs `return_log_probs`",
            engine="num_log_probs",
        ),
    )
    return_prompt_log_probs: bool = _sampling(
        *(False, "return_prompt_log_probs", "BOOL", "true, false"),
        "fills `prompt_log_probs`, `prompt_top_log_prob_ids` and `prompt_top_log_probs` for the prompt "
        "without its first token; needs `return_log_probs`; computes the prompt without cached blocks",
        openai=False,
    )
    use_draft_logits: bool = _sampling(
        *(False, "use_draft_logits", "BOOL", "true, false"),
        "accepts draft tokens by the ratio rule: the answer follows the target's distribution, but is "
        "not the target's own",
        part="draft",
        openai=False,
    )
    session_id: str = _sampling(
        *("", "session_id", "BYTES", "256 bytes of UTF-8"),
        "requests of one session share what the server learns about their text, look drafts up in its latest "
        "answers, and are answered by one arm; whoever knows its id can find out what was in its answers",
        part="draft",
    )
    prediction: str = _sent(
        "",
        InputTensor(
            *("prediction", "BYTES", "UTF-8, fewer tokens than `max_seq_len`"),
            "what the answer is expected to be, such as a file before an edit: drafts are looked up in it "
            "where the server adapts the draft length; the answer does not depend on it",
            part="draft",
        ),
    )
    arm: str = _sent(
        "",
        InputTensor(
            *("arm", "BYTES", "`stable`, `candidate` or `control`"),
            "names the arm that answers; needs the right to choose it; absent: chosen by weight",
        ),
        openai=True,
    )
    prompt_ids: tuple[int, ...] = _sent(
        (),
        InputTensor(
            *(
                "input_ids",
                "INT32",
                "this or `text_input`; tokens, fewer than `max_seq_len`",
            ),
            "tokens to continue, used as they are",
            dims=(-1,),
        ),
    )
    add_special_tokens: bool = _sent(
        True,
        InputTensor(
            *("add_special_tokens", "BOOL", "true, false; with `text_input` only"),
            "adds what the tokenizer puts around every text, such as BOS; never twice",
        ),
    )
    parse_special_tokens: bool = _sent(
        False,
        InputTensor(
            *("parse_special_tokens", "BOOL", "true, false; with `text_input` only"),
            "names such as `<|im_start|>` in the text become special tokens; "
            "text from others must not be parsed",
        ),
    )
    skip_special_tokens: bool = _sent(
        True,
        InputTensor(
            *("skip_special_tokens", "BOOL", "true, false"),
            "leaves special tokens out of `text_output`; `output_ids` has them in either case",
        ),
        openai=True,
    )
    resume_output_ids: tuple[int, ...] = _sent(
        (),
        InputTensor(
            *("resume_output_ids", "INT32", "tokens of whole chunks, fewer than `max_tokens`"),
            "the answer continues after these tokens",
            dims=(-1,),
        ),
    )
    stop_token_ids: tuple[int, ...] = _sampling(
        *((), "stop_token_ids", "INT32", "up to 32 tokens"),
        "each of them ends the answer too, and is not part of it",
        dims=(-1,),
    )

    def values(self, *, streaming: bool) -> Iterator[tuple[InputTensor, tuple[Any, ...]]]:
        """Yield each tensor that differs from its default, with its values.

        Raises:
            InvalidRequestError: A value cannot be transmitted.
        """
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            tensors: tuple[InputTensor, ...] = field.metadata["tensors"]
            columns: Sequence[Any] = ()  # the values of each tensor; none: not sent
            if field.name == "prompt":
                columns = ((value,),) if value or not len(self.prompt_ids) else ()
            elif field.name == "logit_bias":
                columns = tuple(zip(*value, strict=True))
            elif field.name == "guide":
                columns = tuple((text,) if text else () for text in value or ())
            elif field.name == "num_log_probs":
                columns = () if value is None else ((True,), (value,))
            elif tensors[0].is_list:
                columns = (value,)
            elif tensors[0].is_required or value != field.default:
                columns = ((value,),)
            for tensor, values in zip(tensors, columns, strict=False):
                if len(values):  # an array of numpy has no truth
                    yield tensor, tensor.checked(values, field.name)
        yield STREAM, (streaming,)

    def tensors(self, *, streaming: bool) -> dict[str, npt.NDArray[Any]]:
        """Return the tensors [1, n] of the request by name, as a text model takes them.

        Raises:
            InvalidRequestError: A value cannot be transmitted.
        """
        arrays = {}
        for tensor, values in self.values(streaming=streaming):
            if tensor.datatype == "BYTES":
                values = tuple(value.encode() for value in values)
            arrays[tensor.name] = np.array([values], _DTYPES[tensor.datatype])
        return arrays


STREAM = InputTensor(*("stream", "BOOL", "true, false", "sends chunks as they come"), engine="streaming")

_OF_TEXT = (
    *(tensor for field in dataclasses.fields(CompletionRequest) for tensor in field.metadata["tensors"]),
    STREAM,
)

_OF_ENGINES = (
    InputTensor("", "INT32", dims=(-1,), engine="input_ids", is_required=True),
    InputTensor("", "INT32", engine="input_lengths", is_required=True),
    InputTensor("", "INT32", dims=(2, -1), engine="stop_words_list"),
    InputTensor("", "INT32", dims=(2, -1), engine="bad_words_list"),
    InputTensor("", "INT32", dims=(-1,), engine="prediction_ids", part="draft"),
    InputTensor("", "INT32", engine="prompt_length", part="draft"),
)

_MADE_OF_TEXT = frozenset({"max_tokens", "stream", "stop_words", "bad_words"})

TEXT_INPUTS: Mapping[str, InputTensor] = {tensor.name: tensor for tensor in _OF_TEXT}
"""Inputs of the text models by name."""

ENGINE_INPUTS: Mapping[str, InputTensor] = {
    tensor.engine: tensor for tensor in (*_OF_TEXT, *_OF_ENGINES) if tensor.engine
}
"""Inputs of engines by name."""

PASSED_ON: Mapping[str, str] = {
    tensor.name: tensor.engine for tensor in _OF_TEXT if tensor.engine and tensor.name not in _MADE_OF_TEXT
}
"""Inputs of text models that engines get as they are: name at the text model -> name at the engine."""


NOT_OF_ENSEMBLE = frozenset({"skip_special_tokens", "resume_output_ids", "arm", "prediction"})
"""In Triton 2.51 a step behind a decoupled one may have no input of the ensemble itself, NVIDIA's tensors
between the steps know neither where the prompt ends nor predictions, and an ensemble has one arm."""


def declared_inputs(model: str) -> list[str]:
    """Return the inputs of a model as lines of ``config.pbtxt``.

    Args:
        model: ``text``, ``ensemble``, ``speculative`` or ``target_alone``.
    """
    if model == "text":
        return [tensor.config(at_engine=False) for tensor in TEXT_INPUTS.values()]
    if model == "ensemble":
        tensors = (tensor for name, tensor in TEXT_INPUTS.items() if name not in NOT_OF_ENSEMBLE)
        return [tensor.config(at_engine=False) for tensor in tensors]
    parts = ("all",) if model == "target_alone" else ("all", "draft")
    return [tensor.config(at_engine=True) for tensor in ENGINE_INPUTS.values() if tensor.part in parts]


OPENAI_FIELDS: tuple[str, ...] = tuple(
    field.name for field in dataclasses.fields(CompletionRequest) if field.metadata["openai"]
)
"""Fields that OpenAI's API has under the same name and with the same meaning, most of them vLLM's."""


def _integer(name: str, value: Any, minimum: int, limit: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):  # numpy's integers are such too
        raise _cannot_be_sent(name, f"{name}={value!r}", "an integer", f"send an integer as {name}")
    number = int(value)
    if not minimum <= number < limit:
        remedy = f"send a smaller {name}" if number >= limit else f"send a larger {name}"
        raise _cannot_be_sent(name, f"{name}={value}", f"{minimum} to {limit - 1}", remedy)
    return number


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise _cannot_be_sent(name, f"{name}={value}", "a finite number", "send a finite number")
    return float(value)


def _utf8(name: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _cannot_be_sent(
            name,
            f"code point {text[error.start]!r} at {error.start}",
            "text that can be encoded as UTF-8, without lone surrogates",
            "decode the source text with errors='replace'",
        ) from error
    return text


def _cannot_be_sent(name: str, values: str, limit: str, remedy: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} cannot be sent", values=values, limit=limit, remedy=remedy)
