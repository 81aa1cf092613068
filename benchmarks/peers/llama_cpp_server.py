"""Run llama.cpp's server on a GGUF file, with its own speculative decoding if there is a draft.

The interpreter of the environment ``llama-cpp`` runs this program. Its argument is the settings of
``LlamaCpp``, as JSON. It prints one line, address and version as JSON, and ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Run the server."""
    import xllamacpp

    given = json.loads(sys.argv[1])
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the library prints to it
    settings = xllamacpp.CommonParams()
    settings.verbosity = -1
    settings.model.path = given["target"]
    settings.n_parallel = given["num_at_once"]
    settings.n_ctx = given["max_seq_len"] * given["num_at_once"]  # of all requests together
    threads = [settings.cpuparams, settings.cpuparams_batch]
    if given["num_draft_tokens"]:
        kinds, draft = xllamacpp.common_speculative_type, settings.speculative.draft
        settings.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft.mparams.path = given["draft"]
        draft.n_max = given["num_draft_tokens"]
        threads += [draft.cpuparams, draft.cpuparams_batch]
    for each in threads:
        each.n_threads = given["num_threads"]
    server = xllamacpp.Server(settings)
    told = {"address": server.listening_address, "version": xllamacpp.__version__}
    print(json.dumps(told), file=output, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
