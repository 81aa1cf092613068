"""Run the token-by-token proof on a server and show its progress."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipelines.command_line.options import Progress
from pipelines.command_line.prompts import Prompt
from pipelines.text.vocabulary import Vocabulary
from pipelines.validation.audit.margin import explain
from pipelines.validation.distribution.acceptance import measure_acceptance
from pipelines.validation.exact.asking import Asked
from pipelines.validation.exact.plan import passes_of
from pipelines.validation.exact.proof import PassResult, prove
from pipelines.validation.exact.proof import Progress as State
from pipelines.validation.exact.sections import PASS_COLUMNS, exact_sections, pass_row
from pipelines.validation.exact.side_by_side import side_by_side
from pipelines.validation.exact.sizes import Limits, Size, plan_of
from pipelines.validation.exact.verdict import Proof
from pipelines.validation.report import Report, table_line

_NUM_SHOWN = 20  # divergences that are explained and shown side by side
_CONCURRENT_FOR_ACCEPTANCE = 8
_PASS_WIDTHS = (72, 7, 7, 6, 7, 8, 7, 7)


def run_exact(
    size: Size,
    prompts: tuple[Prompt, ...],
    limits: Limits,
    clients: Sequence[Asked],
    vocabulary: Vocabulary | None,
    nonce: str,
) -> Report:
    """Run the proof, explain the differences, and measure acceptance.

    Args:
        size: Size of the proof.
        prompts: Prompts, ``size.num_prompts`` of them.
        limits: Limits of the server.
        clients: Clients, one more than the greatest load of the plan.
        vocabulary: Vocabulary of the target; None if it is not on this machine.
        nonce: Text that no earlier run on this server used.
    """
    plan = plan_of(size, prompts, limits)
    line = Progress()
    passes = passes_of(plan)

    def on_progress(state: State) -> None:
        what = "reference answers for" if state.is_reference else "running"
        place = f"pass {state.asked.number + 1} of {len(passes)}"
        line.show(f"{place}: {what} {state.asked}: {state.num_done}/{state.num_questions}")

    def on_pass(result: PassResult) -> None:
        line.clear()
        print(table_line(pass_row(result), _PASS_WIDTHS), flush=True)

    print(
        f"{len(prompts)} prompts, up to {plan.max_tokens} tokens each, {len(passes)} passes; compared with "
        "the target alone, which answers one request at a time"
    )
    print(table_line(PASS_COLUMNS, _PASS_WIDTHS), flush=True)
    proof = Proof(prove(plan, clients, nonce, on_progress, on_pass), plan.goal)
    divergences = []
    for finding in proof.findings[:_NUM_SHOWN]:
        line.show("explaining the first differences")
        divergences.append(side_by_side(finding, explain(finding, clients[0]), vocabulary))
    line.show("acceptance, coupled and uncoupled")
    acceptance = measure_acceptance(
        prompts[: size.num_for_acceptance],
        _powers_of_two(limits.max_draft_len),
        size.max_tokens,
        clients[:_CONCURRENT_FOR_ACCEPTANCE],
    )
    line.clear()
    sections = (*exact_sections(proof, divergences), acceptance)
    return Report(sections, tuple(divergences), len(proof.findings))


def _powers_of_two(most: int) -> tuple[int, ...]:
    return tuple(2**exponent for exponent in range(int(math.log2(most)) + 1)) if most else ()
