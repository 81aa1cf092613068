"""A draft that costs what its engine costs, and proposes the target's tokens at a stated rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.executor.engine import StepEngine
from pipelines.executor.step import StepInputs
from pipelines.speculation.loop import EngineCall
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.token_ids import TokenIds

_LEAD = 10.0  # of the target's choice over the others, or theirs over it, nats


class SteeredEngine:
    """An engine whose choices are replaced after each step.

    A random draft would never agree with a random target. This engine computes its steps in full. Then the
    score of the token that the target will choose is raised above the others, at positions that are drawn in
    advance with the stated rate, and lowered below them elsewhere, because a pair that repeats itself agrees
    by chance. The steps, their number, the caches and the loop therefore cost what they cost with a draft of
    this acceptance rate. It answers one request at a time.

    Attributes:
        config: That of the engine.

    Args:
        engine: Computes the steps.
    """

    def __init__(self, engine: StepEngine) -> None:
        self.config = engine.config
        self._engine = engine
        self._output_ids: list[int] = []
        self._is_right: list[bool] = []
        self._position = 0

    def follow(self, output_ids: TokenIds, rate: float, seed: int) -> None:
        """Draw at which positions of an answer the proposals are right; at the others they are wrong.

        Args:
            output_ids: int32 [n], the target's own answer.
            rate: Probability that a proposal is accepted if those before it in its round are.
            seed: Seed of the draw.
        """
        self._output_ids = output_ids.tolist()
        self._is_right = (np.random.default_rng(seed).random(len(output_ids)) < rate).tolist()

    def proposing(self, complete: EngineCall) -> EngineCall:
        """Return a draft that notes which position of the answer each proposal begins at.

        Args:
            complete: Answers a request with the executor of this engine.
        """

        async def propose(request: GenerationRequest) -> Output:
            self._position = len(request.input_ids) - request.num_prompt_tokens
            return await complete(request)

        return propose

    def step(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        """Compute a step; see ``Engine.step``."""
        logits = self._engine.step(inputs)
        if len(logits) == 1:  # the next token of the proposal; prompts that are read in parts have none
            position, self._position = self._position, self._position + 1
            if position < len(self._output_ids):
                score = logits.max() + _LEAD if self._is_right[position] else logits.min() - _LEAD
                logits[0, self._output_ids[position]] = score
        return logits

    def copy_block(self, source: int, destination: int) -> Any:
        """Copy a block of the engine."""
        self._engine.copy_block(source, destination)
