"""The log's files: one winner for each number, a chain that shows every change, on any storage."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from zephon import ScheduleTable, StateError
from zephon_curriculum.log import folder, store
from zephon_curriculum.log.entries import Base, Entry, Proposal, make_entry, read_entry
from zephon_curriculum.log.folder import CurriculumLog, documents_hash, read_blobs
from zephon_curriculum.log.ops import Add, Points, Retire, Scale, SkipDocuments, SkipSteps, Weights, Withdraw
from zephon_curriculum.log.store import LocalStore, RemoteStore, open_store, probe

TABLE = ScheduleTable(("web", "code"), (0, 5), ((1 << 19, 1 << 19), (1 << 20, 0)))


def base(log: CurriculumLog) -> Base:
    sha = log.put_table(TABLE)
    return Base(names=TABLE.names, lead_steps=2, table=sha, fingerprint="f", version="0")


def proposal(reason: str = "why", at_step: int = 9) -> Proposal:
    ops = (Weights((("web", "6"), ("code", "1/3"))), Scale((("web", "1.1"),)), Points((("web", "-2.5"),)))
    more = (Retire("web"), Withdraw(3), SkipSteps(9, 12), Add("prose", {"path": ["a", "b"], "limit": 3}))
    return Proposal(at_step=at_step, until=None, ops=ops + more, reason=reason, author="me")


def written(url: str | Path, number: int = 3) -> CurriculumLog:
    log = CurriculumLog(url)
    log.append(base(log), 0, "")
    for i in range(1, number):
        entries = log.read()
        log.append(proposal(f"reason {i}"), i, entries[-1].hash)
    return log


@pytest.fixture(params=["local", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "log") if request.param == "local" else f"memory://{tmp_path.name}/log"


def test_entries_read_back_as_they_were_written(url: str) -> None:
    log = written(url, 4)
    entries = log.read()
    assert [entry.number for entry in entries] == [0, 1, 2, 3]
    assert entries[2].body == proposal("reason 2")
    assert [entry.previous for entry in entries] == ["", *(entry.hash for entry in entries[:-1])]
    assert read_blobs(log.raw_blobs(entries)).tables == {entries[0].body.table: TABLE}  # type: ignore[union-attr]


def test_only_new_entries_are_read_at_a_look(url: str) -> None:
    log = written(url, 2)
    entries = log.read()
    assert log.read_new(2, entries[-1].hash) == ([], None)
    log.append(proposal("third"), 2, entries[-1].hash)
    assert [entry.number for entry in log.read_new(2, entries[-1].hash)[0]] == [2]
    assert [entry.number for entry in log.read_new(0, "")[0]] == [0, 1, 2]


def test_who_comes_second_takes_the_next_number(url: str) -> None:
    log = written(url, 2)
    head = log.read()[-1].hash
    log.append(proposal("first"), 2, head)
    seen: list[Entry] = []
    found = log.append(proposal("second"), 2, head, seen.append)
    assert [(e.number, e.body.reason) for e in found] == [(2, "first"), (3, "second")]  # type: ignore[union-attr]
    assert seen == found[:1]
    assert len(log.read()) == 4


def test_an_entry_that_was_written_although_an_error_came_back_is_not_written_twice(url: str) -> None:
    log = written(url, 2)
    head = log.read()[-1].hash
    for _ in range(2):
        assert [e.number for e in log.append(proposal("same"), 2, head)] == [2]
    assert len(log.read()) == 3


def race(url: str, name: str, count: int) -> None:
    log = CurriculumLog(url)
    for i in range(count):
        log.append(proposal(f"{name}{i}"), 1, log.read()[0].hash)


def test_writers_that_race_lose_nothing_and_break_nothing(tmp_path: Path) -> None:
    written(tmp_path, 1)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=race, args=(str(tmp_path), name, 12)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    entries = CurriculumLog(tmp_path).read()
    reasons = [entry.body.reason for entry in entries if isinstance(entry.body, Proposal)]
    assert sorted(reasons) == sorted(f"{name}{i}" for name in "abc" for i in range(12))
    for name in "abc":
        assert [r for r in reasons if r[0] == name] == [f"{name}{i}" for i in range(12)]
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def edit(path: Path) -> None:
    path.write_text(path.read_text().replace("reason 1", "reason 9"))


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def forge(path: Path) -> None:
    """An entry with a hash that fits its content, and is not what the next one follows."""
    path.write_bytes(
        make_entry(1, read_entry(path.read_bytes(), 1, None, "x").previous, proposal("new")).to_bytes()
    )


def renumber(path: Path) -> None:
    path.rename(path.with_name("0000001.json"))


def unknown_field(path: Path) -> None:
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"colour": "red"}) + "\n")


BREAKS: list[tuple[Callable[[Path], Any], str]] = [
    (edit, "000001.json breaks the chain\n.*\n  rule: no entry is edited"),
    (cut_off, "000001.json breaks the chain\n  got:  a file without its end"),
    (forge, "000002.json breaks the chain\n  got:  it follows"),
    (Path.unlink, "000001.json breaks the chain\n  got:  no such file"),
    (renumber, "000001.json breaks the chain\n  got:  no such file"),
    (unknown_field, "000001.json breaks the chain\n  got:  kind proposal: unknown field 'colour'"),
    (lambda path: path.with_name("notes.txt").write_text("x"), "notes.txt breaks the chain"),
]


@pytest.mark.parametrize(("change", "says"), BREAKS)
def test_a_log_that_was_changed_is_refused_by_file(
    change: Callable[[Path], Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zephon_curriculum.log.folder.WAIT_S", 0.0)
    log = written(tmp_path, 4)
    log.read()
    change(tmp_path / "000001.json")
    with pytest.raises(StateError, match=says):
        log.read()


def test_hidden_files_are_let_be(tmp_path: Path) -> None:
    log = written(tmp_path)
    (tmp_path / ".nfs0001").write_text("x")
    assert len(log.read()) == 3


def test_a_look_leaves_an_entry_that_is_not_written_to_its_end(tmp_path: Path) -> None:
    log = written(tmp_path, 3)
    head, path = log.read()[1].hash, tmp_path / "000002.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    found, unfinished = log.read_new(2, head)
    assert (found, "000002.json is not written to its end" in str(unfinished)) == ([], True)
    path.write_bytes(whole)
    assert len(log.read_new(2, head)[0]) == 1


def test_a_big_thing_that_was_changed_counts_as_missing(url: str) -> None:
    log = written(url, 1)
    sha = log.put_documents([("web", "b.jsonl", 3), ("web", "a.jsonl", 1), ("web", "a.jsonl", 1)])
    name, ops = f"documents/{sha}.jsonl", (SkipDocuments(sha, 2),)
    entry = make_entry(1, "", Proposal(at_step=9, until=None, ops=ops, reason="why", author="me"))
    assert read_blobs(log.raw_blobs([entry])).documents == {
        sha: (("web", "a.jsonl", 1), ("web", "b.jsonl", 3))
    }
    with fsspec.open(f"{url}/{name}", "wb") as file:
        file.write(b"[]\n")
    assert log.raw_blobs([entry]) == {}


@pytest.mark.parametrize("part", [b"", b'["web", "a.jsonl", 1]\n'], ids=["empty", "first-line"])
def test_a_big_thing_that_a_killed_writer_left_in_part_is_written_anew(
    part: bytes, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "WAIT_S", 0.0)
    log, documents = written(url, 1), (("web", "a.jsonl", 1), ("web", "b.jsonl", 3))
    sha = documents_hash(documents)
    log._store.create(f"documents/{sha}.jsonl", part)
    assert log.put_documents(documents) == sha
    ops = (SkipDocuments(sha, 2),)
    entry = make_entry(1, "", Proposal(at_step=9, until=None, ops=ops, reason="why", author="me"))
    assert read_blobs(log.raw_blobs([entry])).documents == {sha: documents}


# Storage ----------------------------------------------------------------------------------------------------


def test_exclusive_create_is_probed(url: str) -> None:
    CurriculumLog(url).probe()


class Overwriting(LocalStore):
    def create(self, name: str, data: bytes) -> bool:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return True


def test_storage_that_overwrites_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        StateError, match="cannot create a file exclusively\n  got:  creating twice gave True, True"
    ):
        probe(Overwriting(str(tmp_path)), "x")


class NoExclusive:
    """A file system that knows no mode xb."""

    def makedirs(self, path: str, exist_ok: bool) -> None: ...

    def open(self, path: str, mode: str) -> Any:
        raise ValueError(f"unknown mode {mode}")


def test_storage_without_the_mode_is_refused() -> None:
    with pytest.raises(
        StateError, match="cannot create a file exclusively\n  got:  ValueError: unknown mode xb"
    ):
        probe(RemoteStore(NoExclusive(), "x"), "x")


def test_a_folder_without_hard_links_creates_exclusively_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(store.NO_LINKS[0], "no links here")

    monkeypatch.setattr(store.os, "link", no_links)
    found = open_store(str(tmp_path))
    probe(found, "x")
    assert (found.create("a", b"1"), found.create("a", b"2"), found.read("a")) == (True, False, b"1")
