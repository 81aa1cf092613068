"""A router in front of three real sockets whose answers a test decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pipelines.errors import DraftproofError
from pipelines.router.arms import Arm, ArmSetting, ArmTable, Bands, LiveArms, write_table
from pipelines.router.observation import Observation
from pipelines.router.observation_log import ObservationLog, read_observations
from pipelines.router.open_requests import OpenRequests
from pipelines.router.router import Router
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.call_server import CallServer
from pipelines.wire.calls import Call, Tensors
from pipelines.wire.responder import Outlet, Responder
from pipelines.wire.tensors import scalar_tensor, text_tensor

VOCABULARY = Vocabulary(tuple(bytes([byte]) for byte in range(256)))
ANSWER = b"def main():"

Behave = Callable[[Call, Responder], None]
Change = Callable[[Tensors, int], Tensors]
"""Maps the outputs of a response, and the tokens up to its end, to those that are sent."""


def outputs_of(tokens: bytes, end: int, *, drafts: bool = True) -> Tensors:
    """Return a response with these tokens, after which the answer has ``end`` tokens."""
    ids = np.frombuffer(tokens, np.uint8).astype(np.int32)
    outputs: Tensors = {
        "output_ids": ids.reshape(1, 1, -1),
        "text_length": scalar_tensor(len(ids), np.int32),
        "sequence_length": scalar_tensor(end, np.int32),
        "output_log_probs": np.empty((1, 1, 0), np.float32),
        "finish_reason": text_tensor("length" if end == len(ANSWER) else ""),
    }
    if drafts:
        outputs |= {
            "accepted_mask": np.zeros((1, len(ids)), np.bool_),
            "num_rounds": scalar_tensor(4, np.int32),
            "total_draft_tokens": scalar_tensor(8, np.int32),
            "accepted_per_position": np.array([[3, 1]], np.int32),
        }
        if end == len(ANSWER):
            outputs |= {
                "drafted_per_round": np.array([[0, 2, 4, 2]], np.int32),
                "accepted_per_round": np.array([[0, 2, 1, 1]], np.int32),
            }
    return outputs


def answers(
    text: bytes = ANSWER,
    *,
    size: int = 3,
    delay_s: float = 0.0,
    change: Change = lambda outputs, end: outputs,
) -> Behave:
    def behave(call: Call, responder: Responder) -> None:
        time.sleep(delay_s)
        streaming = bool(call.tensors["streaming"].item())
        step = size if streaming else len(text)
        for begin in range(0, len(text), step):
            end = min(begin + step, len(text))
            outputs = outputs_of(text[begin:end], end)
            if "return_log_probs" in call.tensors:
                outputs |= log_probs_of(text, begin, end)
            responder.send(change(outputs, end), is_final=end == len(text))

    return behave


def log_probs_of(text: bytes, begin: int, end: int) -> Tensors:
    """Return log probabilities from the tokens' bytes, and their sum up to ``end``, as our models do."""
    values = np.frombuffer(text, np.uint8).astype(np.float32) / np.float32(-100.3)
    return {
        "output_log_probs": values[begin:end].reshape(1, 1, -1),
        "cum_log_probs": scalar_tensor(sum(values[:end].tolist()), np.float32),
        "top_log_prob_ids": np.arange(begin, end, dtype=np.int32).reshape(1, -1, 1),
        "top_log_probs": values[begin:end].reshape(1, -1, 1),
    }


def fails(error: DraftproofError, after: int = 0) -> Behave:
    def behave(call: Call, responder: Responder) -> None:
        if after:
            responder.send(outputs_of(ANSWER[:after], after), is_final=False)
        responder.fail(error)

    return behave


class World:
    """Three sockets and a router in front of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[Arm, Call]] = []
        self.behave: dict[Arm, Behave] = {}
        self._servers: list[CallServer] = []
        names: tuple[Arm, ...] = ("stable", "candidate", "control")
        for arm in names:
            self.behave[arm] = answers()
            self._servers.append(CallServer(folder / arm, self._serve(arm)))
        self.log = ObservationLog(folder / "log")
        self.router = self.make_router(LiveArms(folder / "arms.json", self.table()))

    def make_router(self, arms: LiveArms) -> Router:
        return Router(SimpleNamespace(vocabulary=VOCABULARY), arms, self.log, OpenRequests(), 64)  # type: ignore[arg-type]

    def table(self, candidate: float | None = 0.0, control: float = 0.0, **others: Any) -> ArmTable:
        def setting(name: Arm, weight: float) -> ArmSetting:
            return ArmSetting(str(self.folder / name), weight)

        given: dict[str, Any] = {
            "generation": 1,
            "canary_id": "c1",
            "salt": "s",
            "shadow": None,
            "replays_match": "stable",
            "bands": Bands(2, 4),
            "lease_until_s": time.time() + 60,
            "slow_after_s": 5.0,
        }
        return ArmTable(
            stable=setting("stable", 1 - (candidate or 0.0) - control),
            candidate=None if candidate is None else setting("candidate", candidate),
            control=setting("control", control),
            **{**given, **others},
        )

    def write(self, *args: Any, **others: Any) -> None:
        write_table(self.folder / "arms.json", self.table(*args, **others))

    def close(self) -> list[Observation]:
        """Close everything and return the observations."""
        self.log.close()
        for server in self._servers:
            server.close()
        self._servers = []
        return read_observations(self.folder / "log", 0)[0]

    def _serve(self, arm: Arm) -> Callable[[Call, Outlet], None]:
        def take(call: Call, outlet: Outlet) -> None:
            self.asked.append((arm, call))
            self.behave[arm](call, Responder(outlet, call.request_id))

        return take


def call_of(prompt: bytes = b"x", *, streaming: bool = True, request_id: str = "", **others: Any) -> Call:
    tensors = {
        "input_ids": np.frombuffer(prompt, np.uint8).astype(np.int32).reshape(1, -1),
        "streaming": scalar_tensor(streaming, np.bool_),
        **others,
    }
    return Call(tensors, request_id, 0)


async def ask(world: World, call: Call) -> tuple[bytes, Tensors]:
    text, last = b"", {}
    named = bytes(call.tensors.pop("arm").item()).decode() if "arm" in call.tensors else ""
    async with aclosing(world.router.answer_tokens(call, named)) as responses:
        async for outputs, _ in responses:
            text += bytes(outputs["output_ids"].reshape(-1).astype(np.uint8))
            last = outputs
    return text, last


def run(world: World, work: Any) -> Any:
    async def to_the_end() -> Any:
        try:
            return await asyncio.wait_for(work, 20)
        finally:
            await world.router.close()

    return asyncio.run(to_the_end())


def arm_of(last: Tensors) -> str:
    return str(last["arm"].item().decode())
