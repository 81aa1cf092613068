"""Limits of a request where no executor is at hand to check it."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.errors import InvalidRequestError, PromptTooLongError
from pipelines.speculation.request import GenerationRequest


@dataclass(frozen=True)
class RequestLimits:
    """What the engines behind BLS take; they check again.

    Attributes:
        max_seq_len: Tokens of one request, prompt and output together.
    """

    max_seq_len: int

    def check(self, request: GenerationRequest) -> None:
        """Refuse a request before its first call.

        Raises:
            InvalidRequestError: A value has no meaning.
            PromptTooLongError: Prompt and output are too long together.
        """
        request.sampling.validate()
        num_input = len(request.input_ids)
        if not num_input:
            raise InvalidRequestError(
                "the prompt is empty",
                values="input_ids has 0 tokens",
                limit="at least 1 token",
                remedy="send a prompt",
            )
        if request.max_tokens < 1:
            raise InvalidRequestError(
                "no output is asked for",
                values=f"max_tokens={request.max_tokens}",
                limit="at least 1",
                remedy="send max_tokens of 1 or more",
            )
        if num_input + request.max_tokens > self.max_seq_len:
            raise PromptTooLongError(
                "prompt and output are too long together",
                values=f"{num_input} prompt tokens + {request.max_tokens} max_tokens",
                limit=f"max_seq_len={self.max_seq_len}",
                remedy="shorten the prompt, lower max_tokens, or serve with a larger max_seq_len",
            )


def check_num_draft_tokens(num_draft_tokens: int, max_draft_len: int) -> None:
    """Refuse a draft length that the engines were not made for.

    Raises:
        InvalidRequestError: It is outside 0..max_draft_len.
    """
    if not 0 <= num_draft_tokens <= max_draft_len:
        raise InvalidRequestError(
            "num_draft_tokens is out of range",
            values=f"num_draft_tokens={num_draft_tokens}",
            limit=f"0 to max_draft_len={max_draft_len}",
            remedy="send 0 to switch speculation off, or leave it out for the server's default",
        )
