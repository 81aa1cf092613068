"""Stands in for the C++ backend in Triton: loading, queue, in-flight requests, cancellation."""

from __future__ import annotations

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.stand_in_tensorrt_llm.generation import Life, outputs, steps
from tests.stand_in_tensorrt_llm.request import Limits, Refused, Tensors, parse

STEP_S = 0.002  # per step and request
_SPEC_MODE_EXTERNAL = 2  # draft_tokens_external in build_config
_REQUIRED = ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend")


class Failed(Exception):
    """A step of the engine failed."""


class Backend:
    """One model, ``draft`` or ``target``.

    It fails while there is a file ``fails`` in the engine directory.
    ``requests.jsonl`` gets a line per request, for tests to read.
    """

    def __init__(self, args: dict[str, str], pb_utils: Any) -> None:
        self._pb = pb_utils
        config = json.loads(args["model_config"])
        self._parameters = {name: entry["string_value"] for name, entry in config["parameters"].items()}
        self._directory = Path(self._parameters["gpt_model_path"])
        built = json.loads((self._directory / "config.json").read_text())
        self._is_draft = config["name"].partition("_")[0] == "draft"
        self._limits = self._load(config, built)
        self._max_queue_size = int(config["dynamic_batching"]["default_queue_policy"]["max_queue_size"])
        self._max_running = int(built["build_config"]["max_batch_size"])
        self._running = threading.Semaphore(self._max_running)
        self._open: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(256)
        self._log = (self._directory / "requests.jsonl").open("a", buffering=1)

    def _load(self, config: dict[str, Any], built: dict[str, Any]) -> Limits:
        parameters, network = self._parameters, built["pretrained_config"]
        for name in _REQUIRED:  # getGuidedDecodingConfigFromParams has no default for them
            if name not in parameters:
                raise RuntimeError(f"Cannot find parameter with name: {name}")
        if parameters["gpt_model_type"] != "inflight_fused_batching":
            raise RuntimeError(
                "Invalid gpt_model_type. Must be v1/inflight_batching/inflight_fused_batching."
            )
        if not config["model_transaction_policy"]["decoupled"]:
            raise RuntimeError("streaming needs a decoupled model")  # stricter: refused with the first stream
        build = built["build_config"]
        is_target = build["speculative_decoding_mode"] == _SPEC_MODE_EXTERNAL
        if is_target and parameters.get("enable_kv_cache_reuse", "true") != "true":
            raise RuntimeError(
                "Assertion failed: KV cache block reuse must be enabled for external draft tokens"
            )
        spawns = os.environ.get("TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES", "1") != "0"
        if os.environ.get("TRTLLM_ORCHESTRATOR") == "1" and not spawns and not parameters["participant_ids"]:
            raise RuntimeError(
                "Spawning of processes was disabled in orchestrator mode, but participant IDs is missing."
            )
        logits = next(
            output["data_type"] for output in config["output"] if output["name"] == "generation_logits"
        )
        if logits != {"float32": "TYPE_FP32", "float16": "TYPE_FP16"}[network["logits_dtype"]]:
            raise RuntimeError("logits datatype of the model differs from the engine's")
        vocab_size, world_size = network["vocab_size"], network["mapping"]["world_size"]
        return Limits(
            vocab_size=vocab_size,
            padded_vocab_size=-(-vocab_size // world_size) * world_size,
            max_seq_len=build["max_seq_len"],
            max_input_len=min(build["max_seq_len"] - 1, build["max_num_tokens"]),
            max_draft_len=build["max_draft_len"] if is_target else 0,
            excludes_input=parameters["exclude_input_in_output"] == "true",
            gathers_generation_logits=build["gather_generation_logits"],
        )

    def execute(self, requests: list[Any]) -> None:
        """Accept requests; threads answer them later."""
        for request in requests:
            sender = request.get_response_sender()
            tensors = {tensor.name(): tensor.as_numpy().copy() for tensor in request.inputs()}
            wanted = list(request.requested_output_names())
            try:
                self._enqueue(sender, request.request_id(), tensors, wanted)
            except Refused as refused:
                self._send_error(sender, str(refused))

    def finalize(self) -> None:
        for cancelled in list(self._open.values()):
            cancelled.set()
        self._pool.shutdown()

    def _enqueue(self, sender: Any, request_id: str, tensors: Tensors, wanted: list[str]) -> None:
        parsed = parse(tensors, self._limits)
        for name in ("output_ids", "sequence_length"):
            if name not in wanted:
                raise Refused(f"{name} tensor must be present in list of output tensors")
        with self._lock:
            if request_id in self._open:  # stricter: the original forgets the first one
                raise Refused(f"request id {request_id} is in flight already")
            if len(self._open) >= self._max_running + self._max_queue_size:
                raise Refused(
                    f"Maximum queue size of {self._max_queue_size} has been reached, please try again later"
                )
            self._open[request_id or f"unnamed {time.monotonic_ns()}"] = cancelled = threading.Event()
        names = {name: array.ravel()[:8].tolist() for name, array in tensors.items()}
        self._log.write(json.dumps({"id": request_id, "num_draft": len(parsed.draft_ids), **names}) + "\n")
        self._pool.submit(self._run, sender, request_id, parsed, wanted, cancelled)

    def _run(self, sender: Any, request_id: str, request: Any, wanted: list[str], cancelled: Any) -> None:
        try:
            with self._running:
                self._generate(sender, request, wanted, cancelled)
        except Failed as failed:  # terminateActiveRequests in executorImpl.cpp: every request in flight
            self._send_error(
                sender,
                "Executor failed process requestId 7 due to the following error: "
                f"Encountered an error in forwardAsync function: {failed}",
            )
        finally:
            with self._lock:
                self._open = {name: event for name, event in self._open.items() if event is not cancelled}

    def _generate(self, sender: Any, request: Any, wanted: list[str], cancelled: Any) -> None:
        if (self._directory / "fails").exists():
            raise Failed("CUDA error (/src/cpp/x.cpp:12)\n1 0x7f")
        life, num_sent = Life(), 0
        for _ in steps(request, self._limits, life, is_draft=self._is_draft):
            time.sleep(STEP_S)
            if cancelled.is_set() or sender.is_cancelled():
                self._log.write(json.dumps({"cancelled_after": len(life.new_ids)}) + "\n")
                break
            if request.streaming and len(life.new_ids) < request.max_new_tokens:
                self._send(sender, outputs(request, self._limits, life, num_sent), wanted, is_final=False)
                num_sent = len(life.new_ids)
        self._send(sender, outputs(request, self._limits, life, num_sent), wanted, is_final=True)

    def _send(self, sender: Any, tensors: Tensors, wanted: list[str], *, is_final: bool) -> None:
        made = [self._pb.Tensor(name, array) for name, array in tensors.items() if name in wanted]
        flags = self._pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_final else 0
        sender.send(self._pb.InferenceResponse(made), flags=flags)

    def _send_error(self, sender: Any, message: str) -> None:
        response = self._pb.InferenceResponse(error=self._pb.TritonError(message))
        sender.send(response, flags=self._pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
