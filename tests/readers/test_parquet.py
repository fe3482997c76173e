"""Tests of `zephon.readers.parquet`: what footers tell, which columns are texts, which files are refused."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.paths import list_files
from zephon.readers import Column, Origin, open_reader
from zephon.readers.parquet import ParquetReader, column_from_arrow

WORDS = ["one", "two", "", "three \u00e9\U0001f600", "four"]


def opened(folder: Path, *, text: str = "text", report: Any = None) -> ParquetReader:
    dataset = Dataset.from_path("web", "data", text=text)
    files = tuple(list_files(dataset.paths, folder))
    return ParquetReader(Origin(dataset=dataset, files=files, cache=folder / "cache", report=report))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path


def write(folder: Path, name: str, texts: Any, **options: Any) -> Path:
    path = folder / "data" / name
    columns = texts if isinstance(texts, dict) else {"id": range(len(texts)), "text": texts}
    pq.write_table(pa.table(columns), path, **options)
    return path


def values(column: Column) -> list[str]:
    return [
        bytes(column.data[a:b]).decode()
        for a, b in zip(column.offsets[:-1].tolist(), column.offsets[1:].tolist(), strict=True)
    ]


def test_a_chunk_is_a_row_group_with_records(data: Path) -> None:
    write(data, "a.parquet", [str(i) for i in range(7)], row_group_size=3)
    write(data, "b.parquet", pa.array([], pa.string()))
    write(data, "c.pq", ["c"])
    reader = opened(data)
    assert reader.chunks().num_documents.tolist() == [3, 3, 1, 1]
    assert [values(reader.read(i)) for i in range(4)] == [["0", "1", "2"], ["3", "4", "5"], ["6"], ["c"]]


def test_the_weight_is_the_text_s_uncompressed_size(data: Path) -> None:
    columns = {"text": ["x" * 1000] * 2, "big": ["y" * 99999] * 2}
    write(data, "a.parquet", columns, use_dictionary=False, write_statistics=False)
    [size] = opened(data).chunks().num_bytes.tolist()
    assert 2000 < size < 2200


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.large_string()),
    ],
)
def test_strings_of_all_types_are_texts(data: Path, kind: Any) -> None:
    array = pa.array([*WORDS, None]).cast(pa.string())
    if pa.types.is_dictionary(kind):
        array = array.cast(kind.value_type).dictionary_encode().cast(kind)
    elif kind == pa.string_view():
        array = pa.array([*WORDS, None], kind)
    else:
        array = array.cast(kind)
    write(data, "a.parquet", {"text": array})
    column = opened(data).read(0)
    assert values(column) == [*WORDS, ""]
    assert [(i, fault.kind) for i, fault in column.faults] == [(5, "null")]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, 2]),
        pa.array([["a"], ["b"]]),
        pa.array([{"x": "a"}, {"x": "b"}]),
        pa.array([None, None]),
        pa.array([1, 2]).dictionary_encode(),
    ],
)
def test_other_types_are_refused_at_open(data: Path, array: Any) -> None:
    write(data, "a.parquet", {"text": array})
    with pytest.raises(DataError) as caught:
        opened(data)
    message = str(caught.value)
    assert f"column 'text' of {data}/data/a.parquet does not hold text" in message
    assert message.count("\n") == 3


def test_a_missing_column_lists_those_there_are(data: Path) -> None:
    write(data, "a.parquet", ["a"])
    write(data, "b.parquet", {"id": [1], "content": ["b"]})
    with pytest.raises(DataError, match=r"b.parquet has no column 'text'\n  got:  the columns id, content"):
        opened(data)


def test_a_dotted_column_is_a_field_of_a_struct(data: Path) -> None:
    rows = [{"b": {"c": "x"}, "n": 1}, {"b": {"c": None}, "n": 2}, {"b": None, "n": 3}, None]
    write(data, "a.parquet", {"a": rows, "z": ["z"] * 4})
    column = opened(data, text="a.b.c").read(0)
    assert values(column) == ["x", "", "", ""]
    assert [i for i, _ in column.faults] == [1, 2, 3]
    for text in ("a.b", "a.n", "a.b.d", "z.b", "q"):
        with pytest.raises(DataError, match=r"does not hold text|has no column"):
            opened(data, text=text)


def test_a_column_may_have_a_dot_in_its_name(data: Path) -> None:
    write(data, "a.parquet", {"a.b": ["x"]})
    assert values(opened(data, text="a.b").read(0)) == ["x"]


def test_only_the_text_column_is_read(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(data, "a.parquet", ["a"])
    asked: list[Any] = []
    read = pq.ParquetFile.read_row_group

    def spy(self: Any, group: int, columns: Any, use_threads: bool) -> Any:
        asked.append((group, columns))
        return read(self, group, columns=columns, use_threads=use_threads)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", spy)
    opened(data).read(0)
    assert asked == [(0, ["text"])]


def test_what_is_not_utf_8_is_a_fault() -> None:
    raws = [b"a", b"\xff\xfe", None, "\u00e9".encode(), b"\xed\xa0\x80", b"\xc3", b"\xa9b"]
    offsets = np.cumsum([0, *(len(raw or b"") for raw in raws)]).astype(np.int32)
    content = b"".join(raw or b"" for raw in raws)
    bits = np.packbits([raw is not None for raw in raws], bitorder="little").tobytes()
    buffers = [pa.py_buffer(bits), pa.py_buffer(offsets.tobytes()), pa.py_buffer(content)]
    for kind in (pa.string(), pa.binary()):
        column = column_from_arrow(pa.Array.from_buffers(kind, len(raws), buffers))
        assert values(column) == ["a", "", "", "\u00e9", "", "", ""]
        assert [(i, fault.kind) for i, fault in column.faults] == [
            (1, "not_utf8"),
            (2, "null"),
            (4, "not_utf8"),
            (5, "not_utf8"),
            (6, "not_utf8"),
        ]
        assert column.faults[0][1].got.startswith("byte 0xff at 0")


def test_slices_and_chunked_arrays_become_one_column() -> None:
    array = pa.array(WORDS)
    assert values(column_from_arrow(array.slice(1, 3))) == WORDS[1:4]
    assert values(column_from_arrow(pa.chunked_array([array, array.slice(2)]))) == WORDS + WORDS[2:]
    assert values(column_from_arrow(pa.chunked_array([], pa.string()))) == []
    assert values(column_from_arrow(array.slice(2, 1))) == [""]


@pytest.mark.parametrize("damage", ["empty", "tiny", "text", "cut", "long_footer", "bad_footer"])
def test_a_damaged_file_is_named(data: Path, damage: str) -> None:
    content = write(data, "a.parquet", WORDS).read_bytes()
    path = data / "data" / "b.parquet"
    path.write_bytes(
        {
            "empty": b"",
            "tiny": b"PAR1",
            "text": b"hello world, this is text\n" * 10,
            "cut": content[:-20],
            "long_footer": content[:-8] + b"\xff\xff\xff\x7fPAR1",
            "bad_footer": content[:-200] + b"\0" * 192 + content[-8:],
        }[damage]
    )
    with pytest.raises(DataError) as caught:
        opened(data)
    message = str(caught.value)
    assert message.startswith(f"dataset 'web': {path} cannot be read as Parquet\n")
    assert message.count("\n") == 3


def test_data_damaged_inside_is_named_when_it_is_read(data: Path) -> None:
    path = write(data, "a.parquet", WORDS * 100, compression="zstd", use_dictionary=False)
    content = bytearray(path.read_bytes())
    start = pq.read_metadata(path).row_group(0).column(1).data_page_offset
    content[start : start + 60] = b"\xff" * 60
    path.write_bytes(content)
    reader = opened(data)
    with pytest.raises(DataError, match=r"a.parquet cannot be read as Parquet"):
        reader.read(0)


def test_a_footer_larger_than_the_first_read(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon.readers.parquet._TAIL_BYTES", 100)
    write(data, "a.parquet", WORDS)
    assert values(opened(data).read(0)) == WORDS


def test_a_file_changed_or_gone_during_the_run_is_an_error(data: Path) -> None:
    path = write(data, "a.parquet", WORDS)
    reader = opened(data)
    write(data, "a.parquet", [*WORDS, "more"])
    with pytest.raises(DataError, match=r"a.parquet changed during the run"):
        reader.read(0)
    path.unlink()
    with pytest.raises(DataError, match=r"a.parquet cannot be opened"):
        reader.read(0)


def test_a_dataset_of_empty_tables_has_no_records(data: Path) -> None:
    write(data, "a.parquet", pa.array([], pa.string()))
    with pytest.raises(DataError, match="dataset 'web' has no records"):
        open_reader(Dataset.from_path("web", "data"), base=data, cache=data / "cache", spool_bytes=0)


def test_the_identity_tells_what_the_files_hold(data: Path) -> None:
    path = write(data, "a.parquet", WORDS)
    identity = opened(data).identity()
    assert json.loads(json.dumps(identity)) == identity
    assert (identity["kind"], identity["num_documents"]) == ("parquet", 5)
    assert identity["files"][0][:3] == ["a.parquet", path.stat().st_size, 5]
    os.utime(path, ns=(0, 0))
    assert opened(data).identity() == identity
    write(data, "a.parquet", ["One", *WORDS[1:]])
    assert opened(data).identity() != identity


def test_progress_is_told_in_files(data: Path) -> None:
    for i in range(5):
        write(data, f"{i}.parquet", WORDS)
    calls: list[tuple[str, int, int]] = []
    opened(data, report=lambda *call: calls.append(call))
    assert calls == [("footers web", i, 5) for i in range(1, 6)]


def test_a_reader_travels_to_workers(data: Path) -> None:
    write(data, "a.parquet", WORDS)
    reader = opened(data)
    reader.read(0)
    copy = pickle.loads(pickle.dumps(reader))
    assert values(copy.read(0)) == WORDS
    assert copy.identity() == reader.identity()


FLIPS = """
import sys
from pathlib import Path
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.readers import open_reader
from zephon.selection import select

path, cache = Path(sys.argv[1]), Path(sys.argv[2])
good = path.read_bytes()
size = int.from_bytes(good[-8:-4], "little") + 8
dataset = Dataset.from_path("web", str(path), where="n >= 3")
refused = 0
for at in range(len(good) - size, len(good)):
    path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    try:
        reader = open_reader(dataset, base=path.parent, cache=cache, spool_bytes=1)
        select(dataset, reader, cache).close()
    except DataError:
        refused += 1
print(size, refused)
"""


@pytest.mark.slow
def test_no_flipped_bit_of_a_footer_ends_the_process(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = {"text": [f"t{i}" for i in range(50)], "n": range(50)}
    pq.write_table(pa.table(columns), path, row_group_size=25)
    done = subprocess.run(
        [sys.executable, "-c", FLIPS, str(path), str(tmp_path / "cache")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    size, refused = map(int, done.stdout.split())
    assert 0 < refused < size


def test_a_column_whose_name_is_no_utf8_is_a_damaged_footer(data: Path) -> None:
    path = write(data, "a.parquet", {"text": WORDS, "notes": WORDS})
    path.write_bytes(path.read_bytes().replace(b"notes", b"not\xe9s"))
    with pytest.raises(DataError, match=r"a.parquet cannot be read as Parquet"):
        opened(data)


def test_a_file_with_damaged_row_groups_has_one_sample(data: Path) -> None:
    """Its footer can be read and its row groups cannot: a file that is only touched is the same file."""
    path = write(data, "a.parquet", WORDS)
    content, optional = path.read_bytes(), b"\x15\x0c\x25\x02\x18\x04text"
    assert content.count(optional) == 1
    path.write_bytes(content.replace(optional, optional.replace(b"\x02", b"\x00")))  # not as levels have it
    pq.read_metadata(path)
    dataset = Dataset.from_path("web", "data", on_error="skip")
    files = tuple(list_files(dataset.paths, data))
    reader = ParquetReader(Origin(dataset=dataset, files=files, cache=data / "cache"))
    assert [fault.kind for _, fault in reader.read(0).faults] == ["damaged"]
    os.link(path, data / "another name of it")
    assert [fault.kind for _, fault in reader.read(0).faults] == ["damaged"]


def test_a_row_group_of_less_than_no_rows_is_damage(data: Path) -> None:
    """A bit of the footer: 50 is 100 there, and 101 is -51."""
    path = write(data, "a.parquet", [str(i) for i in range(50)], use_dictionary=False, compression="none")
    content = path.read_bytes()
    size = int.from_bytes(content[-8:-4], "little") + 8
    flipped = []
    for at in [at for at in range(len(content) - size, len(content) - 8) if content[at] == 100]:
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        try:
            flipped += opened(data).chunks().num_documents.tolist()
        except DataError:
            continue
    assert flipped
    assert min(flipped) >= 0
