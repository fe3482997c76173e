"""Files that are whole or not there, and that others may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

import pytest

from zephon.cachefiles import replace_any_file, replace_file, write_atomically


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    write_atomically(tmp_path / "deep" / "a.json", "one")
    write_atomically(tmp_path / "deep" / "a.json", "two")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.json"]
    assert (tmp_path / "deep" / "a.json").read_text() == "two"


def test_a_file_whose_writing_fails_leaves_the_one_before_and_nothing_beside_it(tmp_path: Path) -> None:
    def fail(target: BinaryIO) -> None:
        target.write(b"half")
        raise KeyboardInterrupt

    write_atomically(tmp_path / "a.json", "one")
    with pytest.raises(KeyboardInterrupt):
        replace_any_file(tmp_path / "a.json", fail)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["one"]


def test_files_of_a_shared_folder_can_be_read_by_those_whom_the_umask_lets(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "catalogue.json", "{}")
        replace_file(tmp_path / "chunk.spool", lambda target: target.write(b"text"), sync=False)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o640}
