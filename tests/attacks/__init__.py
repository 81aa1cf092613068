"""Attacks on a server: small objects that tests send to any address."""

from tests.attacks.attack import Address, Attack, Reply
from tests.attacks.grpc import GRPC_ATTACKS
from tests.attacks.http import HTTP_ATTACKS
from tests.attacks.smuggling import SMUGGLING_ATTACKS

__all__ = ["GRPC_ATTACKS", "HTTP_ATTACKS", "SMUGGLING_ATTACKS", "Address", "Attack", "Reply"]
