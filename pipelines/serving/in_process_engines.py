"""Draft and target as executors in this process: the loop's callables without a call to Triton."""

from __future__ import annotations

from pipelines.executor.executor import Executor
from pipelines.executor.step_loop import StepLoop
from pipelines.serving.contract import GenerationCall
from pipelines.serving.engine_model import executor_limits
from pipelines.serving.parameters import ModelParameters


class InProcessEngines:
    """Loads both engines and steps them on one loop, the draft first.

    Raises:
        EngineLoadError: An engine cannot be loaded.
    """

    def __init__(self, parameters: ModelParameters) -> None:
        self.executors = {
            role: Executor.load(
                parameters.path(f"{role}_engine_dir"), executor_limits(parameters, role=f"{role}_")
            )
            for role in ("draft", "target")
        }
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
