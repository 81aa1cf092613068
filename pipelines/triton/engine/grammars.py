"""Compiles the guides of requests for an engine, each after a trial in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

from pipelines.manifest import EngineFiles
from pipelines.text.grammar import RequestGrammar
from pipelines.text.guide_trials import GuideTrials
from pipelines.text.guides import GUIDE_TYPES, GrammarCompiler, Guide, check_guide
from pipelines.text.vocabulary import Vocabulary

_NUM_THREADS = 2
"""So that one large schema does not hold up all others; llguidance lets go of Python's lock."""


class Grammars:
    """Turns guides into grammars, on threads of its own. To make one takes a second.

    Args:
        files: Files of the engine.
        vocabulary: Bytes of its tokens.
        vocab_size: Logits per position.
    """

    def __init__(self, files: EngineFiles, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._files = files
        self._compiler = GrammarCompiler(vocabulary, vocab_size, self._load_encode)
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="guides")
        self._trials = GuideTrials(self._compiler.tokens)
        self._compiling: dict[Guide, _Shared] = {}
        # Now: beside requests it would hold them up. If it fails, the first guide does and says why.
        wait([self._threads.submit(self._compiler.load)])

    async def compile(self, guide: Guide) -> RequestGrammar:
        """Return the grammar of a guide, for one request.

        Raises:
            InvalidRequestError: The guide is wrong, or exceeds a limit of trials.
            ServerBusyError: Too many guides wait, or this one waited too long.
        """
        return self._compiler.remembered(guide) or await self._compiled(guide)

    async def _compiled(self, guide: Guide) -> RequestGrammar:
        """Wait for a guide with all others that do; when the last of them leaves, its trial ends."""
        if guide not in self._compiling:
            self._compiling[guide] = _Shared(asyncio.ensure_future(self._try_and_compile(guide)))
        shared = self._compiling[guide]
        shared.num_waiting += 1
        try:
            await asyncio.wait((shared.task,))
            return shared.task.result().another()
        finally:
            shared.num_waiting -= 1
            if not shared.num_waiting:
                shared.task.cancel()
                self._compiling.pop(guide, None)

    async def _try_and_compile(self, guide: Guide) -> RequestGrammar:
        check_guide(guide)
        question = {"kind": GUIDE_TYPES[guide.kind], "text": guide.text}
        await self._trials.ask(question, f"guided_decoding_guide_type={guide.kind}")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._compiler.compile, guide)

    def _load_encode(self) -> Callable[[str], list[int]]:
        from pipelines.text.prompt_tokenizer import PromptTokenizer  # engines need no tokenizer otherwise

        tokenizer = PromptTokenizer(self._files.read("tokenizer.json"), self._files.path("tokenizer.json"))
        return lambda text: tokenizer.encode(text, add_special_tokens=False)


@dataclass
class _Shared:
    """A guide that is tried and compiled, and how many requests wait for it."""

    task: asyncio.Task[RequestGrammar]
    num_waiting: int = 0
