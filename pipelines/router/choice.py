"""Chooses the arm of a request: at random over keys, but always the same arm for one key.

A key is hashed to a point in [0, 1), and the candidate owns those below its share. A share that grows takes
keys from the stable pair only and moves none that it has already, so a session that reached the candidate
stays there through all steps of a rollout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

from pipelines.errors import InvalidRequestError
from pipelines.router.arms import Arm
from pipelines.router.breaker import Outcome
from pipelines.router.observation import FallbackReason

_BITS = 53  # the precision of a float: more bits could round up to 1


def point(salt: str, key: str, purpose: str) -> float:
    """Hash a key to [0, 1): uniform over keys, independent between salts and between purposes.

    The salt makes rollouts independent of each other. It is no secret: whoever can read the table of arms can
    choose a key for an arm.

    Args:
        salt: Salt of the rollout.
        key: The session or the request.
        purpose: What the point decides, at most 16 bytes.
    """
    salt_digest = hashlib.blake2b(_bytes(salt)).digest()
    digest = hashlib.blake2b(_bytes(key), digest_size=8, key=salt_digest, person=_bytes(purpose)).digest()
    return (int.from_bytes(digest, "big") >> (64 - _BITS)) / (1 << _BITS)


def choose(candidate_weight: float, salt: str, key: str) -> Arm:
    """Return the arm of a request.

    Args:
        candidate_weight: Share of the candidate.
        salt: Salt of the rollout; another salt redistributes all keys.
        key: The session, or the request's id if it has no session.
    """
    return "candidate" if point(salt, key, "arm") < candidate_weight else "stable"


def chosen_by_client(name: str, arms: Collection[Arm]) -> Arm:
    """Return the arm that a request names explicitly.

    Raises:
        InvalidRequestError: No such arm is served.
    """
    for arm in arms:
        if arm == name:
            return arm
    raise InvalidRequestError(
        f"there is no such arm: arm={name!r:.100}; these are served now: {', '.join(arms)}",
        "name one of these arms, or leave the parameter out",
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_REASONS: dict[Outcome, FallbackReason] = {
    "error": "error",
    "timeout": "timeout",
    "busy": "busy",
    "unreached": "busy",  # like a full queue, this is not the arm's fault
    "refused": "refused",
}


def fallback_order(arm: Arm, arms: Collection[Arm]) -> tuple[Arm, ...]:
    """Return the chosen arm, then its fallbacks: the stable pair, then the target alone.

    The candidate is never a fallback: it answers only requests that were routed to it.

    Args:
        arm: The chosen arm.
        arms: The arms that are served.
    """
    stand_ins: tuple[Arm, ...] = ("stable", "control")
    return (arm, *(each for each in stand_ins if each in arms and each != arm))


def skipped_arms(
    order: Sequence[Arm], answered: Arm, outcomes: Mapping[Arm, Outcome]
) -> tuple[tuple[Arm, FallbackReason], ...]:
    """Return the arms before the one that answered, each with the reason why it did not answer.

    Args:
        order: From ``fallback_order``.
        answered: The arm that answered.
        outcomes: Outcomes of the arms that were asked.
    """
    before = order[: order.index(answered)]
    return tuple((arm, _REASONS.get(outcomes.get(arm, "cancelled"), "out")) for arm in before)
