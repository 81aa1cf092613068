"""Checks that a request came through the gateway, which adds the server's key.

The key is a request parameter, because parameters also reach the steps of an ensemble (tested with Triton
2.51). Each model checks the key itself: Triton's own restricted APIs have been bypassed before
(CVE-2026-24207).
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from typing import Any

from pipelines.errors import InvalidRequestError, ServerStartError

KEY_PARAMETER = "draftproof_key"
PING_PARAMETER = "draftproof_ping"
VARIABLE = "DRAFTPROOF_KEY"


class ServerKey:
    """Compares the key of a request with the one in this process's environment.

    Raises:
        ServerStartError: The environment has no key: Triton was not started by the gateway.
    """

    def __init__(self) -> None:
        self._key = os.environ.get(VARIABLE, "")
        if not self._key:
            raise ServerStartError(
                "the server's key is missing",
                values=f"{VARIABLE} is not set",
                limit="models answer only the gateway, which creates the key when it starts Triton",
                remedy="start the server with 'make serve' or 'python -m pipelines.gateway'",
            )

    def check(self, parameters: Mapping[str, Any]) -> bool:
        """Refuse a request without the key.

        Args:
            parameters: Parameters of the request.

        Returns:
            Whether the request is a ping, a liveness probe.

        Raises:
            InvalidRequestError: The key is missing or wrong.
        """
        key = parameters.get(KEY_PARAMETER)
        if not isinstance(key, str) or not hmac.compare_digest(
            key.encode("utf-8", "surrogatepass"), self._key.encode()
        ):
            raise InvalidRequestError(
                "the request did not come through the gateway",
                values="the server's key is missing or wrong",
                limit="models answer only requests with the key",
                remedy="send requests to the server's HTTP or gRPC port",
            )
        return PING_PARAMETER in parameters
