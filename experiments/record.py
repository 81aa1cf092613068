"""Record, for every position of the target's own answers, what the draft proposes there (8 tokens, margins)."""
import asyncio, json, sys, time
from pathlib import Path
import numpy as np
sys.path.insert(0, ".")
from pipelines.bench.calibration.__main__ import load_executors
from pipelines.executor.step_loop import StepLoop
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.speculation.loop import speculate
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from tokenizers import Tokenizer

root = Path("./engines/qwen2-5-coder-cpu")
tdir = next(root.glob("target-*")); ddir = next(root.glob("draft-*"))
N = int(sys.argv[1]); K = 8
tok = Tokenizer.from_file(str(tdir / "tokenizer.json"))
def chat(text): return f"<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
code = [json.loads(l)["text"] for l in open("./engines/demo_pair/prompts/code.jsonl")][:8]
chats = ["Write a Python function that merges two sorted lists.", "Write a function that parses an ISO date without libraries, in Python.",
 "Explain what a mutex is and show an example in C++.", "Write a SQL query that finds the second highest salary of each department.",
 "Refactor this into a list comprehension:\nresult = []\nfor x in items:\n    if x > 3:\n        result.append(x * 2)", "Write a binary search tree with insert and delete in Python.",
 "Write unit tests with pytest for a function slugify(text).", "Write a bash script that backs up a folder and keeps the last seven copies."]
dialogue = ["What should I cook tonight with rice, eggs and spinach?", "How do I explain to my boss that I need a day off?", "Can you recommend a plan to learn the piano as an adult?",
 "Why is the sky blue?", "I feel tired in the afternoon. What can I do?", "Write a short birthday message for my grandmother.", "What is the difference between a crocodile and an alligator?", "Plan a weekend in Lisbon for two people."]
english = ["The committee discussed the harbour bridge for three hours, and then", "In the early morning the night train to the coast", "A small vegetable garden needs", "The history of paper begins in",
 "When the museum of clocks opened its doors again,", "The price of copper rose last year because", "She had never repaired a bicycle wheel before, but", "Bees and orchards depend on each other:"]
prompts = [("code", t) for t in code] + [("chat", chat(t)) for t in chats] + [("dialogue", chat(t)) for t in dialogue] + [("english", t) for t in english]
draft, target = load_executors(ddir, tdir)
loop = StepLoop((draft, target)); loop.start()
END = target.config.end_ids
async def one(kind, number, text, temperature):
    ids = np.array(tok.encode(text, add_special_tokens=False).ids, np.int32)
    sampling = SamplingParams(temperature=temperature, seed=number) if temperature else SamplingParams()
    if temperature: sampling = SamplingParams(temperature=temperature, top_p=0.8, top_k=20, seed=number)
    request = GenerationRequest(f"{kind}{number}", ids, N, sampling=sampling, end_ids=END)
    out = []
    async for r in speculate(request, draft.complete, target.complete, FixedDraftLength(4)): out += r.token_ids.tolist()
    rows = []
    for i in range(1, len(out)):
        known = np.concatenate((ids, np.array(out[:i], np.int32)))
        d = await draft.complete(GenerationRequest("d", known, K, prompt_length=len(ids), sampling=sampling, end_ids=END, keep_drafting=lambda m: True))
        t = d.token_ids.tolist(); a = 0
        while a < len(t) and i + a < len(out) and t[a] == out[i + a]: a += 1
        rows.append({"n": len(t), "acc": a, "margins": [round(float(m), 4) for m in d.margins.tolist()], "tokens": t})
    return {"kind": kind, "number": number, "temperature": temperature, "prompt_ids": ids.tolist(), "out": out, "rows": rows}
async def main():
    with open(sys.argv[2], "w") as f:
        for temperature in (0.0, 0.7):
            for kind, text in prompts:
                n = sum(1 for k, t in prompts[:prompts.index((kind, text))] if k == kind)
                began = time.time()
                r = await one(kind, n, text, temperature)
                f.write(json.dumps(r) + "\n"); f.flush()
                acc = np.mean([x["acc"] > 0 for x in r["rows"]]) if r["rows"] else 0
                print(kind, n, temperature, len(r["out"]), f"{acc:.2f}", f"{time.time()-began:.1f}s", flush=True)
loop.spawn(main()).result(); loop.stop()
