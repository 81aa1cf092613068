"""Run ik_llama.cpp on a GGUF file, behind the one path of llama.cpp's server that the comparison asks.

Its package has no server, so requests are answered one after the other, and no speculation. Other than the
package's own ``generate``, this keeps what it computed of a prompt, lets the library pack the weights for the
machine, and chooses tokens with numpy. The interpreter of the environment ``ik-llama-cpp`` runs this program,
with the arguments and output of ``llama_cpp_server``.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from typing import Any

import numpy as np


class Generator:
    """Answers prompts greedily.

    Args:
        settings: Those of ``LlamaCpp``.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        from ik_llama_cpp import _ctypes_api, _internals

        self._api, self._internals = _ctypes_api, _internals
        parameters = _ctypes_api.llama_model_default_params()
        parameters.repack_tensors = True  # its fastest kernels
        _ctypes_api.llama_model_default_params = lambda: parameters
        model = _internals.IkModel(settings["target"], use_mmap=False)
        # Its flash attention needs AVX-VNNI, which the package does not find out by itself.
        self._context = _internals.IkContext(
            model, n_ctx=settings["max_seq_len"], n_threads=settings["num_threads"], flash_attn=False
        )
        self._library = _ctypes_api._lib  # whose functions for states the package does not name
        self._library.llama_state_seq_get_size.restype = ctypes.c_size_t
        self._library.llama_state_seq_get_data.restype = ctypes.c_size_t
        self._library.llama_state_seq_set_data.restype = ctypes.c_size_t
        self._states: dict[tuple[int, ...], bytes] = {}

    def answer(self, prompt: list[int], max_tokens: int) -> list[int]:
        """Return the tokens of an answer, with the end token if there is one."""
        *known, token = prompt
        self._read(tuple(known))
        answer: list[int] = []
        while True:
            token = self._next(token, len(known) + len(answer))
            answer.append(token)
            if len(answer) == max_tokens or self._api.llama_token_is_eog(self._context.model.model, token):
                return answer

    def _read(self, known: tuple[int, ...]) -> None:
        """Compute the keys and values of tokens, or restore them."""
        self._context.kv_cache_clear()
        context = ctypes.c_void_p(self._context.ctx)
        if state := self._states.get(known):
            size = ctypes.c_size_t(len(state))
            if self._library.llama_state_seq_set_data(context, state, size, 0, 0) != len(state):
                raise RuntimeError("llama_state_seq_set_data did not bring a prompt back")
            return
        size = self._context._n_ubatch
        for begin in range(0, len(known), size):
            self._decode(self._internals.make_batch_range([*known[begin : begin + size]], pos_start=begin))
        num_bytes = self._library.llama_state_seq_get_size(context, 0, 0)
        content = ctypes.create_string_buffer(num_bytes)
        self._library.llama_state_seq_get_data(context, content, ctypes.c_size_t(num_bytes), 0, 0)
        self._states[known] = content.raw

    def _next(self, token: int, position: int) -> int:
        self._decode(self._internals.make_batch_single(token, position))
        scores = np.ctypeslib.as_array(self._context.get_logits(), (self._context.model.n_vocab,))
        return int(scores.argmax())

    def _decode(self, batch: Any) -> None:
        failed = self._context.decode(batch)
        self._api.llama_batch_free(batch)
        if failed:
            raise RuntimeError(f"llama_decode returned {failed}")


def main() -> None:
    """Run the server until standard input ends."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the library prints to it
    generator = Generator(json.loads(sys.argv[1]))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps({"tokens": generator.answer(asked["prompt"], asked["n_predict"])}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    HTTPServer.request_queue_size = 64
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    told = {"address": f"http://127.0.0.1:{server.server_port}", "version": version("ik-llama-cpp-python")}
    print(json.dumps(told), file=output, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
