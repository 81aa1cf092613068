"""Creates nodes of the operators in ``build/operators``."""

from __future__ import annotations

import functools
import tempfile
from typing import Any

from openvino.utils.node_factory import NodeFactory

from build.operators.library import compiled_library


@functools.cache
def _factory() -> NodeFactory:
    factory = NodeFactory()
    with tempfile.NamedTemporaryFile(suffix=".so") as library:
        library.write(compiled_library())
        library.flush()
        factory.add_extension(library.name)
    return factory


def own_operation(name: str, arguments: list[Any], attributes: dict[str, Any]) -> Any:
    """Return the output of an operation, which is compiled if this process has not done so yet.

    Raises:
        EngineBuildError: There is no compiler, or it failed.
    """
    return _factory().create(name, arguments, attributes).output(0)
