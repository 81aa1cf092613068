"""Compiles the guides of requests for an engine, some at a time and each within a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pipelines.errors import InvalidRequestError, ServerBusyError
from pipelines.executor.executor import Executor
from pipelines.manifest import EngineFiles
from pipelines.text.grammar import RequestGrammar
from pipelines.text.guides import GrammarCompiler, Guide
from pipelines.text.vocabulary import Vocabulary
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.wire.engine_request import GenerationCall

_NUM_THREADS = 2
"""So that one large schema does not hold up all others; llguidance lets go of Python's lock."""

_MAX_COMPILING = 32
_LIMIT_S = 10.0


class Grammars:
    """Turns guides into grammars, on threads of its own.

    Args:
        files: Files of the engine, whose tokenizer is loaded with the first guide.
        vocabulary: Bytes of its tokens.
        vocab_size: Logits per position.
    """

    def __init__(self, files: EngineFiles, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._files = files
        self._compiler = GrammarCompiler(vocabulary, vocab_size, self._load_encode)
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="guides")
        self._compiling: dict[Guide, asyncio.Future[RequestGrammar]] = {}
        self._begun: set[Guide] = set()

    @classmethod
    def of(cls, parameters: ModelParameters, executor: Executor, *, role: str = "") -> Grammars:
        """Return the grammars of an engine; ``role`` prefixes the parameters that name it."""
        directory = parameters.path(f"{role}engine_dir")
        files = EngineFiles(directory, parameters.text(f"{role}engine_digest"))
        return cls(files, executor.vocabulary, executor.config.vocab_size)

    async def compile(self, call: GenerationCall) -> GenerationCall:
        """Return a call whose request has the grammar of its guide, if it has one.

        Raises:
            InvalidRequestError: The guide is wrong, or takes too long.
            ServerBusyError: Too many guides wait, or this one waited too long.
        """
        guide = call.guide
        if guide is None:
            return call
        grammar = self._compiler.remembered(guide) or await self._compiled(guide)
        return replace(call, request=replace(call.request, grammar=grammar))

    async def _compiled(self, guide: Guide) -> RequestGrammar:
        if guide not in self._compiling:
            if len(self._compiling) >= _MAX_COMPILING:
                raise _busy(f"{len(self._compiling)} guides wait", f"at most {_MAX_COMPILING}")
            loop = asyncio.get_running_loop()
            compiling = loop.run_in_executor(self._threads, self._compile, guide)
            self._compiling[guide] = compiling
            compiling.add_done_callback(lambda done: self._forget(guide, done))
        compiling = self._compiling[guide]
        await asyncio.wait((compiling,), timeout=_LIMIT_S)  # goes on for later requests
        if compiling.done():
            return compiling.result().another()
        if guide not in self._begun:
            raise _busy(f"it waited {_LIMIT_S:g} s for others", f"{_NUM_THREADS} at a time")
        raise InvalidRequestError(
            "the guide takes too long to compile",
            values=f"guided_decoding_guide_type={guide.kind}, {len(guide.text)} characters",
            limit=f"{_LIMIT_S:g} s",
            remedy="send a simpler schema or grammar",
        )

    def _compile(self, guide: Guide) -> RequestGrammar:
        self._begun.add(guide)
        return self._compiler.compile(guide)

    def _forget(self, guide: Guide, done: asyncio.Future[RequestGrammar]) -> None:
        del self._compiling[guide]
        self._begun.discard(guide)
        if not done.cancelled():
            done.exception()  # has been raised, unless nobody waited for it any more

    def _load_encode(self) -> Callable[[str], list[int]]:
        from pipelines.text.prompt_tokenizer import PromptTokenizer  # engines need no tokenizer otherwise

        tokenizer = PromptTokenizer(self._files.read("tokenizer.json"), self._files.path("tokenizer.json"))
        return lambda text: tokenizer.encode(text, add_special_tokens=False)


def _busy(values: str, limit: str) -> ServerBusyError:
    return ServerBusyError(
        "too many new guides are being compiled",
        values=values,
        limit=limit,
        remedy="send the request again later",
    )
