"""`zephon log`: what was proposed, decided and withdrawn in a run, and the proof of its chain.

Upstream: the shell. Downstream: `zephon_curriculum.log`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import typer

from zephon.cli.common import JsonOption, add_row, new_table, write, write_json, write_table
from zephon_curriculum.figures import plural
from zephon_curriculum.log.entries import (
    Accepted,
    Base,
    Datasets,
    Decision,
    Entry,
    Fork,
    Proposal,
    RecipeChange,
    Refused,
    body_json,
    said,
    window,
)
from zephon_curriculum.log.folder import log_of
from zephon_curriculum.log.history import History

SHORT = 12
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run folder, or the folder or URL of its curriculum log.")
]


Step = TypeVar("Step", int, int | None)


def counted(step: Step, trainer_step: bool) -> Step:
    """Returns a step that is given counted from 0, or from 1 with --trainer-step, as one from 0."""
    if step == 0 and trainer_step:
        raise typer.BadParameter("with --trainer-step steps count from 1, got 0")
    return step if step is None else step - trainer_step


def log(run: RunArgument, as_json: JsonOption = False) -> None:
    """Show a run's curriculum log: every entry with its verdict, and whether the chain of hashes holds.

    Exit 5 where it does not: a file that is missing, edited, cut off or foreign is named.
    """
    folder = log_of(run)
    history = History.read(folder)
    if as_json:
        entries = [_entry_json(history, entry) for entry in history.entries]
        write_json({"log": folder.url, "verified": len(entries), "head": history.head, "entries": entries})
        return
    table = new_table("#number", "kind", "#step", "what", "who", "why", "verdict")
    for entry in history.entries:
        add_row(table, entry.number, entry.body.kind, *cells(entry), verdict_on(history, entry.number))
    write_table(table)
    write(f"\nverified {plural(len(history.entries), 'entry')}, head {history.head[:SHORT]}")


def _entry_json(history: History, entry: Entry) -> dict[str, Any]:
    found = {"number": entry.number, "hash": entry.hash, "previous": entry.previous}
    return found | body_json(entry.body) | {"verdict": verdict_on(history, entry.number)}


def cells(entry: Entry) -> tuple[str, str, str, str]:
    """Returns step, what, who and why of an entry."""
    what = said(entry.body)
    match entry.body:
        case Base():
            return "0", what, "run", ""
        case Proposal() as body:
            return window(body), what, body.author, body.reason
        case Decision(step=step, controller=controller, reason=reason):
            return str(step), what, controller, reason
        case Refused(step=step, why=why):
            return str(step), what, "run", why
        case Fork(at_step=step):
            return str(step), what, "", ""
        case Accepted(step=step) | RecipeChange(step=step) | Datasets(step=step):
            return str(step), what, "run", ""


def verdict_on(history: History, number: int) -> str:
    """Returns what became of a proposal or a decision; empty for other entries."""
    return "; ".join(_verdicts(history, number))


def _verdicts(history: History, number: int) -> Iterator[str]:
    if number in history.pending:
        yield "waits"
    verdict = history.verdicts.get(number)
    if isinstance(verdict, Accepted):
        yield "accepted"
    elif verdict is not None:
        yield "refused" if verdict.first_legal is None else f"refused, first legal step {verdict.first_legal}"
    if number in history.withdrawn:
        yield "withdrawn"
