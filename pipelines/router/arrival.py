"""Routes a request that arrives, and begins its observation."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.router.arms import Arm, ArmTable
from pipelines.router.choice import choose, chosen_by_client
from pipelines.router.observation import Observation
from pipelines.router.open_requests import OpenRequests, unix_time_s


@dataclass(frozen=True)
class Arrived:
    """A request of a client, as far as routers read it.

    Attributes:
        request_id: Unique id of the request.
        key: The key by which it is routed.
        session_id: Its session; "" for none.
        arm: Arm that the client chose; "" for none.
        prompt_id: Identifies prompt and sampling.
        draft_length: Draft tokens per round that it asked for; None for the server's choice.
    """

    request_id: str
    key: str
    session_id: str
    arm: str
    prompt_id: str
    draft_length: int | None = None


def begin_observation(
    arrived: Arrived, table: ArmTable, open_requests: OpenRequests
) -> tuple[int, Observation]:
    """Choose the arm of a request and count it as open; returns its number and its observation.

    Raises:
        InvalidRequestError: The client chose an arm that is not served.
    """
    arm = _arm_of(arrived, table)
    number, arrived_at_s = open_requests.begin()
    return number, Observation(
        canary_id=table.canary_id,
        generation=table.generation,
        request_id=arrived.request_id,
        key=arrived.key,
        arm=arm,
        arrived_at_s=arrived_at_s,
        oldest_open_at_s=arrived_at_s,
        band=table.bands.band(len(open_requests)),
        overridden=bool(arrived.arm),
        draft_length=arrived.draft_length,
        prompt_id=arrived.prompt_id,
        session_id=arrived.session_id,
    )


def _arm_of(arrived: Arrived, table: ArmTable) -> Arm:
    if arrived.arm:
        return chosen_by_client(arrived.arm, table.settings)
    return choose(table.weights(unix_time_s()), table.salt, arrived.key)
