"""Chooses the tokens of one request, the same way for draft, verification and plain decoding."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from pipelines.errors import EngineFailedError, InvalidRequestError
from pipelines.speculation import draws
from pipelines.speculation.logits_processing import penalize, truncate
from pipelines.speculation.noise import NoiseStream
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.token_counts import TokenCounts
from pipelines.speculation.token_ids import Logits, Scores, TokenIds


class Bans(Protocol):
    """Tokens that the text of the output forbids; ``text.bad_words`` has the real one."""

    def banned_ids(self) -> TokenIds:
        """int32 [n], tokens that cannot come next."""

    def push(self, token_id: int) -> None:
        """Add one output token."""


class Sampler:
    """Knows the tokens so far and turns the logits of the next position into a token.

    A choice depends on the logits, the request's parameters, the tokens before and the position alone.
    It is made in float64; of equal candidates the lowest id is chosen.

    Attributes:
        position: Absolute position of the next token.
        num_output: Output tokens so far, those of ``request.input_ids`` included.

    Args:
        request: What is asked.
        vocab_size: Logits per position.
        bans: Of the request's bad words; None if it has none.
    """

    def __init__(self, request: GenerationRequest, vocab_size: int, bans: Bans | None = None) -> None:
        self.position = len(request.input_ids)
        self.num_output = self.position - request.num_prompt_tokens
        self._request_id = request.request_id
        self._sampling = request.sampling
        self._end_ids = list(request.end_ids)
        self._stream = NoiseStream.DRAFT if request.independent_noise else NoiseStream.SHARED
        self._bans = bans
        biases = request.sampling.logit_bias
        self._bias_ids = np.array([token_id for token_id, _ in biases], np.intp)
        self._biases = np.array([bias for _, bias in biases], np.float64)
        self._counts: TokenCounts | None = None
        if request.sampling.has_penalty:
            prompt_ids, output_ids = np.split(request.input_ids, [request.num_prompt_tokens])
            self._counts = TokenCounts(prompt_ids, output_ids, vocab_size)

    def push(self, token_id: int) -> None:
        """Add the token that was chosen."""
        self.position += 1
        self.num_output += 1
        if self._counts is not None:
            self._counts.add(token_id)
        if self._bans is not None:
            self._bans.push(token_id)

    def choose(self, logits: Logits) -> int:
        """The next token.

        Args:
            logits: float32 [vocab_size], raw.

        Returns:
            Greedy: the best after bans, bias and penalties. Otherwise one drawn from ``law_scores``.

        Raises:
            EngineFailedError: Logits are NaN or infinite.
            InvalidRequestError: The request forbids every token.
        """
        if not self._sampling.is_greedy:
            scores = self.law_scores(logits)
            return draws.draw_token(scores, self._sampling.seed, self._stream, self.position)
        if self._leaves_logits_alone:
            token_id = int(np.argmax(logits))
            self._check_best(float(logits[token_id]))
            return token_id
        adjusted = self._adjust(logits)
        token_id = int(np.argmax(adjusted))
        self._check_best(float(adjusted[token_id]))
        return token_id

    def propose(self, logits: Logits) -> tuple[int, float]:
        """The token that ``choose`` gives, and its margin over the next best, noise included.

        Raises:
            DraftproofError: As ``choose``.
        """
        if not self._sampling.is_greedy:
            scores = self.law_scores(logits)
            return draws.draw_with_margin(scores, self._sampling.seed, self._stream, self.position)
        token_id = self.choose(logits)
        return token_id, draws.margin_of(logits if self._leaves_logits_alone else self._adjust(logits))

    def verify(self, logits: Logits, draft_id: int, draft_logits: Logits) -> int:
        """The next token by the ratio rule: ``draft_id`` if it is accepted, else a recovered one.

        The answer follows the target's law, whatever the draft's: P(accepted) = min(1, p / q), and what
        is recovered follows max(0, p - q), normalised. It never is ``draft_id`` after a rejection.
        The token must have been drawn with noise that is independent of the coin's and of the target's.

        Source: Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1; Chen et al. 2023, arXiv:2302.01318.

        Args:
            logits: float32 [vocab_size], the target's.
            draft_id: Drawn by the draft after the same tokens with the same parameters.
            draft_logits: float32 [vocab_size], from which it was drawn.

        Raises:
            EngineFailedError: Logits are NaN or infinite.
            InvalidRequestError: The request forbids every token, or the draft token cannot have been
                drawn from the draft logits.
        """
        if self._sampling.is_greedy:
            return self.choose(logits)
        p, q = draws.law(self.law_scores(logits)), draws.law(self.law_scores(draft_logits))
        if not q[draft_id] > 0:
            raise InvalidRequestError(
                "a draft token cannot have been drawn from its draft_logits",
                values=f"token {draft_id} at position {self.position}, request {self._request_id}",
                limit="draft and target must process logits with the same sampling parameters",
                remedy="send the draft the sampling parameters that the target is sent",
            )
        seed = self._sampling.seed
        if draws.is_accepted(p[draft_id], q[draft_id], seed, self.position):
            return draft_id
        residual = np.maximum(p - q, 0)
        # p < q at a rejected token leaves weight elsewhere, except where rounding ate it.
        weights = residual if residual.any() else p
        return draws.draw_weighted(weights, seed, NoiseStream.SHARED, self.position)

    def law_scores(self, logits: Logits) -> Scores:
        """Logarithms of the law that the next token is drawn from, up to one constant.

        Args:
            logits: float32 [vocab_size], raw.

        Returns:
            float64 [vocab_size]; -inf where a token cannot be chosen.

        Raises:
            EngineFailedError: Logits are NaN or infinite.
            InvalidRequestError: The request forbids every token.
        """
        adjusted = self._adjust(logits)
        self._check_best(float(adjusted.max()))
        return truncate(adjusted, self._sampling)

    @property
    def _forbids_end(self) -> bool:
        return bool(self._end_ids) and self.num_output < self._sampling.min_tokens

    @property
    def _leaves_logits_alone(self) -> bool:
        return (
            self._bans is None and self._counts is None and not len(self._bias_ids) and not self._forbids_end
        )

    def _adjust(self, logits: Logits) -> Scores:
        """Bans, bias and penalties: what acts on greedy choices too."""
        scores: Scores = logits.astype(np.float64)
        if len(self._bias_ids):
            scores[self._bias_ids] += self._biases
        if self._counts is not None:
            penalize(scores, self._sampling, self._counts)
        if self._bans is not None:
            scores[self._bans.banned_ids()] = -np.inf
        if self._forbids_end:
            scores[self._end_ids] = -np.inf
        return scores

    def _check_best(self, score: float) -> None:
        if math.isfinite(score):
            return
        if score == -math.inf:
            raise InvalidRequestError(
                "the request forbids every token",
                values=f"position {self.position}, request {self._request_id}",
                limit="bad_words and min_tokens must leave at least one token",
                remedy="send fewer bad words, or an end_id that may be chosen",
            )
        raise EngineFailedError(
            "the engine gave logits that are no numbers",
            values=f"largest logit {score} at position {self.position}, request {self._request_id}",
            limit="every logit must be finite",
            remedy="check the checkpoint and its quantization: weights or scales may have overflowed",
        )
