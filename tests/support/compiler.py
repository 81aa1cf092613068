"""Marks tests of attention of our own, which is compiled with the engine."""

from __future__ import annotations

import shutil

import pytest

from build.attention.library import COMPILER

needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}")
ATTENTIONS = ("openvino", pytest.param("draftproof", marks=needs_compiler))
