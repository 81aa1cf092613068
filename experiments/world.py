"""Replays recorded proposals against a cost table: compares draft-length rules without an engine."""
import json, sys, math
import numpy as np
sys.path.insert(0, ".")
CAL = json.load(open("./docs/results/calibration-published.json"))
class Truth:
    """True costs of a machine, seconds."""
    def __init__(self, target=None, draft=None, change_s=0.0047, first_s=0.005, out_alone=0.004, out_draft=0.0015, out_verify=0.003, scale=1.0):
        t, d = CAL["target"], CAL["draft"]
        self.tr, self.ts = t["rows"], np.array(target or t["seconds"]) * scale
        self.dr, self.ds = d["rows"], np.array(draft or d["seconds"]) * scale
        self.change_s, self.first_s, self.out_alone, self.out_draft, self.out_verify = change_s, first_s, out_alone, out_draft, out_verify
    def v(self, rows, ctx=0): 
        r = float(np.interp(rows, self.tr, self.ts)) if rows <= 72 else self.ts[-1] * rows / 72
        return r + ctx * 7.5e-6
    def d(self, rows, ctx=0):
        r = float(np.interp(rows, self.dr, self.ds)) if rows <= 72 else self.ds[-1] * rows / 72
        return r + ctx * 3.6e-6
class Req:
    def __init__(self, trace):
        self.t = trace; self.out = trace["out"]; self.pos = 1; self.n_prompt = len(trace["prompt_ids"]); self.read = 0; self.read_prompt = False
    @property
    def known(self): return self.n_prompt + self.pos
    @property
    def remaining(self): return len(self.out) - self.pos
    @property
    def row(self): return self.t["rows"][self.pos - 1]
    @property
    def done(self): return self.pos >= len(self.out)
def run(traces, n, policy, truth, count_prompt=True, log=None, change_at=None):
    """Return (tokens, seconds, per-trace list of (kind, number, tokens, seconds))."""
    queue = [Req(t) for t in traces if len(t["out"]) > 2]
    slots, now, last_rows, tokens, results = [], 0.0, 0, 0, []
    rounds = 0
    while queue or slots:
        while queue and len(slots) < n:
            r = queue.pop(0); r.begin = now
            if count_prompt: now += 0.012 * r.n_prompt
            r.p = policy.begin(r); slots.append(r)
        t = change_at(rounds, truth) if change_at else truth
        # propose
        plans = [policy.plan(r, slots) for r in slots]          # max tokens, keep(j, margin)->bool
        drafted = [[] for _ in slots]
        active = [i for i, (m, keep) in enumerate(plans) if m > 0]
        depth = 0; draft_s = 0.0; steps = []
        while active:
            rows = 0
            for i in active:
                r = slots[i]
                if depth == 0:
                    unread = max(r.known - r.read, 1); r.read = r.known
                    rows += min(unread, 10000)
                else: rows += 1
            s = t.d(rows, sum(slots[i].known for i in active)) + t.out_draft + (t.first_s if depth == 0 else 0)
            steps.append((rows, s, depth == 0, len(active))); draft_s += s
            nxt = []
            for i in active:
                r = slots[i]; m, keep = plans[i]; row = r.row
                if depth >= row["n"]: continue
                drafted[i].append(row["margins"][depth])
                if len(drafted[i]) < min(m, r.remaining - 1) and depth + 1 < row["n"] and keep(depth + 1, row["margins"][depth]): nxt.append(i)
            active = nxt; depth += 1
        counts, num_rows = policy.fit(slots, drafted)
        change = num_rows != last_rows
        vs = t.v(num_rows, sum(r.known for r in slots)) + (t.change_s if change else 0) + t.out_alone + (t.out_verify if depth else 0)
        last_rows = num_rows
        for i, r in enumerate(slots):
            ids = getattr(r, "ids_", None)
            if ids is None: acc = min(r.row["acc"], counts[i], r.remaining)
            else:
                acc = 0
                while acc < min(len(ids), r.remaining) and ids[acc] == r.out[r.pos + acc]: acc += 1
            r.acc_ = acc
            policy.observe(r, drafted[i], counts[i], r.row["acc"])
            if drafted[i]: r.read = r.known + min(r.row["acc"], max(len(drafted[i]) - 1, 0))
            got = min(acc + 1, r.remaining); r.pos += got; tokens += got
        policy.learn(steps, num_rows, vs, len(slots))
        now += draft_s + vs; rounds += 1
        if log is not None: log.append((len(slots), [len(d) for d in drafted], counts, num_rows, draft_s, vs))
        for r in [r for r in slots if r.done]:
            slots.remove(r); policy.end(r)
            results.append((r.t["kind"], r.t["number"], len(r.out), now - r.begin))
    return tokens, now, results
class Constant:
    def __init__(self, k): self.k = k
    def begin(self, r): return None
    def plan(self, r, slots): return min(self.k, r.remaining - 1), lambda j, m: True
    def fit(self, slots, drafted): return [len(d) for d in drafted], sum(1 + len(d) for d in drafted)
    def observe(self, *a): pass
    def learn(self, *a): pass
    def end(self, r): pass
class Current:
    """Today's controller."""
    def __init__(self, max_len=8, margins=True):
        from pipelines.speculation.draft_length.adaptive import DraftLengths
        from pipelines.speculation.draft_length.step_costs import StepCosts
        from pipelines.speculation.draft_length.survival import AcceptanceByMargin
        from pipelines.executor.rows import RowBudget
        t, d = CAL["target"], CAL["draft"]
        mk = lambda c: StepCosts(c["rows"], c["seconds"], c["seconds_per_position"], c["reread_share"])
        self.tc, self.dc = mk(t), mk(d)
        self.lengths = DraftLengths(AcceptanceByMargin(CAL["acceptance_rates"], CAL["margin_shares"]), self.dc, self.tc, max_len)
        self.budget = RowBudget(self.tc, t["change_s"], lambda: self.lengths.tokens_per_s)
    def begin(self, r):
        return self.lengths.begin(np.array(r.t["prompt_ids"], np.int32))
    def plan(self, r, slots):
        plan = r.p.next_round(r.remaining); r.plan_ = plan
        if not plan.max_tokens: return 0, None
        keep = plan.keep_drafting()
        return plan.max_tokens, (lambda j, m: True) if keep is None else (lambda j, m: keep(m))
    def fit(self, slots, drafted):
        from pipelines.speculation.request import Output
        self.props = []
        for r, d in zip(slots, drafted):
            out = None
            if d:
                ids = np.array(r.row["tokens"][:len(d)], np.int32)
                out = Output(ids, "length", True, margins=np.array(d, np.float32))
            p = r.plan_.complete(out); r.prop_ = p; self.props.append(p)
        surv = [np.empty(0) if p.survival is None else p.survival for p in self.props]
        lens = [len(p.token_ids) for p in self.props]
        need = sum(1 + (l if p.survival is None else 0) for p, l in zip(self.props, lens))
        ranked = np.sort(np.concatenate(surv))[::-1]
        rows = self.budget.rows(need, ranked)
        least = ranked[: max(rows - need, 0)].min(initial=2.0)
        counts = [l if p.survival is None else int((s >= least).sum()) for p, l, s in zip(self.props, lens, surv)]
        for r, p, c in zip(slots, self.props, counts): r.ids_ = p.token_ids[:c].tolist()
        return counts, rows
    def observe(self, r, drafted, count, acc):
        got = min(r.acc_ + 1, r.remaining)
        r.p.observe(r.prop_, np.array(r.out[r.pos:r.pos + got], np.int32))
    def learn(self, steps, rows, vs, n):
        for k, (dr, s, first, m) in enumerate(steps):
            if dr > 72: continue
            (self.dc.observe_first if first else self.dc.observe)(dr, 0, s)
        on = self.lengths.is_on
        o = self.tc.overhead
        out = 0.004 + (0.003 if steps else 0)
        o.observe(n, out, "adapted" if on else "alone")
        extra = o.extra_s(n) * on
        self.tc.observe(rows, 0, max(vs - extra, vs - out))
    def end(self, r): r.p.end()
def load(path="experiments/traces.jsonl"):
    out = []
    for line in open(path):
        try: out.append(json.loads(line))
        except ValueError: pass
    return out
def table(policies, traces, loads=(1, 4, 8), temps=(0.0, 0.7)):
    kinds = ["code", "chat", "dialogue", "english"]
    for temp in temps:
        for n in loads:
            print(f"--- temperature {temp}, {n} requests")
            base = None
            for name, make in policies.items():
                row = []; worst = []
                for kind in kinds:
                    ts = [t for t in traces if t["kind"] == kind and t["temperature"] == temp]
                    if not ts: continue
                    pol = make()
                    tok, s, res = run(ts, n, pol, Truth())
                    row.append((tok / s, {(k, m): c / x for k, m, c, x in res}))
                if base is None: base = row
                text = []
                for (rate, by), (rate0, by0) in zip(row, base):
                    ratios = sorted(by[k] / by0[k] for k in by) if n == 1 else [0]
                    text.append(f"{rate/rate0:5.2f}" + (f" ({ratios[0]:.2f}-{ratios[-1]:.2f})" if n == 1 else ""))
                print(f"{name:18}", "  ".join(text), flush=True)
if __name__ == "__main__":
    traces = load(); print(len(traces), "traces")
    pol = {"alone": lambda: Constant(0), **{f"k={k}": (lambda k=k: Constant(k)) for k in (1, 2, 3, 4, 6)}, "current": Current}
    table(pol, traces)
