"""The deliberate breakages: a text of the code, what replaces it, and the tests that must fail then."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Breakage:
    """One deliberate breakage.

    Attributes:
        name: Part of the product, and what is wrong there.
        variants: Texts of the code and their replacements; of all of them exactly one text stands in a tree,
            exactly once. More than one only where the text has changed since an older commit.
        tests: Names of the test files that must catch it.
    """

    name: str
    variants: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]


def _one(name: str, text: str, replacement: str, *tests: str) -> Breakage:
    return Breakage(name, ((text, replacement),), tests)


_LOOP, _SAMPLING = "test_loop.py", "test_sampling.py"
_ROWS, _CACHE, _LANES, _EXECUTOR = (
    "test_row_rule.py",
    "test_kv_cache.py",
    "test_lanes.py",
    "test_executor.py",
)

BREAKAGES: tuple[Breakage, ...] = (
    # The loop
    _one(
        "loop: accepted tokens are counted one short",
        "num_accepted_tokens=count_accepted(draft_ids[:num_verified], verified.token_ids)",
        "num_accepted_tokens=count_accepted(draft_ids[:num_verified], verified.token_ids[1:])",
        _LOOP,
    ),
    Breakage(
        "loop: the first round drafts before the prompt is read",
        (
            ("if self.num_emitted else NO_DRAFT", "if True else NO_DRAFT"),
            ("if num_emitted else NO_DRAFT", "if True else NO_DRAFT"),
        ),
        (_LOOP,),
    ),
    Breakage(
        "loop: the output ends a token early",
        (
            ("elif not self._num_remaining:", "elif self._num_remaining <= 1:"),
            ("elif num_emitted == request.max_tokens:", "elif num_emitted >= request.max_tokens - 1:"),
        ),
        (_LOOP,),
    ),
    Breakage(
        "loop: a draft that refuses a request is asked in each round",
        (
            ("self.lengths.note_refusal()  # it would refuse", "pass  # it would refuse"),
            ("lengths.note_refusal()  # it would refuse", "pass  # it would refuse"),
        ),
        ("test_watched_draft.py",),
    ),
    _one(
        "loop: a failing draft is never paused longer",
        "min(max(2 * self._pause_s, FIRST_PAUSE_S), LAST_PAUSE_S)",
        "FIRST_PAUSE_S",
        "test_watched_draft.py",
    ),
    # Sampling
    _one(
        "ratio rule: p and q are exchanged",
        "draws.is_accepted(p[draft_id], q[draft_id], seed, self.position)",
        "draws.is_accepted(q[draft_id], p[draft_id], seed, self.position)",
        "test_exact_distribution.py",
    ),
    _one(
        "ratio rule: a recovered token is drawn from the whole distribution",
        "residual = np.maximum(p - q, 0)",
        "residual = p",
        "test_exact_distribution.py",
    ),
    _one(
        "noise: all streams are one",
        "np.array([seed, stream], np.uint64)",
        "np.array([seed, 0], np.uint64)",
        _SAMPLING,
    ),
    _one(
        "noise: it does not depend on the position",
        "np.array([0, 0, 0, position], np.uint64)",
        "np.array([0, 0, 0, 0], np.uint64)",
        _SAMPLING,
    ),
    _one(
        "noise: zero is possible",
        "(words >> np.uint64(11)).astype(np.float64) + 0.5",
        "(words >> np.uint64(11)).astype(np.float64)",
        _SAMPLING,
    ),
    _one(
        "sampling: top_k leaves one token too many",
        "_likeliest(scores, sampling.top_k)",
        "_likeliest(scores, sampling.top_k + 1)",
        _SAMPLING,
    ),
    _one(
        "sampling: the temperature is forgotten",
        "scores = scores / sampling.temperature",
        "scores = scores.copy()",
        "test_processing.py",
    ),
    _one(
        "sampling: the frequency penalty rewards",
        "scores -= sampling.frequency_penalty * counts.in_output",
        "scores += sampling.frequency_penalty * counts.in_output",
        "test_processing.py",
    ),
    _one(
        "sampling: min_tokens is ignored",
        "return bool(self._end_ids) and self.num_output < self._sampling.min_tokens",
        "return False",
        "test_processing.py",
        _SAMPLING,
    ),
    # Exactness: rows, chunks, cache
    _one(
        "chunk rule: a split leaves a chunk of one token",
        "        if num_left - count == 1:\n            count -= 1\n",
        "",
        "test_prompt_pace.py",
    ),
    _one("row rule: a step has a single token", "_lone_row = 2, False", "_lone_row = 1, False", _ROWS),
    _one(
        "row rule: output is computed as a chunk",
        "num_sequences, length = (count, 1) if chunk.as_rows else (1, count)",
        "num_sequences, length = (1, count)",
        _ROWS,
    ),
    Breakage(
        "row rule: a continued output is computed as a prompt",
        (
            ("self.num_prompt = num_prompt if num_prompt > 1 else 0", "self.num_prompt = self.num_tokens"),
            ("num_prompt=num_prompt if num_prompt > 1 else 0,", "num_prompt=num_known,"),
        ),
        (_EXECUTOR, _ROWS),
    ),
    _one(
        "KV cache: a block is reused however it was computed",
        "return 0 if self._has_one_form else min(max(num_prompt, 0), num_positions)",
        "return 0",
        _CACHE,
        _ROWS,
    ),
    _one(
        "KV cache: one token of a prompt is left to compute",
        "        if num_prompt - num_cached == 1:\n            self._drop_user(blocks.pop())",
        "        if False:\n            self._drop_user(blocks.pop())",
        _CACHE,
    ),
    _one(
        "KV cache: a block is evicted after its ancestors",
        "for block in reversed(table.blocks):",
        "for block in table.blocks:",
        _CACHE,
    ),
    _one(
        "KV cache: a position counts as computed too early",
        "while (table.num_committed + 1) * size <= num_computed:",
        "while (table.num_committed + 1) * size <= num_computed + 1:",
        _CACHE,
        _EXECUTOR,
        _ROWS,
    ),
    _one(
        "KV cache: freed blocks are lost",
        "self._pool.free.append(block)",
        "pass",
        _CACHE,
        _EXECUTOR,
    ),
    _one(
        "lanes: both share one cache",
        "self.lanes = tuple(Lane(cache, limits.max_batch_size) for cache in caches)",
        "cache = next(caches)\n"
        "        self.lanes = tuple(Lane(cache, limits.max_batch_size) for _ in range(num_lanes))",
        _LANES,
    ),
    _one(
        "lanes: the second one takes all blocks",
        "most = num_blocks // 2 if is_first_open or first.has_work else num_blocks",
        "most = num_blocks",
        _LANES,
    ),
    _one(
        "executor: deadlines are ignored",
        "if deadline_s is not None and deadline_s < now:",
        "if deadline_s is not None and deadline_s < 0:",
        _EXECUTOR,
    ),
    _one(
        "executor: an engine that changed is loaded",
        "    if found != sha256:\n        raise changed_file",
        "    if False:\n        raise changed_file",
        "test_engine_files.py",
    ),
    _one(
        "executor: the first tokens of another tokenizer's prompt are left out",
        "return np.concatenate((self.first_ids, self.translate(token_ids)))",
        "return self.translate(token_ids)",
        "test_token_map.py",
    ),
    # Draft length
    Breakage(
        "draft length: the pause after a failure never grows",
        (
            ("self.next_length = min(2 * self.next_length, self.longest)", "pass"),
            ("self._rest = min(2 * self._rest, _LAST_REST)", "pass"),
        ),
        ("test_probing.py",),
    ),
    _one(
        "draft length: every other shape is worth a change",
        "(rate * self._change_s if self._keeps_shape else 0.0)",
        "0.0",
        "test_row_budget.py",
    ),
    _one(
        "draft length: acceptance is learned from the token that was rejected",
        "self.acceptance.observe(drafted.margins[: len(token_ids)].tolist(), num_accepted)",
        "self.acceptance.observe(drafted.margins[: len(token_ids)].tolist(), len(token_ids))",
        "test_draft_length.py",
    ),
    # Text
    _one(
        "stop words: one that spans two tokens is not seen",
        "        self._tail = self._last_bytes(text)\n",
        '        self._tail = b""\n',
        "test_text.py",
        "test_executor.py",
    ),
    _one(
        "bad words: one that spans two tokens is allowed",
        "return np.concatenate((self._searched.containing, *completing))",
        "return self._searched.containing",
        "test_processing.py",
    ),
    _one(
        "chunks: a character is cut in two",
        "if is_at_character and not self._state:",
        "if not self._state:",
        "test_chunks.py",
    ),
    _one(
        "chunks: the beginning of a stop word is sent",
        "if is_at_character and not self._state:",
        "if is_at_character:",
        "test_chunks.py",
    ),
    _one(
        "grammars: a mask survives another token than the expected one",
        "if self._expected and self._expected[0] == token_id:",
        "if self._expected:",
        "test_grammar.py",
    ),
    _one(
        "grammars: a rejected draft token stays in the grammar",
        "num_back = len(consumed) - num_kept",
        "num_back = 0",
        "test_grammar.py",
    ),
    _one(
        "grammars: an answer may end anywhere",
        "return bool(self._mask()[self._grammar.num_tokens])",
        "return True",
        "test_grammar.py",
    ),
    # Router
    _one(
        "breaker: clients can open it",
        'FAILURES: frozenset[Outcome] = frozenset({"error", "timeout"})',
        'FAILURES: frozenset[Outcome] = frozenset({"error", "timeout", "refused", "busy"})',
        "test_breaker.py",
    ),
    _one(
        "breaker: it never closes",
        "elif not has_failed:\n            self._close(now_s)",
        "elif False:\n            self._close(now_s)",
        "test_breaker.py",
    ),
    _one(
        "breaker: every request is a probe",
        'state == "closed" or (state == "half_open" and not self._has_probe)',
        'state != "open"',
        "test_breaker.py",
    ),
    _one(
        "resumption: the output so far counts as prompt",
        '"prompt_length": scalar_tensor(prompt_ids.size, np.int32)',
        '"prompt_length": scalar_tensor(prompt_ids.size + len(output_ids), np.int32)',
        "test_resumed_requests.py",
    ),
    _one(
        "resumption: it begins inside a character",
        "if num_whole < len(output_ids):",
        "if False:",
        "test_resumed_requests.py",
    ),
    _one(
        "router: an answer that goes on after its end is not noticed",
        'if before and (ended := _text(before["finish_reason"])):',
        'if before and (ended := ""):',
        "test_replays.py",
    ),
    # Canary
    _one(
        "judge: the evidence is too large by the number of bets",
        "return float(np.logaddexp.reduce(gains)) - math.log(len(_FRACTIONS))",
        "return float(np.logaddexp.reduce(gains)) + 2 * math.log(len(_FRACTIONS))",
        "test_verdict.py",
        "test_judge_power.py",
    ),
    _one(
        "judge: many metrics are not corrected for their number",
        "harms = iter(adjusted([_harm(metric, limits) for metric in tested]))",
        "harms = iter([_harm(metric, limits) for metric in tested])",
        "test_verdict.py",
        "test_judge_power.py",
    ),
    _one(
        "judge: what is inconclusive passes",
        'return "fail" if "fail" in words else "inconclusive" if "inconclusive" in words else "pass"',
        'return "fail" if "fail" in words else "pass"',
        "test_verdict.py",
    ),
    Breakage(
        "controller: a decision is acted on before it is stored",
        (
            (
                "        self._store.advance(self._rollout, progress, found,",
                "        self._progress = progress\n        self._write_arms()\n"
                "        self._store.advance(self._rollout, progress, found,",
            ),
            (
                "        self._store.advance(\n            self._rollout,",
                "        self._progress = progress\n        self._tell()\n"
                "        self._store.advance(\n            self._rollout,",
            ),
        ),
        ("test_killed.py",),
    ),
    Breakage(
        "controller: a candidate stays in use without a controller",
        (
            ("self._world.write(replace(table, lease_until_s=0.0))", "self._world.write(table)"),
            ("self._write(replace(table, lease_until_s=0.0))", "self._write(table)"),
        ),
        ("test_controller.py",),
    ),
    # Front door
    _one(
        "keys: any key is valid",
        "found = [client for client in self._clients if client.key.has_digest(given)]",
        "found = list(self._clients)",
        "test_keys.py",
    ),
    _one(
        "keys: one request too many is allowed",
        "if limit is not None and self._num_requests >= limit:",
        "if limit is not None and self._num_requests > limit:",
        "test_keys.py",
    ),
    _one(
        "keys: tokens in progress are not counted",
        "self._num_tokens += num_tokens\n        try:",
        "pass\n        try:",
        "test_keys.py",
    ),
    _one(
        "delivery: what TLS keeps for a client counts as delivered",
        "return writable.poll(0) != [(descriptor, select.POLLOUT)]",
        "return False",
        "test_delivery.py",
    ),
    _one(
        "errors: clients see the names of the server's models",
        "error = _without_internals(error, status)",
        "pass",
        "test_errors.py",
    ),
    _one(
        "errors: clients see two of the four parts",
        'names = ("what", "values", "limit", "remedy")',
        'parts, names = parts[:2], ("what", "values")',
        "test_errors.py",
    ),
    # Gateway and supervision
    Breakage(
        "gateway: any number of requests may be open",
        (
            (
                "if self.num_open >= self._max_open:\n            work.close()",
                "if False:\n            work.close()",
            ),
            (
                "if self._num_open >= self._max_open:\n            self.num_refused += 1",
                "if False:\n            self.num_refused += 1",
            ),
        ),
        ("test_grpc_server.py",),
    ),
    _one(
        "supervision: requests to a dead model wait for ever",
        "num_ended = sum(self._calls.end(each, error) for each in asked)",
        "num_ended = 0",
        "test_supervisor.py",
    ),
    Breakage(
        "supervision: a model that hangs is not replaced",
        (
            ("if process.is_alive and not self._heartbeat.hangs(model):", "if process.is_alive:"),
            ("elif self._heartbeat.hangs(model):", "elif False:"),
        ),
        ("test_supervisor.py",),
    ),
    _one(
        "supervision: a pause of the gateway counts as silence of the models",
        "self._owes_since_s[model] += seconds",
        "pass",
        "test_heartbeat.py",
    ),
    # Checkpoints, engines, packages
    _one(
        "packages: a wrong signature is accepted",
        "key.verify(base64.b64decode(signature.strip(), validate=True), content)",
        "base64.b64decode(signature.strip(), validate=True)",
        "test_package.py",
    ),
    _one(
        "checkpoints: BF16 is shifted by a bit",
        "(self.data.astype(np.uint32) << 16).view(np.float32)",
        "(self.data.astype(np.uint32) << 15).view(np.float32)",
        "test_checkpoint.py",
    ),
    _one(
        "checkpoints: a truncated file is read",
        "if end > body.size:",
        "if False:",
        "test_checkpoint.py",
    ),
    _one(
        "checkpoints: FP8 has another bias",
        "(1 + mantissa / 8) * 2.0 ** (exponent - 7.0)",
        "(1 + mantissa / 8) * 2.0 ** (exponent - 8.0)",
        "test_checkpoint.py",
    ),
    _one(
        "checkpoints: Q6_K's high bits are those of other weights",
        "np.array([0, 2, 4, 6], np.uint8)[:, None]",
        "np.array([0, 4, 2, 6], np.uint8)[:, None]",
        "test_network.py",
    ),
    _one(
        "quantization: a scale is not the one of the least error",
        "is_closer = (error < least) & (spread > 0)",
        "is_closer = spread > 0",
        "test_weight_only.py",
    ),
    _one(
        "quantization: offsets are lost in a stack",
        '_BY_OUTPUT = ("scale", "zero_point", "bias", "offset", "units")',
        '_BY_OUTPUT = ("scale", "zero_point", "bias")',
        "test_linear.py",
    ),
    _one(
        "checkpoints: AWQ's outputs lie in the order of their words",
        "values = unpack(words, 4).reshape(len(words), -1, 8)[:, :, _PLACES]",
        "values = unpack(words, 4).reshape(len(words), -1, 8)",
        "test_quantized_forms.py",
        "test_quantized_hugging_face.py",
    ),
    _one(
        "checkpoints: YaRN does not lengthen the context",
        "return max(written, int(original * scaling.factor))",
        "return written",
        "test_yarn.py",
        "test_rope.py",
    ),
    _one(
        "files: one is written in place",
        'made.write_text(text, encoding="utf-8")\n        made.chmod(0o644)',
        'path.write_text(text, encoding="utf-8")\n        made.write_text(text, encoding="utf-8")',
        "test_atomic_file.py",
    ),
    # GGUF files
    _one(
        "gguf: rows of queries and keys stay in pairs",
        "num_heads = paired.get(part) if architecture.has_rotary_pairs else None",
        "num_heads = None",
        "test_network.py",
    ),
    _one(
        "gguf: the gains of Gemma keep the one that was added",
        "dequantized(kind, stored.read()) - offset",
        "dequantized(kind, stored.read())",
        "test_network.py",
    ),
    _one(
        "gguf: an unknown setting is ignored",
        '    if unknown:\n        raise file.fail(\n            "the network has settings',
        '    if False:\n        raise file.fail(\n            "the network has settings',
        "test_network.py",
    ),
    _one(
        "gguf: counts are believed",
        "if count > min((self.size - self.position) // least_bytes, _MOST_ITEMS):",
        "if count > 2**63:",
        "test_file.py",
    ),
    _one(
        "gguf: tensors may overlap",
        "if entry.offset % alignment or tensor.offset < end:",
        "if entry.offset % alignment:",
        "test_file.py",
    ),
    _one(
        "gguf: a file that changes while it is read is not noticed",
        "            if _version(paths) != version:\n",
        "            if False:\n",
        "test_file.py",
    ),
    _one(
        "gguf: only the first part of a split file is read",
        "        tensors.update(part.tensors)\n",
        "        tensors.update(part.tensors if number == 0 else {})\n",
        "test_file.py",
    ),
    _one(
        "gguf: a text always begins with a token of its own",
        'if file.value(f"{_KEY}add_bos_token", bool, rule.adds_bos):',
        "if True:",
        "test_tokenizer.py",
    ),
    _one(
        "gguf: pieces are merged in the order of the file",
        "(-scores[number], normal[token[:cut]]",
        "(0, normal[token[:cut]]",
        "test_tokenizer.py",
    ),
    _one(
        "gguf: a quantization means the first file whose name has it",
        'quantization = rf"(?i).*[^a-z0-9]{re.escape(self.file)}(-\\d{{5}}-of-\\d{{5}})?\\.gguf"',
        'quantization = rf"(?i).*{re.escape(self.file)}.*\\.gguf"',
        "test_gguf_from_the_hub.py",
    ),
    # Proofs
    _one(
        "proof: tokens are not compared",
        "        if pair[0] != pair[1]:\n",
        "        if False:\n",
        "test_comparison.py",
    ),
    _one(
        "proof: a log probability may differ in its last bits",
        'own = " ".join(repr(log_prob) for log_prob',
        'own = " ".join(f"{log_prob:.6f}" for log_prob',
        "test_comparison.py",
    ),
    _one(
        "proof: a seed that is used twice is not noticed",
        "num_repeated = sum(count - 1 for count in seen.values())",
        "num_repeated = 0",
        "test_distribution.py",
    ),
    _one(
        "audit: every difference is a tie",
        'return "tie" if difference.size <= limit else "non-tie"',
        'return "tie"',
        "test_audit.py",
    ),
    _one(
        "audit: an answer without an end counts as whole",
        "    if not answer.finish_reason:\n        raise no_answer",
        "    if False:\n        raise no_answer",
        "test_openai_answers.py",
    ),
)
