"""Tests of `zephon.readers.flat` and `token_files`: which files fit, where chunks are cut, what changes."""

from __future__ import annotations

import io
import os
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.token_data import offsets_of, write_bin, write_megatron, write_npy
from zephon import views
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.readers import open_reader, token_files
from zephon.readers.token_files import Cuts, TokenFiles, token_column
from zephon.spool import Spool

DOCUMENTS = [[1, 2, 3], [], [4], [5, 6], []]


def opened(path: Path, **fields: Any) -> Any:
    dataset = Dataset.from_path("web", str(path), **fields)
    folder = path.parent.parent if path.parent.name == "data" else path.parent
    return open_reader(dataset, base=folder, cache=folder / "cache", spool_bytes=1 << 30)


def documents(reader: Any, num_bytes: int = 1 << 40) -> list[list[int]]:
    """Returns all documents of a reader, chunk by chunk."""
    found: list[list[int]] = []
    for chunk, count in enumerate(reader.chunks().num_documents.tolist()):
        tokens = reader.tokens(np.full(count, chunk), np.arange(count), num_bytes)
        ends = np.cumsum(tokens.lengths)
        found += [tokens.tokens[a:b].tolist() for a, b in zip(ends - tokens.lengths, ends, strict=True)]
    return found


def rewrite(path: Path, data: bytes) -> None:
    """Gives a file other bytes, and another modification time whatever the clock's steps."""
    stamp = path.stat().st_mtime_ns
    path.write_bytes(data)
    os.utime(path, ns=(stamp, stamp + 1_000_000))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_bin(tmp_path / "data", DOCUMENTS)
    return tmp_path / "data"


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_a_bin_file_holds_what_the_recipe_says(dtype: str, tmp_path: Path) -> None:
    write_bin(tmp_path / "data", DOCUMENTS, dtype)
    assert documents(opened(tmp_path / "data", dtype=dtype)) == DOCUMENTS


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32", "int64"])
def test_an_npy_file_says_itself_what_it_holds(dtype: str, tmp_path: Path) -> None:
    write_npy(tmp_path / "data", DOCUMENTS, dtype)
    assert documents(opened(tmp_path / "data")) == DOCUMENTS
    if dtype in ("uint16", "uint32"):
        assert documents(opened(tmp_path / "data", dtype=dtype)) == DOCUMENTS
        with pytest.raises(DataError, match=r"leave `dtype` out: a .npy file says it itself"):
            opened(tmp_path / "data", dtype="uint16" if dtype == "uint32" else "uint32")


def test_a_file_can_be_named_alone(data: Path) -> None:
    assert documents(opened(data / "a.bin", dtype="uint16")) == DOCUMENTS
    assert opened(data / "*.bin", dtype="uint16").identity() == opened(data, dtype="uint16").identity()


def test_files_of_offsets_are_no_data_of_their_own(data: Path) -> None:
    write_bin(data, [[9]], name="b")
    write_npy(data, [[8, 8]], "uint16", name="c")
    reader = opened(data, dtype="uint16")
    assert [entry[0] for entry in reader.identity()["files"]] == ["a.bin", "b.bin", "c.npy"]
    assert documents(reader) == [*DOCUMENTS, [9], [8, 8]]


def test_the_listing_of_other_kinds_is_left_alone(data: Path) -> None:
    """A plugin may have a kind of files that look like boundaries."""
    pq.write_table(pa.table({"text": ["a"]}), data / "a.bin")
    with pytest.raises(DataError, match=r"a.offsets.npy cannot be read as Parquet"):
        opened(data, kind="parquet")


def test_files_of_several_types_are_spooled(data: Path) -> None:
    write_npy(data, [[1 << 20], [7]], "int32", name="b")
    reader = opened(data, dtype="uint16")
    assert isinstance(reader, Spool)
    assert documents(reader) == [*DOCUMENTS, [1 << 20], [7]]


def test_without_offsets_the_error_says_how_to_write_them(data: Path) -> None:
    (data / "a.offsets.npy").unlink()
    with pytest.raises(DataError) as caught:
        opened(data, dtype="uint16")
    message = str(caught.value)
    assert "no file a.offsets.npy" in message
    assert "never guessed from an id such as EOS" in message
    snippet = message.partition("written:\n")[2].replace("    ", "")
    os.chdir(data)
    exec(snippet, {"np": np, "documents": DOCUMENTS})
    assert documents(opened(data, dtype="uint16")) == DOCUMENTS


def test_without_a_dtype_a_bin_file_is_refused(data: Path) -> None:
    with pytest.raises(DataError) as caught:
        opened(data)
    assert 'set dtype = "uint16" (vocabularies up to 65,536) or dtype = "uint32"' in str(caught.value)
    assert "no `dtype`, and no a.idx beside it" in str(caught.value)


def test_another_dtype_than_the_file_s_does_not_fit_the_offsets(data: Path) -> None:
    with pytest.raises(DataError, match=r"offsets that end with 6, for 3 tokens of uint32") as caught:
        opened(data, dtype="uint32")
    assert "if `dtype` is given, see that it is what the file holds" in str(caught.value)


def npy(array: Any) -> bytes:
    target = io.BytesIO()
    np.save(target, array)
    return target.getvalue()


BAD_OFFSETS: dict[str, tuple[bytes, str]] = {
    "end": (npy(np.array([0, 3, 5])), "offsets that end with 5, for 6 tokens"),
    "begin": (npy(np.array([1, 3, 6])), "offsets that begin with 1, they begin with 0"),
    "descend": (npy(np.array([0, 4, 3, 6])), "offset 2 is below offset 1, they ascend"),
    "negative": (npy(np.array([0, -3, 6])), "offset 1 is below offset 0"),
    "large": (npy(np.array([0, 1 << 63, 6], np.uint64)), "offset 1 is below offset 0"),
    "none": (npy(np.array([], np.int64)), "no offsets at all"),
    "two dimensions": (npy(np.array([[0, 6]])), r"an array of shape \(1, 2\)"),
    "no dimension": (npy(np.array(6)), r"an array of shape \(\)"),
    "cut": (npy(np.array([0, 3, 6]))[:-1], "151 bytes for 3 x int64 behind 128"),
    "no npy": (b"offsets", "magic string"),
    "empty": (b"", "reading magic string"),
    "another version": (npy(np.array([0, 6])).replace(b"\x01\x00", b"\x03\x00", 1), r"version \(3, 0\)"),
}


@pytest.mark.parametrize("name", list(BAD_OFFSETS))
def test_offsets_that_do_not_fit_are_refused_at_open(name: str, data: Path) -> None:
    write, message = BAD_OFFSETS[name]
    (data / "a.offsets.npy").write_bytes(write)
    with pytest.raises(DataError, match=message) as caught:
        opened(data, dtype="uint16")
    assert f"{data}/a.offsets.npy does not fit {data}/a.bin" in str(caught.value)
    assert str(caught.value).count("\n") == 3
    write_bin(data, [[7]], name="b")
    reader = opened(data, dtype="uint16", on_error="skip")  # one faulty record in place of the file
    assert reader.chunks().num_documents.tolist() == [1, 1]
    found = reader.tokens(np.arange(2), np.zeros(2, np.int64), 1 << 30)
    assert found.tokens.tolist() == [7]
    assert found.lengths.tolist() == [0, 1]
    assert [(i, fault.kind) for i, fault in found.faults] == [(0, "damaged")]


@pytest.mark.parametrize("name", ["a.npy", "a.offsets.npy"])
def test_a_damaged_header_is_refused_or_says_what_the_file_holds(name: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_npy(data, DOCUMENTS)
    path = data / name
    good = path.read_bytes()
    refused = 0
    for at in range(good.index(b"}") + 2):
        for part in (bytes([good[at] ^ 1]), b'"', b"{", b"9", b"\xff", b""):
            path.write_bytes(good[:at] + part + good[at + 1 :])
            try:
                found = documents(opened(data))
            except DataError as error:
                refused += str(error).count("\n") == 3
            else:
                assert found == DOCUMENTS
    assert refused > 100


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int16", ">u2", "<U3", "bool"])
def test_an_npy_file_of_something_else_is_refused(dtype: str, tmp_path: Path) -> None:
    write_npy(tmp_path / "data", DOCUMENTS, dtype)
    for on_error in ("raise", "skip"):
        with pytest.raises(DataError, match="token ids are uint16, uint32, int32, int64, little-endian"):
            opened(tmp_path / "data", on_error=on_error)


def test_offsets_of_another_type_are_refused(data: Path) -> None:
    np.save(data / "a.offsets.npy", offsets_of(DOCUMENTS).astype(np.int32))
    with pytest.raises(DataError, match="offsets are int64 or uint64"):
        opened(data, dtype="uint16")


class Bomb:
    """Says so if anybody unpickles it."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('unpickled')",)


@pytest.mark.parametrize("name", ["a.npy", "a.offsets.npy"])
def test_nothing_is_ever_unpickled(name: str, tmp_path: Path) -> None:
    write_npy(tmp_path / "data", DOCUMENTS)
    np.save(tmp_path / "data" / name, np.array([Bomb()], object), allow_pickle=True)
    with pytest.raises(DataError):
        opened(tmp_path / "data")


def test_a_file_without_documents_is_passed_over(data: Path) -> None:
    write_bin(data, [], name="b")
    write_bin(data, [[]], name="c")
    reader = opened(data, dtype="uint16")
    assert reader.chunks().num_documents.tolist() == [5, 1]
    assert documents(reader) == [*DOCUMENTS, []]


def test_a_dataset_without_documents_is_refused(tmp_path: Path) -> None:
    write_bin(tmp_path / "data", [])
    with pytest.raises(DataError, match="has no records"):
        opened(tmp_path / "data", dtype="uint16")


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=60),
    st.integers(1, 30),
    st.integers(1, 9),
    st.integers(1, 4),
    st.booleans(),
)
def test_chunks_are_the_documents_that_start_together(
    lengths: Sequence[int], tokens: int, most: int, parts: int, is_flat: bool
) -> None:
    """Whatever part of the offsets is looked at together; a chunk has a bounded number of documents."""
    starts = np.append(0, np.cumsum(lengths))
    expected = [
        i
        for i in range(len(lengths))
        if i == 0 or starts[i] // tokens != starts[i - 1] // tokens or i % most == 0
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_files, "CHUNK_TOKENS", tokens)
        patch.setattr(token_files, "CHUNK_DOCUMENTS", most)
        cuts = Cuts()
        for first in range(0, len(lengths), parts * most):
            cuts.add(first, starts[first : min(len(lengths), first + parts * most)])
        scan = cuts.scan(len(lengths), int(starts[-1]), np.dtype("uint16"))
    assert (scan.places >> 4).tolist() == expected
    assert scan.num_documents.tolist() == np.diff([*expected, len(lengths)]).tolist()
    assert int(scan.num_bytes.sum()) == 4 * sum(lengths)


@pytest.mark.parametrize("write", [write_bin, write_megatron])
def test_many_chunks_in_many_files(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_files, "CHUNK_TOKENS", 16)
    rng = np.random.default_rng(0)
    expected: list[list[int]] = []
    for name in "abc":
        some = [rng.integers(0, 1000, size).tolist() for size in rng.integers(0, 12, 50)]
        fields = write(tmp_path / "data", some, name=name)
        expected += some
    reader = opened(tmp_path / "data", **fields)
    assert isinstance(reader, TokenFiles)
    assert len(reader.chunks().num_documents) > 30
    assert documents(reader) == expected
    reader.close()
    assert documents(reader) == expected


def test_few_files_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MAX_OPEN_CHUNKS", 4)
    for i in range(40):
        write_bin(tmp_path / "data", [[i]], name=f"{i:02}")
    reader = opened(tmp_path / "data", dtype="uint16")
    before = len(os.listdir("/dev/fd"))
    assert documents(reader) == [[i] for i in range(40)]
    assert len(os.listdir("/dev/fd")) <= before + 4
    reader.close()
    assert len(os.listdir("/dev/fd")) == before


def test_the_identity_is_that_of_a_copy_elsewhere(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "copy")
    found = opened(data, dtype="uint16").identity()
    assert opened(tmp_path / "copy", dtype="uint16").identity() == found
    np.save(tmp_path / "copy" / "a.offsets.npy", np.array([0, 1, 1, 4, 6, 6]))
    assert opened(tmp_path / "copy", dtype="uint16").identity() != found


def test_a_scan_is_kept_as_long_as_both_files_stay(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert documents(opened(data, dtype="uint16")) == DOCUMENTS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cuts, "add", None)
        assert documents(opened(data, dtype="uint16")) == DOCUMENTS
    others = [[1], [2, 3, 4], [5], [6], []]
    rewrite(data / "a.offsets.npy", npy(offsets_of(others)))
    assert documents(opened(data, dtype="uint16")) == others


@pytest.mark.parametrize("ending", [".bin", ".offsets.npy"])
def test_a_file_that_changes_before_it_is_read_is_an_error(ending: str, data: Path) -> None:
    reader = opened(data, dtype="uint16")
    path = data / f"a{ending}"
    rewrite(path, path.read_bytes())
    with pytest.raises(DataError, match=f"{path} changed during the run"):
        documents(reader)
    (data / "a.bin").unlink()
    with pytest.raises(DataError, match=r"(cannot be opened|changed during the run)"):
        documents(pickle.loads(pickle.dumps(reader)))


@pytest.mark.parametrize("size", [0, 5, 12, 14])
def test_a_file_that_changes_while_it_is_open_is_an_error(size: int, data: Path) -> None:
    """Cut, grown, or written over with as many bytes: never other rows, never a signal."""
    reader = opened(data, dtype="uint16")
    for _ in range(2):
        assert documents(reader) == DOCUMENTS
    rewrite(data / "a.bin", bytes(size))
    with pytest.raises(DataError, match="changed during the run"):
        documents(reader)


def test_a_cut_file_is_an_error_whatever_its_times_say(data: Path) -> None:
    reader = opened(data, dtype="uint16")
    assert reader.tokens(np.zeros(1, np.int64), np.zeros(1, np.int64), 1).tokens.tolist() == [1, 2, 3]
    stamp = (data / "a.bin").stat().st_mtime_ns
    os.truncate(data / "a.bin", 8)
    os.utime(data / "a.bin", ns=(stamp, stamp))
    with pytest.raises(DataError, match=r"changed during the run\n  got:  fewer bytes"):
        reader.tokens(np.zeros(1, np.int64), np.array([3]), 1)


def test_a_remote_file_without_its_offsets_is_refused(data: Path) -> None:
    import fsspec

    fsspec.filesystem("memory").pipe_file(f"/{data.parent.name}/a.bin", b"12")
    dataset = Dataset.from_path("web", f"memory://{data.parent.name}/a.bin", dtype="uint16")
    with pytest.raises(DataError, match=r"no file a.offsets.npy"):
        open_reader(dataset, base=data, cache=data / "cache", spool_bytes=1 << 30)


def test_the_spool_is_written_anew_for_other_offsets(tmp_path: Path) -> None:
    """Of files of two types, which are spooled: the same bytes, and boundaries that the sample misses."""
    many = [[i % 7] for i in range(20_000)]
    write_bin(tmp_path / "data", many)
    write_npy(tmp_path / "data", [[1]], "int32", name="b")
    assert documents(opened(tmp_path / "data", dtype="uint16")) == [*many, [1]]
    offsets = offsets_of(many)
    offsets[3000] += 1
    rewrite(tmp_path / "data" / "a.offsets.npy", npy(offsets))
    found = documents(opened(tmp_path / "data", dtype="uint16"))
    assert [i for i, ids in enumerate(found) if len(ids) != 1] == [2999, 3000]


def test_ids_that_are_none_are_faults_of_their_documents() -> None:
    ids = np.array([1, -1, 2, 3, 1 << 32, -5, 4], np.int64)
    column = token_column(ids, np.array([0, 2, 4, 4, 6, 7]))
    assert np.frombuffer(column.data, np.uint32).tolist() == [2, 3, 4]
    assert column.offsets.tolist() == [0, 0, 8, 8, 8, 12]
    assert [(i, fault.got) for i, fault in column.faults] == [(0, "the id -1"), (3, f"the id {1 << 32}")]


def test_texts_are_refused(data: Path) -> None:
    with pytest.raises(TypeError, match="holds token ids, no texts"):
        opened(data, dtype="uint16").texts(np.zeros(1, np.int64), np.zeros(1, np.int64), 1)
