"""Writes the software bill of materials of an image as CycloneDX JSON, and checks it against the schema."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from pipelines.errors import DraftproofError


def bill_of_materials(
    packages: Mapping[str, Sequence[Mapping[str, Any]]], version: str, revision: str, created: int
) -> str:
    """Return the document.

    Args:
        packages: What ``tools.image.inventory`` found.
        version: Draftproof's version.
        revision: The commit.
        created: The image's time, in seconds since 1970.

    Raises:
        DraftproofError: The document does not fit CycloneDX's schema.
    """
    image = Component(
        name="draftproof",
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref=f"draftproof@{revision}",
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
    )
    components = [_component(kind, each) for kind, found in packages.items() for each in found]
    bom = Bom(components=components, serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"draftproof/{revision}"))
    bom.metadata.component = image
    bom.metadata.timestamp = datetime.fromtimestamp(created, timezone.utc)
    bom.register_dependency(image, components)
    text: str = JsonV1Dot6(bom).output_as_string(indent=1)
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        raise DraftproofError(
            "the bill of materials is not valid",
            values=str(error),
            limit="the schema of CycloneDX 1.6",
            remedy="correct tools/image/sbom.py",
        )
    return text + "\n"


def _component(kind: str, package: Mapping[str, Any]) -> Component:
    if kind == "debian":
        where = {"arch": package["architecture"], "distro": "debian-12"}
        address = PackageURL("deb", "debian", package["name"], package["version"], where)
    else:
        address = PackageURL("pypi", None, package["name"], package["version"])
    digest = package["sha256"]
    return Component(
        name=package["name"],
        version=package["version"],
        type=ComponentType.LIBRARY,
        purl=address,
        bom_ref=address.to_string(),
        licenses=_licences(package["licences"]),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest else [],
    )


def _licences(names: Sequence[str]) -> list[Any]:
    """Return SPDX expressions where a name is one; CycloneDX allows one expression or several names."""
    factory = LicenseFactory()
    if len(names) == 1:
        return [factory.make_from_string(names[0])]
    return [factory.make_with_name(name) for name in names]
