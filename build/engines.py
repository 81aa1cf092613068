"""Build the engines of a recipe: ``python -m build.engines --recipe demo``.

The name of an engine directory ends in a hash of everything that decides its content. An existing engine is
therefore not built again, and several versions can exist side by side. ``--check`` verifies that their files
have not changed since the build.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from build.checkpoints.engine_texts import engine_text_digests
from build.checkpoints.token_map import TokenMap
from build.command_line import add_engines, add_runtime, print_line, recipe_parser, run_command
from build.digests import file_digests
from build.fetch import fetch_checkpoints
from build.files import EnginePlan, Need, check_space, exclusive, plan_engine
from build.hub.pinned import pin_recipe
from build.networks.growth import grow
from build.networks.network import Layer, Network, NetworkConfig, fit_vocabulary, shorten_head
from build.networks.source import NetworkSource
from build.networks.weight_only import GROUP_SIZE, apply_quantization
from build.openvino.engine import FORMAT_VERSION, EngineSettings, openvino_version, write_engine
from build.operators.library import COMPILER, check_operators, has_operators, source_digest
from build.preflight import EngineSource, check_recipe, engine_memory, plan_recipe
from build.recipe import EngineRecipe, Recipe, load_recipe
from build.tensorrt_llm.bundle import build_bundle, check_bundle
from build.tensorrt_llm.engine import build_tensorrt_llm_engines, print_commands
from build.tensorrt_llm.versions import serves_checkpoints
from pipelines.available_resources import available_bytes, available_cores, has_avx2_alone
from pipelines.errors import EngineLoadError, RecipeError
from pipelines.manifest import EngineFiles, read_manifest, sha256_file, sha256_json
from pipelines.places import CODE, ENGINES
from pipelines.time_left import TimeLeft

# Folders whose sources decide the numbers in an engine. Hashing them causes an unnecessary build now and
# then, but a version number that nobody remembers to raise would leave a stale engine in use.
_BUILD = CODE / "build"
_COMPILER = ("checkpoints", "gguf", "hugging_face", "networks", "openvino")
_CAUSES = {
    "section": "settings of the recipe",
    "compiler_sha256": "Draftproof's compiler",
    "operators_sha256": "Draftproof's operators",
    "openvino_version": "OpenVINO",
    "format_version": "format of engines",
}
"""Parts of an engine's identity in words; the others speak for themselves."""
_FOUR_BIT_FORMS = ("awq", "gptq", "compressed-tensors")


def gains_from_own_products(engine: EngineRecipe, config: NetworkConfig) -> bool:
    """Return whether ``linear: auto`` stands for products of our own on this machine.

    Args:
        engine: Section of the recipe.
        config: Network of the checkpoint. Its integers stay with OpenVINO if ours cannot multiply them.
    """
    if config.experts is not None:  # most weights are those of experts, which only ours multiply
        return True
    if config.quant_algo == "gguf":
        return engine.rounding != "none"
    if config.quant_algo is not None:
        has_our_groups = config.group_size == 1 or config.group_size % GROUP_SIZE == 0
        has_our_form = config.quant_algo in _FOUR_BIT_FORMS and config.quant_bits == 4 and has_our_groups
        return has_our_form and engine.rounding in ("int8", "int4") and has_avx2_alone()
    # OpenVINO does not have the offsets of groups, but divides them by the scales.
    return engine.rounding == "int4" or (engine.rounding == "int8" and has_avx2_alone())


def compiler_digests() -> dict[str, str]:
    """Return the SHA-256 of each source that decides the numbers in an engine."""
    sources = sorted(path for folder in _COMPILER for path in (_BUILD / folder).rglob("*.py"))
    return {str(path.relative_to(_BUILD)): sha256_file(path) for path in sources}


def checkpoint_digests(sources: Iterable[EngineSource], report: Callable[[str], None]) -> dict[Path, str]:
    """Return the SHA-256 of all files of the checkpoints; gigabytes take a while, so progress is reported.

    Args:
        sources: What the engines are made of.
        report: Called with lines of progress.
    """
    paths = {path for source in sources for path in (*source.network.files, source.tokenizer_path)}
    total = sum(path.stat().st_size for path in paths)
    progress = TimeLeft(
        total, report, lambda done: f"checkpoints: {done / 1e9:.1f} of {total / 1e9:.1f} GB read"
    )
    return file_digests(paths, progress.advance)


def engine_identity(
    role: str, engine: EngineRecipe, source: EngineSource, vocab_size: int, digests: Mapping[Path, str]
) -> dict[str, Any]:
    """Return everything that decides the content of an engine directory.

    The checkpoint counts by content, not by path. The number of KV blocks is a setting of the server.

    Args:
        role: ``draft`` or ``target``.
        engine: Section of the recipe.
        source: What the engine is made of.
        vocab_size: Tokens of the target.
        digests: SHA-256 of the checkpoints' files (``checkpoint_digests``).
    """
    assert engine.linear != "auto" and engine.num_threads, "one identity would stand for two contents"
    is_ours = "draftproof" in (engine.attention, engine.linear) or source.network.config.experts is not None
    section = dataclasses.asdict(engine)
    del section["checkpoint"], section["tensorrt_llm"]
    section["kv_cache"] = engine.kv_cache.dtype
    return {
        "role": role,
        "section": section,
        "checkpoint": {
            **{path.name: digests[path] for path in (*source.network.files, source.tokenizer_path)},
            **engine_text_digests(source.texts),
        },
        "vocab_size": vocab_size,
        # Depends on serving.max_seq_len where that decides the factors of LongRoPE.
        "max_position_embeddings": source.network.config.max_position_embeddings,
        "end_ids": list(source.end_ids),
        "format_version": FORMAT_VERSION,
        "compiler_sha256": compiler_digests(),
        "openvino_version": openvino_version(),
        **({"operators_sha256": source_digest()} if is_ours else {}),
        **_features_identity(source.network, digests),
        **_token_map_identity(source.token_map),
    }


def _features_identity(network: NetworkSource, digests: Mapping[Path, str]) -> dict[str, Any]:
    """Return what a target returns to a trained head, and the target of a head; nothing for other pairs."""
    if not network.config.feature_layers:
        return {}
    found: dict[str, Any] = {"feature_layers": list(network.config.feature_layers)}
    if network.target is not None:
        found["target"] = {path.name: digests[path] for path in network.target.files}
    return found


def _token_map_identity(token_map: TokenMap | None) -> dict[str, Any]:
    if token_map is None:
        return {}
    return {"token_map": sha256_json([token_map.to_json(), token_map.equal_ids.tolist()])}


@dataclass(frozen=True)
class _Job:
    """An engine that exists or is going to be built, with what a recipe leaves open chosen."""

    engine: EngineRecipe
    source: EngineSource
    plan: EnginePlan

    def check_operators(self) -> None:
        """Check that operators of our own can be had if this engine cannot do without."""
        if self.engine.attention == "draftproof" or self.source.network.config.experts is not None:
            check_operators()

    def build(self, recipe: Recipe, vocab_size: int, report: Callable[[str], None]) -> None:
        engine, source, plan = self.engine, self.source, self.plan
        network, token_map = source.network.read(), source.token_map
        if token_map is None:
            network = fit_vocabulary(network, vocab_size)
        if engine.growth is not None:
            network = grow(network, engine.growth)
        if token_map is not None:
            network = dataclasses.replace(network, logit_rows=token_map.equal_ids)
        if engine.lm_head_rows is not None:  # before its rows, which are quantized one by one
            network = shorten_head(network, engine.lm_head_rows, _special_ids(source.tokenizer_path))
        network = _made_ahead(apply_quantization(network, engine.rounding, engine.lm_head))
        write_engine(
            plan.directory,
            _with_progress(network, plan.role, report),
            source.tokenizer_path,
            EngineSettings(
                role=plan.role,
                recipe=recipe.name,
                engine=engine,
                end_ids=source.end_ids,
                texts=source.texts,
                fingerprint=plan.fingerprint,
                origin={
                    "recipe": recipe.name,
                    "recipe_sha256": sha256_file(recipe.path),
                    "checkpoint": engine.checkpoint,
                    "tokenizer_identity_sha256": source.tokenizer.sha256,
                    "identity": plan.identity,
                },
            ),
            None if token_map is None else token_map.to_json(),
        )


def _special_ids(tokenizer: Path) -> list[int]:
    return [token["id"] for token in json.loads(tokenizer.read_bytes())["added_tokens"]]


def _made_ahead(network: Network) -> Network:
    """Return the network; while one layer is arranged, another thread makes the next."""
    pool, coming = ThreadPoolExecutor(1), dict[int, Future[Layer]]()

    def layer(index: int) -> Layer:
        made = coming.pop(index, None) or pool.submit(network.layer, index)
        if index + 1 < network.config.num_hidden_layers:
            coming[index + 1] = pool.submit(network.layer, index + 1)
        return made.result()

    return dataclasses.replace(network, layer=layer)


def _with_progress(network: Network, role: str, report: Callable[[str], None]) -> Network:
    """Return the network; whoever asks for its layers, in order, makes progress that is reported."""
    count = network.config.num_hidden_layers
    progress = TimeLeft(count, report, lambda done: f"{role}: {done:.0f} of {count} layers")

    def layer(index: int) -> Layer:
        made = network.layer(index)
        progress.advance(1)
        return made

    return dataclasses.replace(network, layer=layer)


def _for_this_machine(
    engine: EngineRecipe,
    source: EngineSource,
    plan_of: Callable[[EngineRecipe], EnginePlan],
    report: Callable[[str], None],
) -> _Job:
    """Choose the threads that a recipe leaves open, and the faster products that can be had here."""
    engine = dataclasses.replace(engine, num_threads=engine.num_threads or available_cores())
    if engine.linear == "openvino" and source.network.config.experts is not None:
        raise RecipeError(
            "linear: openvino, and experts are always multiplied by products of our own",
            "leave 'linear' out of the recipe",
        )
    if engine.linear != "auto":
        return _Job(engine, source, plan_of(engine))
    if gains_from_own_products(engine, source.network.config):
        own = dataclasses.replace(engine, linear="draftproof")
        planned = plan_of(own)
        if planned.is_built() or has_operators():
            return _Job(own, source, planned)
        report(
            "warning: on this processor products of our own are faster than OpenVINO's; they need a compiler "
            f"where engines are built (Debian: apt install {COMPILER})"
        )
    theirs = dataclasses.replace(engine, linear="openvino")
    return _Job(theirs, source, plan_of(theirs))


def why_anew(plan: EnginePlan) -> Iterator[str]:
    """Yield a line that says why the latest engine of a recipe is not the planned one, if there is any.

    Args:
        plan: An engine that is not built.
    """
    engines = [path for path in plan.directory.parent.glob(f"{plan.role}-*") if path.is_dir()]
    for latest in sorted(engines, key=lambda path: path.stat().st_mtime)[-1:]:
        built = (read_manifest(latest) or {}).get("identity", {})
        changed = [key for key in {**built, **plan.identity} if built.get(key) != plan.identity.get(key)]
        causes = {_CAUSES.get(key, key): None for key in changed}
        if latest != plan.directory:
            yield f"{plan.role}: {latest.name} fits no longer, because of changes: {', '.join(causes)}"


def build_engines(
    recipe: Recipe, engines: Path = ENGINES, report: Callable[[str], None] = print
) -> dict[str, Any]:
    """Build those engines of a recipe that do not exist yet, for its runtime.

    Args:
        recipe: The pair.
        engines: Folder in which ``<recipe>/<role>-<fingerprint>/`` is created.
        report: Called with one line per stage.

    Returns:
        ``draft``, if there is one, and ``target`` (directories), ``built`` (roles that were built) and
        ``seconds``.

    Raises:
        CheckpointError, RecipeError, IncompatiblePairError: Nothing has been built. The disk does not hold
            the missing engines, for instance.
        EngineBuildError: Compiling or writing failed.
    """
    recipe = fetch_checkpoints(recipe, report)
    if recipe.runtime == "tensorrt_llm":
        bundled = serves_checkpoints(recipe.tensorrt_llm.version)
        return (build_bundle if bundled else build_tensorrt_llm_engines)(recipe, engines, report)
    started, folder = time.monotonic(), engines / recipe.name
    draft, target = check_recipe(recipe, engines)
    sources = {"target": target} if draft is None else {"draft": draft, "target": target}
    vocab_size = target.network.config.vocab_size  # whose tokens the draft proposes
    if draft is not None and draft.token_map is not None:
        report(draft.token_map.notice)
    digests = checkpoint_digests(sources.values(), report)

    def planned(role: str, engine: EngineRecipe) -> EnginePlan:
        return plan_engine(folder, role, engine_identity(role, engine, sources[role], vocab_size, digests))

    jobs = [
        _for_this_machine(recipe.engines[role], source, partial(planned, role), report)
        for role, source in sources.items()
    ]
    missing = [job for job in jobs if not job.plan.is_built()]
    for job in missing:
        job.check_operators()
    check_space(
        Need(f"the {job.plan.role}'s engine", engines, engine_memory(job.engine, job.source).weights)
        for job in missing
    )
    if missing:
        try:
            memory = plan_recipe(recipe, draft, target, available_bytes())
        except RecipeError as error:  # a server with more memory may use the engines
            report(f"warning: {error}")
        else:
            for line in memory.lines():
                report(line)
    built = []
    for job in jobs:
        plan = job.plan
        if plan.is_built():
            report(f"{plan.role}: {plan.directory.name} is up to date")
            continue
        with exclusive(folder):  # locked only to build: checking must not write anything
            if plan.is_built():
                continue  # another process has built it meanwhile
            for line in why_anew(plan):
                report(line)
            report(f"{plan.role}: building {plan.directory.name} from {job.engine.checkpoint}")
            before = time.monotonic()
            job.build(recipe, vocab_size, report)
            description = json.loads((plan.directory / "engine.json").read_text(encoding="utf-8"))
            report(
                f"{plan.role}: {description['num_parameters'] / 1e6:.1f} M parameters, "
                f"{description['weight_bytes_per_step'] / 1e6:.1f} MB of weights per step, "
                f"{time.monotonic() - before:.1f} s"
            )
            built.append(plan.role)
    directories = {job.plan.role: str(job.plan.directory) for job in jobs}
    return {**directories, "built": built, "seconds": round(time.monotonic() - started, 2)}


def check_engines(
    recipe: Recipe, engines: Path = ENGINES, report: Callable[[str], None] = print
) -> dict[str, Any]:
    """Verify the files of all engines of a recipe, including earlier builds, against their digests.

    Args:
        recipe: The pair.
        engines: Folder that holds ``<recipe>/``.
        report: Called with one line per engine.

    Returns:
        Directories, under ``whole`` and ``damaged``.

    Raises:
        EngineLoadError: The recipe has no engines.
    """
    if recipe.runtime == "tensorrt_llm" and serves_checkpoints(recipe.tensorrt_llm.version):
        return check_bundle(recipe, engines)
    found = [path for role in ("draft", "target") for path in (engines / recipe.name).glob(f"{role}-*")]
    result: dict[str, list[str]] = {"whole": [], "damaged": []}
    for directory in sorted(path for path in found if path.is_dir()):
        try:
            EngineFiles(directory).check_all(from_disk=True)
        except EngineLoadError as error:
            report(f"damaged: {error}")
            result["damaged"].append(str(directory))
        else:
            report(f"ok: {directory}")
            result["whole"].append(str(directory))
    if not any(result.values()):
        raise EngineLoadError(
            f"recipe {recipe.name} has no engines to check in {engines / recipe.name}",
            f"run 'draftproof engines --recipe {recipe.argument}'",
        )
    return result


def _work(options: argparse.Namespace) -> dict[str, Any] | None:
    recipe = load_recipe(options.recipe, options.runtime)
    if options.check:
        return check_engines(recipe, options.engines, print_line)
    if not options.dry_run:
        return build_engines(recipe, options.engines, print_line)
    if recipe.runtime != "tensorrt_llm":
        raise RecipeError(
            f"--dry-run: runtime {recipe.runtime} compiles in this process, so there is no command to print",
            "leave out --dry-run, or set --runtime tensorrt_llm",
        )
    print_commands(pin_recipe(recipe), options.engines)
    return None


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the last line of standard output is JSON, except with ``--dry-run``."""
    parser = recipe_parser("draftproof engines", "Build the engines of a recipe.")
    add_engines(parser)
    add_runtime(parser)
    others = parser.add_mutually_exclusive_group()
    others.add_argument(
        "--dry-run", action="store_true", help="print the trtllm-build commands without running them"
    )
    others.add_argument("--check", action="store_true", help="verify existing engines instead of building")
    options = parser.parse_args(arguments)
    return run_command(lambda: _work(options), lambda result: bool(result and result.get("damaged")))


if __name__ == "__main__":
    sys.exit(main())
