"""The errors of a run: each says what is at fault, what was got, the rule and the cure.

Wrong arguments raise `ValueError` or `TypeError` where they are given; the classes here are for what only
shows against the world: files, states, workers, launches.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


class ZephonError(Exception):
    """Base of all errors that a recipe, its data or its state can cause at run time."""

    @classmethod
    def explained(cls, what: str, *, got: str, rule: str, cure: str) -> Self:
        """Returns the error of four lines: what is at fault, got, rule, cure."""
        return cls(f"{what}\n  got:  {got}\n  rule: {rule}\n  cure: {cure}")


class DataError(ZephonError):
    """A file or a record cannot be used."""


class StateError(ZephonError):
    """A saved state does not fit the recipe, the data or the ranks it is restored on."""


class CheckError(ZephonError):
    """The launch check refuses the recipe."""


class WorkerError(ZephonError):
    """A worker died, hung or could not be started."""


class PluginError(ZephonError):
    """A plugin that was asked for by name cannot be loaded, or is made for another version of zephon-core."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one record, before it is known whether that stops the run."""

    kind: str
    """One word: null, not_text, missing, not_json, not_object, not_utf8, too_long."""
    got: str
    """The value met, shortened."""
    rule: str
    """The rule it breaks, as a sentence without a full stop."""


def unknown_field(where: str, name: str, known: Sequence[str]) -> ValueError:
    """Returns the error of a field that nobody knows, with the nearest spelling and all there are."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ValueError(f"{where}: unknown field {name!r}; {hint}known are {', '.join(known)}")


def shorten(value: object, width: int = 80) -> str:
    """Returns the repr of `value` cut to `width` characters, for messages."""
    text = repr(value)
    return text if len(text) <= width else text[: width - 3] + "..."


def check_whole(what: str, value: object, least: int) -> None:
    """Refuses what is no whole number >= `least`; `what` is how the message calls it."""
    if type(value) is not int or value < least:
        raise ValueError(f"{what} must be a whole number >= {least}, got {value!r}")
