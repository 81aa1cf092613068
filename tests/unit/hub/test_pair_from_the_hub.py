"""Tests of a pair from the hub: what is checked before its weights are downloaded, and what is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from build.recipe import load_recipe
from tests.support.hub_server import Hub, HubRepository
from tests.support.hugging_face_checkpoints import change_config, make_hugging_face
from tests.unit.hub.conftest import PAIR, Outcome

Try = Callable[..., Outcome]
TOKEN = "hf_secretSecretSecret"


def test_two_ids_become_a_recipe_with_commits(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    done = try_pair(HF_TOKEN=TOKEN)
    assert done.code == 0, done.error
    recipe = load_recipe(done.result["recipe"])
    assert recipe.name == "big-small"
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


def test_a_revision_is_a_branch_or_a_commit(try_pair: Try, hub: Hub) -> None:
    commit = hub.repositories["org/Big"].commit
    done = try_pair(f"{PAIR[0]}@{commit}", f"{PAIR[1]}@main")
    assert done.code == 0, done.error
    assert f"hf://org/Big@{commit}" in Path(done.result["recipe"]).read_text()


def test_another_revision_is_not_the_commit_in_the_recipe(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    other = HubRepository({**hub.repositories["org/Big"].files, "README.md": b"version 2"})
    hub.repositories["org/Big"].revisions["v2"] = other
    assert try_pair().code == 0
    before = (tmp_path / "mine.yaml").read_bytes()
    done = try_pair(f"{PAIR[0]}@v2", PAIR[1])
    assert done.code == 1 and "holds another recipe" in done.error
    assert (tmp_path / "mine.yaml").read_bytes() == before
    (tmp_path / "mine.yaml").unlink()
    for _ in range(2):  # written, and then kept
        done = try_pair(f"{PAIR[0]}@v2", PAIR[1])
        assert done.code == 0, done.error
        assert f"hf://org/Big@{other.commit}" in (tmp_path / "mine.yaml").read_text()


def refused(done: Outcome, hub: Hub, tmp_path: Path, *words: str) -> None:
    """Check the four parts of an error, and that neither weights nor a recipe exist."""
    assert done.code == 1
    assert len(done.error.removeprefix("error: ").split("; ")) >= 4, done.error
    assert "Traceback" not in done.error
    for word in words:
        assert word in done.error, done.error
    assert hub.downloads() == []
    assert not (tmp_path / "mine.yaml").exists()


def test_a_gated_repository_names_its_page(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    hub.repositories["org/Big"].is_gated = True
    hub.repositories["org/Big"].readers = (TOKEN,)
    page = f"{hub.urls['127.0.0.1']}/org/Big"
    refused(try_pair(), hub, tmp_path, "org/Big is gated", "no token is set", page, "HF_TOKEN")
    refused(try_pair(HF_TOKEN="hf_other"), hub, tmp_path, "org/Big is gated", "a token is set")
    assert try_pair(HF_TOKEN=TOKEN).code == 0


@pytest.mark.parametrize("token", [None, "hf_other"])
def test_a_repository_that_is_missing_or_private(
    try_pair: Try, hub: Hub, tmp_path: Path, token: str | None
) -> None:
    hub.repositories["org/small"].readers = (TOKEN,)
    others = {"HF_TOKEN": token} if token else {}
    refused(try_pair(**others), hub, tmp_path, "no repository org/small", "HF_TOKEN")
    refused(try_pair("hf://org/none", PAIR[1], **others), hub, tmp_path, "no repository org/none")


def test_a_revision_that_does_not_exist(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    refused(try_pair(f"{PAIR[0]}@v9", PAIR[1]), hub, tmp_path, "org/Big has no revision v9", "commits/main")


@pytest.mark.parametrize(
    "name",
    [
        *("hf://", "hf://Big", "hf://a/b/c", "hf://org/Big@", "hf://org/Big@-x"),
        *(
            "hf://org/B--ig",
            "hf://org/Big.git",
            "hf://org/Bíg",
            f"hf://org/{'B' * 97}",
            "hf://org/..",
            "hf://../Big",
        ),
        *("hf://org/Big@../../main", "hf://org/Big@a/../b"),
    ],
)
def test_a_name_that_is_none(try_pair: Try, hub: Hub, tmp_path: Path, name: str) -> None:
    refused(try_pair(name, PAIR[1]), hub, tmp_path, "names no repository", "hf://ORGANIZATION/NAME")
    assert hub.asked == []


def test_offline_without_the_files(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    refused(try_pair(HF_HUB_OFFLINE="1"), hub, tmp_path, "is not on this machine", "HF_HUB_OFFLINE is set")
    assert hub.asked == []


def test_a_hub_that_is_down(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    hub.is_down = True
    refused(try_pair(), hub, tmp_path, "could not be read from the hub", "HTTP 503", "run the same command")
    hub.urls["127.0.0.1"] = "http://127.0.0.1:9"  # nothing listens there
    refused(try_pair(), hub, tmp_path, "could not be read from the hub", "ConnectError")


@pytest.mark.parametrize("endpoint", ["http://[bad", "http://127.0.0.1:port", "127.0.0.1"])
def test_an_endpoint_that_is_no_address(try_pair: Try, hub: Hub, tmp_path: Path, endpoint: str) -> None:
    refused(try_pair(HF_ENDPOINT=endpoint), hub, tmp_path, "HF_ENDPOINT", endpoint)


@pytest.mark.parametrize(
    "malformed", [{"HF_ENDPOINT": "http://[bad"}, {"HF_HUB_ETAG_TIMEOUT": "soon", "HF_TOKEN": TOKEN}]
)
def test_directories_need_no_hub_and_a_pair_from_it_is_refused(
    malformed: dict[str, str], try_pair: Try, hub: Hub, tmp_path: Path
) -> None:
    refused(try_pair(**malformed), hub, tmp_path, "environment of the Hugging Face hub is malformed")
    done = try_pair(str(tmp_path / "made" / "Big"), str(tmp_path / "made" / "small"), **malformed)
    assert done.code == 0, done.error
    assert TOKEN not in done.shown + done.error


def test_a_token_that_no_header_can_hold(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    done = try_pair(HF_TOKEN="hf_sécret")
    refused(done, hub, tmp_path, "the token of the hub is malformed", "correct HF_TOKEN")
    assert "cret" not in done.error


def test_pickles_are_refused(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    files = hub.repositories["org/Big"].files
    files["pytorch_model.bin"] = files.pop("model.safetensors")
    refused(
        try_pair(), hub, tmp_path, "org/Big has its weights in pickles", "pytorch_model.bin", "safetensors"
    )


def test_a_shard_that_is_missing(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    files = hub.repositories["org/Big"].files
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    files[shards[0]] = files.pop("model.safetensors")
    files["model.safetensors.index.json"] = json.dumps(
        {"weight_map": dict(zip("ab", shards, strict=True))}
    ).encode()
    refused(try_pair(), hub, tmp_path, "org/Big is not complete", f"missing {shards[1]}", "lists 2 files")


def test_a_repository_without_a_tokenizer(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    del hub.repositories["org/small"].files["tokenizer.json"]
    refused(try_pair(), hub, tmp_path, "org/small has no tokenizer.json", "config.json")
    hub.repositories["org/small"].files["tokenizer.model"] = b"pieces"
    refused(try_pair(), hub, tmp_path, "org/small has no tokenizer.json", "that converts tokenizer.model")


def test_an_architecture_that_is_not_supported(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    other = make_hugging_face(tmp_path / "other")
    change_config(other, model_type="mamba", architectures=["MambaForCausalLM"])
    hub.repositories["org/Big"] = HubRepository.of(other)
    refused(try_pair(), hub, tmp_path, "cannot compute", "mamba")


def test_weights_that_the_disk_does_not_hold(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    hub.repositories["org/Big"].sizes["model.safetensors"] = 10**16
    refused(
        try_pair(), hub, tmp_path, "the disk does not hold this pair", "10000000.0 GB for org/Big", "HF_HOME"
    )


def test_networks_that_the_memory_does_not_hold(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    other = make_hugging_face(tmp_path / "other")
    change_config(other, intermediate_size=10**12)
    hub.repositories["org/Big"] = HubRepository.of(other)
    refused(try_pair(), hub, tmp_path, "the memory does not hold this pair", "GB free", "quantization int4")
