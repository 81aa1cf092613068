"""Tests that the attacks that documents name exist, and have unique names."""

from __future__ import annotations

import re

from tests.attacks import GRPC_ATTACKS, HTTP_ATTACKS, SMUGGLING_ATTACKS
from tests.conftest import REPOSITORY_ROOT

PAGE = REPOSITORY_ROOT / "docs" / "security" / "triton-cves.md"


def test_no_two_attacks_of_a_protocol_have_one_name() -> None:
    for attacks in (GRPC_ATTACKS, (*HTTP_ATTACKS, *SMUGGLING_ATTACKS)):
        assert len({attack.name for attack in attacks}) == len(attacks)


def test_the_page_of_vulnerabilities_names_attacks_that_exist() -> None:
    known = {attack.name for attack in (*GRPC_ATTACKS, *HTTP_ATTACKS, *SMUGGLING_ATTACKS)}
    rows = [
        line.split("|")[1:-1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"
    ]
    tables = [row for row in rows if len(row) in (4, 6)]  # the last column is the attack
    named = {name for row in tables for name in re.findall(r"`([^`]+)`", row[-1])}
    assert len(named) > 20
    assert named <= known, named - known
