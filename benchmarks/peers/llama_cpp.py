"""Start a server of llama.cpp's family in its environment, and ask it."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from build.recipe import GGUF_SUFFIX, Recipe
from pipelines.client import CompletionRequest, Generation
from pipelines.errors import PeerError
from pipelines.places import located

SERVER = Path(__file__).with_name("llama_cpp_server.py")
IK_SERVER = Path(__file__).with_name("ik_llama_server.py")
_TIMEOUT_S = 1200.0  # of an answer
_END_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Settings:
    """What a server is started with.

    Attributes:
        target: GGUF file.
        draft: GGUF file.
        num_draft_tokens: Draft tokens per round; 0 for the target alone.
        num_threads: Threads that compute.
        num_at_once: Most concurrent requests.
        max_seq_len: Most tokens of prompt and answer together.
    """

    target: str
    draft: str
    num_draft_tokens: int
    num_threads: int
    num_at_once: int
    max_seq_len: int


def gguf_files(recipe: Recipe) -> dict[str, str]:
    """Return role -> GGUF file of a recipe.

    Raises:
        PeerError: It has other checkpoints, which llama.cpp does not read.
    """
    files = {role: str(located(engine.checkpoint)) for role, engine in recipe.engines.items()}
    if len(files) < 2 or not all(file.endswith(GGUF_SUFFIX) for file in files.values()):
        raise PeerError(
            f"recipe {recipe.name} is no pair of GGUF files, which alone llama.cpp reads: {files}",
            "run 'make published', and name the recipe qwen2-5-coder-cpu",
        )
    return files


def generation_of(ids: tuple[int, ...], seconds: float) -> Generation:
    """Return an answer of a server that does not say how it speculates."""
    return Generation("", ids, (), "", 0, 0, 0, (), None, seconds)


class LlamaCpp:
    """A running server, until ``close``.

    Args:
        interpreter: Python of its environment.
        settings: What it is started with.
        end_ids: End tokens to remove from answers, because our server does not return them.
        log: File for what it prints.
        program: Starts it.

    Attributes:
        version: Version of its package.
        url: Address of OpenAI's API.

    Raises:
        PeerError: It did not start.
    """

    def __init__(
        self,
        interpreter: Path,
        settings: Settings,
        end_ids: tuple[int, ...],
        log: Path,
        program: Path = SERVER,
    ) -> None:
        self._end_ids, self._log = end_ids, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w", encoding="utf-8") as file:
            self._process = subprocess.Popen(
                [interpreter, program, json.dumps(asdict(settings))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        assert self._process.stdout is not None
        self._http = httpx.Client(timeout=_TIMEOUT_S, trust_env=False)
        if not (line := self._process.stdout.readline()):
            self.close()
            raise self._failed(f"exit code {self._process.returncode}")
        told = json.loads(line)
        self.version = str(told["version"])
        self.url = str(told["address"])

    def ask(self, request: CompletionRequest, model: str) -> Generation:
        """Answer a prompt of token ids greedily; raises PeerError."""
        body = {
            "prompt": list(request.prompt_ids),
            "n_predict": request.max_tokens,
            "temperature": 0.0,
            "cache_prompt": True,
            "return_tokens": True,
        }
        began_s = time.monotonic()
        try:
            ids = tuple(
                self._http.post(f"{self.url}/completion", json=body).raise_for_status().json()["tokens"]
            )
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise self._failed(repr(error)) from None
        seconds = time.monotonic() - began_s
        return generation_of(ids[:-1] if ids and ids[-1] in self._end_ids else ids, seconds)

    def close(self) -> None:
        """End the server, and kill it if it does not end in time."""
        self._http.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=_END_TIMEOUT_S)
        self._process.kill()
        self._process.wait()

    def _failed(self, why: str) -> PeerError:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return PeerError(
            f"the server failed: {why}: {lines[-1] if lines else 'it printed nothing'}", f"read {self._log}"
        )
