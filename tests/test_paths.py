"""Tests of `zephon.paths`: which files an entry names, and in which order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from zephon.errors import DataError
from zephon.paths import list_files


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def names(folder: Path, *entries: str) -> list[str]:
    return [file.name for file in list_files(entries, folder)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make(tmp_path / "data", "c", "a", "b", "a10", "a2", "sub/d", "Z", "sub2/deep/e")
    return tmp_path


# Golden orders: edit only when you mean to break resume.
IN_ORDER = ["Z", "a", "a10", "a2", "b", "c", "sub/d", "sub2/deep/e"]


@pytest.mark.parametrize("entry", ["data", "data/", "./data", "data/../data", "data/**", "data/*"])
def test_files_come_in_byte_order_of_their_names(data: Path, entry: str) -> None:
    assert names(data, entry) == IN_ORDER


def test_the_order_of_a_listing_does_not_matter(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listdir, scandir = os.listdir, os.scandir

    class Reversed:
        def __init__(self, path: str) -> None:
            with scandir(path) as entries:
                self.entries = sorted(entries, key=lambda entry: entry.name, reverse=True)

        def __enter__(self) -> Iterator[os.DirEntry[str]]:
            return iter(self.entries)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(os, "listdir", lambda path: sorted(listdir(path), reverse=True))
    monkeypatch.setattr(os, "scandir", Reversed)
    assert names(data, "data") == IN_ORDER
    assert names(data, "data/**") == IN_ORDER


def test_a_list_is_ordered_by_entry_first(data: Path) -> None:
    assert names(data, "data/sub2", "data/c", "data/a*") == ["deep/e", "c", "a", "a10", "a2"]
    assert [file.entry for file in list_files(["data/sub2", "data/c", "data/a*"], data)] == [0, 1, 2, 2, 2]


def test_names_start_at_the_wildcard_free_folder(data: Path) -> None:
    assert names(data, "data/sub*/**/e") == ["sub2/deep/e"]
    assert names(data, "data/sub2/*/e") == ["deep/e"]
    assert names(data, "data/sub2/deep/e") == ["e"]
    assert names(data, "data/s?b") == ["sub/d"]
    assert names(data, "data/[ab]") == ["a", "b"]


def test_names_are_compared_as_utf_8_bytes(tmp_path: Path) -> None:
    make(tmp_path, "\uffee", "\U0001f600", "z", "\u00e9", "a/b", "a-b")
    assert names(tmp_path, ".") == ["a-b", "a/b", "z", "\u00e9", "\uffee", "\U0001f600"]


def test_a_file_says_where_it_is_and_how_large(data: Path) -> None:
    [file] = list_files(["data/a10"], data)
    assert file.path == str(data / "data/a10")
    assert file.size_bytes == 3
    assert file.mtime_ns == os.stat(file.path).st_mtime_ns


def test_hidden_and_underscored_names_are_left_out(tmp_path: Path) -> None:
    make(tmp_path, "x/a", "x/.hidden", "x/_SUCCESS", "x/_temporary/b", "x/.git/c")
    for entry in ("x", "x/*", "x/**", "*", "**/*"):
        assert [os.path.basename(name) for name in names(tmp_path, entry)] == ["a"]


def test_hidden_and_underscored_names_can_be_spelled_out(tmp_path: Path) -> None:
    make(tmp_path, "_x/a", "_x/_part-0", "_x/_part-1")
    assert names(tmp_path, "_x") == ["a"]
    assert names(tmp_path, "_x/_part-1") == ["_part-1"]
    assert names(tmp_path, "_x/_part-*") == ["_part-0", "_part-1"]


def test_a_name_with_wildcards_may_be_a_plain_name(tmp_path: Path) -> None:
    make(tmp_path, "a[1]", "a1")
    assert names(tmp_path, "a[1]") == ["a[1]"]


def test_variables_and_the_home_folder_are_expanded(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", str(data / "data"))
    monkeypatch.setenv("HOME", str(data))
    assert names(Path("/"), "${WHERE}/sub") == ["d"]
    assert names(Path("/"), "~/data/sub") == ["d"]


def test_an_unset_variable_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    with pytest.raises(DataError, match=r"'\$\{NOWHERE\}/x' uses \$\{NOWHERE\}(.|\n)*is not set"):
        names(data, "${NOWHERE}/x")


@pytest.mark.parametrize("url", ["s3://bucket/x.jsonl", "https://x.org/a", "file:///a"])
def test_a_url_is_refused(data: Path, url: str) -> None:
    with pytest.raises(DataError, match=r"is a URL(.|\n)*local or mounted"):
        names(data, url)


def test_a_file_reached_twice_is_refused_with_both_entries(data: Path) -> None:
    with pytest.raises(DataError) as caught:
        names(data, "data/*", "data/sub/d")
    assert str(caught.value) == (
        f"{data}/data/sub/d is reached twice\n"
        "  got:  as sub/d by 'data/*' and as d by 'data/sub/d'\n"
        "  rule: a file belongs to a dataset once\n"
        "  cure: make the entries disjoint"
    )


def test_a_file_reached_twice_through_a_link_is_refused(data: Path) -> None:
    (data / "data" / "link").symlink_to(data / "data" / "b")
    with pytest.raises(DataError, match="as b by 'data' and as link by 'data'"):
        names(data, "data")


def test_links_to_files_and_folders_are_followed(data: Path) -> None:
    (data / "view").mkdir()
    (data / "view" / "one").symlink_to(data / "data" / "b")
    (data / "view" / "more").symlink_to(data / "data" / "sub2")
    assert names(data, "view") == ["more/deep/e", "one"]


def test_a_folder_that_contains_itself_is_refused(data: Path) -> None:
    (data / "data" / "sub" / "loop").symlink_to(data / "data")
    with pytest.raises(DataError, match="contains itself"):
        names(data, "data")


def test_a_broken_link_is_refused(data: Path) -> None:
    (data / "data" / "gone").symlink_to(data / "nowhere")
    for entry in ("data", "data/gone"):
        with pytest.raises(DataError, match=r"data/gone cannot be read\n  got:  No such file"):
            names(data, entry)


def test_what_is_no_regular_file_is_refused(data: Path) -> None:
    os.mkfifo(data / "data" / "pipe")
    with pytest.raises(DataError, match=r"pipe cannot be read\n  got:  not a regular file"):
        names(data, "data")


@pytest.mark.parametrize("entry", ["data/x/y.jsonl", "data/*.jsonl", "data/x/**/*.jsonl"])
def test_an_entry_without_files_says_what_is_there(data: Path, entry: str) -> None:
    with pytest.raises(DataError) as caught:
        names(data, "data/a", entry)
    message = str(caught.value)
    assert message.startswith(
        f"path '{entry}' names no file\n  got:  nothing at {data}/{entry}; {data}/data holds"
    )
    assert "Z, a, a10, a2, b, ... (8 in all)" in message


def test_an_empty_folder_is_an_entry_without_files(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make(tmp_path / "empty", "_SUCCESS")
    with pytest.raises(DataError, match="holds _SUCCESS"):
        names(tmp_path, "empty")


def test_a_folder_named_like_a_pattern_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "run[1]"
    folder.mkdir()
    (folder / "a.jsonl").write_text("{}\n")
    assert [file.name for file in list_files(["*.jsonl"], folder)] == ["a.jsonl"]
