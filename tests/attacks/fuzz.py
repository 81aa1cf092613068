"""A fuzzer: requests with randomly damaged bodies, messages, parameters and bytes, reproducible by seed.

``python -m tests.attacks.fuzz HTTP_PORT GRPC_PORT SEED SECONDS`` sends them as fast as they are answered, at
the lowest CPU priority, for SECONDS or until SIGTERM. It prints how many it sent and which replies were
improper, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as messages

from tests.attacks.attack import Address, Reply
from tests.attacks.grpc import SERVICE, request
from tests.attacks.http import GENERATE, INFER, STREAM
from tests.attacks.raw_http import TIMEOUT_S, generate_body, head, infer_body, post

_DEADLINE_US = 5_000_000
_NUMBERS = (-1, 0, 2**31, 2**32 + 3, 2**63, 2**64, -(2**63), 1e308, float("nan"), float("inf"), 0.5)
_VALUES = (*_NUMBERS, None, True, "", "x" * 300, "\ud800", "\0", [], [[]], [1, [2]], {}, {"a": {"b": []}})
_NAMES = (
    *("max_tokens", "temperature", "top_k", "top_p", "seed", "stop_words", "bad_words", "end_id", "stream"),
    *("logit_bias_ids", "logit_bias_values", "num_draft_tokens", "num_log_probs", "session_id", "arm", "id"),
    *("guided_decoding_guide_type", "guided_decoding_guide", "prediction"),
    *("timeout", "priority", "sequence_id", "sequence_start", "draftproof_key", "draftproof_ping", "nothing"),
    *("triton_enable_empty_final_response", "shared_memory_region", "binary_data_size", "text_input"),
)
_STATUS_OF_A_REFUSAL = {
    *("400", "403", "404", "405", "408", "411", "413", "414", "415", "429", "431", "501", "503", "504")
}
_CODES_OF_A_REFUSAL = {
    *(
        "INVALID_ARGUMENT",
        "PERMISSION_DENIED",
        "UNAVAILABLE",
        "RESOURCE_EXHAUSTED",
        "UNIMPLEMENTED",
        "CANCELLED",
    ),
    *("DEADLINE_EXCEEDED", "ERROR"),  # the request's own deadline; inside a stream
}


@dataclass(frozen=True)
class Sent:
    """One damaged request and its reply.

    Attributes:
        kind: One of ``KINDS``.
        number: The request's number among those of its seed.
    """

    kind: str
    number: int
    reply: Reply

    @property
    def is_proper(self) -> bool:
        """Return whether the reply is an answer, a typed error, or a closed connection."""
        status, text = self.reply.status, self.reply.text
        if "Traceback" in text or "draftproof/internal" in text:
            return False
        if status in ("200", "OK", "closed"):
            return True
        return status in _STATUS_OF_A_REFUSAL or (status in _CODES_OF_A_REFUSAL and "draftproof/" in text)


def fuzz(http: Address, grpc_address: Address, seed: int) -> Iterator[Sent]:
    """Send damaged requests of all kinds in turn until told to stop."""
    chance = random.Random(seed)
    with grpc.insecure_channel(f"{grpc_address[0]}:{grpc_address[1]}") as channel:
        kinds: dict[str, Callable[[], Reply]] = {
            "body": lambda: _body(chance, http),
            "parameters": lambda: _parameters(chance, http),
            "bytes": lambda: _bytes(chance, chance.choice((http, grpc_address))),
            "message": lambda: _message(chance, channel),
        }
        number = 0
        while True:
            for kind, send in kinds.items():
                yield Sent(kind, number, send())
                number += 1


def _body(chance: random.Random, address: Address) -> Reply:
    """Post a body with some bytes changed."""
    path = chance.choice((GENERATE, STREAM, INFER))
    document = infer_body(parameters={"timeout": _DEADLINE_US}) if path == INFER else None
    body = generate_body(timeout=_DEADLINE_US) if document is None else json.dumps(document).encode()
    return post(address, path, _damaged(chance, body))


def _parameters(chance: random.Random, address: Address) -> Reply:
    """Post a well-formed body whose parameters have random names and values."""
    changes = {chance.choice(_NAMES): chance.choice(_VALUES) for _ in range(chance.randint(1, 4))}
    path = chance.choice((GENERATE, STREAM, INFER))
    if path == INFER:
        body = json.dumps(infer_body(parameters=changes)).encode()
    else:
        body = generate_body(**{"timeout": _DEADLINE_US, **changes})
    return post(address, path, body)


def _bytes(chance: random.Random, address: Address) -> Reply:
    """Send the damaged beginning of a request, or random bytes, and close the sending side."""
    body = generate_body()
    whole = head(GENERATE, f"Content-Length: {len(body)}") + body
    sent = chance.choice(
        (
            whole[: chance.randrange(len(whole))],
            _damaged(chance, whole)[: chance.randrange(1, len(whole))],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + chance.randbytes(chance.randrange(200)),
            chance.randbytes(chance.randrange(1, 500)),
        )
    )
    try:
        with socket.create_connection(address, timeout=TIMEOUT_S) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, OSError):
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
            received = b""
            while data := connection.recv(1 << 16):
                received += data
    except TimeoutError:
        return Reply("silent")
    except OSError:
        return Reply("closed")
    words = received.split(b" ", 2)
    is_http = received.startswith(b"HTTP/1") and len(words) > 1
    return Reply(words[1].decode() if is_http else "closed", received.decode(errors="replace"))


def _message(chance: random.Random, channel: grpc.Channel) -> Reply:
    """Send a gRPC message with some bytes or fields changed."""
    made = request(chance.choice(("generate", "generate_target", "router")))
    made.parameters["timeout"].int64_param = _DEADLINE_US
    for _ in range(chance.randint(0, 2)):
        _change_field(chance, made)
    raw = made.SerializeToString()
    if chance.random() < 0.7:
        raw = _damaged(chance, raw)
    try:
        if chance.random() < 0.5:
            stream = channel.stream_stream(SERVICE + "ModelStreamInfer")
            return _last(stream(iter((raw,)), timeout=TIMEOUT_S))
        return Reply("OK", repr(channel.unary_unary(SERVICE + "ModelInfer")(raw, timeout=TIMEOUT_S)))
    except grpc.RpcError as error:
        return Reply(error.code().name, error.details() or "")


def _last(responses: Iterator[bytes]) -> Reply:
    """Read a stream to its end; it carries one request, so at most one error."""
    for response in responses:
        error = messages.ModelStreamInferResponse.FromString(response).error_message
        if error:
            return Reply("ERROR", error)
    return Reply("OK")


def _change_field(chance: random.Random, made: Any) -> None:
    """Change one field of a ``ModelInferRequest``; the result is still a valid message."""
    tensor = chance.choice(made.inputs)
    what = chance.randrange(6)
    if what == 0:
        tensor.shape[chance.randrange(len(tensor.shape))] = chance.choice((-1, 0, 3, 2**31, 2**62))
    elif what == 1:
        tensor.datatype = chance.choice(("BYTES", "INT32", "FP64", "BOOL", "FP16", "NOTHING", ""))
    elif what == 2:
        tensor.name = chance.choice((*_NAMES, "\ue000" * 50))
    elif what == 3:
        made.outputs.add(name=chance.choice(("text_output", "output_ids", "nothing"))).parameters[
            chance.choice(("classification", "binary_data", "shared_memory_region"))
        ].int64_param = chance.choice((0, 3, 2**40))
    elif what == 4:
        made.raw_input_contents.append(chance.randbytes(chance.randrange(20)))
    else:
        made.parameters[chance.choice(_NAMES)].string_param = chance.choice(("", "1", "x" * 300))


def _damaged(chance: random.Random, data: bytes) -> bytes:
    """Return the bytes with a few changed, removed or repeated."""
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(damaged) or 1)
        until = at + chance.randint(1, 8)
        what = chance.randrange(4)
        if what == 0:
            damaged[at : at + 1] = bytes([chance.randrange(256)])
        elif what == 1:
            del damaged[at:until]
        elif what == 2:
            damaged[at:at] = damaged[at:until]
        else:
            damaged[at:at] = chance.choice(
                (b"[", b"{", b'"', b"\\u0000", b"-", b"9", b"1e9", b"\xff", b",null")
            )
    return bytes(damaged)


def main(http_port: int, grpc_port: int, seed: int, seconds: float) -> None:
    os.nice(19)  # a hostile client has its own machine and takes no CPU time from the server
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    until_s = time.monotonic() + seconds
    num_sent, improper = 0, []
    with contextlib.suppress(KeyboardInterrupt):
        for sent in fuzz(("127.0.0.1", http_port), ("127.0.0.1", grpc_port), seed):
            num_sent += 1
            if not sent.is_proper:
                improper.append([sent.kind, sent.number, sent.reply.status, sent.reply.text[:200]])
            if time.monotonic() > until_s:
                break
    print(json.dumps({"num_sent": num_sent, "improper": improper}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), float(sys.argv[4]))
