"""Finds end tokens, stop words and bad words in the output of NVIDIA's engines."""

from __future__ import annotations

from pipelines.errors import EngineFailedError
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.token_ids import TokenIds
from pipelines.text.vocabulary import Vocabulary
from pipelines.text.words import StopWordMatcher


class OutputEnd:
    """Scans the output of one request.

    NVIDIA's engines support one end token per request; further ones are found here and removed from the
    output. The engines match words as token sequences, but the same text can have other tokens. So stop words
    are not sent to the engine: the output is cut here, and whatever the engine generated after a stop word is
    dropped. Bad words are sent; one that appears in other tokens ends the request with an error.

    Args:
        request: The request; its ``input_ids`` after the prompt are output that was scanned before.
        vocabulary: Bytes of the tokens.
    """

    def __init__(self, request: GenerationRequest, vocabulary: Vocabulary) -> None:
        output_ids = request.input_ids[request.num_prompt_tokens :]
        min_tokens = request.sampling.min_tokens
        self._request_id = request.request_id
        self._end_ids = request.end_ids
        self._num_before = max(0, min_tokens - len(output_ids))
        self._stop_words = StopWordMatcher(request.stop_words, vocabulary, output_ids[min_tokens:].tolist())
        self._bad_words = StopWordMatcher(request.bad_words, vocabulary, output_ids.tolist())

    def take(self, token_ids: TokenIds) -> tuple[TokenIds, bool]:
        """Add tokens.

        Returns:
            The tokens before an end token or up to the end of a stop word, and whether there was one.

        Raises:
            EngineFailedError: The output contains a bad word.
        """
        for index, token_id in enumerate(token_ids.tolist()):
            if token_id in self._end_ids:
                return token_ids[:index], True
            if self._bad_words.push(token_id):
                raise EngineFailedError(
                    f"the engine wrote a bad word in other tokens than those banned: {self._request_id}",
                    "forbid its tokens with logit_bias, or send the request again with another seed",
                )
            if self._num_before:
                self._num_before -= 1
            elif self._stop_words.push(token_id):
                return token_ids[: index + 1], True
        return token_ids, False
