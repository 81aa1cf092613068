"""Probes of the machine, the built engines and the container, where the audit expects a defect."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from build.llm_api import decoding_type
from build.recipe import RECIPES, REPOSITORY_ROOT, load_recipe
from build.tensorrt_llm.check import check_pair
from build.tensorrt_llm.command import find_builder
from build.tensorrt_llm.engine import find_engines
from build.tensorrt_llm.pair import read_pair
from build.tensorrt_llm.versions import image_version
from pipelines.deploy.doctor import READY, gpu_findings
from pipelines.errors import CheckpointError
from tests.gpu.finding import Finding

_ENGINES = REPOSITORY_ROOT / "engines"
_PYTHON_LIMIT_S = 500
_IMPORT = """
import json, os, pwd
try:
    user = pwd.getpwuid(os.getuid()).pw_name
except KeyError:
    user = None
import tensorrt_llm
print(json.dumps({"user": user, "home": os.environ.get("HOME"), "tensorrt_llm": tensorrt_llm.__version__}))
"""
# llmapi/llm_args.py of 1.2: a speculative_config is dispatched by DecodingBaseConfig.from_dict.
_SPELLINGS = """
import json
from tensorrt_llm.llmapi.llm_args import DecodingBaseConfig
said = {}
for word in ("DraftTarget", "Draft_Target"):
    settings = {"decoding_type": word, "max_draft_len": 4, "speculative_model_dir": "/nowhere"}
    try:
        said[word] = type(DecodingBaseConfig.from_dict(settings)).__name__
    except Exception as error:
        said[word] = "refused: " + str(error)[:300]
print(json.dumps(said))
"""


def machine(recipe: str) -> Finding:
    """Driver, GPUs, containers: the findings of ``make doctor``."""
    found = gpu_findings()
    seen = {finding.name: finding.value for finding in found}
    return Finding("pass" if found[-1].value == READY else "fail", found[-1].value, seen)


def built(recipe: str) -> Finding:
    """W7: the version that built the engines, and the settings that nobody asked for."""
    asked = load_recipe(recipe, "tensorrt_llm")
    serving, section = asked.serving, asked.tensorrt_llm
    seen: dict[str, Any] = {
        "container": section.container,
        "version_in_our_table": image_version(section.container),
    }
    for role, directory in find_engines(read_pair(asked, _ENGINES), _ENGINES).items():
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        build = config["build_config"]
        seen[role] = {
            "version": config.get("version"),
            "quantization": (config["pretrained_config"].get("quantization") or {}).get("quant_algo"),
            **{
                key: build.get(key)
                for key in ("max_num_tokens", "opt_num_tokens", "gather_generation_logits")
            },
            "speculative_decoding_mode": build.get("speculative_decoding_mode"),
        }
    seen["rows_of_a_full_round"] = serving.max_batch_size * (serving.max_draft_len + 1)
    versions = {str(seen[role]["version"]) for role in ("draft", "target")}
    is_right = versions == {section.version}
    return Finding(
        "pass" if is_right else "fail", f"built by TensorRT-LLM {', '.join(sorted(versions))}", seen
    )


def image_user(recipe: str) -> Finding:
    """W6: whether TensorRT-LLM is imported by a user that passwd may not have."""
    said = _in_image(recipe, _IMPORT)
    if isinstance(said, str):
        return Finding("fail", f"import tensorrt_llm fails: {said}")
    who = said["user"] or "a user without an entry in passwd"
    return Finding("pass", f"{who} imports TensorRT-LLM {said['tensorrt_llm']}", said)


def llm_api(recipe: str) -> Finding:
    """W4: which spelling of ``decoding_type`` this version takes, and which ``draftproof llm-api`` writes."""
    ours = decoding_type(load_recipe(recipe, "tensorrt_llm").tensorrt_llm.version)
    said = _in_image(recipe, _SPELLINGS)
    if isinstance(said, str):
        return Finding("inconclusive", f"the class could not be asked: {said}", {"written": ours})
    taken = [word for word, answer in said.items() if not answer.startswith("refused")]
    text = f"draftproof llm-api writes {ours}; taken: {', '.join(taken) or 'neither'}"
    return Finding("pass" if ours in taken else "fail", text, {"written": ours, "said": said})


def tokenizers(recipe: str) -> Finding:
    """W3: preflight of every recipe whose checkpoints are on this machine."""
    seen: dict[str, Any] = {}
    for path in sorted(RECIPES.glob("*.yaml")):
        asked = load_recipe(path.stem)
        if asked.runtime != "tensorrt_llm":
            continue
        try:
            found = check_pair(read_pair(asked, _ENGINES))
        except CheckpointError as error:
            seen[path.stem] = f"not checked: {error.what}"
            continue
        seen[path.stem] = [f"{one.rule}: {one.violation.what}, {one.violation.values}" for one in found]
    checked = {name: rules for name, rules in seen.items() if isinstance(rules, list)}
    refused = [name for name, rules in checked.items() if any(rule.startswith("tokenizer") for rule in rules)]
    if not checked:
        return Finding("inconclusive", "no published checkpoint is on this machine", seen)
    text = f"{len(checked)} recipes checked; tokenizers differ in {', '.join(refused) or 'none'}"
    return Finding("fail" if refused else "pass", text, seen)


def _in_image(recipe: str, code: str) -> Any:
    """Return what a program prints if it runs as ``trtllm-build`` does; its last line if it fails."""
    builder = find_builder(load_recipe(recipe, "tensorrt_llm"))
    command = builder.wrap([_python(builder.runtime), "-c", code], [], [])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PYTHON_LIMIT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    printed = done.stdout.strip().splitlines()
    if done.returncode == 0 and printed:
        return json.loads(printed[-1])
    return ((done.stderr or done.stdout).strip().splitlines() or ["nothing printed"])[-1]


def _python(runtime: str | None) -> str:
    """The interpreter of TensorRT-LLM: the image's, or that of the installed ``trtllm-build``."""
    program = None if runtime else shutil.which("trtllm-build")
    if program is None:
        return "python3"
    return Path(program).read_bytes().partition(b"\n")[0].decode().removeprefix("#!").split()[0]


MACHINE_PROBES: Mapping[str, Callable[[str], Finding]] = {
    "machine": machine,
    "built": built,
    "image-user": image_user,
    "llm-api": llm_api,
    "tokenizers": tokenizers,
}
"""By name: recipe -> finding."""
