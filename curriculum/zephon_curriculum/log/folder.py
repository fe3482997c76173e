"""A curriculum log as files: `000000.json`, `000001.json`, ..., with the big things beside them by hash.

Upstream: the run and whoever proposes. Downstream: `store.py`. Every entry is a file of its own that exactly
one writer creates and nobody changes; who comes second takes the next number.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from zephon import ScheduleTable, StateError
from zephon_curriculum.log.amend import Blobs, Document
from zephon_curriculum.log.entries import (
    Base,
    Body,
    Entry,
    Proposal,
    RecipeChange,
    UnfinishedError,
    broken,
    make_entry,
    read_entry,
    unfinished,
)
from zephon_curriculum.log.held import Held
from zephon_curriculum.log.ops import Replace, SkipDocuments
from zephon_curriculum.log.store import Store, explaining, open_store, probe

FOLDER = "curriculum"
"""The log's folder in a run folder."""
ENTRY = re.compile(r"\d{6,}\.json")
TABLES, DOCUMENTS = "tables", "documents"
WAIT_S = 0.05
MAX_WAITS = 40
"""How often, and how long apart, a file is read again that another writer has not written to its end."""


class CurriculumLog:
    """The log in one folder, at a path or an fsspec URL."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        """Reads nothing yet."""
        self.url = os.fspath(url)
        self._store: Store = open_store(self.url)

    @property
    def exists(self) -> bool:
        """Returns whether there is an entry, be it not the first: such a log is broken, and no new one."""
        return any(map(ENTRY.fullmatch, self._store.names()))

    def check_run_folder(self) -> None:
        """Raises StateError where this is the log of a run folder that does not exist."""
        run, _, name = self.url.rpartition("/")
        if name == FOLDER and "://" not in run and not Path(run).exists():
            raise StateError.explained(
                f"run folder {run!r} does not exist",
                got="no such folder",
                rule="a run makes its folder, and its curriculum log there, when it starts",
                cure="give the folder of a run that was started, or start one with this `run_folder`",
            )

    def probe(self) -> None:
        """Raises StateError where the storage does not create files exclusively."""
        probe(self._store, self.url)

    def hold(self) -> Held | None:
        """Returns the lock of the run that follows the log, where the storage has locks; see `held.py`."""
        with self.writing():
            return self._store.hold()

    def writing(self) -> AbstractContextManager[None]:
        """Gives a part of the program in which a write that the storage refuses is explained to people."""
        return explaining(
            f"curriculum log {self.url!r} cannot be written",
            rule="all that is said in a log is a new file in its folder, whole or not there",
            cure="make room there, or let this user create files in it, and try again",
        )

    def reading(self) -> AbstractContextManager[None]:
        """Gives a part of the program in which storage that gives no answer is explained to people."""
        return explaining(
            f"curriculum log {self.url!r} cannot be read",
            rule="a start and a proposal stand on all that the log says",
            cure="bring the storage back, or let this user read the folder, and try again",
        )

    def read(self) -> list[Entry]:
        """Returns all entries, oldest first, the chain verified; StateError names the file that breaks it.

        A gap, a number twice, an edited, foreign or cut-off file: nothing is passed over but hidden files.
        """
        names = [name for name in self._store.names() if not name.startswith(".")]
        foreign = [name for name in names if not ENTRY.fullmatch(name) and name not in (TABLES, DOCUMENTS)]
        if foreign:
            raise broken(
                self._where(foreign[0]), "a file that zephon does not write", "a log has entries only"
            )
        found = sorted((name for name in names if ENTRY.fullmatch(name)), key=lambda n: (int(n[:-5]), n))
        entries, previous = list[Entry](), ""
        last = max((int(name[:-5]) for name in found), default=-1)
        for number in range(last + 1):
            name = _name(number)
            if self._store.read(name) is None:  # a listing may lack what came while it was made
                raise broken(self._where(name), "no such file", "entries are numbered without a gap")
            data = self._whole(name, is_last=number == last)
            entries.append(read_entry(data, number, previous, self._where(name)))
            previous = entries[-1].hash
        if twice := [name for name in found if name != _name(int(name[:-5]))]:
            raise broken(self._where(twice[0]), "a number twice", "every entry has one file")
        return entries

    def read_new(self, number: int, previous: str) -> tuple[list[Entry], UnfinishedError | None]:
        """Returns the entries from `number` on, which follow the one with the hash `previous`.

        And the error of a file after them that is not written to its end, which is left for the next time.
        Where there is nothing new it costs two attempts to read a file: StateError where the log itself is
        gone.
        """
        entries: list[Entry] = []
        while (data := self._store.read(_name(number))) is not None:
            if not data.endswith(b"\n"):
                return entries, unfinished(self._where(_name(number)))
            entries.append(read_entry(data, number, previous, self._where(_name(number))))
            number, previous = number + 1, entries[-1].hash
        if number and self._store.read(newest := _name(number - 1)) is None:
            raise broken(self._where(newest), "no such file", "a run keeps the log that it follows")
        return entries, None

    def append(
        self, body: Body, number: int, previous: str, check: Callable[[Entry], None] | None = None
    ) -> list[Entry]:
        """Writes an entry as the newest, from `number` on; returns what others wrote there first, and it.

        What somebody wrote there in the very same words will do. `check` is called with each entry of others,
        and ends the attempt by raising.
        """
        others: list[Entry] = []
        while True:
            entry = make_entry(number, previous, body)
            if self._store.create(_name(number), entry.to_bytes()):
                return [*others, entry]
            where = self._where(_name(number))
            first = read_entry(self._whole(_name(number), is_last=True), number, previous, where)
            if first.hash == entry.hash:  # maybe by this very call, although the storage said that it failed
                return [*others, first]
            others.append(first)
            if check is not None:
                check(first)
            number, previous = number + 1, first.hash

    def _whole(self, name: str, *, is_last: bool) -> bytes:
        """Returns what a file holds, once it is written to its end."""
        data = read_until(self._store, name, b"\n")
        if data is not None and data.endswith(b"\n"):
            return data
        if is_last:
            raise unfinished(self._where(name))
        raise broken(self._where(name), "a file without its end", "an entry is written whole")

    def _where(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"

    # Big things by hash -----------------------------------------------------------------------------------

    def put(self, blobs: Blobs) -> None:
        """Writes the big things that are not there, by their hashes."""
        for table in blobs.tables.values():
            self.put_table(table)
        for documents in blobs.documents.values():
            self.put_documents(documents)

    def put_table(self, table: ScheduleTable) -> str:
        """Writes a schedule's table, where it is not there, and returns its hash."""
        return self._put(TABLES, "json", _table_bytes(table))

    def put_documents(self, documents: Iterable[Document]) -> str:
        """Writes a list of documents, where it is not there, and returns its hash."""
        return self._put(DOCUMENTS, "jsonl", _documents_bytes(documents))

    def _put(self, folder: str, suffix: str, data: bytes) -> str:
        sha = hashlib.sha256(data).hexdigest()
        name = f"{folder}/{sha}.{suffix}"
        if not self._store.create(name, data) and read_until(self._store, name, data) != data:
            self._store.remove(name)  # a writer that was killed left a part: what is named so is `data` only
            self._store.create(name, data)
        return sha

    def raw_blobs(self, entries: Sequence[Entry]) -> dict[str, str]:
        """Returns the text of each big thing that entries name, by its file; without those not as written."""
        found = {}
        for name in sorted({name for entry in entries for name in blob_names(entry.body)}):
            data = self._store.read(name)
            if data is not None and hashlib.sha256(data).hexdigest() == Path(name).stem:
                found[name] = data.decode(errors="replace")
        return found

    def copy_to(self, other: CurriculumLog, entries: Sequence[Entry]) -> None:
        """Writes entries, with what they name, into an empty log, byte for byte."""
        for name, text in self.raw_blobs(entries).items():
            other._store.create(name, text.encode())
        for entry in entries:
            other._store.create(_name(entry.number), entry.to_bytes())


def read_until(store: Store, name: str, end: bytes) -> bytes | None:
    """Returns what a file holds, once it has the `end`, or when its writer took too long."""
    for _ in range(MAX_WAITS):
        data = store.read(name)
        if data is not None and data.endswith(end):
            break
        time.sleep(WAIT_S)
    return data


def _table_bytes(table: ScheduleTable) -> bytes:
    return (json.dumps(table.to_json(), separators=(",", ":")) + "\n").encode()


def _documents_bytes(documents: Iterable[Document]) -> bytes:
    return "".join(json.dumps(document) + "\n" for document in sorted(set(documents))).encode()


def table_hash(table: ScheduleTable) -> str:
    """Returns the hash under which `put_table` writes a table."""
    return hashlib.sha256(_table_bytes(table)).hexdigest()


def documents_hash(documents: Iterable[Document]) -> str:
    """Returns the hash under which `put_documents` writes a list."""
    return hashlib.sha256(_documents_bytes(documents)).hexdigest()


def blob_names(body: Body) -> list[str]:
    """Returns the files that an entry names by hash."""
    if isinstance(body, Base | RecipeChange):
        return [f"{TABLES}/{body.table}.json"]
    if not isinstance(body, Proposal):
        return []
    tables = [f"{TABLES}/{op.schedule}.json" for op in body.ops if isinstance(op, Replace)]
    return tables + [f"{DOCUMENTS}/{op.documents}.jsonl" for op in body.ops if isinstance(op, SkipDocuments)]


def read_blobs(raw: dict[str, str]) -> Blobs:
    """Returns what `raw_blobs` found as values; without those that zephon did not write."""
    tables, documents = {}, {}
    for name, text in raw.items():
        sha = Path(name).stem
        with contextlib.suppress(ValueError, TypeError, KeyError, IndexError, RecursionError):
            if name.startswith(TABLES):
                tables[sha] = ScheduleTable.from_json(json.loads(text))
            else:
                lines = (json.loads(line) for line in text.splitlines())
                documents[sha] = tuple((str(d), str(f), int(r)) for d, f, r in lines)
    return Blobs(tables, documents)


def log_of(run: str | os.PathLike[str]) -> CurriculumLog:
    """Returns the log of a run folder, or that in a folder which is itself one."""
    url = os.fspath(run).rstrip("/")
    itself = CurriculumLog(url)
    return itself if itself.exists else CurriculumLog(f"{url}/{FOLDER}")


def _name(number: int) -> str:
    return f"{number:06d}.json"
