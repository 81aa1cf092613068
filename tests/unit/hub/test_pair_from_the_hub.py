"""Tests of a pair from the hub: what is checked before its weights are downloaded, and what is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from build.hub.checkpoint_id import HubCheckpoint
from build.recipe import load_recipe
from pipelines.errors import CheckpointError
from tests.support.hub_server import Hub, HubRepository
from tests.support.hugging_face_checkpoints import change_config, make_hugging_face
from tests.support.trained_heads import RandomHead
from tests.unit.hub.conftest import PAIR, SHARDS, Outcome

Try = Callable[..., Outcome]
TOKEN = "hf_secretSecretSecret"


def test_two_ids_become_a_recipe_with_commits(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    done = try_pair(HF_TOKEN=TOKEN)
    assert done.code == 0, done.error
    recipe = load_recipe(done.result["recipe"])
    assert recipe.name == "big"
    assert recipe.target.checkpoint == f"hf://org/Big@{hub.repositories['org/Big'].commit}"
    assert recipe.draft.checkpoint == f"hf://org/small@{hub.repositories['org/small'].commit}"
    assert "memory: " in done.shown and "org/Big: downloading" in done.shown
    for seed, name in enumerate(("Big", "small")):
        commit = hub.repositories[f"org/{name}"].commit
        snapshot = tmp_path / f"cache/hub/models--org--{name}/snapshots/{commit}"
        made = make_hugging_face(tmp_path / f"again{seed}", seed=seed)
        for path in made.iterdir():
            assert (snapshot / path.name).read_bytes() == path.read_bytes()
    assert any(each.token == TOKEN for each in hub.asked)
    assert TOKEN not in done.shown + done.error


@pytest.mark.long
def test_chat_templates_in_a_folder_are_downloaded(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    hub.repositories["org/Big"].files["additional_chat_templates/rag.jinja"] = b"{{ messages }}"
    assert try_pair().code == 0
    assert list(tmp_path.glob("cache/hub/models--org--Big/snapshots/*/additional_chat_templates/rag.jinja"))


def test_the_second_run_asks_the_hub_for_nothing(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    assert try_pair().code == 0
    hub.is_down = True
    hub.repositories["org/Big"].files["README.md"] = b"a new commit on main"
    done = try_pair(HF_HUB_OFFLINE="1")
    assert done.code == 0, done.error
    assert "the recipe exists and is kept" in done.shown
    (tmp_path / "mine.yaml").unlink()
    done = try_pair(HF_HUB_OFFLINE="1")  # main is the commit that was downloaded
    assert done.code == 0, done.error


@pytest.mark.long
def test_another_revision_is_not_the_commit_in_the_recipe(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    other = HubRepository({**hub.repositories["org/Big"].files, "README.md": b"version 2"})
    hub.repositories["org/Big"].revisions["v2"] = other
    assert try_pair().code == 0
    before = (tmp_path / "mine.yaml").read_bytes()
    done = try_pair(f"{PAIR[0]}@v2", PAIR[1])
    assert done.code == 1 and "holds another recipe" in done.error
    assert (tmp_path / "mine.yaml").read_bytes() == before
    (tmp_path / "mine.yaml").unlink()
    for revision in ("v2", other.commit):  # written, and then kept
        done = try_pair(f"{PAIR[0]}@{revision}", f"{PAIR[1]}@main")
        assert done.code == 0, done.error
        assert f"hf://org/Big@{other.commit}" in (tmp_path / "mine.yaml").read_text()


def refused(done: Outcome, hub: Hub, tmp_path: Path, *words: str) -> None:
    """Check both parts of an error, and that neither weights nor a recipe exist."""
    assert done.code == 1
    assert len(done.error.removeprefix("error: ").split("; ")) >= 2, done.error
    assert "Traceback" not in done.error and "cret" not in done.error
    for word in words:
        assert word in done.error, done.error
    assert hub.downloads() == []
    assert not (tmp_path / "mine.yaml").exists()


def test_a_trained_head_comes_without_tokenizer_and_is_checked_first(
    try_pair: Try, hub: Hub, tmp_path: Path
) -> None:
    target = make_hugging_face(tmp_path / "target", hidden_size=128, num_hidden_layers=6)
    head = RandomHead().save(tmp_path / "head", "specforge")
    other = RandomHead().save(tmp_path / "other", "specforge", vocab_size=4096)
    hub.repositories.update({"org/Big": HubRepository.of(target), "org/small": HubRepository.of(other)})
    refused(try_pair(), hub, tmp_path, "belongs to another target", "vocab_size=4096")
    hub.repositories["org/small"] = HubRepository.of(head)
    done = try_pair()
    assert done.code == 0, done.error
    assert "org/small: downloading" in done.shown


def gate(hub: Hub, made: Path) -> None:
    hub.repositories["org/Big"].is_gated = True
    hide(hub, made, "Big")


def hide(hub: Hub, made: Path, name: str = "small") -> None:
    hub.repositories[f"org/{name}"].readers = (TOKEN,)


def go_down(hub: Hub, made: Path) -> None:
    hub.is_down = True


def listen_nowhere(hub: Hub, made: Path) -> None:
    hub.urls["127.0.0.1"] = "http://127.0.0.1:9"


def keep_pickles(hub: Hub, made: Path) -> None:
    files = hub.repositories["org/Big"].files
    files["pytorch_model.bin"] = files.pop("model.safetensors")


def lose_a_shard(hub: Hub, made: Path) -> None:
    files = hub.repositories["org/Big"].files
    files[SHARDS[0]] = files.pop("model.safetensors")
    shards = dict(zip("ab", SHARDS, strict=True))
    files["model.safetensors.index.json"] = json.dumps({"weight_map": shards}).encode()


def lose_the_tokenizer(hub: Hub, made: Path) -> None:
    del hub.repositories["org/small"].files["tokenizer.json"]


def keep_sentencepieces(hub: Hub, made: Path) -> None:
    lose_the_tokenizer(hub, made)
    hub.repositories["org/small"].files["tokenizer.model"] = b"pieces"


def become_mamba(hub: Hub, made: Path) -> None:
    change_config(make_hugging_face(made), model_type="mamba", architectures=["MambaForCausalLM"])
    hub.repositories["org/Big"] = HubRepository.of(made)


def become_wide(hub: Hub, made: Path) -> None:
    change_config(make_hugging_face(made), intermediate_size=1 << 20, num_hidden_layers=1 << 12)
    hub.repositories["org/Big"] = HubRepository.of(made)


def announce_petabytes(hub: Hub, made: Path) -> None:
    hub.repositories["org/Big"].sizes["model.safetensors"] = 10**16


def nothing(hub: Hub, made: Path) -> None:
    pass


BIG, SMALL = PAIR
REFUSED: dict[str, tuple[Callable[[Hub, Path], None], tuple[str, str], dict[str, str], tuple[str, ...]]] = {
    "gated": (gate, PAIR, {}, ("org/Big is gated", "no token is set", "/org/Big", "HF_TOKEN")),
    "gated for this token": (gate, PAIR, {"HF_TOKEN": "hf_other"}, ("org/Big is gated", "a token is set")),
    "private": (hide, PAIR, {}, ("no repository org/small", "HF_TOKEN")),
    "private for this token": (hide, PAIR, {"HF_TOKEN": "hf_other"}, ("no repository org/small",)),
    "missing": (nothing, ("hf://org/none", SMALL), {}, ("no repository org/none", "HF_TOKEN")),
    "no revision": (nothing, (f"{BIG}@v9", SMALL), {}, ("org/Big has no revision v9", "commits/main")),
    "no name": (nothing, ("hf://Big", SMALL), {}, ("names no repository", "hf://ORGANIZATION/NAME")),
    "offline": (
        *(nothing, PAIR, {"HF_HUB_OFFLINE": "1"}),
        ("is not on this machine", "HF_HUB_OFFLINE is set"),
    ),
    "down": (go_down, PAIR, {}, ("could not be read from the hub", "HTTP 503", "run the same command")),
    "nothing listens": (listen_nowhere, PAIR, {}, ("could not be read from the hub", "ConnectError")),
    "no address": (nothing, PAIR, {"HF_ENDPOINT": "127.0.0.1"}, ("HF_ENDPOINT", "127.0.0.1")),
    "no host": (nothing, PAIR, {"HF_ENDPOINT": "http://.."}, ("HF_ENDPOINT", "UnicodeError")),
    "no time": (nothing, PAIR, {"HF_HUB_DOWNLOAD_TIMEOUT": "9s"}, ("'9s'", "HF_HUB_DOWNLOAD_TIMEOUT")),
    "a byte": (nothing, PAIR, {"HF_TOKEN": "hf_\x0c1"}, ("the token for org/Big is malformed",)),
    "no token": (
        *(nothing, PAIR, {"HF_TOKEN": "hf_sécret"}),
        ("the token for org/Big is malformed", "correct HF_TOKEN"),
    ),
    "pickles": (keep_pickles, PAIR, {}, ("org/Big has its weights in pickles", "pytorch_model.bin")),
    "a shard": (lose_a_shard, PAIR, {}, ("org/Big is not complete", f"missing {SHARDS[1]}", "of 2 files")),
    "tokenizer": (lose_the_tokenizer, PAIR, {}, ("org/small has no tokenizer.json", "config.json")),
    "sentencepiece": (keep_sentencepieces, PAIR, {}, ("no tokenizer.json", "that converts tokenizer.model")),
    "architecture": (become_mamba, PAIR, {}, ("cannot compute", "mamba")),
    "disk": (
        *(announce_petabytes, PAIR, {}),
        ("the disk does not hold this pair", "10000000.0 GB for org/Big", "HF_HOME"),
    ),
    "memory": (
        *(become_wide, PAIR, {}),
        ("the memory does not hold this pair", "GB free", "quantization int4"),
    ),
}


BY_DAY = ("gated", "a shard", "disk")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in BY_DAY else pytest.mark.long) for case in REFUSED]
)
def test_a_pair_that_cannot_be_had_is_refused_before_its_weights(
    case: str, try_pair: Try, hub: Hub, tmp_path: Path
) -> None:
    change, pair, environment, words = REFUSED[case]
    change(hub, tmp_path / "other")
    refused(try_pair(*pair, **environment), hub, tmp_path, *words)


@pytest.mark.parametrize(
    "name",
    [
        *("", "a/b/c", "org/Big@", "org/Big@-x", "org/B--ig", "org/Big.git", "org/Bíg", f"org/{'B' * 97}"),
        *("org/..", "../Big", "org/Big@../../main", "org/Big@a/../b"),
    ],
)
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(CheckpointError, match="names no repository"):
        HubCheckpoint.parse(f"hf://{name}")
