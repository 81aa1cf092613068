"""End tokens, stop words and bad words in what a foreign engine writes: words by their bytes."""

from __future__ import annotations

from pipelines.errors import EngineFailedError
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.token_ids import TokenIds
from pipelines.text.stop_words import StopWordMatcher
from pipelines.text.vocabulary import Vocabulary


class OutputEnd:
    """Watches the output of one request.

    NVIDIA's engines know one end token of a request; the others are found here, and are no part of the output
    either. They match words as sequences of tokens, which the same text may not be made of. So they are not
    told the stop words: the output is cut here, and what the engine wrote after one is lost. Bad words they
    are told; one that gets through in other tokens ends the request with an error.

    Args:
        request: Its ``input_ids`` after the prompt are output that was watched before.
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
            Those before an end token, or up to the one that completes a stop word, and whether there is one.

        Raises:
            EngineFailedError: A bad word is complete.
        """
        for index, token_id in enumerate(token_ids.tolist()):
            if token_id in self._end_ids:
                return token_ids[:index], True
            if self._bad_words.push(token_id):
                raise EngineFailedError(
                    "the engine wrote a bad word in other tokens than it was told",
                    values=f"request {self._request_id}",
                    limit="TensorRT-LLM bans sequences of tokens, not texts",
                    remedy="forbid its tokens by logit_bias, or send the request again with another seed",
                )
            if self._num_before:
                self._num_before -= 1
            elif self._stop_words.push(token_id):
                return token_ids[: index + 1], True
        return token_ids, False
