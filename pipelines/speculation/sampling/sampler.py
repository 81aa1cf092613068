"""Samples the tokens of a request in the same way for drafting, verification and plain decoding."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipelines.errors import EngineFailedError, InvalidRequestError, NothingAllowedError
from pipelines.speculation.request import GenerationRequest, GrammarState
from pipelines.speculation.sampling import draws
from pipelines.speculation.sampling.logits_processing import TokenCounts, penalize, truncate
from pipelines.speculation.sampling.noise import NoiseStream
from pipelines.speculation.token_ids import Logits, Scores, TokenIds


class Bans(Protocol):
    """Tracks tokens that must not come next; implemented by ``text.bad_words``."""

    def banned_ids(self) -> TokenIds:
        """Return the tokens that must not come next, int32 [n]."""

    def push(self, token_id: int) -> None:
        """Add one output token."""


class Sampler:
    """Tracks the tokens so far and turns the logits of the next position into a token.

    A choice depends only on the logits, the request's parameters, earlier tokens and the position. It is
    computed in float64; ties go to the lowest id.

    Attributes:
        position: Absolute position of the next token.
        num_output: Output tokens so far, including those in ``request.input_ids``.
        vocab_size: Logits per position.

    Args:
        request: The request.
        vocab_size: Logits per position.
        bans: Tracks the request's bad words; None if it has none.
    """

    def __init__(self, request: GenerationRequest, vocab_size: int, bans: Bans | None = None) -> None:
        self.position = len(request.input_ids)
        self.num_output = self.position - request.num_prompt_tokens
        self.vocab_size = vocab_size
        self._request_id = request.request_id
        self._sampling = request.sampling
        self._end_ids = list(request.end_ids)
        self._stream = NoiseStream.DRAFT if request.independent_noise else NoiseStream.SHARED
        self._bans = bans
        self._grammar: GrammarState | None = None
        if request.grammar is not None:
            self._grammar = request.grammar.after(request.input_ids[request.num_prompt_tokens :])
        self._bias_ids, self._biases = request.sampling.bias
        self._counts: TokenCounts | None = None
        if request.sampling.has_penalty:
            prompt_ids, output_ids = np.split(request.input_ids, [request.num_prompt_tokens])
            self._counts = TokenCounts(prompt_ids, output_ids, vocab_size)

    def push(self, token_id: int) -> None:
        """Add the chosen token."""
        self.position += 1
        self.num_output += 1
        if self._counts is not None:
            self._counts.add(token_id)
        if self._bans is not None:
            self._bans.push(token_id)
        if self._grammar is not None and token_id not in self._end_ids:
            self._grammar.push(token_id)

    @property
    def has_grammar(self) -> bool:
        """Whether a grammar limits the output."""
        return self._grammar is not None

    @property
    def is_complete(self) -> bool:
        """Whether the grammar leaves nothing to add to the output."""
        return self._grammar is not None and self._grammar.is_complete

    def look_ahead(self, draft_ids: TokenIds, limit_s: float) -> int:
        """Prepare the choice of the next token and of those after these draft tokens, int32 [k].

        Returns:
            The number of leading draft tokens for which the time was enough.
        """
        return len(draft_ids) if self._grammar is None else self._grammar.look_ahead(draft_ids, limit_s)

    def choose(self, logits: Logits) -> int:
        """Choose the next token.

        Args:
            logits: float32 [vocab_size], raw.

        Returns:
            The best token after bans, bias and penalties if greedy; otherwise a token drawn from
            ``distribution_scores``.

        Raises:
            EngineFailedError: Logits are NaN or infinite.
            NothingAllowedError: The request forbids every token.
        """
        if not self._sampling.is_greedy:
            scores = self.distribution_scores(logits)
            return draws.draw_token(scores, self._sampling.seed, self._stream, self.position)
        if self._leaves_logits_alone:
            token_id = self._best_of(logits)
            if self._allows(token_id):  # then it is also the best of those that the grammar allows
                return token_id
        return self._best_of(self._adjust(logits))

    def propose(self, logits: Logits) -> tuple[int, float]:
        """Choose the next token as ``choose`` does, and return its gap over the next best too.

        Raises:
            DraftproofError: See ``choose``.
        """
        if not self._sampling.is_greedy:
            scores = self.distribution_scores(logits)
            return draws.draw_with_gap(scores, self._sampling.seed, self._stream, self.position)
        if not self._leaves_logits_alone:
            adjusted = self._adjust(logits)
            return self._best_of(adjusted), draws.gap_of(adjusted)
        token_id = self.choose(logits)
        return token_id, draws.gap_of(logits if self._grammar is None else self._adjust(logits))

    def verify(self, logits: Logits, draft_id: int, draft_logits: Logits) -> int:
        """Choose the next token by the ratio rule: ``draft_id`` if accepted, otherwise a recovered token.

        The result follows the target's distribution, whatever the draft's: a draft token is accepted with
        probability min(1, p / q), and a recovered token is drawn from max(0, p - q), normalised, which
        excludes ``draft_id``. The draft token must have been drawn with noise independent of that used here.

        Source: Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1; Chen et al. 2023, arXiv:2302.01318.

        Args:
            logits: float32 [vocab_size], logits of the target.
            draft_id: Token that the draft drew after the same tokens with the same parameters.
            draft_logits: float32 [vocab_size], logits from which it was drawn.

        Raises:
            EngineFailedError: Logits are NaN or infinite.
            NothingAllowedError: The request forbids every token.
            InvalidRequestError: The draft token cannot have been drawn from the draft logits.
        """
        if self._sampling.is_greedy:
            return self.choose(logits)
        p, q = (
            draws.distribution(self.distribution_scores(logits)),
            draws.distribution(self.distribution_scores(draft_logits)),
        )
        if not q[draft_id] > 0:
            raise InvalidRequestError(
                f"a draft token cannot have been drawn from its draft_logits: token {draft_id} at position "
                f"{self.position}, request {self._request_id}",
                "send the same sampling parameters to draft and target",
            )
        seed = self._sampling.seed
        if draws.is_accepted(p[draft_id], q[draft_id], seed, self.position):
            return draft_id
        residual = np.maximum(p - q, 0)
        # p < q at a rejected token leaves weight elsewhere, unless rounding removed it.
        weights = residual if residual.any() else p
        return draws.draw_weighted(weights, seed, NoiseStream.SHARED, self.position)

    def distribution_scores(self, logits: Logits) -> Scores:
        """Return the log probabilities of the next token up to a constant.

        Args:
            logits: float32 [vocab_size], raw.

        Returns:
            float64 [vocab_size]; -inf for tokens that cannot be chosen.

        Raises:
            EngineFailedError: Logits are NaN or infinite.
            NothingAllowedError: The request forbids every token.
        """
        adjusted = self._adjust(logits)
        self._check_best(float(adjusted.max()))
        return truncate(adjusted, self._sampling)

    @property
    def _forbids_end(self) -> bool:
        return bool(self._end_ids) and self.num_output < self._sampling.min_tokens

    @property
    def _leaves_logits_alone(self) -> bool:
        """Whether nothing changes the logits, except perhaps a grammar."""
        return (
            self._bans is None and self._counts is None and not len(self._bias_ids) and not self._forbids_end
        )

    def _adjust(self, logits: Logits) -> Scores:
        """Apply bans, bias and penalties, which affect greedy decoding too."""
        scores: Scores = logits.astype(np.float64)
        if len(self._bias_ids):
            scores[self._bias_ids] += self._biases
        if self._counts is not None:
            penalize(scores, self._sampling, self._counts)
        if self._bans is not None:
            scores[self._bans.banned_ids()] = -np.inf
        if self._grammar is not None:
            allowed = self._grammar.allowed()
            allowed[self._end_ids] = self._grammar.may_end
            scores[~allowed] = -np.inf
        if self._forbids_end:
            scores[self._end_ids] = -np.inf
        return scores

    def _allows(self, token_id: int) -> bool:
        if self._grammar is None:
            return True
        return self._grammar.may_end if token_id in self._end_ids else bool(self._grammar.allowed()[token_id])

    def _best_of(self, scores: npt.NDArray[np.floating[Any]]) -> int:
        token_id = int(scores.argmax())
        self._check_best(float(scores[token_id]))
        return token_id

    def _check_best(self, score: float) -> None:
        if math.isfinite(score):
            return
        if score == -math.inf:
            raise NothingAllowedError(
                f"the request forbids every token at position {self.position} of request {self._request_id}: "
                "bad_words, min_tokens and the grammar leave none",
                "send fewer bad words, an end_id that may be chosen, or another grammar",
            )
        raise EngineFailedError(
            f"the engine returned logits that are not finite: the largest at position {self.position} of "
            f"request {self._request_id} is {score}",
            "check the checkpoint and its quantization: weights or scales may have overflowed",
        )
