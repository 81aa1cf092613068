"""Runs the token-by-token proof on a server and shows how far it is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipelines.command_line import Progress
from pipelines.prompts import Prompt
from pipelines.text.vocabulary import Vocabulary
from pipelines.validation.acceptance import measure_acceptance
from pipelines.validation.asking import Asked
from pipelines.validation.exact_sections import PASS_COLUMNS, exact_sections, pass_row
from pipelines.validation.margin import explain
from pipelines.validation.plan import passes_of
from pipelines.validation.proof import PassResult, prove
from pipelines.validation.proof import Progress as State
from pipelines.validation.report import Report, table_line
from pipelines.validation.side_by_side import side_by_side
from pipelines.validation.sizes import Limits, Size, plan_of
from pipelines.validation.verdict import Proof

_NUM_SHOWN = 20  # divergences that are looked up and laid side by side
_AT_ONCE_FOR_ACCEPTANCE = 8
_PASS_WIDTHS = (72, 7, 7, 6, 7, 8, 7, 7)


def run_exact(
    size: Size,
    prompts: tuple[Prompt, ...],
    limits: Limits,
    clients: Sequence[Asked],
    vocabulary: Vocabulary | None,
    nonce: str,
) -> Report:
    """Prove, look the differences up, and measure acceptance.

    Args:
        size: How much is compared.
        prompts: ``size.num_prompts`` of them.
        limits: Of the server.
        clients: One more than the greatest load of the plan.
        vocabulary: Of the target, to spell tokens; None if it is not on this machine.
        nonce: Text that no earlier run of this server used.
    """
    plan = plan_of(size, prompts, limits)
    line = Progress()
    passes = passes_of(plan)

    def on_progress(state: State) -> None:
        what = "the target alone, one at a time, for" if state.is_reference else "asking"
        place = f"pass {state.asked.number + 1} of {len(passes)}"
        line.show(f"{place}: {what} {state.asked}: {state.num_done}/{state.num_questions}")

    def on_pass(result: PassResult) -> None:
        line.clear()
        print(table_line(pass_row(result), _PASS_WIDTHS), flush=True)

    print(
        f"{len(prompts)} prompts, up to {plan.max_tokens} tokens each, {len(passes)} passes; compared with "
        "the target alone, asked one request at a time"
    )
    print(table_line(PASS_COLUMNS, _PASS_WIDTHS), flush=True)
    proof = Proof(prove(plan, clients, nonce, on_progress, on_pass), plan.goal)
    divergences = []
    for finding in proof.findings[:_NUM_SHOWN]:
        line.show("asking the target alone about the first differences")
        divergences.append(side_by_side(finding, explain(finding, clients[0]), vocabulary))
    line.show("acceptance, coupled and uncoupled")
    acceptance = measure_acceptance(
        prompts[: size.num_for_acceptance],
        _powers_of_two(limits.max_draft_len),
        size.max_tokens,
        clients[:_AT_ONCE_FOR_ACCEPTANCE],
    )
    line.clear()
    sections = (*exact_sections(proof, divergences), acceptance)
    return Report(sections, tuple(divergences), len(proof.findings))


def _powers_of_two(most: int) -> tuple[int, ...]:
    return tuple(2**exponent for exponent in range(int(math.log2(most)) + 1)) if most else ()
