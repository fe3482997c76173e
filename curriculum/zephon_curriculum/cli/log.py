"""`zephon log`: what was proposed, decided and withdrawn in a run, and the proof of its chain.

Upstream: the shell. Downstream: `zephon_curriculum.log`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from zephon import PARTS
from zephon.cli.common import JsonOption, add_row, new_table, write, write_json, write_table
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
)
from zephon_curriculum.log.folder import log_of
from zephon_curriculum.log.history import History
from zephon_curriculum.log.ops import (
    Add,
    Op,
    Points,
    Replace,
    Retire,
    Scale,
    SkipDocuments,
    SkipSteps,
    Weights,
    Withdraw,
)

SHORT = 12
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run folder, or the folder or URL of its curriculum log.")
]


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
    write(f"\nverified {len(history.entries)} entries, head {history.head[:SHORT]}")


def _entry_json(history: History, entry: Entry) -> dict[str, Any]:
    found = {"number": entry.number, "hash": entry.hash, "previous": entry.previous}
    return found | body_json(entry.body) | {"verdict": verdict_on(history, entry.number)}


def cells(entry: Entry) -> tuple[str, str, str, str]:
    """Returns step, what, who and why of an entry."""
    match entry.body:
        case Base(names=names, lead_steps=lead):
            return "0", f"begins with {', '.join(names)}; changes begin {lead + 1} steps ahead", "run", ""
        case Proposal() as body:
            return window(body), "; ".join(map(describe, body.ops)), body.author, body.reason
        case Accepted(proposal=number, step=step, from_step=start):
            return str(step), f"{number} from step {start} on", "run", ""
        case Refused(proposal=number, step=step, why=why):
            return str(step), f"{number}", "run", why
        case RecipeChange(step=step, names=names):
            return str(step), f"the recipe's schedule of {', '.join(names)} from here on", "run", ""
        case Datasets(step=step, names=names):
            return str(step), f"the run is started with {', '.join(names)}", "run", ""
        case Decision(step=step, from_step=start, weights=weights) as body:
            what = "no change" if weights is None else f"from step {start} on {_shares(weights)}"
            return str(step), what, body.controller, body.reason
        case Fork(at_step=step, parent=parent):
            return str(step), f"goes its own way from {parent}", "", ""


def window(proposal: Proposal) -> str:
    """Returns the steps in which a proposal would hold."""
    return f"{proposal.at_step}" + ("" if proposal.until is None else f":{proposal.until}")


def _shares(weights: Any) -> str:
    return ", ".join(f"{name} {part / PARTS:.1%}" for name, part in weights.items())


def describe(op: Op) -> str:
    """Returns an op in a few words."""
    match op:
        case Weights(weights=numbers):
            return "weights " + _numbers(numbers)
        case Scale(factors=numbers):
            return "scale " + _numbers(numbers)
        case Points(points=numbers):
            return "points " + _numbers(numbers)
        case Replace(schedule=sha):
            return f"schedule {sha[:SHORT]}"
        case Retire(dataset=name):
            return f"retire {name}"
        case Add(dataset=name):
            return f"add {name}"
        case SkipSteps(start=a, stop=b):
            return f"skip steps {a}:{b}"
        case SkipDocuments(num_documents=number):
            return f"skip {number} documents"
        case Withdraw(entry=number):
            return f"withdraw {number}"


def _numbers(numbers: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name}={text}" for name, text in numbers)


def verdict_on(history: History, number: int) -> str:
    """Returns what became of a proposal or a decision; empty for other entries."""
    return "; ".join(_verdicts(history, number))


def _verdicts(history: History, number: int) -> Iterator[str]:
    if number in history.pending:
        yield "waits"
    verdict = history.verdicts.get(number)
    if verdict is not None:
        is_accepted = isinstance(verdict, Accepted)
        yield "accepted" if is_accepted else f"refused, first legal step {verdict.first_legal}"  # type: ignore[union-attr]
    if number in history.withdrawn:
        yield "withdrawn"
