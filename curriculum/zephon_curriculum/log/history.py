"""What a log says: its entries in order, the schedule they give, and what waits for a verdict.

Upstream: `folder.py` or the messages of rank 0. Downstream: `judge.py`, `follow.py` and the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from zephon import StateError
from zephon_curriculum.figures import plural
from zephon_curriculum.log.amend import Amendment, Blobs, Composed, Layer, begin, check_schedule
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
    broken,
)
from zephon_curriculum.log.folder import CurriculumLog, blob_names, read_blobs
from zephon_curriculum.log.ops import (
    Add,
    Replace,
    SkipDocuments,
    SkipSteps,
    Weights,
    Withdraw,
    spelt_alike,
)
from zephon_curriculum.log.steps import AmendError


class History:
    """The entries of a log, added one by one in order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.pending: dict[int, Proposal] = {}
        """Proposals without a verdict, by number."""
        self.verdicts: dict[int, Accepted | Refused] = {}
        """By number of the proposal, what the run said of it; of one that was accepted and does not count any
        more, by a withdrawal or in a fork, `withdrawn` has the number too."""
        self.withdrawn: set[int] = set()
        """Proposals and decisions that do not count any more."""
        self.added: dict[str, Mapping[str, Any]] = {}
        """By name the tables of the datasets that proposals added, in order; a run has them from then on."""
        self._composed: Composed | None = None

    def __repr__(self) -> str:
        waiting = len(self.pending)
        entries = plural(len(self.entries), "entry")
        return f"History({entries}, {waiting} to decide, head {self.head[:12] or 'none'})"

    @classmethod
    def read(cls, log: CurriculumLog) -> History:
        """Returns the history of a log's files, verified; StateError where there is none."""
        entries = log.read()
        if not entries:
            log.check_run_folder()
            raise StateError.explained(
                f"curriculum log {log.url!r} has no entries",
                got="no file 000000.json",
                rule="a run that follows a log writes its first entry when it starts",
                cure="give the folder of such a run; a run started by `open_updates` has one",
            )
        history, blobs = cls(), read_blobs(log.raw_blobs(entries))
        for entry in entries:
            history.add(entry, blobs)
            blobs = Blobs()  # they are known from then on
        return history

    @property
    def composed(self) -> Composed:
        """Returns the schedule that the entries give."""
        assert self._composed is not None
        return self._composed

    @property
    def base(self) -> Base:
        """Returns entry 0."""
        body = self.entries[0].body
        assert isinstance(body, Base)
        return body

    @property
    def head(self) -> str:
        """Returns the hash of the newest entry; empty without one."""
        return self.entries[-1].hash if self.entries else ""

    def use(self, blobs: Blobs) -> None:
        """Takes big things that entries to come name."""
        if (blobs.tables or blobs.documents) and self._composed is not None:
            self._composed = self._composed.with_blobs(blobs)

    def add(self, entry: Entry, blobs: Blobs) -> None:
        """Takes the next entry, with the big things that it names; StateError where it makes no sense."""
        self.use(blobs)
        try:
            self._apply(entry, blobs)
        except (AmendError, KeyError) as error:
            raise broken(
                f"entry {entry.number}", str(error), "an entry follows from those before it, with its files"
            ) from None
        self.entries.append(entry)

    def _apply(self, entry: Entry, blobs: Blobs) -> None:
        body, number = entry.body, entry.number
        if isinstance(body, Base) != (number == 0):
            raise AmendError(f"kind {body.kind} as number {number}")
        match body:
            case Base():
                _need(blob_names(body), blobs)
                self._composed = begin(0, blobs.tables[body.table], body.table, blobs)
            case Proposal():
                self.pending[number] = body
            case Accepted():
                before, proposal = self.composed.names, self._pop(body.proposal)
                self._composed = amended(self, body.proposal, proposal)
                self._note_added(before, [proposal])
                self.withdrawn.update(op.entry for op in proposal.ops if isinstance(op, Withdraw))
                self.verdicts[body.proposal] = body
            case Refused():
                self._pop(body.proposal)
                self.verdicts[body.proposal] = body
            case RecipeChange():
                _need(blob_names(body), self.composed.blobs)
                layer = Layer(number=number, from_step=body.step, table=body.table)
                before, named = self.composed.names, self.composed.with_names(body.names)
                self._composed = named.with_layer(layer)
                self._note_added(before, self._waiting())
            case Datasets():
                before, self._composed = self.composed.names, self.composed.with_names(body.names)
                self._note_added(before, self._waiting())
            case Decision():
                if body.weights is not None:
                    self._composed = self.composed.with_layer(decided(number, body))
            case Fork():
                self._fork(body)

    def _waiting(self) -> list[Proposal]:
        return [self.pending[number] for number in sorted(self.pending)]

    def _note_added(self, before: tuple[str, ...], proposals: Iterable[Proposal]) -> None:
        """Notes the tables of the datasets that are new since `before`, as the first proposal has each."""
        asked = adds(proposals)
        new = self.composed.names[len(before) :]
        self.added |= {name: asked[name] for name in new if name in asked}

    def wanted(self) -> dict[str, Mapping[str, Any]]:
        """Returns by name the tables of the datasets to start with: those added, and those that wait."""
        waiting = adds(self.pending[number] for number in sorted(self._not_given_up(self.pending)))
        return self.added | {name: waiting[name] for name in waiting if name not in self.added}

    def _not_given_up(self, numbers: Iterable[int]) -> set[int]:
        """Returns those entries that no proposal which waits gives up."""
        given_up = {op.entry for p in self.pending.values() for op in p.ops if isinstance(op, Withdraw)}
        return {*numbers} - given_up

    def _pop(self, number: int) -> Proposal:
        if number not in self.pending:
            raise AmendError(f"entry {number} is no proposal that waits for a verdict")
        return self.pending.pop(number)

    def _fork(self, fork: Fork) -> None:
        self.withdrawn.update(self.not_begun(fork.at_step), self.pending)
        self._composed = self.composed.before(fork.at_step)
        self.pending.clear()

    def not_begun(self, step: int) -> list[int]:
        """Returns the proposals and decisions that have not begun before `step`, or not with all they ask."""
        kept = {amendment.number for amendment in self.composed.before(step).amendments}
        parts = {amendment.number for amendment in self.composed.amendments} - kept
        return sorted(parts | {number for number, start in self.begins().items() if start >= step})

    def begins(self) -> dict[int, int]:
        """Returns the first step of every accepted proposal and decision that counts, by number."""
        found = {n: decision.from_step for n, decision in self._decisions()}
        for number, verdict in self.verdicts.items():
            if isinstance(verdict, Accepted):
                proposal = self.proposal(number)
                assert proposal is not None
                withdraws = any(isinstance(op, Withdraw) for op in proposal.ops)
                found[number] = verdict.from_step if withdraws else proposal.at_step
        counting = (number for number in sorted(found) if number not in self.withdrawn)
        return {number: self.composed.effective(found[number]) for number in counting}

    def _decisions(self) -> list[tuple[int, Decision]]:
        return [(e.number, e.body) for e in self.entries if isinstance(e.body, Decision)]

    def decisions(self) -> list[Decision]:
        """Returns the decisions that count, in order: not withdrawn, not behind a recipe's new schedule."""
        recipes = [(e.number, e.body.step) for e in self.entries if isinstance(e.body, RecipeChange)]
        return [
            decision
            for number, decision in self._decisions()
            if number not in self.withdrawn
            and not any(n > number and step <= decision.from_step for n, step in recipes)
        ]

    def same(self, proposal: Proposal) -> Entry | None:
        """Returns the entry of a proposal that is equal, and counts or waits for its verdict; or None.

        One that a proposal which waits withdraws counts no more: what is asked for after that is asked anew.
        """
        counting, asked = self._not_given_up({*self.begins(), *self.pending}), _spelt_alike(proposal)
        waiting_or_counting = ((e, self.proposal(e.number)) for e in self.entries if e.number in counting)
        return next((e for e, found in waiting_or_counting if found and _spelt_alike(found) == asked), None)

    def withdraws(self, number: int) -> int | None:
        """Returns the number of a proposal that waits and withdraws entry `number`; or None."""
        waiting = (n for n in sorted(self.pending) if Withdraw(number) in self.pending[n].ops)
        return next(waiting, None)

    def is_refused_behind(self, number: int, withdrawal: int) -> bool:
        """Returns whether a proposal was refused only after entry `withdrawal`: it waited until then."""
        verdict = self.verdicts.get(number)
        return isinstance(verdict, Refused) and any(e.body is verdict for e in self.entries[withdrawal:])

    def proposal(self, number: int) -> Proposal | None:
        """Returns the proposal of a number, decided or not."""
        body = self.entries[number].body if 0 <= number < len(self.entries) else None
        return body if isinstance(body, Proposal) else None


def _spelt_alike(proposal: Proposal) -> Proposal:
    """Returns a proposal with numbers that are equal in the same words: 5, +5 and 5.0 ask for one thing."""
    return replace(proposal, ops=tuple(map(spelt_alike, proposal.ops)))


def adds(proposals: Iterable[Proposal]) -> dict[str, Mapping[str, Any]]:
    """Returns by name the tables of datasets that proposals add, the first of each name."""
    found: dict[str, Mapping[str, Any]] = {}
    for proposal in proposals:
        for op in proposal.ops:
            if isinstance(op, Add):
                found.setdefault(op.dataset, op.config)
    return found


def _need(names: list[str], blobs: Blobs) -> None:
    known = {f"tables/{sha}.json" for sha in blobs.tables} | {
        f"documents/{sha}.jsonl" for sha in blobs.documents
    }
    if missing := [name for name in names if name not in known]:
        raise AmendError(f"its file {missing[0]} is not there, or not as it was written")


def decided(number: int, decision: Decision) -> Layer:
    """Returns what a decision says of the schedule."""
    weights: Mapping[str, int] = decision.weights or {}
    return Layer(number=number, from_step=decision.from_step, weights=tuple(sorted(weights.items())))


def amended(history: History, number: int, proposal: Proposal, *, is_new: bool = False) -> Composed:
    """Returns the schedule with the proposal of entry `number` as if it were accepted.

    AmendError where that cannot be, whatever the step. One that `is_new`, and no entry so far, may give up
    what still waits: the run decides on that first.
    """
    composed = history.composed
    _check_proposal(history, number, proposal, is_new=is_new)
    for op in proposal.ops:
        if isinstance(op, Withdraw):
            composed = composed.without(op.entry)
    rest = tuple(op for op in proposal.ops if not isinstance(op, Withdraw))
    if not rest:
        return composed
    first, last = proposal.at_step, proposal.until
    return composed.with_amendment(Amendment(number=number, at_step=first, until=last, ops=rest))


def _check_proposal(history: History, number: int, proposal: Proposal, *, is_new: bool) -> None:
    """Raises AmendError for a proposal that says too little, too much, or what is not there."""
    _need(blob_names(proposal), history.composed.blobs)
    if not proposal.ops:
        raise AmendError("it asks for nothing; say what is to change: weights, scale, points or another")
    if proposal.until is not None and proposal.until <= proposal.at_step:
        raise AmendError(f"`until` must be > `at_step`, got [{proposal.at_step}, {proposal.until})")
    names = history.composed.names
    for op in proposal.ops:
        if proposal.until is not None and isinstance(op, Add | SkipSteps | SkipDocuments | Withdraw):
            raise AmendError(
                f"`until` does not go with `{op.kind}`, which has no end of its own; leave it out"
            )
        match op:
            case Add():
                if op.dataset in names and history.added.get(op.dataset) != op.config:
                    raise AmendError(f"another dataset {op.dataset!r} is there already; give it another name")
                names = names if op.dataset in names else (*names, op.dataset)
            case Weights():
                if missing := [name for name in names if name not in dict(op.weights)]:
                    raise AmendError(
                        f"no weight for dataset {missing[0]!r}; write {missing[0]}=0 to leave it out"
                    )
            case Replace():
                check_schedule(history.composed.blobs.tables[op.schedule], names)
            case SkipDocuments():
                documents = history.composed.blobs.documents[op.documents]
                if unknown := sorted({name for name, _, _ in documents}.difference(names)):
                    have = ", ".join(map(repr, names))
                    raise AmendError(f"documents to skip of {unknown[0]!r}: the datasets are {have}")
            case SkipSteps() if not proposal.at_step == op.start < op.stop:
                raise AmendError(
                    f"`skip_steps` must be steps [a, b) with a < b, and `at_step` the first of them, got "
                    f"[{op.start}, {op.stop}) and {proposal.at_step}; without `at_step` it is a"
                )
            case Withdraw() if not (is_new and op.entry in history.pending):
                _check_withdraw(history, op.entry, number)


def _check_withdraw(history: History, number: int, withdrawal: int) -> None:
    if history.is_refused_behind(number, withdrawal):
        return
    if number not in history.begins():
        why = "it is withdrawn already" if number in history.withdrawn else "it is none that was accepted"
        raise AmendError(f"entry {number} cannot be withdrawn: {why}")
    proposal = history.proposal(number)
    if proposal is not None and any(isinstance(op, Add | Withdraw) for op in proposal.ops):
        raise AmendError(
            f"entry {number} adds a dataset or withdraws an entry: retire it, or propose it again"
        )
