"""Make the golden files anew: ``python -m tests.golden``; needs torch and transformers."""

from tests.golden.make import write

write()
