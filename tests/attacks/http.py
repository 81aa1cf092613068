"""Attacks over HTTP that are framed correctly and carry hostile content."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

from tests.attacks.attack import Address, Attack, Reply
from tests.attacks.raw_http import chunked, generate_body, get, infer_body, post, tensor

GENERATE = "/v2/models/generate/generate"
STREAM = "/v2/models/generate/generate_stream"
INFER = "/v2/models/generate/infer"
FLOOD = [b"1\r\nA\r\n" * 10_000] * 120


def made(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the changes of a body, of which the large ones are functions: every worker imports this file."""
    return {name: value() if callable(value) else value for name, value in changes.items()}


def generate(name: str, *headers: str, path: str = GENERATE, **changes: Any) -> Attack:
    return Attack(name, lambda address: post(address, path, generate_body(**made(changes)), *headers))


def infer(name: str, *headers: str, path: str = INFER, **changes: Any) -> Attack:
    def send(address: Address) -> Reply:
        return post(address, path, json.dumps(infer_body(**made(changes))).encode(), *headers)

    return Attack(name, send)


def read(name: str, path: str) -> Attack:
    return Attack(name, lambda address: get(address, path))


def control(name: str, path: str, body: Any, *headers: str) -> Attack:
    return Attack(name, lambda address: post(address, path, json.dumps(body).encode(), *headers))


def bytes_post(name: str, path: str, body: bytes, *headers: str) -> Attack:
    return Attack(name, lambda address: post(address, path, body, *headers))


def with_shape(shape: list[int], count: int = 1) -> list[dict[str, Any]]:
    """Return inputs whose ``max_tokens`` has the given shape and numbers."""
    return [tensor("text_input", "BYTES", [1, 1], ["x"]), tensor("max_tokens", "INT32", shape, [2] * count)]


def binary_body(length_of_string: int, payload: bytes) -> tuple[bytes, str]:
    """Return a body with binary data whose string claims the given length, and the matching header."""
    binary = length_of_string.to_bytes(4, "little") + payload
    text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1]}
    inputs = [{**text, "parameters": {"binary_data_size": len(binary)}}, infer_body()["inputs"][1]]
    document = json.dumps({"inputs": inputs}).encode()
    return document + binary, f"Inference-Header-Content-Length: {len(document)}"


def lying_string(name: str, length: int, payload: bytes, path: str = INFER) -> Attack:
    body, header = binary_body(length, payload)
    return bytes_post(name, path, body, header)


def chunked_flood(address: Address) -> Reply:
    """CVE-2025-23310: each six-byte chunk takes 16 bytes of the stack (``alloca``), which holds 8 MiB."""
    return chunked(address, GENERATE, FLOOD)


def compressed_flood(address: Address) -> Reply:
    """CVE-2025-33202: the same, while a compressed body is unpacked."""
    return chunked(address, INFER, FLOOD, "Content-Encoding: gzip")


def gzip_bomb(address: Address) -> Reply:
    return post(address, INFER, gzip.compress(b" " * 2**28), "Content-Encoding: gzip")


PWN_MODEL = {
    "parameters": {
        "config": json.dumps({"name": "pwn", "backend": "python", "max_batch_size": 0}),
        "file:1/model.py": base64.b64encode(b"raise SystemExit('refused by being no model')").decode(),
    }
}

HTTP_ATTACKS = (
    # Crashes
    infer(
        "classification of text",  # divides by the size of BYTES, which is 0: SIGFPE
        outputs=[{"name": "text_output", "parameters": {"classification": 3}}],
    ),
    infer("classification of numbers", outputs=[{"name": "output_ids", "parameters": {"classification": 3}}]),
    generate("Accept-Encoding with a weight of 1e999", "Accept-Encoding: gzip;q=1e999"),
    Attack("chunked flood", chunked_flood),
    Attack("chunked flood, compressed", compressed_flood),
    infer("shape of 2^42 numbers", inputs=with_shape([1, 2**42])),
    infer(
        "shape whose byte size overflows",  # room for one number, but a million are written
        inputs=lambda: with_shape([1, 2**62 + 1], 1_000_000),
    ),
    infer("shape of -1", inputs=with_shape([2**64 - 1])),
    infer("shape of -2", inputs=with_shape([2**64 - 2, 1])),
    infer("shape without dimensions", inputs=with_shape([])),
    infer("shape of zeros", inputs=with_shape([0, 0])),
    infer("batch of 2^32+1", inputs=with_shape([2**32 + 1, 0])),
    bytes_post("JSON of a million open brackets", GENERATE, b"[" * 1_000_000),
    bytes_post("JSON of a million open objects", GENERATE, b'{"a":' * 1_000_000),
    bytes_post(
        "data nested 100,000 deep",
        INFER,
        json.dumps(infer_body()).encode().replace(b"[2]", b"[" * 100_000 + b"2" + b"]" * 100_000),
    ),
    lying_string("string that claims 4 GiB in binary data", 2**32 - 1, b"x"),
    lying_string("string that claims 8 bytes more than sent", 16, b"12345678"),
    lying_string("string that claims less than sent", 0, b"12345678"),
    # Memory and time
    generate("text of 64 MiB", text_input=lambda: "x" * 2**26),
    Attack("gzip bomb", gzip_bomb),
    infer("200,000 times the same output", outputs=lambda: [{"name": "text_output"}] * 200_000),
    infer("100,000 unknown outputs", outputs=lambda: [{"name": f"o{i}"} for i in range(100_000)]),
    infer(
        "100,000 unknown inputs", inputs=lambda: [tensor(f"i{i}", "INT32", [1], [1]) for i in range(100_000)]
    ),
    infer("20,000 parameters", parameters=lambda: {f"p{i}": i for i in range(20_000)}),
    generate("request id of 1 MB", id="i" * 10**6),
    bytes_post("parameter name of 1 MB", GENERATE, generate_body(**{"p" * 10**6: 1})),
    # Fields in unusual forms
    infer("the same input twice", inputs=infer_body()["inputs"] * 2),
    infer("the same output twice", outputs=[{"name": "text_output"}] * 2),
    infer("input of an unknown type", inputs=[tensor("text_input", "FOO", [1, 1], [1])]),
    infer("number where text belongs", inputs=[tensor("text_input", "BYTES", [1, 1], [1])]),
    infer("inputs is an object", inputs={"a": 1}),
    infer("outputs is text", outputs="text_output"),
    infer("parameters is a list", parameters=[1]),
    infer("parameter that Triton reserves", parameters={"triton_enable_empty_final_response": True}),
    infer("sequence id of text", parameters={"sequence_id": "s", "sequence_start": True}),
    infer("sequence id of 2^64-1", parameters={"sequence_id": 2**64 - 1, "sequence_end": True}),
    infer("priority of 2^64-1", parameters={"priority": 2**64 - 1}),
    infer("timeout of 2^64-1", parameters={"timeout": 2**64 - 1}),
    infer("id is a number", id=7),
    infer("name with a NUL", outputs=[{"name": "text_output\0hidden"}]),
    bytes_post("lone surrogate", GENERATE, b'{"text_input": "\\ud800", "max_tokens": 2}'),
    bytes_post("two documents", GENERATE, generate_body() * 2),
    bytes_post("empty body", GENERATE, b""),
    generate("max_tokens beyond INT32", max_tokens=2**32 + 3),
    generate("end_id beyond INT32", end_id=2**31),
    # Extensions that are not for clients
    infer(
        "output into shared memory",
        outputs=[
            {
                "name": "text_output",
                "parameters": {"shared_memory_region": "draftproof", "shared_memory_byte_size": 64},
            }
        ],
    ),
    bytes_post("body as one raw tensor", INFER, b"x", "Inference-Header-Content-Length: 0"),
    bytes_post(
        "header length beyond 64 bits",
        INFER,
        json.dumps(infer_body()).encode(),
        f"Inference-Header-Content-Length: {2**70}",
    ),
    bytes_post("unknown content encoding", INFER, b"x", "Content-Encoding: br"),
    generate("model version beyond 64 bits", path=f"/v2/models/generate/versions/{10**30}/generate"),
    generate("internal model speculative", path="/v2/models/speculative/generate"),
    generate("internal model target", path="/v2/models/target/generate"),
    # The control surface
    control("load a model of the client's", "/v2/repository/models/pwn/load", PWN_MODEL),
    control(
        "load a model, from another site's page",
        "/v2/repository/models/pwn/load",
        PWN_MODEL,
        "Content-Type: text/plain",
        "Origin: https://evil.example",
    ),
    control("load a model outside the repository", "/v2/repository/models/..%2f..%2fetc/load", {}),
    control("unload a model", "/v2/repository/models/pwn/unload", {}),
    control("list the repository", "/v2/repository/index", {}),
    control("change the logging", "/v2/logging", {"log_verbose_level": 0}),
    read("read the logging", "/v2/logging"),
    control("change the tracing", "/v2/trace/setting", {"trace_level": ["OFF"]}),
    control("trace rate beyond INT32", "/v2/trace/setting", {"trace_rate": str(10**30)}),
    read("statistics of a model", "/v2/models/generate/stats"),
    read("statistics of all models", "/v2/models/stats"),
    read("configuration of a model", "/v2/models/generate/config"),
    control(
        "register shared memory",
        "/v2/systemsharedmemory/region/stolen/register",
        {"key": "/draftproof_no_such_region", "offset": 0, "byte_size": 64},
    ),
    read("status of shared memory", "/v2/systemsharedmemory/status"),
    control("unregister all shared memory", "/v2/systemsharedmemory/unregister", {}),
    control(
        "register CUDA memory",
        "/v2/cudasharedmemory/region/x/register",
        {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 64},
    ),
    generate("generate, from another site's page", "Origin: https://evil.example"),
)
