"""Tests of `zephon.readers.jsonl` and of the line index beneath it."""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.paths import list_files
from zephon.readers import RandomReader, Texts, jsonl, lines, open_reader
from zephon.readers.json_records import parse, parse_column, parse_values
from zephon.readers.lines import CHUNK_BYTES, index_path, record_starts


def opened(folder: Path, *, text: str = "text", report: Any = None) -> RandomReader:
    dataset = Dataset.from_path("web", "data", text=text, kind="jsonl")
    return open_reader(dataset, base=folder, cache=folder / "cache", spool_bytes=0, report=report)


def read_all(reader: RandomReader) -> Texts:
    counts = reader.chunks().num_documents
    chunk = np.repeat(np.arange(len(counts)), counts)
    record = np.concatenate([np.arange(count) for count in counts])
    return reader.texts(chunk, record, 1 << 60)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path


def write(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / "data" / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def line(text: str, **more: Any) -> str:
    return json.dumps({"id": 1, "text": text, **more}) + "\n"


RECORD = b'{"text": "%s"}'
A, B, C = RECORD % b"a", RECORD % b"b", RECORD % b"c"


@pytest.mark.parametrize(
    "content",
    [
        A + b"\n" + B + b"\n" + C + b"\n",
        A + b"\n" + B + b"\n" + C,
        A + b"\r\n" + B + b"\r\n" + C + b"\r\n",
        b"\n\n" + A + b"\n\n  \n" + B + b"\n\t\r\n" + C + b"\n\n",
        b"\xef\xbb\xbf" + A + b"\n" + B + b"\n" + C,
        b"\xef\xbb\xbf\n  " + A + b"  \n" + B + b"\n \t" + C + b"\n   ",
    ],
)
@pytest.mark.parametrize("buffer_bytes", [1, 2, 7, 16, 1 << 20])
def test_records_are_the_lines_with_something_in_them(
    data: Path, content: bytes, buffer_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BUFFER_BYTES", buffer_bytes)
    write(data, "x.jsonl", content)
    found = read_all(opened(data))
    assert found.texts == ["a", "b", "c"]
    assert not found.faults


@given(
    parts=st.lists(st.sampled_from([b"\n", b"\r\n", b" ", b"\t", b"x", b"{}", b"\xef\xbb\xbf", b"\xff"])),
    buffer_bytes=st.integers(1, 5),
)
def test_the_index_is_what_splitting_by_lines_finds(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], buffer_bytes: int
) -> None:
    content = b"".join(parts)
    path = tmp_path_factory.getbasetemp() / "lines"
    path.write_bytes(content)
    start = 3 if content.startswith(b"\xef\xbb\xbf") else 0
    expected = []
    for part in content[start:].split(b"\n"):
        if part.strip():
            expected.append(start)
        start += len(part) + 1
    done: list[int] = []
    with path.open("rb") as file:
        buffers = iter(lambda: file.read(buffer_bytes), b"")
        found = [start for part in record_starts(buffers, done.append) for start in part.tolist()]
    assert found == expected
    assert sum(done) == len(content)


def test_chunks_are_the_records_that_start_in_a_mebibyte(data: Path) -> None:
    sizes = [CHUNK_BYTES // 2 - 1, CHUNK_BYTES // 2, CHUNK_BYTES * 5 // 2, 100, 100]
    rows = [line("x" * (size - len(line("")))) for size in sizes]
    write(data, "a.jsonl", "".join(rows))
    write(data, "b.jsonl", "")
    write(data, "c.jsonl", line("c"))
    chunks = opened(data).chunks()
    # Starts in MiB: 0, just under 1/2, just under 1, then 7/2 and after.
    assert chunks.num_documents.tolist() == [3, 2, 1]
    assert chunks.num_bytes.tolist() == [sum(sizes[:3]), 200, len(line("c"))]


def test_a_record_says_which_file_and_line_it_is(data: Path) -> None:
    write(data, "a.jsonl", line("a"))
    write(data, "b.jsonl", line("x" * CHUNK_BYTES) + "\n" + line("b"))
    reader = opened(data)
    assert [reader.where(c, 0) for c in range(3)] == [("a.jsonl", 0), ("b.jsonl", 0), ("b.jsonl", 1)]


def test_files_of_the_same_name_are_told_apart_by_path(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_text(line(folder))
    dataset = Dataset.from_path("web", ["two", "one"])
    reader = open_reader(dataset, base=tmp_path, cache=tmp_path / "cache", spool_bytes=0)
    assert read_all(reader).texts == ["two", "one"]
    assert reader.where(1, 0) == (str(tmp_path / "one/a.jsonl"), 0)


@pytest.mark.parametrize(
    ("raw", "kind", "got"),
    [
        (b'{"text": "cut', "not_json", "Unterminated string"),
        (b'{"text": "a"', "not_json", "delimiter"),
        (b'{"text": "a"} {"text": "b"}', "not_json", "Extra data"),
        (b'{"text": "a\tb"}', "not_json", "Invalid control character"),
        (b"hello", "not_json", "'hello'"),
        (b"[" * 100_000, "not_json", "nested deeper than 200"),
        (b'["text"]', "not_object", "['text']"),
        (b"7", "not_object", "7"),
        (b'"text"', "not_object", "'text'"),
        (b"null", "not_object", "None"),
        (b'{"txt": "a", "id": 1}', "missing", "the keys ['txt', 'id']"),
        (b"{}", "missing", "the keys []"),
        (b'{"text": null}', "null", "null"),
        (b'{"text": 7}', "not_text", "7"),
        (b'{"text": ["a"]}', "not_text", "['a']"),
        (b'{"text": {"a": "b"}}', "not_text", "{'a': 'b'}"),
        (b'{"text": "a\xffb"}', "not_utf8", "byte 0xff at 11"),
        (b'{"text": "\xed\xa0\x80"}', "not_utf8", "byte 0xed at 10"),
        (b'{"text": "a", "x": ' + b"[" * 200 + b"]" * 200 + b"}", "not_json", "nested deeper than 200"),
        (b'{"text": "a", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}", "not_json", "nested deeper than 200"),
        (b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b', "x": 1, "text": "a"}', "not_json", "nested deeper"),
    ],
)
def test_what_is_wrong_with_a_record_is_said(raw: bytes, kind: str, got: str) -> None:
    found = parse([A, raw, B], "text")
    assert found.texts == ["a", "", "b"]
    [(index, fault)] = found.faults
    assert (index, fault.kind) == (1, kind)
    assert got in fault.got
    assert len(fault.got) < 250


@pytest.mark.parametrize(
    ("raw", "text", "replaced"),
    [
        (rb'{"text": "a\ud800b"}', "a\ufffdb", True),
        (rb'{"text": "\udc00\ud83d"}', "\ufffd\ufffd", True),
        (rb'{"text": "\ud83d\ude00"}', "\U0001f600", False),
        ('{"text": "\U0001f600 \\u00e9"}'.encode(), "\U0001f600 \u00e9", False),
        (rb'{"other": "\ud800", "text": "\u00e9"}', "\u00e9", False),
        (rb'{"text": "a\u0000b"}', "a\0b", False),
        (rb'{"text": ""}', "", False),
        (rb'{"text": "a", "text": "b"}', "b", False),
        (rb'{"text": "\\ud800"}', r"\ud800", False),
        (b'{"text": "a", "x": ' + b"[" * 199 + b"]" * 199 + b"}", "a", False),
        (rb'{"text": "' + rb"\\\"[{" * 999 + b'"}', '\\"[{' * 999, False),
        (b'{"text": "a", "x": [' + b"[]," * 999 + b"0]}", "a", False),
    ],
)
def test_texts_are_what_json_says(raw: bytes, text: str, replaced: bool) -> None:
    found = parse([raw], "text")
    assert found.texts == [text]
    assert found.num_replaced == [0] * replaced
    assert not found.faults


@pytest.mark.parametrize(
    ("raw", "text", "kind"),
    [
        (b'{"a": {"b": "x"}}', "x", ""),
        (b'{"a.b": "y", "a": {"b": "x"}}', "y", ""),
        (b'{"a": {"c": "x"}}', "", "missing"),
        (b'{"a": null}', "", "missing"),
        (b'{"a": "b"}', "", "missing"),
        (b'{"a": {"b": null}}', "", "null"),
        (b'["a.b"]', "", "not_object"),
        (b"7", "", "not_object"),
    ],
)
def test_a_dotted_field_leads_into_objects(raw: bytes, text: str, kind: str) -> None:
    found = parse([raw], "a.b")
    assert found.texts == [text]
    assert [fault.kind for _, fault in found.faults] == [kind] * bool(kind)


@pytest.mark.parametrize("num", [1, 2, 3])
def test_reading_stops_with_the_record_that_reaches_the_bytes(data: Path, num: int) -> None:
    write(data, "a.jsonl", "".join(line(str(i)) for i in range(3)))
    size = len(line("0"))
    for max_bytes in (num * size - size + 1, num * size):
        found = opened(data).texts(np.zeros(3, np.int64), np.array([2, 0, 1]), max_bytes)
        assert found.texts == ["2", "0", "1"][:num]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[RandomReader, list[str]]:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "data").mkdir()
    texts: list[str] = []
    for name in ("a", "b", "c"):
        mine = [f"{name}{i} \u00e9\U0001f600" * (i * 997 % 400) for i in range(700)]
        texts += mine
        write(folder, f"{name}.jsonl", "".join(line(text) for text in mine))
    reader = opened(folder)
    assert len(reader.chunks().num_documents) > 9
    return reader, texts


@given(st.lists(st.integers(0, 2099), min_size=1, max_size=40), st.integers(1, 1 << 17))
def test_random_access_gives_what_the_file_says(
    corpus: tuple[RandomReader, list[str]], picks: list[int], max_bytes: int
) -> None:
    reader, texts = corpus
    first = np.cumsum(reader.chunks().num_documents) - reader.chunks().num_documents
    index = np.array(picks)
    chunk = np.searchsorted(first, index, side="right") - 1
    found = reader.texts(chunk, index - first[chunk], max_bytes)
    total, expected = 0, []
    for pick in picks:
        expected.append(texts[pick])
        total += len(line(texts[pick]))
        if total >= max_bytes:
            break
    assert found.texts == expected


def test_an_index_is_made_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(data, "a.jsonl", line("a") + line("b"))
    write(data, "b.jsonl", line("c"))
    scanned: list[int] = []

    def counted(buffers: Any, advance: Any) -> Any:
        scanned.append(1)
        return record_starts(buffers, advance)

    monkeypatch.setattr(lines, "record_starts", counted)
    opened(data)
    assert len(scanned) == 2
    assert read_all(opened(data)).texts == ["a", "b", "c"]
    assert len(scanned) == 2
    write(data, "b.jsonl", line("d") + line("e"))
    assert read_all(opened(data)).texts == ["a", "b", "d", "e"]
    assert len(scanned) == 3


@pytest.mark.parametrize("damage", [b"", b"1234567", b"\0" * 24, b"\xff" * 16])
def test_a_damaged_index_is_made_again(data: Path, damage: bytes) -> None:
    write(data, "a.jsonl", line("a") + line("b"))
    opened(data)
    [file] = list_files(["data"], data)
    index_path(file, data / "cache").write_bytes(damage)
    assert read_all(opened(data)).texts == ["a", "b"]


def test_progress_is_told_in_bytes(data: Path) -> None:
    sizes = [write(data, f"{i}.jsonl", line("x" * i) * 9).stat().st_size for i in range(5)]
    calls: list[tuple[str, int, int]] = []
    for _ in range(2):
        calls.clear()
        opened(data, report=lambda *call: calls.append(call))
        assert {(what, total) for what, _, total in calls} == {("index web", sum(sizes))}
        assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)
        assert calls[-1][1] == sum(sizes)


@pytest.mark.parametrize("touched", [False, True])
def test_a_file_cut_during_the_run_is_an_error(data: Path, touched: bool) -> None:
    path = write(data, "a.jsonl", line("a") * 100)
    reader = opened(data)
    if touched:
        read_all(reader)
    os.truncate(path, 200)
    with pytest.raises(
        DataError, match=r"dataset 'web': .*a.jsonl changed during the run\n  got:  200 bytes"
    ):
        read_all(reader)


def test_a_file_rewritten_in_place_is_an_error(data: Path) -> None:
    path = write(data, "a.jsonl", line("a"))
    reader = opened(data)
    read_all(reader)
    path.write_text(line("b"))
    os.utime(path, ns=(0, 0))
    with pytest.raises(DataError, match="another modification time"):
        read_all(reader)


def test_a_file_replaced_or_gone_is_an_error_when_it_is_opened(data: Path) -> None:
    path = write(data, "a.jsonl", line("a"))
    reader = opened(data)
    write(data, "b", line("bb"))
    os.replace(data / "data" / "b", path)
    with pytest.raises(DataError, match=r"a.jsonl changed during the run"):
        read_all(reader)
    path.unlink()
    with pytest.raises(DataError, match=r"dataset 'web': .*a.jsonl cannot be opened\n  got:  No such file"):
        read_all(reader)


def test_a_short_read_names_the_record(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(data, "a.jsonl", line("a") * 5)
    reader = opened(data)
    read_all(reader)
    size = len(line("a"))
    os.truncate(path, 3 * size + 4)
    monkeypatch.setattr(jsonl, "check_unchanged", lambda _, file, __: file.ctime_ns)
    with pytest.raises(
        DataError, match=rf"a.jsonl, record 3, changed during the run\n  got:  4 of {size} bytes"
    ):
        read_all(reader)


def test_a_read_that_stops_early_is_continued(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(data, "a.jsonl", line("hello") + line("world"))
    reader = opened(data)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, start: pread(fd, min(size, 7), start))
    assert read_all(reader).texts == ["hello", "world"]


def test_a_dataset_of_empty_files_has_no_records(data: Path) -> None:
    write(data, "a.jsonl", b"")
    write(data, "b.jsonl", b"\n \n")
    with pytest.raises(DataError, match=r"dataset 'web' has no records\n  got:  2 files, 3 bytes"):
        opened(data)


def test_the_identity_tells_what_the_files_hold(data: Path) -> None:
    path = write(data, "a.jsonl", line("a") * 3000)
    write(data, "b.jsonl", b"")
    identity = opened(data).identity()
    assert json.loads(json.dumps(identity)) == identity
    assert (identity["kind"], identity["num_documents"]) == ("jsonl", 3000)
    assert [entry[:3] for entry in identity["files"]] == [
        ["a.jsonl", path.stat().st_size, 3000],
        ["b.jsonl", 0, 0],
    ]
    os.utime(path, ns=(0, 0))
    assert opened(data).identity() == identity
    for place in (0, path.stat().st_size // 2, path.stat().st_size - 4):
        content = bytearray(path.read_bytes())
        content[place] = ord("X")
        path.write_bytes(content)
        assert opened(data).identity()["files"][0][3] != identity["files"][0][3]


def test_a_reader_travels_to_workers_and_finds_its_index(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(data, "a.jsonl", line("a") * 20_000)
    reader = opened(data)
    read_all(reader)
    pickled = pickle.dumps(reader)
    assert len(pickled) < 3000
    monkeypatch.setattr(lines, "record_starts", None)
    copy = pickle.loads(pickled)
    assert read_all(copy).texts == ["a"] * 20_000
    assert copy.identity() == reader.identity()


def test_few_files_are_open_at_once_and_close_lets_go(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(50):
        write(data, f"{i:02}.jsonl", line(str(i)))
    monkeypatch.setattr(jsonl, "MAX_OPEN_FILES", 4)
    before = len(os.listdir("/proc/self/fd"))
    reader = opened(data)
    for _ in range(2):
        for i in range(50):
            assert reader.texts(np.array([i]), np.array([0]), 1).texts == [str(i)]
        assert len(os.listdir("/proc/self/fd")) <= before + 8
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert reader.texts(np.array([7]), np.array([0]), 1).texts == ["7"]


def test_threads_read_at_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(20):
        write(data, f"{i:02}.jsonl", "".join(line(f"{i} {j}") for j in range(50)))
    monkeypatch.setattr(jsonl, "MAX_OPEN_FILES", 4)
    reader = opened(data)
    wrong: list[str] = []

    def work(seed: int) -> None:
        for turn in range(30):
            chunk = (np.arange(60) * 7 + seed + turn) % 20
            record = (np.arange(60) * 11 + seed) % 50
            found = reader.texts(chunk, record, 1 << 40).texts
            wrong.extend(text for text, c, r in zip(found, chunk, record, strict=True) if text != f"{c} {r}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_cache_that_cannot_be_written_says_the_cure(data: Path) -> None:
    write(data, "a.jsonl", line("a"))
    (data / "cache").write_text("a file stands where the folder should")
    with pytest.raises(DataError, match=r"cannot be written(.|\n)*ZEPHON_CACHE"):
        opened(data)


def test_threads_that_come_to_a_file_together_count_it_once(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(data, "a.jsonl", "".join(line(f"w{i}") for i in range(2000)))
    reader = pickle.loads(pickle.dumps(opened(data)))  # has opened nothing
    index_path(list_files([str(path)], data)[0], data / "cache").unlink()
    counted: list[str] = []
    count = lines.record_starts

    def slow(*args: Any) -> Any:
        counted.append(threading.current_thread().name)
        time.sleep(0.2)
        return count(*args)

    monkeypatch.setattr(lines, "record_starts", slow)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda i: reader.texts(np.array([0]), np.array([i]), 1).texts, range(8))
        assert list(found) == [[f"w{i}"] for i in range(8)]
    assert len(counted) == 1


@pytest.mark.parametrize("depth", [199, 200, 5000])
def test_token_ids_and_columns_have_the_same_depth(depth: int) -> None:
    raw = b'{"ids": [1, 2], "n": 7, "x": ' + b"[" * depth + b"]" * depth + b"}"
    is_read = depth < 200
    assert [fault.kind for _, fault in parse_column([raw], "", "ids").faults] == ["not_json"] * (not is_read)
    assert parse_values([raw], ("n",), "web", "a")["n"].to_pylist() == [7 if is_read else None]


def test_columns_of_large_numbers_and_of_surrogates() -> None:
    raws = [rb'{"n": 9223372036854775808, "t": "a\ud800", "o": {"t": ["\udc00"]}}', b"{}", b'{"n": 1}']
    table = parse_values(raws, ("n", "t", "o"), "web", "a.jsonl")
    assert table["n"].to_pylist() == [2**63, None, 1]
    assert table["t"].to_pylist() == ["a\ufffd", None, None]
    assert table["o"].to_pylist() == [{"t": ["\ufffd"]}, None, None]
    for bad in (b'{"n": -1}', b'{"n": 18446744073709551616}', b'{"n": "x"}'):
        with pytest.raises(DataError, match=r"'web': column 'n' of a.jsonl holds values of several types"):
            parse_values([raws[0], bad], ("n",), "web", "a.jsonl")
