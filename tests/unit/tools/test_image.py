"""Tests of the container image without a network: what is followed, copied, listed and refused."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from pipelines.errors import DraftproofError
from tests.conftest import REPOSITORY_ROOT
from tools.image import layers
from tools.image.dockerfile import Copy, Run, Stage, read_stage
from tools.image.inventory import inventory
from tools.image.layers import split
from tools.image.layout import write_layout
from tools.image.root import _hook, sources
from tools.image.source import DOCKERFILE, copy_tracked
from tools.image.wheels import pins

ENVIRONMENT = REPOSITORY_ROOT / ".venv-image"
CREATED = 1_700_000_000
SERVER = read_stage(DOCKERFILE.read_text(), "server")


def test_the_stage_has_what_it_inherits() -> None:
    text = """# comment
ARG BASE
FROM ${BASE} AS first
COPY a /a
RUN one \\
 && two
ENV A=1 B="2 3"
USER 5:5
FROM first AS second
USER root
RUN three
USER 6:6
WORKDIR /w
"""
    assert read_stage(text, "second") == Stage(
        (Copy("a", "/a"), Run("one && two"), Run("three")), {"A": "1", "B": "2 3"}, {}, "6:6", "/w"
    )
    for line in ("VOLUME /v", "COPY --chown=1 a /a", "ADD a /a", "USER 5:5\nRUN three"):
        with pytest.raises(DraftproofError, match="not understood"):
            read_stage(f"FROM x AS y\n{line}\n", "y")
    with pytest.raises(DraftproofError, match="no stage third"):
        read_stage("FROM x AS y\n", "third")


def test_only_what_docker_would_be_sent_is_copied(tmp_path: Path) -> None:
    admitted = {
        line[1:] for line in (REPOSITORY_ROOT / ".dockerignore").read_text().split() if line[0] == "!"
    }
    copied = [step.source for step in SERVER.steps if isinstance(step, Copy)]
    assert {Path(source).parts[0] for source in copied} == admitted
    copy_tracked(SERVER, tmp_path / "checkout")
    files = {
        path.relative_to(tmp_path / "checkout").as_posix() for path in (tmp_path / "checkout").rglob("*")
    }
    assert "pipelines/deploy/__main__.py" in files and "requirements/run.txt" in files
    assert {
        name for name in files if name.endswith((".pyc", "__pycache__")) or name.startswith("tests")
    } == set()


def test_pins_are_those_of_the_image_s_python_with_their_hashes() -> None:
    lock = (REPOSITORY_ROOT / "requirements" / "run.txt").read_text()
    found = pins(lock)
    names = [pin.partition("==")[0] for pin in found]
    assert len(names) == len(set(names))
    assert set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE)) - set(names) == {
        *("async-timeout", "colorama", "exceptiongroup", "tomli"),
    }
    [filelock] = [pin for pin in found if pin.startswith("filelock==")]
    assert f"{filelock.split()[0]} ; python_full_version >= '3.11'" in lock
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", pin) for pin in found)


def test_apt_names_the_mirror() -> None:
    listed = """Debian bookworm http://mirror.example/debian/ bookworm main
Debian bookworm-security http://mirror.example/security/ bookworm-security main
Debian trixie http://mirror.example/debian/ trixie main
Other bookworm http://other.example/ bookworm main
Debian Backports bookworm-backports http://mirror.example/debian/ bookworm-backports main
 bookworm http://nameless.example/ bookworm main
"""
    assert sources(listed) == [
        "deb http://mirror.example/debian/ bookworm main",
        "deb http://mirror.example/security/ bookworm-security main",
    ]


def test_the_hook_quotes_the_scratch_folder() -> None:
    scratch = Path("/a folder/it's")
    hook = _hook(Stage((Copy("a", "/a"), Run("true"))), scratch)
    words = {word for line in hook.splitlines() for word in shlex.split(line, comments=True)}
    assert {f"{scratch}/{name}" for name in ("wheels", "checkout/a", "available", "inventory.json")} <= words
    assert f">{scratch}/available" in words


def root(folder: Path, *entries: tuple[str, bytes | None, int]) -> Path:
    """Return a tar file of files and, where there is no content, of directories."""
    path = folder / "root.tar"
    with tarfile.open(path, "w") as tar:
        for name, content, mode in entries:
            member = tarfile.TarInfo(f"./{name}")
            member.mode, member.size = mode, len(content or b"")
            member.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            tar.addfile(member, None if content is None else io.BytesIO(content))
    return path


ENTRIES: list[tuple[str, bytes | None, int]] = [
    ("tmp", None, 0o1777),
    ("usr/bin/python3", b"abc", 0o755),
    ("opt/draftproof/venv/lib/x.py", b"x", 0o644),
    ("opt/draftproof/code/pipelines/y.py", b"yy", 0o644),
    ("etc/apt/sources.list", b"deb http://mirror.example", 0o644),
    ("etc/resolv.conf", b"nameserver", 0o644),
    ("var/log/dpkg.log", b"log", 0o644),
    ("dev/null", b"", 0o666),
]


def test_layers_hold_nothing_of_the_machine(tmp_path: Path) -> None:
    sizes = split(root(tmp_path, *ENTRIES), tmp_path, {"opt/draftproof/sbom.cdx.json": b"{}"}, CREATED)
    assert sizes == {"debian": 3, "environment": 1, "code": 4}
    held = {}
    for name in layers.LAYERS:
        with tarfile.open(tmp_path / f"{name}.tar") as tar:
            held[name] = tar.getnames()
    assert held == {
        "debian": ["tmp", "usr/bin/python3"],
        "environment": ["opt/draftproof/venv/lib/x.py"],
        "code": ["opt/draftproof/code/pipelines/y.py", "opt/draftproof/sbom.cdx.json"],
    }


@pytest.mark.parametrize(
    "entry",
    [
        ("usr/bin/su", b"", 0o4755),
        ("usr/bin/wall", b"", 0o2755),
        ("var/open", None, 0o777),
        ("var/sticky", None, 0o1777),
    ],
)
def test_rights_that_are_given_away_are_refused(tmp_path: Path, entry: tuple[str, bytes | None, int]) -> None:
    with pytest.raises(DraftproofError, match=f"rights away.*{entry[0]}"):
        split(root(tmp_path, *ENTRIES, entry), tmp_path, {}, CREATED)


def test_an_image_above_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "MOST_BYTES", 6)
    split(root(tmp_path, *ENTRIES), tmp_path, {}, CREATED)
    with pytest.raises(DraftproofError, match="too large"):
        split(root(tmp_path, *ENTRIES), tmp_path, {"opt/more": b"1"}, CREATED)


def packages(folder: Path) -> dict[str, list[dict[str, object]]]:
    """Return the inventory of a root with one package of each kind."""
    written = {
        "var/lib/dpkg/status": "Package: libx\nStatus: install ok installed\nVersion: 1-2\n"
        "Architecture: amd64\n"
        "\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 1\nArchitecture: amd64\n",
        "usr/share/doc/libx/copyright": "Format: https://somewhere/copyright-format/1.0/\n"
        "Files: *\nLicense: GPL-2+\n text\n\nFiles: b\nLicense: Expat\n",
        "opt/draftproof/venv/lib/python3.11/site-packages/a_b-2.dist-info/METADATA": "Name: a.b\nVersion: 2\n"
        "License-Expression: MIT OR Apache-2.0\n\nLong text\n",
    }
    for name, text in written.items():
        (folder / "root" / name).parent.mkdir(parents=True)
        (folder / "root" / name).write_text(text)
    (folder / "wheels").mkdir()
    (folder / "wheels" / "a_b-2-py3-none-any.whl").write_bytes(b"wheel")
    versions = {"1-1": "1" * 64, "1-2": "2" * 64}
    available = "\n\n".join(
        f"Package: libx\nVersion: {version}\nSHA256: {digest}" for version, digest in versions.items()
    )
    return inventory(folder / "root", available, folder / "wheels")


def test_the_inventory_has_versions_licences_and_digests(tmp_path: Path) -> None:
    found = packages(tmp_path)
    [debian], [python] = found["debian"], found["python"]
    assert (debian["name"], debian["version"], debian["sha256"]) == ("libx", "1-2", "2" * 64)
    assert debian["licences"] == ["Expat", "GPL-2+"]
    assert (python["name"], python["version"], python["licences"]) == ("a-b", "2", ["MIT OR Apache-2.0"])
    assert python["sha256"] == hashlib.sha256(b"wheel").hexdigest()


@pytest.mark.skipif(
    not (ENVIRONMENT / "image.stamp").exists(),
    reason="cyclonedx is not installed: make .venv-image/image.stamp",
)
def test_the_bill_of_materials_is_valid_and_complete(tmp_path: Path) -> None:
    """It is written, and checked against CycloneDX's schema, in an environment of its own."""
    program = """
import json, sys
from pipelines.errors import DraftproofError
from tools.image.sbom import bill_of_materials
packages = json.load(sys.stdin)
print(bill_of_materials(packages, "1", "abc", 1700000000))
packages["python"][0]["sha256"] = "no digest"
try:
    bill_of_materials(packages, "1", "abc", 1700000000)
except DraftproofError as error:
    print(error, file=sys.stderr)
"""
    done = subprocess.run(
        [str(ENVIRONMENT / "bin" / "python"), "-c", program],
        cwd=REPOSITORY_ROOT,
        input=json.dumps(packages(tmp_path)),
        capture_output=True,
        text=True,
        check=True,
    )
    bill = json.loads(done.stdout)
    by_name = {each["name"]: each for each in bill["components"]}
    assert by_name["libx"]["purl"] == "pkg:deb/debian/libx@1-2?arch=amd64&distro=debian-12"
    assert by_name["libx"]["hashes"] == [{"alg": "SHA-256", "content": "2" * 64}]
    assert by_name["a-b"]["licenses"][0]["expression"] == "MIT OR Apache-2.0"
    assert done.stderr.startswith("the bill of materials is not valid")


@pytest.mark.skipif(shutil.which("umoci") is None, reason="umoci is not installed")
def test_the_layout_is_the_same_each_time(tmp_path: Path) -> None:
    split(root(tmp_path, *ENTRIES), tmp_path, {}, CREATED)
    files = [tmp_path / f"{name}.tar" for name in layers.LAYERS]
    written = [
        write_layout(tmp_path / name, "1", files, SERVER, {"commit": "abc"}, CREATED) for name in ("a", "b")
    ]
    assert written[0] == written[1]
    manifest = json.loads(blob(tmp_path / "a", written[0].digest))
    config = json.loads(blob(tmp_path / "a", manifest["config"]["digest"]))["config"]
    assert config["User"] == "10001:10001" and config["WorkingDir"] == "/opt/draftproof/code"
    assert "PYTHONDONTWRITEBYTECODE=1" in config["Env"]
    assert config["Labels"]["commit"] == "abc" and config["Labels"]["org.opencontainers.image.title"]
    other = write_layout(tmp_path / "c", "1", files, SERVER, {"commit": "abd"}, CREATED)
    assert other.digest != written[0].digest


def blob(layout: Path, digest: str) -> bytes:
    return (layout / "blobs" / digest.replace(":", "/")).read_bytes()


def test_what_makes_the_image_leaves_distutils_as_it_is() -> None:
    """Looking for pip's module replaces it for the whole process, and ModelOpt's imports then fail."""
    program = "import tools.image.root, tools.image.wheels, distutils.core as core; print(core.__file__)"
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, cwd=REPOSITORY_ROOT, capture_output=True, text=True, check=True)
    assert "_distutils" in done.stdout
