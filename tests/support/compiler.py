"""Marks tests of operators of our own."""

from __future__ import annotations

import shutil

import pytest

from build.operators.library import COMPILER

needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}")
ATTENTIONS = ("openvino", pytest.param("draftproof", marks=needs_compiler))
