import sys; sys.path.insert(0, ".")
import numpy as np, json, math, os
import importlib, world
from world import Truth, Constant, CAL, run, load
sys.path = ["."] + [p for p in sys.path if p not in (".", ".")]
from pipelines.speculation.draft_length.rule import DraftLengths
from pipelines.speculation.draft_length.step_times import StepTimes
from pipelines.speculation.draft_length import acceptance, rule, step_times
from pipelines.speculation.request import Output
assert "." in rule.__file__
class New:
    def __init__(self, wrong=None, sizes=(1, 2, 4, 8, 16, 32), max_len=8):
        def mk(c):
            s = np.interp(sizes, c["rows"], c["seconds"])
            return StepTimes(sizes, s)
        self.tt, self.dt = mk(CAL["target"]), mk(CAL["draft"])
        if wrong: wrong(self.tt, self.dt)
        self.lengths = DraftLengths(self.dt, self.tt, max_len)
    def begin(self, r):
        p = self.lengths.begin(np.array(r.t["prompt_ids"], np.int32)); p.num_output = 1; return p
    def plan(self, r, slots):
        plan = r.p.next_round(r.remaining); r.plan_ = plan
        if not plan.max_tokens: return 0, None
        keep = plan.keep_drafting()
        return plan.max_tokens, (lambda j, m: True) if keep is None else (lambda j, m: keep(m))
    def fit(self, slots, drafted):
        counts = []
        for r, d in zip(slots, drafted):
            out = None
            if d: out = Output(np.array(r.row["tokens"][:len(d)], np.int32), "length", True, gaps=np.array(d, np.float32))
            r.prop_ = r.plan_.complete(out)
            r.ids_ = r.prop_.token_ids.tolist(); counts.append(len(r.ids_))
        return counts, len(slots) + sum(counts)
    def observe(self, r, drafted, count, acc):
        got = min(r.acc_ + 1, r.remaining)
        r.p.observe(r.prop_, np.array(r.out[r.pos:r.pos + got], np.int32))
    def learn(self, steps, rows, vs, n):
        for dr, s, first, m in steps: self.dt.observe(dr, s)
        self.tt.observe(rows, vs)
    def end(self, r): r.p.end()
def all_traces():
    t = load()
    if os.path.exists("experiments/traces2.jsonl"): t += load("experiments/traces2.jsonl")
    return t
if __name__ == "__main__":
    traces = all_traces(); print(len(traces), "traces")
    pol = {"alone": lambda: Constant(0), **{f"k={k}": (lambda k=k: Constant(k)) for k in (1, 2, 3, 4)}, "current": world.Current, "new": New}
    world.table(pol, traces, loads=(1, 2, 4, 8), temps=(0.0,))
