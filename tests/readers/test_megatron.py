"""Tests of `zephon.readers.megatron`: documents by the index, wherever their sequences lie."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.readers.test_flat import documents, opened, rewrite
from tests.token_data import index, reversed_order, write_bin, write_megatron
from zephon.errors import DataError
from zephon.readers import token_files
from zephon.readers.token_files import TokenFiles
from zephon.spool import Spool

DOCUMENTS = [[1, 2, 3], [], [4], [5, 6], []]
SIZES, PLACES, EDGES = [3, 1, 2], [0, 6, 8], [0, 1, 1, 2, 3, 3]
"""What the index of these documents holds, with uint16."""


def write(folder: Path, idx: bytes, data: bytes = bytes(12)) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "a.bin").write_bytes(data)
    (folder / "a.idx").write_bytes(idx)
    return folder


@pytest.mark.parametrize("dtype", ["uint16", "int16", "int32", "int64"])
def test_token_ids_of_every_type(dtype: str, tmp_path: Path) -> None:
    write_megatron(tmp_path / "data", DOCUMENTS, dtype)
    reader = opened(tmp_path / "data")
    assert isinstance(reader, TokenFiles)
    assert reader.identity()["kind"] == "megatron"
    assert documents(reader) == DOCUMENTS


def test_the_index_is_that_of_the_bytes_written_out() -> None:
    assert index("uint16", [3], [0], [0, 1]).hex() == (
        "4d4d49444944580000"  # MMIDIDX, two zero bytes
        "0100000000000000"  # version 1
        "08"  # uint16
        "0100000000000000"  # one sequence
        "0200000000000000"  # two edges: one document
        "03000000"  # of three tokens
        "0000000000000000"  # at byte 0
        "00000000000000000100000000000000"  # from sequence 0 to 1
    )


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float32", "float64"])
def test_other_types_are_refused(dtype: str, tmp_path: Path) -> None:
    write_megatron(tmp_path / "data", DOCUMENTS, dtype)
    for on_error in ("raise", "skip"):
        with pytest.raises(DataError, match=f"got:  the type {dtype}") as caught:
            opened(tmp_path / "data", on_error=on_error)
        assert f"{tmp_path}/data/a.idx" in str(caught.value)


def test_a_file_can_be_named_alone_and_one_half_is_refused(tmp_path: Path) -> None:
    write_megatron(tmp_path / "data", DOCUMENTS)
    assert documents(opened(tmp_path / "data" / "a.bin")) == DOCUMENTS
    with pytest.raises(DataError, match=r"half an indexed dataset(.|\n)*give the .bin files"):
        opened(tmp_path / "data" / "a.idx")
    (tmp_path / "data" / "a.idx").unlink()
    with pytest.raises(DataError, match=r"no `dtype`, and no a.idx beside it"):
        opened(tmp_path / "data")
    with pytest.raises(DataError, match=r"no file a.idx(.|\n)*a .bin alone is of kind flat"):
        opened(tmp_path / "data", kind="megatron")


def test_files_of_two_kinds_are_refused(tmp_path: Path) -> None:
    write_megatron(tmp_path / "data", DOCUMENTS)
    write_bin(tmp_path / "data", DOCUMENTS, name="b")
    with pytest.raises(DataError, match=r"a.bin has an .idx file beside it, .*b.bin has none"):
        opened(tmp_path / "data")


def test_a_dtype_that_contradicts_the_index_is_refused(tmp_path: Path) -> None:
    write_megatron(tmp_path / "data", DOCUMENTS, "uint16")
    assert documents(opened(tmp_path / "data", dtype="uint16")) == DOCUMENTS
    with pytest.raises(DataError, match="the index says it itself"):
        opened(tmp_path / "data", dtype="uint32")


BAD: dict[str, tuple[bytes, str]] = {
    "magic": (b"x" + index("uint16", SIZES, PLACES, EDGES)[1:], "bytes that begin with b'xMIDIDX"),
    "empty": (b"", "0 bytes that begin with b''"),
    "cut": (
        index("uint16", SIZES, PLACES, EDGES)[:-1],
        "117 bytes for 3 sequences and 6 edges, which take 118",
    ),
    "version": (
        index("uint16", SIZES, PLACES, EDGES).replace(b"\0\0\1", b"\0\0\2", 1),
        "version 2, type 8, 6 document edges",
    ),
    "too few sizes": (
        index("uint16", SIZES[:2], PLACES[:2], [0, 1, 2]),
        "sequences of 4 tokens of uint16 for 12",
    ),
    "too many": (index("uint16", [3, 1, 3], PLACES, EDGES), "a sequence outside of the 12 bytes"),
    "negative": (index("uint16", [3, -1, 2], PLACES, EDGES), "a sequence outside"),
    "place": (index("uint16", SIZES, [0, 6, -8], EDGES), "a sequence outside"),
    "edges descend": (index("uint16", SIZES, PLACES, [0, 2, 1, 3]), "they ascend"),
    "edges begin late": (index("uint16", SIZES, PLACES, [1, 2, 3]), "documents begin with sequence 1"),
    "edges end early": (index("uint16", SIZES, PLACES, [0, 1, 2]), "documents end with sequence 2 of 3"),
    "edges end late": (index("uint16", SIZES, PLACES, [0, 1, 4]), "documents from sequence 0 to 4 of 3"),
    "no edges": (index("uint16", [], [], []), "0 document edges"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_an_index_that_does_not_fit_is_refused_at_open(name: str, tmp_path: Path) -> None:
    idx, message = BAD[name]
    folder = write(tmp_path / "data", idx)
    with pytest.raises(DataError, match=message) as caught:
        opened(folder)
    assert f"{folder}/a.idx does not fit {folder}/a.bin" in str(caught.value)
    reader = opened(folder, on_error="skip")
    found = reader.tokens(np.zeros(1, np.int64), np.zeros(1, np.int64), 1)
    assert [fault.kind for _, fault in found.faults] == ["damaged"]


def test_a_multimodal_index_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", index("uint16", SIZES, PLACES, EDGES) + bytes(3))
    with pytest.raises(DataError, match="multimodal"):
        opened(folder)


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.integers(0, 99), max_size=9), min_size=1, max_size=25),
    st.integers(1, 3),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
    st.sampled_from([1, 8, 1 << 18]),
    st.integers(1, 3),
)
def test_documents_are_followed_wherever_they_lie(
    tmp_path_factory: pytest.TempPathFactory,
    some: list[list[int]],
    sequences: int,
    gap: int,
    random: Any,
    chunk_tokens: int,
    parts: int,
) -> None:
    """Sequences in any order, with gaps; in place where the documents of every chunk are a run of bytes."""
    folder = tmp_path_factory.mktemp("data")

    def shuffled(count: int) -> Sequence[int]:
        return list(random.sample(range(count), count))

    for name, order in (("straight", range), ("backwards", reversed_order), ("shuffled", shuffled)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(token_files, "CHUNK_TOKENS", chunk_tokens)
            patch.setattr(token_files, "CHUNK_DOCUMENTS", 4)
            patch.setattr("zephon.readers.megatron.SCAN_DOCUMENTS", 4 * parts)
            write_megatron(folder / name, some, "uint16", sequences=sequences, order=order, gap=gap)
            reader = opened(folder / name)
            assert documents(reader) == some
            if name == "straight" and not gap:
                assert isinstance(reader, TokenFiles)


def test_scattered_documents_are_spooled(tmp_path: Path) -> None:
    write_megatron(tmp_path / "data", DOCUMENTS, order=reversed_order)
    reader = opened(tmp_path / "data")
    assert isinstance(reader, Spool)
    assert documents(reader) == DOCUMENTS


def test_an_index_that_changes_before_it_is_read_is_an_error(tmp_path: Path) -> None:
    write_megatron(tmp_path / "data", DOCUMENTS)
    reader = opened(tmp_path / "data")
    path = tmp_path / "data" / "a.idx"
    rewrite(path, path.read_bytes())
    with pytest.raises(DataError, match=r"a.idx changed during the run"):
        documents(reader)
    os.unlink(path)
    with pytest.raises(DataError, match=r"a.idx cannot be opened"):
        documents(reader)
