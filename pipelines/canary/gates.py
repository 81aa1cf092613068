"""Serve the verdict of a rollout over HTTP: JSON for Argo Rollouts, status codes for Flagger.

``GET /verdict`` returns the verdict. ``POST /gate/<hook>`` returns 200 if the gate is open, else 409: Flagger
shows the body of an error, which has the reason, unless it is a 5xx. Both accept ``?candidate=<recipe>``.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from pipelines.canary.report.record import Judgement, RolloutRecord, judgement
from pipelines.errors import DraftproofError, ForbiddenError, InvalidRequestError
from pipelines.web_application import guarded_application, served

MAX_BODY_BYTES = 2**20  # a webhook of Flagger has less than 1 KiB

_IS_OPEN: dict[str, Callable[[Judgement], bool]] = {
    "rollout": lambda found: found.action != "roll_back",
    "confirm-traffic-increase": lambda found: found.action in ("go_on", "promote"),
    "confirm-promotion": lambda found: found.action == "promote",
    "rollback": lambda found: found.action == "roll_back",
}
"""Type of a Flagger webhook -> whether it succeeds. If ``rollback`` succeeds, Flagger rolls back."""

HOOKS = tuple(_IS_OPEN)

_CORRECT_THE_URL = "correct the URL in the configuration of the rollout tool"


async def serve(
    read: Callable[[], RolloutRecord],
    host: str,
    port: int,
    listening: Callable[[int], None],
    hosts: Collection[str] = (),
) -> None:
    """Serve until the task is cancelled.

    Args:
        read: Reads the latest rollout, on a thread; raises CanaryError if there is none.
        host: Address to listen on.
        port: Port; 0 chooses a free one.
        listening: Called with the port once it accepts connections.
        hosts: Names by which it is asked besides its addresses, such as that of a service in Kubernetes.
    """
    listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    async with served(gates_application(read, hosts), listener):
        listening(listener.getsockname()[1])
        await asyncio.Event().wait()


def gates_application(read: Callable[[], RolloutRecord], hosts: Collection[str] = ()) -> web.Application:
    """Return the application; arguments are those of ``serve``."""

    async def verdict(request: web.Request) -> web.Response:
        return web.json_response((await _judged(read, request))[1])

    async def gate(request: web.Request) -> web.Response:
        await request.read()
        found, document = await _judged(read, request)
        is_open = _IS_OPEN[request.path.rpartition("/")[2]](found)
        return web.json_response({"is_open": is_open, **document}, status=200 if is_open else 409)

    application = guarded_application(_refuse_as_json, hosts=hosts, max_body_bytes=MAX_BODY_BYTES)
    application.router.add_get("/verdict", verdict, allow_head=False)
    for hook in HOOKS:
        application.router.add_post(f"/gate/{hook}", gate)
    return application


async def _judged(
    read: Callable[[], RolloutRecord], request: web.Request
) -> tuple[Judgement, dict[str, Any]]:
    """Judge the latest rollout.

    The verdict on another candidate does not apply, such as that of the previous rollout before the next one
    has started.
    """
    candidates = request.query.getall("candidate", [""])
    if request.query.keys() - {"candidate"} or len(candidates) > 1:
        raise InvalidRequestError(
            f"the query is more than one candidate=<recipe>: {request.query_string[:80]}", _CORRECT_THE_URL
        )
    record = await asyncio.to_thread(read)
    latest = record.rollout.recipe_candidate
    if candidates[0] not in ("", latest):
        reason = f"no rollout of {candidates[0]}: the latest is of {latest}"
        found, canary_id, latest = Judgement("inconclusive", "go_on", "", reason), "", candidates[0]
    else:
        found, canary_id = await asyncio.to_thread(judgement, record), record.rollout.canary_id
    return found, {"canary_id": canary_id, "candidate": latest, **asdict(found)}


@web.middleware
async def _refuse_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    allowed: dict[str, str] = {}
    error: DraftproofError
    try:
        return await handler(request)
    except web.HTTPException as refusal:
        status, allowed = refusal.status, {"Allow": refusal.headers.get("Allow", "")}
        error = InvalidRequestError(
            f"{refusal.reason}: {request.method} {request.path[:80]} is neither GET /verdict nor POST "
            f"/gate/{', /gate/'.join(HOOKS)} with at most {MAX_BODY_BYTES} bytes",
            _CORRECT_THE_URL,
        )
    except DraftproofError as refusal:
        statuses = ((InvalidRequestError, 400), (ForbiddenError, 403), (DraftproofError, 503))
        status = next(found for kind, found in statuses if isinstance(refusal, kind))
        error = refusal
    document = {"error": {"code": error.code, "message": error.message, "remedy": error.remedy}}
    return web.json_response(document, status=status, headers=allowed)
