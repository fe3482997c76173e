"""Tests of `zephon.readers.ranges` with records of JSON, and of the expansion beneath it."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers import http_server
from zephon import files
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.paths import list_files
from zephon.readers import RandomReader, Texts, expanded, open_reader
from zephon.readers.base import Origin
from zephon.readers.expanded import Expanding, cut
from zephon.readers.json_records import JsonlRecords
from zephon.readers.ranges import ByFile
from zephon.selection import select


def pack_gz(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def pack_zst(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


PACK: dict[str, Callable[[bytes], bytes]] = {".gz": pack_gz, ".zst": pack_zst, ".bz2": bz2.compress}
WORDS = ["one", "two \u00e9", "", "three\n", "four \U0001f600"]
LINES = [json.dumps({"text": word, "score": i}).encode() + b"\n" for i, word in enumerate(WORDS)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / "data" / name
    path.write_bytes(content)
    return path


def opened(folder: Path, **fields: Any) -> RandomReader:
    dataset = Dataset.from_path("web", "data", **fields)
    return open_reader(dataset, base=folder, cache=folder / "cache", spool_bytes=1 << 30)


def reader_of(folder: Path, **fields: Any) -> ByFile:
    dataset = Dataset.from_path("web", "data", **fields)
    files = tuple(list_files(dataset.paths, folder))
    return ByFile(Origin(dataset=dataset, files=files, cache=folder / "cache"), JsonlRecords(dataset))


def read_all(reader: RandomReader) -> Texts:
    counts = np.asarray(reader.chunks().num_documents)
    chunk = np.repeat(np.arange(len(counts)), counts)
    record = np.concatenate([np.arange(count) for count in counts.tolist()])
    return reader.texts(chunk, record, 1 << 60)


@pytest.mark.parametrize("suffix", PACK)
def test_a_cut_file_is_damaged_wherever_it_is_cut(data: Path, suffix: str) -> None:
    pack = PACK[suffix]
    members = [pack(b"".join(LINES[:2]) + LINES[2][:5]), pack(LINES[2][5:] + b"".join(LINES[3:]))]
    whole = b"".join(members)
    for size in range(len(whole)):
        path = write(data, f"a.jsonl{suffix}", whole[:size])
        if size == len(members[0]):  # nothing tells that another member should follow
            assert read_all(opened(data)).texts[:2] == WORDS[:2]
            continue
        [file] = list_files(["data"], data)
        expanding = Expanding("web", file, skip=True)
        assert (b"".join(LINES) + b"\0").startswith(b"".join(expanding).removesuffix(b"\0"))
        assert expanding.fault is not None
        if size % 5 and abs(size - len(members[0])) > 2:
            continue
        with pytest.raises(DataError, match="is damaged") as caught:
            opened(data)
        message = str(caught.value)
        assert message.startswith(f"dataset 'web': {path} is damaged\n")
        assert message.count("\n") == 3
        found = read_all(opened(data, on_error="skip"))
        *good, bad = found.texts
        assert (good, bad) == (WORDS[: len(good)], "")
        assert [(i, fault.kind) for i, fault in found.faults] == [(len(good), "damaged")]
        assert size < len(members[0]) or len(good) >= 2


@pytest.mark.parametrize("suffix", PACK)
def test_what_is_there_before_a_damage_does_not_depend_on_blocks(
    data: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = PACK[suffix](b"".join(LINES)) + b"garbage behind it"
    write(data, f"a.jsonl{suffix}", whole)
    found = {}
    for block_bytes in (1, 7, 1 << 20):
        monkeypatch.setattr(expanded, "BLOCK_BYTES", block_bytes)
        [file] = list_files(["data"], data)
        found[block_bytes] = b"".join(Expanding("web", file, skip=True))
    assert set(found.values()) == {b"".join(LINES) + b"\0"}


def test_a_record_at_the_damage_is_bad_even_if_it_could_be_read(data: Path) -> None:
    whole = pack_gz(LINES[0] + LINES[1].rstrip(b"\n")) + b"?"
    write(data, "a.jsonl.gz", whole)
    found = read_all(opened(data, on_error="skip"))
    assert found.texts == ["one", ""]
    assert found.faults[0][1].kind == "damaged"


def test_blank_lines_at_the_damage_are_one_bad_record(data: Path) -> None:
    write(data, "a.jsonl.gz", pack_gz(LINES[0] + b"\n  \n ") + b"?")
    found = read_all(opened(data, on_error="skip"))
    assert (found.texts, [i for i, _ in found.faults]) == (["one", ""], [1])
    assert reader_of(data, on_error="skip").values(0, ("score",)).to_pydict() == {"score": [0, None]}


@pytest.mark.parametrize("suffix", PACK)
def test_files_without_records(data: Path, suffix: str) -> None:
    write(data, f"a.jsonl{suffix}", PACK[suffix](b""))
    write(data, f"b.jsonl{suffix}", PACK[suffix](b"\n \n\r\n"))
    write(data, f"c.jsonl{suffix}", PACK[suffix](b"\xef\xbb\xbf"))
    with pytest.raises(DataError, match="has no records"):
        opened(data)
    write(data, f"d.jsonl{suffix}", PACK[suffix](b"\xef\xbb\xbf\n" + LINES[1]))
    reader = opened(data)
    assert read_all(reader).texts == [WORDS[1]]
    assert [row[2] for row in reader.identity()["files"]] == [0, 0, 0, 1]


@pytest.mark.parametrize("suffix", PACK)
def test_a_file_of_no_bytes_is_a_damaged_one(data: Path, suffix: str) -> None:
    write(data, f"a.jsonl{suffix}", b"")
    with pytest.raises(DataError, match=r"is damaged\n  got:  a file of 0 bytes"):
        opened(data)


def test_a_wrong_checksum_is_damage(data: Path) -> None:
    whole = bytearray(pack_gz(b"".join(LINES)))
    whole[-8] ^= 1
    write(data, "a.jsonl.gz", bytes(whole))
    with pytest.raises(DataError, match="incorrect data check"):
        opened(data)
    found = read_all(opened(data, on_error="skip"))
    assert (found.texts[-1], found.faults[-1][1].kind) == ("", "damaged")


@pytest.mark.parametrize(("log", "is_read"), [(17, True), (27, True), (28, False), (31, False)])
def test_long_windows_of_zstd_are_read_or_refused(data: Path, log: int, is_read: bool) -> None:
    header = b"\x28\xb5\x2f\xfd\x00" + bytes([(log - 10) << 3])
    block = (len(LINES[0]) << 3 | 1).to_bytes(3, "little") + LINES[0]  # the last one, as it is
    write(data, "a.jsonl.zst", header + block)
    if is_read:
        assert read_all(opened(data)).texts == ["one"]
        return
    for on_error in ("raise", "skip"):
        with pytest.raises(DataError, match=r"cannot be expanded\n.*\n.*128 MiB .--long=27"):
            opened(data, on_error=on_error)


def test_a_fault_of_reading_is_never_damage(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(data, "a.jsonl.gz", pack_gz(b"".join(LINES)))

    def fail(self: Any, buffer: Any) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files._LocalFile, "readinto", fail)
    with pytest.raises(OSError, match="Input/output error"):
        opened(data, on_error="skip")


def test_a_file_that_changes_while_it_is_scanned_is_no_damaged_one(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(data, "a.jsonl.gz", pack_gz(b"".join(LINES)))
    [file] = list_files(["data"], data)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(DataError, match="changed during the run"):
        list(Expanding("web", file, skip=True))


def test_chunks_are_those_of_the_plain_file(data: Path) -> None:
    lines = [json.dumps({"text": f"{i} " * (2 * i)}).encode() + b"\n" for i in range(700)]
    content = b"\xef\xbb\xbf\n" + b" \n".join(lines)
    write(data, "a.jsonl", content)
    plain = opened(data)
    texts = read_all(plain).texts
    for suffix, pack in PACK.items():
        for path in (data / "data").iterdir():
            path.unlink()
        write(data, f"a.jsonl{suffix}", pack(content[:12345]) + pack(content[12345:]))
        reader = opened(data)
        assert len(reader.chunks().num_documents) > 1
        for name in ("num_documents", "num_bytes"):
            assert (getattr(reader.chunks(), name) == getattr(plain.chunks(), name)).all()
        assert read_all(reader).texts == texts


def test_a_chunk_can_be_read_alone_and_so_can_its_values(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon.readers.lines.CHUNK_BYTES", 64)
    write(data, "a.jsonl.gz", pack_gz(b"".join(LINES)))
    write(data, "b.jsonl", b"".join(LINES))
    reader = reader_of(data)
    count = len(reader.chunks().num_documents)
    assert count >= 4
    texts = [bytes(column.data).decode() for column in map(reader.read, range(count))]
    assert "".join(texts) == 2 * "".join(WORDS)
    scores = pa.concat_tables([reader.values(chunk, ("score",)) for chunk in range(count)])
    assert scores["score"].to_pylist() == 2 * list(range(5))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_replaced_file_of_a_server_without_stamps_is_read_anew(tmp_path: Path, suffix: str) -> None:
    """No cache may give what was there before: neither scan, nor spool, nor what a condition left."""

    def lines(word: str, first: int) -> bytes:
        text = "".join(json.dumps({"text": f"{word}{i}", "n": (first + i) % 3}) + "\n" for i in range(9))
        return gzip.compress(text.encode(), 0, mtime=0) if suffix else text.encode()  # of one size

    name, found = f"a.jsonl{suffix}", []
    with http_server({}) as server:
        server.switches.stamps = False
        dataset = Dataset.from_path("web", f"{server.url}/{name}", where="n == 0")
        for word, first in (("old", 0), ("new", 1), ("new", 1), ("old", 0)):
            server.files[name] = lines(word, first)
            reader = open_reader(dataset, base=tmp_path, cache=tmp_path, spool_bytes=1 << 20)
            found.append(read_all(select(dataset, reader, tmp_path)).texts)
            reader.close()
    old, new = ["old0", "old3", "old6"], ["new2", "new5", "new8"]
    assert found == [old, new, new, old]


def test_a_file_of_such_a_server_that_is_replaced_after_it_was_opened_is_an_error(tmp_path: Path) -> None:
    with http_server({"a.jsonl": b"".join(LINES)}) as server:
        server.switches.stamps = False
        dataset = Dataset.from_path("web", f"{server.url}/a.jsonl")
        reader = open_reader(dataset, base=tmp_path, cache=tmp_path, spool_bytes=1 << 20)
        server.files["a.jsonl"] = b"".join(LINES).replace(b"one", b"ONE")
        with pytest.raises(DataError, match="changed since it was listed"):
            read_all(reader)


def test_token_ids_in_compressed_lines(data: Path) -> None:
    lines = [b'{"ids": [1, 2]}\n', b'{"ids": []}\n', b'{"ids": ["x"]}\n', b'{"ids": [3]}\n']
    write(data, "a.jsonl.zst", pack_zst(b"".join(lines)))
    reader: Any = opened(data, tokens="ids")
    found = reader.tokens(np.zeros(4, np.int64), np.arange(4), 1 << 20)
    assert (found.tokens.tolist(), found.lengths.tolist()) == ([1, 2, 3], [2, 0, 0, 1])
    assert [(i, fault.kind) for i, fault in found.faults] == [(2, "not_tokens")]


@given(
    st.lists(st.binary(min_size=1, max_size=9), max_size=9),
    st.lists(st.integers(0, 60), unique=True, min_size=1),
)
def test_cut_gives_the_bytes_between_places(blocks: list[bytes], places: list[int]) -> None:
    data = b"".join(blocks)
    places = sorted(place for place in places if place <= len(data)) or [0]
    expected = [data[a:b] for a, b in zip(places, [*places[1:], len(data)], strict=True)]
    assert list(cut(iter(blocks), places)) == expected


def test_bzip2_with_an_empty_stream_is_damaged(data: Path) -> None:
    write(data, "a.jsonl.bz2", bz2.compress(LINES[0]) + bz2.compress(b"") + bz2.compress(LINES[1]))
    with pytest.raises(DataError, match=r"a.jsonl.bz2 is damaged"):
        opened(data)
    assert read_all(opened(data, on_error="skip")).faults[-1][1].kind == "damaged"
