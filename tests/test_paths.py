"""Tests of `zephon.paths`: which files an entry names, and in which order."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.servers import http_server, hub_server, s3_server
from zephon.errors import DataError
from zephon.files import read_range
from zephon.paths import list_files, resolve


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


def test_a_file_url_is_a_local_path(data: Path) -> None:
    [file] = list_files([f"file://{data}/data/sub"], Path("/"))
    assert (file.path, file.name, file.is_remote) == (f"{data}/data/sub/d", "d", False)
    assert names(data, "file://data/sub") == ["d"]


@pytest.mark.parametrize("url", ["simplecache::s3://bucket/x", "zip://*.jsonl::file:///a.zip"])
def test_a_chain_of_file_systems_is_refused(data: Path, url: str) -> None:
    with pytest.raises(DataError, match=r"is a chain of file systems(.|\n)*one path or one URL"):
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
    assert message.endswith(f"correct the path; relative ones start at {data}")
    with pytest.raises(DataError, match=r"correct the path$"):
        names(data, f"{data}/{entry}")


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


@pytest.fixture
def memory() -> Iterator[Callable[..., None]]:
    """Returns what makes files in `memory://`; each holds its own name."""
    system = fsspec.filesystem("memory")

    def make(*paths: str) -> None:
        for path in paths:
            system.pipe(path, path.encode())

    yield make
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def test_urls_are_listed_by_the_rules_of_folders(memory: Callable[..., None]) -> None:
    memory(*(f"/data/{name}" for name in [*IN_ORDER, "_SUCCESS", ".git/c", "sub/_x/y", "_x/z"]))
    for entry in ("data", "data/", "data/**", "data/*"):
        assert names(Path("/"), f"memory://{entry}") == IN_ORDER
    assert names(Path("/"), "memory://data/sub2", "memory://data/c", "memory://data/a*") == [
        "deep/e", "c", "a", "a10", "a2",
    ]  # fmt: skip
    assert names(Path("/"), "memory://data/sub*/**/e") == ["sub2/deep/e"]
    assert names(Path("/"), "memory://data/sub2/*/e") == ["deep/e"]
    assert names(Path("/"), "memory://data/s?b") == ["sub/d"]
    assert names(Path("/"), "memory://data/[ab]") == ["a", "b"]
    assert names(Path("/"), "memory://data/_*") == ["_SUCCESS", "_x/z"]
    assert names(Path("/"), "memory://da*/sub*/d") == ["data/sub/d"]


@settings(max_examples=60)
@given(data=st.data())
def test_a_glob_over_a_url_reaches_what_it_reaches_on_a_disk(data: st.DataObject) -> None:
    part = st.sampled_from(["a", "b", "ab", ".a", "_a", "b.x"])
    paths = data.draw(st.lists(st.lists(part, min_size=1, max_size=3).map("/".join), min_size=1, max_size=6))
    wild = st.sampled_from(["*", "**", "a*", "?", "[ab]", "a", "_*", ".*", "b.*"])
    pattern = "/".join(data.draw(st.lists(wild, min_size=1, max_size=3)))
    assume("a/**" not in pattern)  # on a disk this reaches a file `a` too, by a quirk of Python's glob
    system = fsspec.filesystem("memory")
    with tempfile.TemporaryDirectory() as folder:
        kept = [p for p in dict.fromkeys(paths) if not any(other.startswith(f"{p}/") for other in paths)]
        make(Path(folder), *kept)
        for path in kept:
            system.pipe(f"/top/{path}", path.encode())
        try:
            assert listed(Path(folder), pattern) == listed(Path(folder), f"memory://top/{pattern}")
        finally:
            system.store.clear()
            system.pseudo_dirs[:] = [""]


def listed(folder: Path, entry: str) -> list[str]:
    """Returns the names, or nothing where the entry has no files."""
    try:
        return names(folder, entry)
    except DataError as error:
        assert "names no file" in str(error)  # noqa: PT017
        return []


def test_a_remote_file_says_what_the_server_says(memory: Callable[..., None]) -> None:
    memory("/data/a")
    [file] = list_files(["memory://data/a"], Path("/"))
    assert (file.path, file.name, file.size_bytes, file.mtime_ns) == ("memory://data/a", "a", 7, 0)
    assert file.is_remote
    [same] = list_files(["memory://data"], Path("/"))
    assert file.etag
    assert file == same


def test_variables_are_expanded_in_urls(memory: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    memory("/data/a")
    monkeypatch.setenv("WHERE", "data")
    assert names(Path("/"), "memory://${WHERE}/a") == ["a"]


def test_a_remote_file_reached_twice_is_refused(memory: Callable[..., None]) -> None:
    memory("/data/a")
    with pytest.raises(DataError, match=r"memory://data/a is reached twice\n  got:  as a by 'memory://data'"):
        names(Path("/"), "memory://data", "memory://data/a")


@pytest.mark.parametrize("entry", ["memory://nowhere", "memory://data/*.jsonl", "memory://data/x/y"])
def test_a_url_without_files_is_named(memory: Callable[..., None], entry: str) -> None:
    memory("/data/a")
    with pytest.raises(DataError, match=f"path '{re.escape(entry)}' names no file"):
        names(Path("/"), entry)


def test_files_on_the_web_are_named_one_by_one() -> None:
    with http_server({"x/a b.jsonl": b"12", "x/c": b"345"}) as server:
        entries = [f"{server.url}/x/c", f"{server.url}/x/a%20b.jsonl?token=hidden"]
        found = list_files(entries, Path("/"))
        assert [(file.name, file.size_bytes, file.entry) for file in found] == [
            ("c", 3, 0),
            ("a b.jsonl", 2, 1),
        ]
        assert len(server.switches.requests) == 2
        assert found[1].path.endswith("?token=hidden")
        assert "hidden" not in repr(found) + found[1].shown + found[1].etag
        with pytest.raises(DataError, match="names no file") as caught:
            names(Path("/"), f"{server.url}/gone?token=hidden")
        assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("path", ["", "x/", "x/*.jsonl", "x/[ab]"])
def test_folders_and_globs_on_the_web_are_refused(path: str) -> None:
    with pytest.raises(DataError, match=r"names no single file(.|\n)*cure: name each file"):
        names(Path("/"), f"https://example.org/{path}")


def test_many_files_on_the_web_are_looked_at_side_by_side() -> None:
    files = {f"{i:03}": b"x" for i in range(64)}
    with http_server(files) as server:
        server.switches.together = 8
        assert names(Path("/"), *(f"{server.url}/{name}" for name in files)) == list(files)
        assert server.gathered.is_set()


def test_s3_is_listed_without_a_request_for_each_file() -> None:
    with s3_server() as bucket:
        for i in range(30):
            bucket.put(f"x/{i:02}.jsonl", b"0123456789")
        bucket.put("x/sub/a.parquet", b"abc")
        bucket.put("x/sub/", b"")
        expected = [f"{i:02}.jsonl" for i in range(30)]
        for entry, wanted, num_requests in [
            ("x", [*expected, "sub/a.parquet"], 3),
            ("x/*.jsonl", expected, 1),
            ("x/**/*.parquet", ["sub/a.parquet"], 1),
            ("x/07.jsonl", ["07.jsonl"], 1),
        ]:
            bucket.switches.requests.clear()
            found = list_files([f"s3://data/{entry}"], Path("/"))
            assert [file.name for file in found] == wanted
            assert all(file.etag.startswith('etag "') for file in found)
            assert len(bucket.switches.requests) == num_requests
        bucket.put("x/30.jsonl", b"")
        assert len(names(Path("/"), "s3://data/x/*.jsonl")) == 31


HUB = "hf://datasets/owner/data"


def test_the_hub_is_read_at_the_commit_that_was_resolved_first() -> None:
    with hub_server() as hub:
        first = hub.commit({"a.jsonl": b"one", "data/b.jsonl": b"two"})
        pinned = resolve([HUB, f"{HUB}/data/*.jsonl", "local"], Path("/"), {})
        assert pinned == {HUB: first, f"{HUB}/data/*.jsonl": first}
        assert len(hub.switches.requests) == 1
        second = hub.commit({"a.jsonl": b"moved on"})
        assert resolve([HUB, f"{HUB}@main"], Path("/"), pinned) == {HUB: first, f"{HUB}@main": second}
        hub.switches.requests.clear()
        found = list_files([HUB], Path("/"), revisions=pinned)
        assert [(file.path, file.name) for file in found] == [
            (f"{HUB}@{first}/a.jsonl", "a.jsonl"),
            (f"{HUB}@{first}/data/b.jsonl", "data/b.jsonl"),
        ]
        assert not any("main" in request for request in hub.switches.requests)
        assert [read_range("d", file, 0, 9) for file in found] == [b"one", b"two"]
        [file] = list_files([f"{HUB}/a.jsonl"], Path("/"))
        assert read_range("d", file, 0, 99) == b"moved on"


def test_what_the_hub_does_not_have_is_named() -> None:
    with hub_server() as hub:
        hub.commit({"a": b"1"})
        with pytest.raises(DataError, match="names no file"):
            names(Path("/"), f"{HUB}/x")
        with pytest.raises(DataError, match="is not there"):
            names(Path("/"), f"{HUB}@nowhere")
        hub.token = "hidden"
        with pytest.raises(DataError, match=r"may not be read(.|\n)*HF_TOKEN"):
            names(Path("/"), HUB)
        with pytest.raises(DataError, match="names no repository"):
            names(Path("/"), "hf://datasets/owner")


def test_a_missing_package_and_an_unknown_scheme_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(DataError, match=r"gs:// cannot be read(.|\n)*pip install gcsfs"):
        names(Path("/"), "gs://bucket/x")
    with pytest.raises(DataError, match=r"nosuch:// cannot be read(.|\n)*correct the scheme"):
        names(Path("/"), "nosuch://bucket/x")


def test_a_folder_that_may_not_be_read_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: str) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", folder)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(DataError, match=r"(?s)dataset 'web': path 'data' cannot .*/data: Permission .*cure"):
        list_files(["data"], data, dataset="web")


def test_a_newline_in_a_name_is_shown_escaped(tmp_path: Path) -> None:
    (tmp_path / "a\nb").write_text("")
    [file] = list_files(["*"], tmp_path)
    assert file.shown == f"{tmp_path}/a\\nb"


def test_names_are_the_same_in_every_locale(tmp_path: Path) -> None:
    names = ["\u00e9.jsonl", "\u4f60.jsonl", "z.jsonl"]
    for name in names:
        (tmp_path / name).write_text('{"text": "x"}\n')
    program = (
        "import sys; from pathlib import Path; from zephon.paths import list_files\n"
        "print(sys.getfilesystemencoding(), ascii([f.name for f in list_files(['.'], Path(sys.argv[1]))]))"
    )
    for locale, encoding in (
        (dict.fromkeys(("PYTHONUTF8", "PYTHONCOERCECLOCALE"), "0"), "ascii"),
        ({}, "utf-8"),
    ):
        found = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)],
            env=os.environ | {"LC_ALL": "C"} | locale, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert found.stdout == f"{encoding} {sorted(names)!a}\n"
