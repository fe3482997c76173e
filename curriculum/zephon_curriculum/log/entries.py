"""The entries of a curriculum log: what each kind says, its JSON, and the chain of hashes.

Upstream: `folder.py` reads and writes them as files. Downstream: `amend.py` composes what they say. An entry
has the hash of the one before it, so the head stands for the whole log.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, get_args

from zephon import PARTS, StateError
from zephon_curriculum.log.ops import Op, describe, op_json, read_fields, read_op, table, text, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Entry 0: the run as its recipe began it."""

    names: tuple[str, ...]
    lead_steps: int
    """H: a change accepted at the exchange of step T begins after step T + H."""
    table: str
    """Hash of the schedule's table, a file of the log."""
    fingerprint: str
    """That of the recipe."""
    version: str
    """Of zephon-core, as information."""
    kind: ClassVar[str] = "base"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What somebody asks for; nothing changes by it."""

    at_step: int
    until: int | None
    """The change holds in steps [at_step, until); None: for ever."""
    ops: tuple[Op, ...]
    reason: str
    author: str
    kind: ClassVar[str] = "proposal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The run's word that a proposal counts."""

    proposal: int
    step: int
    """T, that of the exchange in which it was decided."""
    from_step: int
    """The first step that it changes."""
    kind: ClassVar[str] = "accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The run's word that a proposal does not count, now and at any replay."""

    proposal: int
    step: int
    why: str
    first_legal: int | None
    """The first step that the change could have had, where it came too late; None where no other step would
    do, as of a withdrawal of what has begun."""
    kind: ClassVar[str] = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChange:
    """A run that went on with another schedule in its recipe, or with datasets added to it."""

    step: int
    """The first step at which it may differ: that of the state which was loaded."""
    names: tuple[str, ...]
    table: str
    fingerprint: str
    kind: ClassVar[str] = "recipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Datasets:
    """The datasets of a run that was started with more, which proposals ask for; they have no share by it."""

    step: int
    names: tuple[str, ...]
    kind: ClassVar[str] = "datasets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a controller decided, and all that it had seen since its last decision."""

    step: int
    from_step: int
    weights: Mapping[str, int] | None
    """Parts of a whole from `from_step` on; None: no change."""
    inputs: tuple[Mapping[str, Any], ...]
    controller: str
    reason: str
    """Why nothing changes, where nothing does."""
    kind: ClassVar[str] = "decision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A run that goes its own way: what was not begun before `at_step` does not count in it."""

    at_step: int
    parent: str
    """The run it comes from, as information."""
    kind: ClassVar[str] = "fork"


Body = Base | Proposal | Accepted | Refused | RecipeChange | Datasets | Decision | Fork
KINDS: Mapping[str, type[Body]] = {body.kind: body for body in get_args(Body)}
FRAME = ("number", "previous", "kind", "hash")


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"it must be a list, got {value!r}")
    return value


def _parts(value: object) -> dict[str, int] | None:
    return None if value is None else {text(name): whole(part) for name, part in table(value).items()}


READ: Mapping[str, Callable[[object], Any]] = {
    "int": whole,
    "int | None": lambda value: None if value is None else whole(value),
    "str": text,
    "tuple[str, ...]": lambda value: tuple(map(text, _list(value))),
    "tuple[Op, ...]": lambda value: tuple(map(read_op, _list(value))),
    "tuple[Mapping[str, Any], ...]": lambda value: tuple(map(table, _list(value))),
    "Mapping[str, int] | None": _parts,
}
"""How a field is read, by its type."""


@dataclass(frozen=True, slots=True, repr=False)
class Entry:
    """One link of the chain."""

    number: int
    previous: str
    """Hash of the entry before; empty for entry 0."""
    body: Body
    hash: str

    def __repr__(self) -> str:
        return f"Entry({self.number}, {self.body.kind} {self.hash[:12]}: {summary(self.body)})"

    def to_bytes(self) -> bytes:
        """Returns the entry as its file holds it; it ends with a line feed."""
        data = _content(self.number, self.previous, self.body) | {"hash": self.hash}
        return (json.dumps(data, indent=1, allow_nan=False) + "\n").encode()


def body_json(body: Body) -> dict[str, Any]:
    """Returns what an entry says as JSON data."""
    found: dict[str, Any] = {"kind": body.kind}
    for field in fields(body):
        value = getattr(body, field.name)
        if field.name == "ops":
            value = [op_json(op) for op in value]
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        found[field.name] = value
    return found


def said(body: Body) -> str:
    """Returns what an entry says in a few words."""
    match body:
        case Base(names=names, lead_steps=lead):
            return f"begins with {', '.join(names)}; changes begin {lead + 1} steps ahead"
        case Proposal(ops=ops):
            return "; ".join(map(describe, ops))
        case Accepted(proposal=number, from_step=start):
            return f"{number} from step {start} on"
        case Refused(proposal=number):
            return f"{number}"
        case RecipeChange(names=names):
            return f"the recipe's schedule of {', '.join(names)} from here on"
        case Datasets(names=names):
            return f"the run is started with {', '.join(names)}"
        case Decision(weights=None):
            return "no change"
        case Decision(from_step=start, weights=weights):
            shares = ", ".join(f"{name} {part / PARTS:.1%}" for name, part in (weights or {}).items())
            return f"from step {start} on {shares}"
        case Fork(parent=parent):
            return f"goes its own way from {parent}"


def window(proposal: Proposal) -> str:
    """Returns the steps in which a proposal would hold."""
    return f"{proposal.at_step}" + ("" if proposal.until is None else f":{proposal.until}")


def summary(body: Body) -> str:
    """Returns in a line what an entry says of the mixture, since when, who asked for it and why."""
    if isinstance(body, Proposal):
        until = "" if body.until is None else f" until {body.until}"
        by = f" by {body.author}" if body.author else ""
        return f"{said(body)} from step {body.at_step}{until}{by}: {body.reason}"
    if isinstance(body, Decision):
        return f"the controller {body.controller}: {said(body)}"
    if isinstance(body, RecipeChange):
        return f"the schedule of the recipe from step {body.step} on"
    return said(body)


def _content(number: int, previous: str, body: Body) -> dict[str, Any]:
    return {"number": number, "previous": previous} | body_json(body)


def _hash(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def make_entry(number: int, previous: str, body: Body) -> Entry:
    """Returns the entry of a body at its place in the chain."""
    return Entry(number, previous, body, _hash(_content(number, previous, body)))


def read_body(given: Mapping[str, Any]) -> Body:
    """Returns what `body_json` wrote, in an entry or alone; ValueError for an unknown kind or field."""
    rest = {name: value for name, value in given.items() if name not in FRAME}
    kind = str(given.get("kind"))
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is unknown; known are {', '.join(KINDS)}")
    found: Body = read_fields(KINDS[kind], rest, READ, f"kind {kind}")
    return found


def read_entry(data: bytes, number: int, previous: str | None, where: str) -> Entry:
    """Returns the entry that a file holds; StateError, naming it by `where`, for one that is not `number`.

    Nor one that was changed, or does not follow the entry with the hash `previous` (None: not compared).
    """
    try:
        given = table(json.loads(data.decode(), parse_constant=_no_constant))
        body = read_body(given)
        entry = Entry(whole(given.get("number")), text(given.get("previous")), body, text(given.get("hash")))
        found = _hash({name: value for name, value in given.items() if name != "hash"})
    except (ValueError, RecursionError) as error:
        raise broken(where, f"{error}", "an entry is the JSON that zephon wrote, whole") from None
    if found != entry.hash:
        raise broken(
            where, f"it says hash {entry.hash[:12]}, and its content has another", "no entry is edited"
        )
    if entry.number != number:
        raise broken(where, f"entry {entry.number}", "a file has the number of its entry")
    if previous is not None and entry.previous != previous:
        raise broken(
            where,
            f"it follows {entry.previous[:12] or 'nothing'}, and entry {number - 1} is {previous[:12]}",
            "every entry has the hash of the one before it",
        )
    return entry


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


class UnfinishedError(StateError):
    """The last file of a log is not written to its end."""


def unfinished(where: str) -> UnfinishedError:
    """Returns the error of a last file that is not whole: it counts for nothing."""
    return UnfinishedError.explained(
        f"curriculum log: {where} is not written to its end",
        got="the begin of an entry, and no file after it",
        rule="an entry counts once it is whole, and only then another is written after it",
        cure=f"if nobody writes it any more, remove {where}: no run took it up like that; "
        "if it was whole once, bring it back",
    )


def broken(where: str, got: str, rule: str) -> StateError:
    """Returns the error of a log that cannot be trusted."""
    return StateError.explained(
        f"curriculum log: {where} breaks the chain",
        got=got,
        rule=rule,
        cure="bring the files back as the run wrote them; without them the run's amendments are not known",
    )
