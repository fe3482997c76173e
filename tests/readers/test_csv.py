"""Tests of `zephon.readers.csv_files`: rows, headers, what is wrong with a row, where chunks are cut."""

from __future__ import annotations

import csv
import gzip
import io
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers import http_server
from zephon import retries
from zephon.dataset import Dataset
from zephon.errors import DataError, Fault
from zephon.paths import list_files
from zephon.readers import Column, Origin, RandomReader, Texts, open_reader
from zephon.readers.csv_files import CsvRecords, open_csv
from zephon.readers.csv_rows import Rows, text_of
from zephon.readers.ranges import ByRange
from zephon.selection import rank, select


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path


def write(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / "data" / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def opened(folder: Path, **fields: Any) -> RandomReader:
    dataset = Dataset.from_path("web", "data", **fields)
    return open_reader(dataset, base=folder, cache=folder / "cache", spool_bytes=1 << 30)


def reader_of(folder: Path, **fields: Any) -> Any:
    dataset = Dataset.from_path("web", "data", **fields)
    files = tuple(list_files(dataset.paths, folder))
    return open_csv(Origin(dataset=dataset, files=files, cache=folder / "cache"))


def read_all(reader: RandomReader) -> Texts:
    counts = np.asarray(reader.chunks().num_documents)
    chunk = np.repeat(np.arange(len(counts)), counts)
    record = np.concatenate([np.arange(count) for count in counts.tolist()])
    return reader.texts(chunk, record, 1 << 60)


def kinds(found: Texts) -> list[tuple[int, str]]:
    return [(i, fault.kind) for i, fault in found.faults]


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("text\na\nb\n", ["a", "b"]),
        ("text\na\nb", ["a", "b"]),
        ("text\r\na\r\nb\r\n", ["a", "b"]),
        ("\ufefftext,n\na,1\n", ["a"]),
        ('\ufeff"text",n\na,1\n', ["a"]),
        ("n,text\n1,\n2,b\n", ["", "b"]),
        ('n,text\n1,""\n', [""]),
        ("\n\ntext\n\na\n\n\nb\n\n", ["a", "b"]),
        ('text,n\n"a\nb",1\n"c\r\nd",2\n', ["a\nb", "c\r\nd"]),
        ('text,n\n"say ""hi"", you",1\n', ['say "hi", you']),
        ('text,n\n5" wide,1\n', ['5" wide']),
        ("text,n\n a ,1\n", [" a "]),
        ("text,n\na\x00b,1\n", ["a\x00b"]),
    ],
)
def test_rows(data: Path, content: str, texts: list[str]) -> None:
    write(data, "a.csv", content)
    write(data, "b.csv.gz", gzip.compress(content.encode()))
    write(data, "c.csv", "")
    found = read_all(opened(data))
    assert (found.texts, found.faults) == (2 * texts, [])


def test_tabs_separate_what_is_named_so(data: Path) -> None:
    write(data, "a.tsv", "id\ttext\n1\ta, b\n2\t\n")
    write(data, "b.TSV.gz", gzip.compress(b"text\tid\nc\t1\n"))
    assert read_all(opened(data)).texts == ["a, b", "", "c"]


def test_every_bad_row_is_one_faulty_record(data: Path) -> None:
    rows = [
        b"1,good",
        b"2",
        b"3,a,b",
        b'4,"closed"early',
        b"5,b\xe9d",
        b"\xe9,fine",
        b"6,\xf0\x9f\x98\x80",
        b"7,a\rb",
        b'8,"never closed',
        b"9,swallowed",
    ]
    write(data, "a.csv", b"id,text\n" + b"\n".join(rows) + b"\n")
    found = read_all(opened(data))
    assert found.texts == ["good", "", "", "", "", "fine", "\U0001f600", "", ""]
    bad = [(1, "ragged"), (2, "ragged"), (3, "not_csv"), (4, "not_utf8"), (7, "not_csv"), (8, "not_csv")]
    assert kinds(found) == bad
    assert found.faults[0][1] == Fault("ragged", "1 fields: ['2']", "a row has the 2 fields of the header")
    assert found.faults[3][1].got.startswith("byte 0xe9 at 1")


def test_a_long_field_is_a_document(data: Path) -> None:
    text = "x" * 300_000
    write(data, "a.csv", f"text\n{text}\n")
    assert read_all(opened(data)).texts == [text]


def test_a_column_is_found_in_each_file(data: Path) -> None:
    write(data, "a.csv", "text,n\na,1\n")
    write(data, "b.csv", "n,m,text\n1,2,b\n")
    assert read_all(opened(data)).texts == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", r"a.csv has no column 'text'\n  got:  the columns 'a', 'b'"),
        ("text,text\n1,2\n", r"a.csv has two columns 'text'"),
        ('"te"xt\n1\n', r"a.csv has no header\n  got:  ',' expected after"),
    ],
)
def test_a_header_without_the_column_is_refused(data: Path, content: str, message: str) -> None:
    write(data, "a.csv", content)
    with pytest.raises(DataError, match=message) as caught:
        opened(data, on_error="skip")
    assert str(caught.value).count("\n") == 3


def test_files_without_rows(data: Path) -> None:
    for name, content in {"a.csv": "", "b.csv": "\n\n", "c.csv": "text\n", "d.csv": "text"}.items():
        write(data, name, content)
    with pytest.raises(DataError, match="has no records"):
        opened(data)


def test_chunks_are_the_rows_that_begin_in_one_mib(data: Path) -> None:
    target = io.StringIO()
    writer = csv.writer(target)
    writer.writerow(["id", "text"])
    texts = [f"{i} \n" + "x" * (5 * i) for i in range(1000)]
    writer.writerows(enumerate(texts))
    content = target.getvalue().encode()
    write(data, "a.csv", content)
    plain = opened(data)
    chunks = plain.chunks()
    assert len(chunks.num_documents) == -(-len(content) // (1 << 20)) > 2
    assert chunks.num_bytes.sum() == len(content) - len(b"id,text\r\n")
    assert read_all(plain).texts == texts
    (data / "data" / "a.csv").unlink()
    write(data, "a.csv.gz", gzip.compress(content))
    packed = opened(data)
    assert (packed.chunks().num_documents == chunks.num_documents).all()
    assert (packed.chunks().num_bytes == chunks.num_bytes).all()
    assert read_all(packed).texts == texts


@pytest.mark.parametrize("last", [b"", b'"', b'5,"x', b"5,x"])
def test_a_cut_file_is_damaged_wherever_it_is_cut(data: Path, last: bytes) -> None:
    whole = gzip.compress(b'id,text\n1,one\n2,"two\nlines"\n3,three\n' + last)
    for size in range(0, len(whole), 1 if last == b"" else 7):
        write(data, "a.csv.gz", whole[:size])
        with pytest.raises(DataError, match=r"a.csv.gz is damaged"):
            opened(data)
        reader = opened(data, on_error="skip")
        *good, bad = read_all(reader).texts
        assert (good, bad) == (["one", "two\nlines", "three"][: len(good)], "")
        assert kinds(read_all(reader)) == [(len(good), "damaged")]


def test_values_are_typed_by_all_of_a_file(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon.readers.lines.CHUNK_BYTES", 16)
    rows = [
        "text,whole,score,code,some",
        "a,1,2,x,1",
        "b,-2,3.5e1,007,",
        "c,+3,,2,3",
        "bad",
        "\u00e9,4,.5,,5",
    ]
    write(data, "a.csv", "\n".join(rows))
    write(data, "b.csv.gz", gzip.compress("\n".join(rows).encode()))
    reader = reader_of(data)
    names = ("whole", "score", "code", "some", "text")
    assert len(reader.chunks().num_documents) > 4
    found = pa.concat_tables([reader.values(i, names) for i in range(len(reader.chunks().num_documents))])
    assert [str(kind) for kind in found.schema.types] == ["int64", "double", "string", "int64", "string"]
    assert found["whole"].to_pylist() == 2 * [1, -2, 3, None, 4]
    assert found["score"].to_pylist() == 2 * [2.0, 35.0, None, None, 0.5]
    assert found["code"].to_pylist() == 2 * ["x", "007", "2", None, ""]
    assert found["some"].to_pylist() == 2 * [1, None, 3, None, 5]
    assert found["text"].to_pylist() == 2 * ["a", "b", "c", None, "\u00e9"]
    with pytest.raises(DataError, match="has no column 'other'"):
        reader.values(0, ("other",))


@pytest.mark.parametrize("value", ["1_000", "nan", "inf", " 1", "0x1f", "1e9999", "\u0661", "1" * 19])
def test_what_looks_like_a_number_and_is_none_stays_a_string(data: Path, value: str) -> None:
    write(data, "a.csv", f"text,n\na,{value}\n")
    assert reader_of(data).values(0, ("n",)).to_pydict() == {"n": [value]}


def test_a_column_that_is_empty_in_one_file_has_the_type_of_the_others(data: Path) -> None:
    write(data, "a.csv", "text,n\n" + "".join(f"a{i},{i}\n" for i in range(6)))
    write(data, "b.csv", "text,n\nb0,\nb1,\n")
    assert pa.types.is_null(reader_of(data).values(1, ("n",)).schema.field("n").type)
    dataset = Dataset.from_path("web", "data", where="n >= 3", order="sorted:-n")
    reader = open_reader(dataset, base=data, cache=data / "cache", spool_bytes=1 << 20)
    chosen = select(dataset, reader, data / "cache")
    assert read_all(chosen).texts == ["a3", "a4", "a5"]
    ranked = rank(replace(dataset, where=""), reader, data / "cache")
    assert ranked is not None
    assert ranked.tolist() == [5, 4, 3, 2, 1, 0, 6, 7]


def test_a_type_is_found_once_for_all_threads(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon.readers.lines.CHUNK_BYTES", 64)
    write(data, "a.csv", "text,n\n" + "".join(f"word {i},{i % 7}\n" for i in range(200)))
    reader, passes = reader_of(data), []
    infer = CsvRecords._infer

    def slow(self: CsvRecords, *given: Any) -> Any:
        passes.append(given[1])
        time.sleep(0.05)
        return infer(self, *given)

    monkeypatch.setattr(CsvRecords, "_infer", slow)
    count = len(reader.chunks().num_documents)
    found = retries.in_parallel(lambda chunk: reader.values(chunk, ("n",)), range(count), 8)
    assert count > 8
    assert pa.concat_tables(found)["n"].to_pylist() == [i % 7 for i in range(200)]
    assert passes == ["n"]


def test_a_stream_gives_the_same_rows(data: Path) -> None:
    rows = ["id,text", *(f"{i},{'x' * (i % 5)}" for i in range(2500)), "bad", '9,"open']
    write(data, "a.csv", "\n".join(rows))
    write(data, "b.csv.gz", gzip.compress("\n".join(rows[:9]).encode())[:-5])
    write(data, "c.csv.gz", gzip.compress(b"id,text")[:-5])
    write(data, "d.csv", "id,text\n")
    counted = read_all(opened(data, on_error="skip"))
    stream = reader_of(data, on_error="skip", stream=True)
    assert isinstance(stream, CsvRecords)
    batches = [list(stream.records(file)) for file in list_files(["data"], data)]
    column = stream.column([raw for batch in batches for raws in batch for raw in raws])
    texts = [
        bytes(column.data[a:b]).decode() for a, b in zip(column.offsets[:-1], column.offsets[1:], strict=True)
    ]
    assert texts == counted.texts
    assert [(i, fault.kind) for i, fault in column.faults] == kinds(counted)


@given(
    st.lists(st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]), max_size=9)] * 2), min_size=1),
    st.integers(1, 9),
    st.sampled_from([",", "\t"]),
)
def test_what_is_written_is_read(rows: list[tuple[str, str]], block_bytes: int, delimiter: str) -> None:
    target = io.StringIO(newline="")
    csv.writer(target, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows(rows)
    data = target.getvalue().encode()
    blocks = [data[i : i + block_bytes] for i in range(0, len(data), block_bytes)]
    found = Rows(blocks, delimiter)
    starts = []
    for row, expected in zip(found, rows, strict=True):
        starts.append(found.start)
        assert row == list(expected)
    assert found.end == len(data)
    for a, b, expected in zip(starts, [*starts[1:], len(data)], rows, strict=True):
        assert list(Rows([data[a:b]], delimiter)) == [list(expected)]


@given(st.binary(max_size=60), st.integers(1, 9))
def test_any_bytes_are_rows_that_can_be_read_alone(data: bytes, block_bytes: int) -> None:
    blocks = [data[i : i + block_bytes] for i in range(0, len(data), block_bytes)]
    whole = Rows(blocks, ",")
    found = [(whole.start, row) for row in whole]
    ends = [*(start for start, _ in found), len(data)][1:]
    for (start, row), end in zip(found, ends, strict=True):
        assert list(Rows([data[start:end]], ",")) == [row]
    column = Column.from_values(text_of(row, 1, 0) for _, row in found)
    assert len(column.offsets) == len(found) + 1


def test_the_reader_is_plain_data(data: Path) -> None:
    write(data, "a.csv", "text\na\n")
    reader = reader_of(data)
    assert isinstance(reader, ByRange)
    identity = reader.identity()
    assert json.loads(json.dumps(identity)) == identity
    assert (identity["kind"], identity["num_documents"]) == ("csv", 1)


def test_a_chunk_on_a_server_is_one_request(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer itself tells whether the file is still the one that was listed."""
    monkeypatch.setattr("zephon.readers.lines.CHUNK_BYTES", 64)
    content = "text,n\n" + "".join(f"word {i},{i}\n" for i in range(100))
    with http_server({"a.csv": content.encode()}) as server:
        dataset = Dataset.from_path("web", f"{server.url}/a.csv")
        reader = open_reader(dataset, base=data, cache=data / "cache", spool_bytes=1 << 30)
        read_all(reader)  # the header, too
        count = len(reader.chunks().num_documents)
        again = open_reader(dataset, base=data, cache=data / "another", spool_bytes=1 << 30)
        server.switches.requests.clear()
        assert read_all(again).texts == [f"word {i}" for i in range(100)]
        assert count > 10
        made = [line for line in server.switches.requests if not line.startswith("bytes=")]
        assert len(made) <= count + 4  # and the header, once
        again.close()
        reader.close()
