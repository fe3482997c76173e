"""A log whose storage fails: files half written, missing, refused; each is named, nothing is made worse."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.helpers import digests, open_small
from tests.log_cases import STAGES, Chase, final_table, propose, recipe, run, verdict, with_recipe
from zephon import StateError
from zephon_curriculum.controllers import protocol
from zephon_curriculum.log import store
from zephon_curriculum.log.entries import Accepted
from zephon_curriculum.log.folder import CurriculumLog
from zephon_curriculum.log.history import History
from zephon_curriculum.log.propose import Request, make_draft
from zephon_curriculum.run import Run

OPENED = open_small(recipe())
HALF = b'{\n "number": 1,\n "previous": "'
REMOVE = r"000001.json is not written to its end\n(.*\n)*  cure: .*remove \S*000001.json"


def listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon_curriculum.log.folder.WAIT_S", 0.0)


# A file that is not written to its end ----------------------------------------------------------------------


@pytest.mark.parametrize("half", [b"", HALF], ids=["empty", "half"])
def test_a_last_file_without_its_end_is_named_with_its_cure_and_then_all_goes_on(
    half: bytes, tmp_path: Path
) -> None:
    with run(OPENED, tmp_path):
        pass
    path = tmp_path / "000001.json"
    path.write_bytes(half)
    for attempt in (
        lambda: propose(tmp_path, at_step=9, retire=("web",)),
        lambda: History.read(CurriculumLog(tmp_path)),
        lambda: run(OPENED, tmp_path).__enter__(),
    ):
        before = listing(tmp_path)
        with pytest.raises(StateError, match=REMOVE):
            attempt()
        assert listing(tmp_path) == before
    path.unlink()
    with run(OPENED, tmp_path) as ranks:
        entry = propose(tmp_path, at_step=9, retire=("web",))
        ranks.steps(1)
    assert isinstance(verdict(tmp_path, entry), Accepted)


def test_a_file_without_its_end_amid_the_log_is_brought_back_and_not_removed(tmp_path: Path) -> None:
    with run(OPENED, tmp_path) as ranks:
        propose(tmp_path, at_step=9, retire=("web",))
        ranks.steps(1)
    path = tmp_path / "000001.json"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(
        StateError, match=r"000001\.json breaks the chain\n(.*\n)*  cure: bring the files back"
    ):
        CurriculumLog(tmp_path).read()


def test_a_run_goes_on_beside_a_file_without_its_end_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A verdict and a controller's decisions wait for the file to go; all ranks go on meanwhile."""
    caplog.set_level(logging.WARNING, "zephon")
    monkeypatch.setattr(protocol, "find_plugin", lambda role, kind: lambda config, context: Chase())
    steered = replace(OPENED, recipe=replace(OPENED.recipe, controller={"kind": "chase"}))
    with run(steered, tmp_path, world=2) as ranks:
        found = ranks.steps(1)
        entry = propose(tmp_path, at_step=14, retire=("web",))
        path = tmp_path / "000002.json"
        path.write_bytes(HALF)
        for step in range(1, 11):
            if step == 8:
                path.unlink()
            losses = {"web": 3.0, "code": 2.0, "math": 1.5}
            ranks.updates[0].observe(step, losses, dict.fromkeys(losses, 0))
            found += ranks.steps(1)
        found += ranks.steps(6)
    assert verdict(tmp_path, entry) == Accepted(proposal=entry.number, step=8, from_step=14)
    assert [d.step for d in History.read(CurriculumLog(tmp_path)).decisions()] == [9, 12]
    assert found == digests(replace(OPENED, table=final_table(tmp_path)), 17)
    told = [record.message for record in caplog.records if "curriculum log" in record.message]
    assert len(told) == 1
    assert "000002.json is not written to its end" in told[0]


# A first file that is not there -----------------------------------------------------------------------------


def test_a_log_without_its_first_entry_is_refused_and_not_begun_anew(tmp_path: Path) -> None:
    with run(OPENED, tmp_path) as ranks:
        propose(tmp_path, at_step=9, retire=("web",))
        ranks.steps(1)
    (tmp_path / "000000.json").unlink()
    before = listing(tmp_path)
    with pytest.raises(StateError, match=r"000000\.json breaks the chain\n  got:  no such file"):
        run(OPENED, tmp_path).__enter__()
    assert listing(tmp_path) == before


def test_a_run_whose_first_entry_is_gone_is_not_taken_for_one_without_a_log(tmp_path: Path) -> None:
    folder = tmp_path / "curriculum"
    with run(OPENED, folder) as ranks:
        propose(folder, at_step=9, retire=("web",))
        ranks.steps(1)
    (folder / "000000.json").unlink()
    with pytest.raises(StateError, match=r"000000\.json breaks the chain"):
        _ = Run(tmp_path, recipe()).table


# Storage that refuses ---------------------------------------------------------------------------------------


class Refusing(MemoryFileSystem):
    """A file system that may be full or read-only: it takes so many bytes, then none."""

    protocol = "refusing"
    cachable = False
    store: dict[str, Any] = {}  # noqa: RUF012 - as fsspec has it
    pseudo_dirs = [""]  # noqa: RUF012
    room: int | None = None

    def open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        if Refusing.room is None or "r" in mode:
            return super().open(path, mode, **more)
        if Refusing.room == 0:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return _Full(super().open(path, mode, **more), Refusing.room)


class _Full:
    """A file that is there from the moment it is opened, and takes a part of what is written."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def __enter__(self) -> _Full:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        self._file.write(data[: self._room])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    fsspec.register_implementation("refusing", Refusing, clobber=True)
    monkeypatch.setattr(Refusing, "room", None)
    yield f"refusing://{tmp_path.name}/curriculum"
    Refusing.store.clear()


ROOMS = pytest.mark.parametrize(
    ("room", "says"),
    [(0, "Read-only file system"), (5, "No space left on device")],
    ids=["read-only", "full"],
)


@ROOMS
def test_a_proposal_says_that_the_folder_takes_nothing(
    room: int, says: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = (("web", "web", 3),)
    with run(OPENED, url, poll_s=0.0) as ranks:
        ranks.steps(1)
        before = dict(Refusing.store)
        monkeypatch.setattr(Refusing, "room", room)
        for given in ({"retire": ("web",)}, {"skip_documents": documents}):
            with pytest.raises(StateError, match=f"{url}.* cannot be written\n  got:  .*{says}"):
                propose(url, at_step=9, **given)
        make_draft(CurriculumLog(url), Request(at_step=9, skip_documents=documents, reason="x"))
        assert dict(Refusing.store) == before
        monkeypatch.setattr(Refusing, "room", None)
        entry = propose(url, at_step=9, retire=("web",))
        ranks.steps(1)
    assert isinstance(verdict(url, entry), Accepted)


@ROOMS
def test_a_run_goes_on_while_its_folder_takes_nothing_and_says_so_once(
    room: int, says: str, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "zephon")
    with run(OPENED, url, world=2, poll_s=0.0) as ranks:
        found = ranks.steps(1)
        entry = propose(url, at_step=9, retire=("web",))
        before = dict(Refusing.store)
        monkeypatch.setattr(Refusing, "room", room)
        found += ranks.steps(4)
        assert dict(Refusing.store) == before  # not a half entry
        monkeypatch.setattr(Refusing, "room", None)
        found += ranks.steps(6)
    assert verdict(url, entry) == Accepted(proposal=entry.number, step=5, from_step=9)
    assert found == digests(replace(OPENED, table=final_table(url)), 11)
    told = [record.message for record in caplog.records]
    assert [says in message for message in told] == [True]


@ROOMS
def test_a_start_in_a_folder_that_takes_nothing_is_refused(
    room: int, says: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Refusing, "room", room)
    with pytest.raises(StateError, match=f"cannot be written\n  got:  .*{says}"):
        run(OPENED, url, poll_s=0.0).__enter__()
    assert not Refusing.store


def test_an_edited_recipe_that_cannot_be_written_down_ends_the_launch(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins where the run goes on, so that it cannot wait for a later step as a verdict can."""
    with run(OPENED, url, poll_s=0.0) as ranks:
        ranks.steps(2)
        state = ranks.state()
    edited = with_recipe(OPENED, recipe({**STAGES, 5: {"web": 0, "code": 1, "math": 3}}))
    with run(edited, url, state, world=2, poll_s=0.0) as ranks:
        monkeypatch.setattr(Refusing, "room", 0)
        for loader in ranks.loaders:
            with pytest.raises(StateError, match=r"cannot be written\n  got:  .*Read-only file system"):
                next(loader)
    assert [entry.body.kind for entry in CurriculumLog(url).read()] == ["base"]


def test_a_folder_without_hard_links_that_is_full_keeps_no_half_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(store.NO_LINKS[0], "no links here")

    calls: list[int] = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:  # of the file itself; the first is of the temporary one
            os.ftruncate(descriptor, 9)
            raise OSError(errno.ENOSPC, "No space left on device")

    with run(OPENED, tmp_path) as ranks:
        ranks.steps(1)
    monkeypatch.setattr(store.os, "link", no_links)
    place = store.LocalStore(str(tmp_path))
    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        place.create("000001.json", HALF)
    assert sorted(listing(tmp_path)) == [".lock", "000000.json"]


def test_a_start_and_a_proposal_say_that_the_storage_is_away(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> bytes:
        raise OSError("SlowDown")

    with run(OPENED, url, poll_s=0.0) as ranks:
        ranks.steps(1)
        monkeypatch.setattr(Refusing, "cat_file", away)
        for asks in (
            lambda: propose(url, at_step=9, retire=("web",)),
            lambda: run(OPENED, url, poll_s=0.0).__enter__(),
        ):
            with pytest.raises(StateError, match=f"{url}.* cannot be read\n  got:  SlowDown\n"):
                asks()


def test_a_look_at_storage_that_is_away_is_no_hang(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> bytes:
        raise OSError("the share is away")

    with run(OPENED, url, poll_s=0.0) as ranks:
        ranks.steps(1)
        monkeypatch.setattr(Refusing, "cat_file", away)
        began = time.monotonic()
        assert len(ranks.steps(3)) == 3
    assert time.monotonic() - began < 30  # by the limits of a file system it would be minutes
