"""Answer prompts with OpenVINO GenAI, without speculation, with a draft, and with prompt lookup.

The interpreter of an environment with ``openvino-genai`` runs this program. Its argument is JSON: the GGUF
files of target and draft, the prompts, the tokens of an answer and of a draft. It prints one line of JSON:
the version, and how it speculates -> token ids of its answers to one prompt at a time, and to all at once.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

_NGRAM, _CACHE_GB = 3, 1


def main() -> None:
    """Answer, and print the answers."""
    import openvino_genai as genai

    *files, texts, max_tokens, num_draft_tokens = json.loads(sys.argv[1])
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the library prints to it
    with tempfile.TemporaryDirectory() as scratch:
        target, draft = (str(Path(scratch) / role) for role in ("target", "draft"))
        for file, folder in zip(files, (target, draft), strict=True):  # a draft is a folder that was saved
            (model := Path(folder) / "model.gguf").parent.mkdir()
            model.symlink_to(Path(file).resolve())
            genai.LLMPipeline(str(model), "CPU", enable_save_ov_model=True)
        tokenizer = genai.Tokenizer(target)
        prompts = [tokenizer.encode(text).input_ids for text in texts]
        answers, with_draft = {}, {"draft_model": genai.draft_model(draft, "CPU")}
        arms = {"without": {}, "without, again": {}, "draft": with_draft, "lookup": {"prompt_lookup": True}}
        for name, how in arms.items():
            scheduler, config = genai.SchedulerConfig(), genai.GenerationConfig()
            scheduler.cache_size, scheduler.max_num_seqs = _CACHE_GB, len(prompts)
            config.max_new_tokens, config.do_sample = max_tokens, False
            if how:
                config.num_assistant_tokens = num_draft_tokens
            if name == "lookup":
                config.max_ngram_size = _NGRAM
            pipeline = genai.ContinuousBatchingPipeline(target, scheduler, "CPU", how)
            alone = [pipeline.generate([each], [config])[0] for each in prompts]
            both = alone, pipeline.generate(prompts, [config] * len(prompts))
            answers[name] = [[each.m_generation_ids[0] for each in part] for part in both]
    print(json.dumps({"version": genai.__version__, "answers": answers}), file=output, flush=True)


if __name__ == "__main__":
    main()
