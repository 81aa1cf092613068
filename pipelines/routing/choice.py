"""Which arm a request goes to: by chance, but always the same for one key.

A key is hashed to a point in [0, 1). The candidate has the points at the bottom, the control those at the
top, the stable pair what is between::

    0          candidate             stable                 control       1
    |--------------------->|                         |<-------------------|

So a share that grows takes requests from the stable pair alone and moves nobody who is there already: a
session that was with the candidate stays with it through all steps of a rollout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from pipelines.errors import InvalidRequestError
from pipelines.routing.arms import Arm, Weights

_BITS = 53  # of a float's fraction: more could round up to 1


def point(salt: str, key: str, purpose: str) -> float:
    """Where a key lies in [0, 1): even over keys, independent between salts and between purposes.

    BLAKE2b (RFC 7693) is keyed with the salt: who does not know it cannot make a key for an arm.
    """
    secret = hashlib.blake2b(_bytes(salt)).digest()
    digest = hashlib.blake2b(_bytes(key), digest_size=8, key=secret, person=_bytes(purpose)).digest()
    return (int.from_bytes(digest, "big") >> (64 - _BITS)) / (1 << _BITS)


def choose(weights: Weights, salt: str, key: str) -> Arm:
    """The arm of a request.

    Args:
        weights: Of the arms that there are; ``ArmTable.weights``.
        salt: Of the rollout: another one deals all keys anew.
        key: The session, or the request's id where it has none.
    """
    at = point(salt, key, "arm")
    if at < weights.get("candidate", 0.0):
        return "candidate"
    return "control" if at >= 1 - weights.get("control", 0.0) else "stable"


def chosen_by_client(name: str, arms: Collection[Arm]) -> Arm:
    """The arm that a request names itself.

    Raises:
        InvalidRequestError: There is none of that name.
    """
    for arm in arms:
        if arm == name:
            return arm
    raise InvalidRequestError(
        "there is no such arm",
        values=f"arm={name!r:.100}",
        limit=f"served now: {', '.join(arms)}",
        remedy="name one of these, or none",
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
