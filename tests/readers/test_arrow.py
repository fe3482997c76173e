"""Tests of `zephon.readers.arrow`: files and streams, in place or through the spool, whole or damaged."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest

from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.paths import list_files
from zephon.readers import Origin, RandomReader, Texts, open_reader
from zephon.readers.arrow import ArrowReader
from zephon.readers.arrow_messages import BATCH, DamageError, messages
from zephon.spool import Spool

WORDS = ["one", "two", "", "three \u00e9\U0001f600", "four"]
FORMS = {"stream": pa.ipc.new_stream, "file": pa.ipc.new_file}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path


def encode(columns: Any, form: str = "stream", batch: int = 4, **options: Any) -> bytes:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    sink = pa.BufferOutputStream()
    with FORMS[form](sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=batch)
    return bytes(sink.getvalue().to_pybytes())


def write(folder: Path, name: str, columns: Any, *args: Any, **options: Any) -> Path:
    path = folder / "data" / name
    path.write_bytes(columns if isinstance(columns, bytes) else encode(columns, *args, **options))
    return path


def opened(folder: Path, **fields: Any) -> RandomReader:
    dataset = Dataset.from_path("web", "data", **fields)
    return open_reader(dataset, base=folder, cache=folder / "cache", spool_bytes=1 << 30)


def reader_of(folder: Path, path: str = "data", **fields: Any) -> ArrowReader:
    dataset = Dataset.from_path("web", path, **fields)
    files = tuple(list_files(dataset.paths, folder))
    return ArrowReader(Origin(dataset=dataset, files=files, cache=folder / "cache"))


def addresses(reader: Any) -> tuple[Any, Any]:
    counts = np.asarray(reader.chunks().num_documents)
    return np.repeat(np.arange(len(counts)), counts), np.concatenate([np.arange(n) for n in counts.tolist()])


def read_all(reader: Any) -> Texts:
    found: Texts = reader.texts(*addresses(reader), 1 << 60)
    return found


def spooled(folder: Path) -> int:
    return len(list((folder / "cache").glob("spool/*/*")))


def texts_of(kind: Any, words: list[str | None]) -> Any:
    if pa.types.is_dictionary(kind):
        return pa.array(words, kind.value_type).dictionary_encode()
    return pa.array(words, kind)


OTHERS = {
    "null": pa.nulls(5),
    "truth": pa.array([True, None, False, True, True]),
    "lists": pa.array([["a", "b"], None, [], ["c"], ["d"]]),
    "fixed": pa.array([[1, 2]] * 5, pa.list_(pa.int32(), 2)),
    "struct": pa.array([{"x": 1, "y": "q"}, None, {"x": 2, "y": "r"}] + [{"x": 3, "y": "s"}] * 2),
    "map": pa.array([[("k", 1)]] * 5, pa.map_(pa.string(), pa.int32())),
    "view": pa.array(["long enough to be kept apart"] * 5, pa.string_view()),
    "listview": pa.array([[1], [2], None, [3], [4]], pa.list_view(pa.int8())),
    "words": pa.array(["p", "q", "p", "q", None]).dictionary_encode(),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int32()), pa.array(["a", "b"])),
    "dense": pa.UnionArray.from_dense(
        pa.array([0, 1, 0, 1, 0], pa.int8()),
        pa.array([0, 0, 1, 1, 2], pa.int32()),
        [pa.array([1, 2, 3]), pa.array(["a", "b"])],
    ),
    "sparse": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 1, 0], pa.int8()), [pa.array([1, 2, 3, 4, 5]), pa.array(list("abcde"))]
    ),
}
"""A column of every layout, to be passed over on the way to the text."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.string_view(),
        pa.binary_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_strings_of_all_types_are_texts(data: Path, kind: Any, compression: str | None, form: str) -> None:
    words = [*WORDS[:4], None]
    columns = {**OTHERS, "text": texts_of(kind, words), "after": pa.array(WORDS)}
    write(data, "a.arrow", columns, form, 2, compression=compression)
    reader = opened(data)
    assert reader.chunks().num_documents.tolist() == [2, 2, 1]
    found = read_all(reader)
    assert found.texts == [*WORDS[:4], ""]
    assert [(i, fault.kind) for i, fault in found.faults] == [(4, "null")]
    plain = compression is None and kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    assert spooled(data) == (0 if plain else 3)


@pytest.mark.parametrize("name", OTHERS)
def test_the_text_is_found_behind_any_column(data: Path, name: str) -> None:
    write(data, "a.arrow", {name: OTHERS[name], "text": WORDS}, batch=5)
    assert read_all(opened(data)).texts == WORDS
    assert spooled(data) == 0


@pytest.mark.parametrize("large", [False, True])
def test_what_is_not_utf_8_or_null_is_a_fault(data: Path, large: bool) -> None:
    raws = [b"a", b"\xff\xfe", None, "\u00e9".encode(), b"\xed\xa0\x80", b"\xc3", b"\xa9b", b"end"]
    offsets = np.cumsum([0, *(len(raw or b"") for raw in raws)]).astype(np.int64 if large else np.int32)
    bits = np.packbits([raw is not None for raw in raws], bitorder="little").tobytes()
    buffers = [pa.py_buffer(part) for part in (bits, offsets.tobytes(), b"".join(raw or b"" for raw in raws))]
    kind = pa.large_string() if large else pa.string()
    write(data, "a.arrow", {"text": pa.Array.from_buffers(kind, len(raws), buffers)}, batch=3)
    found = read_all(opened(data, on_error="skip"))
    assert found.texts == ["a", "", "", "\u00e9", "", "", "", "end"]
    faults = [(1, "not_utf8"), (2, "null"), (4, "not_utf8"), (5, "not_utf8"), (6, "not_utf8")]
    assert [(i, fault.kind) for i, fault in found.faults] == faults


def test_a_null_with_bytes_is_a_fault_without_text(data: Path) -> None:
    buffers = [pa.py_buffer(part) for part in (b"\x05", np.array([0, 1, 3, 4], "<i4").tobytes(), b"abbc")]
    write(data, "a.arrow", {"text": pa.Array.from_buffers(pa.string(), 3, buffers)})
    found = read_all(opened(data))
    assert (found.texts, [i for i, _ in found.faults]) == (["a", "", "c"], [1])


def test_a_large_batch_is_cut_into_even_pieces(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon.readers.arrow.PIECE_RECORDS", 100)
    texts = [f"{i} \u00e9" if i % 7 else None for i in range(1050)]
    columns = {"id": list(range(1050)), "text": texts}
    write(data, "a.arrow", columns, batch=700)
    write(data, "b.arrow", columns, batch=700, compression="zstd")
    reader = opened(data)
    assert reader.chunks().num_documents.tolist() == [100] * 7 + [87, 88, 87, 88] + [700, 350]
    found = read_all(reader)
    assert found.texts == 2 * [text or "" for text in texts]
    assert [i for i, _ in found.faults] == list(range(0, 1050, 7)) + list(range(1050, 2100, 7))
    assert reader.where(8, 3) == ("a.arrow", 790)
    inner = reader_of(data)
    values = [inner.values(chunk, ("id",)) for chunk in range(13)]
    assert pa.concat_tables(values)["id"].to_pylist() == 2 * list(range(1050))


def test_pieces_are_of_about_a_mib(data: Path) -> None:
    write(data, "a.arrow", {"text": ["x" * 10_000] * 500, "big": ["y" * 9_999] * 500}, batch=500)
    chunks = opened(data).chunks()
    assert chunks.num_documents.tolist() == [100] * 5
    assert chunks.num_bytes.tolist() == [pytest.approx(1_000_000, rel=0.01)] * 5


def test_a_dotted_column_is_a_field_of_a_struct(data: Path) -> None:
    rows = [{"n": i, "b": {"z": "zz", "c": text}} for i, text in enumerate(["x", "\u00e9", None, ""])]
    write(data, "a.arrow", {"q": ["q"] * 4, "a": rows, "z": ["z"] * 4})
    found = read_all(opened(data, text="a.b.c"))
    assert (found.texts, [i for i, _ in found.faults]) == (["x", "\u00e9", "", ""], [2])
    assert spooled(data) == 0
    write(data, "b.arrow", {"q": ["q"] * 2, "a": [None, rows[0]], "z": ["z"] * 2})
    found = read_all(opened(data, text="a.b.c"))
    assert (found.texts[4:], [i for i, _ in found.faults]) == (["", "x"], [2, 4])
    for text in ("a.b", "a.n", "a.b.d", "z.b", "other"):
        with pytest.raises(DataError, match=r"does not hold text|has no column"):
            opened(data, text=text)


IDS = [[1, 2, 3], [], [4], [5, 65000]]


@pytest.mark.parametrize("item", [pa.int32(), pa.uint32(), pa.uint16(), pa.int64()], ids=str)
@pytest.mark.parametrize("make", [pa.list_, pa.large_list, lambda item: pa.list_(item, 2)])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_lists_of_numbers_are_token_ids(data: Path, item: Any, make: Any, compression: str | None) -> None:
    kind = make(item)
    is_fixed = pa.types.is_fixed_size_list(kind)
    ids = [[1, 2], [3, 4], [5, 6], [7, 65000]] if is_fixed else IDS
    columns = {"text": ["x"] * 4, "input_ids": pa.array(ids, kind)}
    write(data, "a.arrow", columns, batch=3, compression=compression)
    reader: Any = opened(data, tokens="input_ids")
    found = reader.tokens(*addresses(reader), 1 << 30)
    assert found.tokens.tolist() == [token for row in ids for token in row]
    assert found.lengths.tolist() == [len(row) for row in ids]
    in_place = compression is None and not is_fixed and item in (pa.int32(), pa.uint32())
    assert spooled(data) == (0 if in_place else 2)


def test_lists_that_are_no_token_ids_are_faults(data: Path) -> None:
    rows = [[1, 2], None, [-1], [3, None], [4]]
    for batch in (1, 2, 5):
        write(data, "a.arrow", {"ids": pa.array(rows, pa.list_(pa.int32()))}, batch=batch)
        reader: Any = opened(data, tokens="ids")
        found = reader.tokens(*addresses(reader), 1 << 30)
        assert (found.tokens.tolist(), found.lengths.tolist()) == ([1, 2, 4], [2, 0, 0, 0, 1])
        assert [(i, fault.kind) for i, fault in found.faults] == [
            (1, "null"),
            (2, "not_tokens"),
            (3, "not_tokens"),
        ]


def test_dictionaries_of_every_batch_are_followed(data: Path) -> None:
    parts = [["a", "b"], ["b", "c"], ["c", "d", "a"]]
    schema = pa.schema([("text", pa.dictionary(pa.int8(), pa.string())), ("id", pa.int64())])
    for deltas in (True, False):
        sink = pa.BufferOutputStream()
        known: list[str] = []
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
        with pa.ipc.new_stream(sink, schema, options=options) as writer:
            for part in parts:
                known = (
                    [*known, *(word for word in part if word not in known)] if deltas else sorted(set(part))
                )
                indices = pa.array([known.index(word) for word in part], pa.int8())
                texts = pa.DictionaryArray.from_arrays(indices, pa.array(known))
                writer.write_batch(pa.record_batch([texts, pa.array(range(len(part)))], schema=schema))
        write(data, "a.arrow", sink.getvalue().to_pybytes())
        reader = opened(data)
        assert read_all(reader).texts == [word for part in parts for word in part]
        assert reader_of(data).values(2, ("id", "text"))["text"].to_pylist() == parts[2]


def boundaries(path: Path) -> list[tuple[int, int]]:
    """Returns (end of a record batch, records up to it) for each of a file, from its metadata's end on."""
    with path.open("rb") as source:
        found = list(messages(source, path.stat().st_size))
    ends = [message.end for message in found if message.kind == BATCH]
    return list(zip(ends, accumulate([2, 2, 1]), strict=True))


def ends_before_damage(content: bytes) -> list[int]:
    """Returns the ends of the record batches of a damaged file."""
    ends: list[int] = []
    found = messages(io.BytesIO(content), len(content))
    while True:
        try:
            message = next(found)
        except DamageError:
            return ends
        ends += [message.end] * (message.kind == BATCH)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_a_cut_file_is_damaged_wherever_it_is_cut(data: Path, form: str, compression: str | None) -> None:
    path = write(data, "a.arrow", {"id": range(5), "text": WORDS}, form, 2, compression=compression)
    whole, ends = path.read_bytes(), boundaries(path)
    for size in range(len(whole)):
        assert ends_before_damage(whole[:size]) == [end for end, _ in ends if end <= size]
    for size in (*range(0, len(whole), 61), len(whole) - 1):
        count = max((records for end, records in ends if end <= size), default=0)
        path.write_bytes(whole[:size])
        texts = read_all(opened(data, on_error="skip"))
        assert texts.texts == [*WORDS[:count], ""]
        assert [(i, fault.kind) for i, fault in texts.faults] == [(count, "damaged")]
        with pytest.raises(DataError, match=r"a.arrow cannot be read as Arrow") as caught:
            opened(data)
        assert str(caught.value).count("\n") == 3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_any_wrong_byte_is_an_error_a_fault_or_another_text(
    data: Path, form: str, compression: str | None, kind: Any
) -> None:
    columns = {"id": range(5), "text": texts_of(kind, [*WORDS[:4], None])}
    whole = encode(columns, form, 3, compression=compression)
    path = write(data, "a.arrow", whole)
    rng = np.random.default_rng(3)
    for place in rng.permutation(len(whole))[:20].tolist():
        content = bytearray(whole)
        content[place] ^= int(rng.integers(1, 256))
        path.write_bytes(content)
        try:
            reader = reader_of(data, on_error="skip")
            columns_read = [reader.read(chunk) for chunk in range(len(reader.chunks().num_documents))]
            views = [reader.view(chunk) for chunk in range(len(columns_read))]
        except DataError:
            continue
        counts = [len(column.offsets) - 1 for column in columns_read]
        assert counts == reader.chunks().num_documents.tolist()
        assert len(views) == len(counts)


def test_numbers_of_the_other_byte_order_go_through_the_spool(data: Path) -> None:
    whole = encode({"text": ["ab", "", "cde"]})
    order = whole.index(bytes([8, 0, 8, 0, 0, 0, 4, 0])) + 4  # in a table that leaves it out: little
    offsets = np.array([0, 2, 2, 5])
    other = whole[:order] + b"\x04" + whole[order + 1 :]
    write(data, "a.arrow", other.replace(offsets.astype("<i4").tobytes(), offsets.astype(">i4").tobytes()))
    assert read_all(opened(data)).texts == ["ab", "", "cde"]
    assert spooled(data) == 1


def test_a_text_behind_a_list_of_words_goes_through_the_spool(data: Path) -> None:
    words = pa.ListArray.from_arrays([0, 1, 2, 4, 4, 5], OTHERS["words"])
    write(data, "a.arrow", {"words": words, "text": WORDS}, batch=3)
    assert read_all(opened(data)).texts == WORDS
    assert spooled(data) == 2


@pytest.mark.parametrize("size", [1 << 45, 1 << 62])
def test_a_compressed_buffer_that_says_it_is_huge_is_named(data: Path, size: int) -> None:
    whole = encode({"text": ["word " * 1000]}, compression="zstd")
    place = whole.rindex((5000).to_bytes(8, "little"))
    write(data, "a.arrow", whole[:place] + size.to_bytes(8, "little") + whole[place + 8 :])
    with pytest.raises(DataError, match=r"a.arrow cannot be read as Arrow"):
        read_all(opened(data))


def test_offsets_that_lead_out_of_their_buffer_are_damage(data: Path) -> None:
    whole = encode({"text": ["abcdef"] * 4})
    place = whole.index(np.array([0, 6, 12, 18, 24], "<i4").tobytes())
    write(data, "a.arrow", whole[: place + 16] + b"\xff" + whole[place + 17 :])
    with pytest.raises(DataError, match=r"cannot be read as Arrow\n  got:  offsets that lead out"):
        read_all(opened(data))
    found = read_all(opened(data, on_error="skip"))
    assert {fault.kind for _, fault in found.faults} == {"damaged"}
    assert len(found.faults) == 4


@pytest.mark.parametrize("content", [b"FEA1 an older Feather", b'{"text": 1}\n' * 9, b"ARROW1", b""])
def test_what_is_no_arrow_file_is_named(data: Path, content: bytes) -> None:
    path = write(data, "a.arrow", content)
    with pytest.raises(DataError) as caught:
        opened(data)
    assert str(caught.value).startswith(f"dataset 'web': {path} cannot be read as Arrow\n")


def test_files_without_records(data: Path) -> None:
    write(data, "a.arrow", {"text": pa.array([], pa.string())})
    write(data, "b.feather", {"text": pa.array([], pa.string())}, "file")
    with pytest.raises(DataError, match="has no records"):
        opened(data)


def test_a_message_as_older_versions_wrote_it(data: Path) -> None:
    write(data, "a.arrow", {"text": WORDS}, "stream", use_legacy_format=True)
    assert read_all(opened(data)).texts == WORDS


def test_a_file_that_shrinks_is_an_error_and_no_signal(data: Path) -> None:
    path = write(data, "a.arrow", {"text": ["x" * 1000] * 500}, batch=100)
    reader = opened(data)
    assert isinstance(reader, Spool)
    read_all(reader)
    os.truncate(path, 1000)
    with pytest.raises(DataError, match="changed during the run"):
        read_all(reader)
    with pytest.raises(DataError, match="changed during the run"):  # also between a check and a read
        reader._views.texts(*addresses(reader), 1 << 60)


def test_few_descriptors_for_many_chunks(data: Path) -> None:
    for i in range(100):
        write(data, f"{i:02}.arrow", {"text": [f"{i} {j}" for j in range(20)]}, batch=2)
    before = len(os.listdir("/proc/self/fd"))
    reader = opened(data)
    assert len(reader.chunks().num_documents) == 1000
    assert len(read_all(reader).texts) == 2000
    assert len(os.listdir("/proc/self/fd")) - before <= 120
    copy = pickle.loads(pickle.dumps(reader))
    assert read_all(copy).texts == read_all(reader).texts
    copy.close()
    reader.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_values_of_other_columns(data: Path) -> None:
    write(data, "a.arrow", {"score": [1, 2, None, 4, 5], "words": OTHERS["words"], "text": WORDS}, batch=3)
    reader = reader_of(data)
    found = [reader.values(chunk, ("score", "words")) for chunk in range(2)]
    assert [table.to_pydict()["score"] for table in found] == [[1, 2, None], [4, 5]]
    assert found[1]["words"].to_pylist() == ["q", None]
    with pytest.raises(
        DataError, match=r"a.arrow has no column 'other'\n  got:  the columns score, words, text"
    ):
        reader.values(0, ("other",))


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def test_a_remote_piece_is_read_by_range(data: Path, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"big": ["y" * 100_000] * 50, "text": ["x" * 1000] * 50}
    memory.pipe("/bucket/a.arrow", encode(columns, batch=50))
    reader = reader_of(data, "memory://bucket")
    asked: list[int] = []
    cat_file = type(memory).cat_file

    def spy(self: Any, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        content: bytes = cat_file(self, path, start, end, **options)
        asked.append(len(content))
        return content

    monkeypatch.setattr(type(memory), "cat_file", spy)
    assert len(reader.read(0).data) == 50_000
    assert reader.view(0) is None
    assert sum(asked) < 300_000


def save(folder: Path, names: dict[str, Any]) -> None:
    """Writes files as Hugging Face `datasets` does: tables as streams, all else as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in names.items():
        is_table = name.endswith(".arrow")
        (folder / name).write_bytes(encode(content) if is_table else json.dumps(content).encode())


INFO = {"features": {}, "splits": {"train": {"name": "train"}, "test": {"name": "test"}}}


def test_a_saved_dataset_is_read_without_its_metadata_and_caches(data: Path) -> None:
    shards = {f"data-0000{i}-of-00002.arrow": {"text": [f"{i} {word}" for word in WORDS]} for i in range(2)}
    state = {"_data_files": [{"filename": name} for name in shards]}
    cached = {"cache-0123456789abcdef.arrow": {"text": ["not this"]}}
    save(data / "data", shards | cached | {"state.json": state, "dataset_info.json": INFO})
    reader = opened(data)
    assert read_all(reader).texts == [f"{i} {word}" for i in range(2) for word in WORDS]
    assert [row[0] for row in reader.identity()["files"]] == sorted(shards)
    assert read_all(opened(data, kind="arrow")).texts == read_all(reader).texts


def test_several_saved_splits_are_refused(data: Path) -> None:
    save(data / "data", {"dataset_dict.json": {"splits": ["train", "test"]}})
    for split in ("train", "test"):
        save(
            data / "data" / split,
            {"data-00000-of-00001.arrow": {"text": [split]}, "state.json": {}, "dataset_info.json": INFO},
        )
    with pytest.raises(DataError, match="holds several splits") as caught:
        opened(data)
    cure = f"cure: give the path of a split: {data}/data/train or {data}/data/test"
    assert str(caught.value).endswith(cure)
    dataset = Dataset.from_path("web", "data/train")
    reader = open_reader(dataset, base=data, cache=data / "cache", spool_bytes=1 << 30)
    assert read_all(reader).texts == ["train"]


def test_several_splits_in_a_cache_are_refused(data: Path) -> None:
    names = ["web-train-00000-of-00002.arrow", "web-train-00001-of-00002.arrow", "web-test.arrow"]
    save(data / "data", {"dataset_info.json": INFO} | {name: {"text": [name]} for name in names})
    with pytest.raises(DataError, match="holds several splits") as caught:
        opened(data)
    assert f"{data}/data/*-test*.arrow or {data}/data/*-train*.arrow" in str(caught.value)
    (data / "data" / names[2]).unlink()
    assert read_all(opened(data)).texts == names[:2]
