"""Tests of `zephon.files`: bytes by range, whole files, and files that changed."""

from __future__ import annotations

import gzip
import io
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.servers import FileServer, http_server, s3_server
from zephon import retries
from zephon.errors import DataError
from zephon.files import check_file, open_file, read_range, stamped
from zephon.paths import DataFile, list_files

BYTES = bytes(range(256)) * 64


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        retries, "LIMITS", retries.Limits(tries=3, total_s=60, request_s=20, first_wait_s=0.01)
    )


@pytest.fixture
def server() -> Iterator[FileServer]:
    with http_server({"x": BYTES}) as server:
        yield server


@pytest.fixture(params=["local", "http"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> DataFile:
    """Returns a file of BYTES, on a disk and behind a server."""
    if request.param == "local":
        (tmp_path / "x").write_bytes(BYTES)
        return list_files(["x"], tmp_path)[0]
    server: FileServer = request.getfixturevalue("server")
    return list_files([f"{server.url}/x"], tmp_path)[0]


def change(file: DataFile, data: bytes, request: pytest.FixtureRequest) -> None:
    """Gives `file` other content."""
    if file.is_remote:
        request.getfixturevalue("server").files["x"] = data
    else:
        Path(file.path).write_bytes(data)
        os.utime(file.path, ns=(0, file.mtime_ns + 1))


@pytest.mark.parametrize(("start", "size"), [(0, 16), (1000, 300), (len(BYTES) - 4, 4), (7, 0), (0, 1 << 40)])
def test_a_range_is_what_was_asked_for(file: DataFile, start: int, size: int) -> None:
    assert read_range("d", file, start, size) == BYTES[start : start + size]


def test_a_range_ends_where_the_file_ends(file: DataFile) -> None:
    assert read_range("d", file, len(BYTES) - 4, 100) == BYTES[-4:]
    assert read_range("d", file, len(BYTES), 10) == b""
    assert read_range("d", file, len(BYTES) + 7, 10) == b""


@pytest.mark.parametrize(("start", "size"), [(-1, 4), (0, -1)])
def test_a_range_of_negative_numbers_is_refused(file: DataFile, start: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"must be >= 0, got"):
        read_range("d", file, start, size)


@pytest.mark.parametrize("data", [BYTES[1:], BYTES + b"x", BYTES[::-1], b""])
def test_a_changed_file_is_refused(file: DataFile, data: bytes, request: pytest.FixtureRequest) -> None:
    check_file("d", file)
    change(file, data, request)
    for refused in (lambda: check_file("d", file), lambda: read_range("d", file, 8, 8)):
        with pytest.raises(DataError, match=r"dataset 'd': .*/x changed during the run"):
            refused()


def test_a_missing_file_is_refused(file: DataFile) -> None:
    gone = replace(file, path=file.path + "y")
    for refused in (
        lambda: check_file("d", gone),
        lambda: read_range("d", gone, 0, 1),
        lambda: open_file("d", gone),
        lambda: stamped("d", gone),
    ):
        with pytest.raises(DataError, match=r"dataset 'd': .*/xy (cannot be opened|is not there)"):
            refused()


def test_stamps_are_taken_as_they_are(file: DataFile, request: pytest.FixtureRequest) -> None:
    bare = replace(file, mtime_ns=0, ctime_ns=0, etag="")
    assert stamped("d", bare) == file
    change(file, BYTES[1:], request)
    with pytest.raises(DataError, match=r"16,383 bytes, 16,384 when it was opened"):
        stamped("d", bare)


def test_a_file_is_read_as_a_file(file: DataFile) -> None:
    with open_file("d", file, block_bytes=1000) as opened:
        assert opened.read(10) == BYTES[:10]
        assert opened.seek(-4, io.SEEK_END) == len(BYTES) - 4
        assert opened.read(100) == BYTES[-4:]
        assert opened.seek(3000) == opened.tell() == 3000
        assert opened.read(2500) == BYTES[3000:5500]
        assert opened.seek(2, io.SEEK_CUR) == 5502
        assert opened.read() == BYTES[5502:]
        assert opened.read() == b""
    assert opened.closed
    with open_file("d", file) as opened:
        assert opened.read() == BYTES


def test_a_file_is_read_a_block_at_a_time(server: FileServer, tmp_path: Path) -> None:
    [file] = list_files([f"{server.url}/x"], tmp_path)
    server.switches.ranges.clear()
    with open_file("d", file, block_bytes=8192) as opened:
        while opened.read(100):
            pass
    # A look when it is opened, two blocks, a look at the end.
    assert server.switches.ranges == ["bytes=0-0", "bytes=0-8191", "bytes=8192-16383", "bytes=0-0"]


def test_a_file_that_changes_while_it_is_read_is_refused(
    file: DataFile, request: pytest.FixtureRequest
) -> None:
    opened = open_file("d", file, block_bytes=1024)
    assert opened.read(1024) == BYTES[:1024]
    change(file, BYTES[::-1], request)
    with pytest.raises(DataError, match="changed during the run"):
        opened.close()
    assert opened.closed


def test_an_opened_file_serves_arrow_and_decompression(tmp_path: Path) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": ["one", "two"]}), sink)
    with http_server({"a.parquet": sink.getvalue(), "b.gz": gzip.compress(BYTES)}) as server:
        table, packed = list_files([f"{server.url}/a.parquet", f"{server.url}/b.gz"], tmp_path)
        with open_file("d", table) as opened:
            assert pq.read_table(opened)["text"].to_pylist() == ["one", "two"]
        with open_file("d", packed) as opened, gzip.open(opened) as unpacked:
            assert unpacked.read() == BYTES


def test_s3_tells_a_changed_object_of_the_same_size(tmp_path: Path) -> None:
    with s3_server() as bucket:
        bucket.put("x", BYTES)
        [file] = list_files(["s3://data/x"], tmp_path)
        bucket.switches.requests.clear()
        assert read_range("d", file, 1000, 300) == BYTES[1000:1300]
        check_file("d", file)
        assert [line.split()[0] for line in bucket.switches.requests] == ["GET", "HEAD"]
        assert stamped("d", replace(file, etag="")) == file
        bucket.put("x", BYTES[::-1])
        with pytest.raises(DataError, match=r"s3://data/x changed during the run\n  got:  other content"):
            check_file("d", file)
        bucket.put("x", BYTES[:100])
        with pytest.raises(DataError, match=r"s3://data/x changed during the run"):
            read_range("d", file, 1000, 300)
        with pytest.raises(DataError, match=r"s3://data/x changed during the run"):
            read_range("d", file, 50, 100)


def test_a_server_without_stamps_is_told_by_a_sample(tmp_path: Path) -> None:
    with http_server({"x": BYTES, "y": b"short"}) as server:
        server.switches.stamps = False
        file, short = list_files([f"{server.url}/x", f"{server.url}/y"], tmp_path)
        assert file.etag == ""
        before = stamped("d", file)
        assert before == stamped("d", file) != file
        assert stamped("d", short).etag != before.etag
        check_file("d", before)
        assert read_range("d", before, 1, 2) == BYTES[1:3]
        for at in (0, len(BYTES) // 2, len(BYTES) - 1):
            server.files["x"] = BYTES[:at] + bytes([BYTES[at] ^ 1]) + BYTES[at + 1 :]
            assert stamped("d", file).etag != before.etag


def test_a_file_travels_to_other_processes(file: DataFile) -> None:
    assert pickle.loads(pickle.dumps(file)) == file
