"""Draft and target as executors in this process: the loop's callables without a call to Triton."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.executor.executor import Executor
from pipelines.executor.padding import StepPadding
from pipelines.executor.step_loop import StepLoop
from pipelines.serving.contract import GenerationCall
from pipelines.serving.engine_model import executor_limits
from pipelines.serving.parameters import ModelParameters
from pipelines.speculation.calibration import Calibration
from pipelines.speculation.step_costs import StepCosts


class InProcessEngines:
    """Loads both engines and steps them on one loop, the draft first.

    Args:
        parameters: The model's settings.
        calibration: Of the pair.
        costs: By role; they learn from every step.

    Raises:
        EngineLoadError: An engine cannot be loaded.
    """

    def __init__(
        self, parameters: ModelParameters, calibration: Calibration, costs: Mapping[str, StepCosts]
    ) -> None:
        self.executors = {
            role: Executor.load(
                parameters.path(f"{role}_engine_dir"), executor_limits(parameters, role=f"{role}_")
            )
            for role in ("draft", "target")
        }
        for role, measured in (("draft", calibration.draft), ("target", calibration.target)):
            self.executors[role].padding = StepPadding(costs[role], measured.change_s)
            self.executors[role].on_rows = costs[role].observe
        target = self.executors["target"]
        self.vocabulary = target.vocabulary
        self.end_id: int | None = target.config.end_id
        self.draft = self.executors["draft"].complete
        self.target = target.complete
        self.loop = StepLoop(tuple(self.executors.values()))

    def start(self) -> None:
        """Start the loop."""
        self.loop.start()

    def check(self, call: GenerationCall) -> None:
        """Refuse what either engine would refuse."""
        for executor in self.executors.values():
            executor.check(call.request)
