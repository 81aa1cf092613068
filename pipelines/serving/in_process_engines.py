"""Draft and target as executors in this process: the loop's callables without a call to Triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipelines.executor.executor import Executor
from pipelines.executor.row_budget import RowBudget
from pipelines.executor.step_loop import StepLoop
from pipelines.serving.contract import GenerationCall
from pipelines.serving.engine_model import executor_limits
from pipelines.serving.parameters import ModelParameters
from pipelines.speculation.calibration import Calibration
from pipelines.speculation.loop import EngineStream
from pipelines.speculation.step_costs import StepCosts


class InProcessEngines:
    """Loads both engines and steps them on one loop, the draft first.

    Args:
        parameters: The model's settings.
        calibration: Of the pair.
        costs: By role; they learn from every step.
        tokens_per_s: What the server makes of its time now.

    Raises:
        EngineLoadError: An engine cannot be loaded.
    """

    def __init__(
        self,
        parameters: ModelParameters,
        calibration: Calibration,
        costs: Mapping[str, StepCosts],
        tokens_per_s: Callable[[], float],
    ) -> None:
        self.executors = {
            role: Executor.load(
                parameters.path(f"{role}_engine_dir"), executor_limits(parameters, role=f"{role}_")
            )
            for role in ("draft", "target")
        }
        for role, measured in (("draft", calibration.draft), ("target", calibration.target)):
            self.executors[role].budget = RowBudget(costs[role], measured.change_s, tokens_per_s)
        target = self.executors["target"]
        self.vocabulary = target.vocabulary
        self.end_ids = target.config.end_ids
        self.carries_margins = True
        self.draft = self.executors["draft"].complete
        self.target = target.complete
        self.stream: EngineStream | None = target.generate
        self.stream_alone: EngineStream | None = target.generate
        self.loop = StepLoop(tuple(self.executors.values()))

    def start(self) -> None:
        """Start the loop, with engines that have computed a step of each size."""
        for executor in self.executors.values():
            executor.warm_up()
        self.loop.start()

    def check(self, call: GenerationCall) -> None:
        """Refuse what either engine would refuse."""
        for executor in self.executors.values():
            executor.check(call.request)

    def reason_for_target_alone(self, call: GenerationCall) -> str:
        """These engines draft for every request."""
        return ""
