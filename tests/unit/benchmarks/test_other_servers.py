"""Tests of the faults that are planted in front of servers of other engines, and of their table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.other_servers.checkpoints import folder_for
from benchmarks.other_servers.engines import Serving
from benchmarks.other_servers.fault_proxy import cut_streams_of
from benchmarks.other_servers.planted import find_planted
from docs.figures.other_servers import other_server
from pipelines.errors import PeerError
from tests.support.stand_in_openai import stand_in_openai

NUM_PROMPTS = 80


def _text(content: bytes) -> str:
    """Return the text of a whole answer or of a stream."""
    chunks = [each.removeprefix(b"data: ") for each in content.split(b"\n\n") if b"choices" in each]
    return "".join(choice["text"] for chunk in chunks for choice in json.loads(chunk)["choices"])


def _answers(url: str) -> list[str]:
    """Return the answers to all prompts and one stream; "" for one whose connection closes."""
    fields = {"temperature": 0, "max_tokens": 20}
    bodies: list[dict[str, Any]] = [{"prompt": f"p{number}", **fields} for number in range(NUM_PROMPTS)]
    bodies.append({"prompt": "stream", "stream": True, **fields})
    found = []
    with httpx.Client(base_url=url, trust_env=False) as client:
        for body in bodies:
            try:
                found.append(_text(client.post("/v1/completions", json=body).raise_for_status().content))
            except httpx.RemoteProtocolError:
                found.append("")
    return found


def test_rare_faults_are_in_a_few_answers_and_the_others_in_all() -> None:
    with stand_in_openai() as server:
        right = _answers(server.url)

        def verify(url: str) -> dict[str, Any]:
            wrong = [text != expected for text, expected in zip(_answers(url), right, strict=True)]
            verdicts = {"x1": any(wrong[:-1]), "x1, streamed": wrong[-1]}
            sections = [
                {"title": title, "verdict": "fail" if is_wrong else "pass"}
                for title, is_wrong in verdicts.items()
            ]
            return {"verdict": "fail" if any(wrong) else "pass", "sections": sections}

        found = {each["fault"]: each for each in find_planted(server.url, verify)}
    assert {each["answers"] for each in found.values()} == {NUM_PROMPTS}
    for name in ("another token", "a token left out", "the connection closes before the end"):
        assert 0 < found[name]["planted"] < NUM_PROMPTS / 10
        assert found[name]["found_by"] == ["x1"]
    # The stand-in has no log probabilities, and gives the same samples as greedy answers with each seed.
    assert found["a token of the draft that the target rejects"]["planted"] == 0
    assert found["a token of the draft that the target rejects"]["verdict"] == "pass"
    assert found["sampled instead of greedy"]["planted"] == NUM_PROMPTS
    cut = found["the last chunk of streams without its text"]
    assert (cut["planted"], cut["found_by"]) == (None, ["x1, streamed"])


def test_the_last_chunk_with_text_is_cut_and_no_other() -> None:
    texts = ["a", "b", "", ""]
    chunks = [{"choices": [{"text": text, "finish_reason": None}]} for text in texts]
    events = [*(f"data: {json.dumps(chunk)}" for chunk in chunks), "data: [DONE]", ""]
    cut = cut_streams_of("\n\n".join(events).encode()).decode().split("\n\n")
    assert cut[0] == events[0] and cut[2:] == events[2:]
    assert json.loads(cut[1].removeprefix("data: "))["choices"][0]["text"] == ""


def test_the_table_says_what_found_each_fault() -> None:
    audit = {
        "prompts": 320,
        "equal": 318,
        "ties": 2,
        "draft_tokens": None,
        "non_tie_rate_upper_bound": 0.0093,
    }
    noise = {"title": "Noise floor", "verdict": "info", "figures": {"prompts": 320, "differ": 1}}
    title = "First-divergence audit: candidate x1"
    loaded = {
        "title": title,
        "verdict": "fail",
        "summary": "too many",
        "figures": {**audit, "non_tie_rate_upper_bound": 0.0093},
    }
    fault = {"fault": "another token", "one_in": 100, "verdict": "fail", "found_by": [title]}
    about = {
        "cpu": "CPU",
        "num_cores": 2,
        "load_average_1min": 1.0,
        "date": "2026-11-24T00",
        "git_sha": "abc",
    }
    text = other_server(
        {
            **{"engine": "llama.cpp", "package": "xllamacpp", "version": "1", "drafts": "a draft"},
            **{"verdict": "pass", "sections": [noise, loaded]},
            "faults": [{**fault, "planted": 3, "answers": 1280}],
            "conditions": {**about, "date": "2026-11-24T00", "command": "python -m benchmarks.other_servers"},
        }
    )
    assert "| candidate x1 | 320 | 2 | 2 | unknown | in less than 0.93% |" in text
    assert f"- {title}: fail: too many" in text
    assert "| another token | about 1 of 100 prompts | 3 of 1,280 | fail | candidate x1 |" in text


def test_a_server_that_ends_is_noticed_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    with process, pytest.raises(PeerError, match="exit code 7"):
        Serving("http://127.0.0.1:9", process, tmp_path / "log").wait()


def test_another_pair_has_another_folder(tmp_path: Path) -> None:
    weights = [tmp_path / "pair" / role / "rank0.safetensors" for role in ("draft", "target")]
    for path in weights:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"a")
    first = folder_for(tmp_path / "pair", tmp_path)
    weights[1].write_bytes(b"b")
    second = folder_for(tmp_path / "pair", tmp_path)
    assert first != second
    assert first.is_dir()
    assert second.is_dir()
