"""The kit for readers accepts every built-in kind and refuses bad readers, each for its reason."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import token_data
from tests.helpers import faulty, words
from tests.readers import test_formats
from zephon import Chunks, Column, DataError, Dataset, Fault, Origin, Texts, check_file, read_range
from zephon.testing import check_reader

STREAMED = ("jsonl", "jsonl_gz", "csv", "tsv_gz")
KINDS = {"text": "text", "text_zst": "text", "feather": "arrow", "json_bz2": "jsonl"}


def kind_of(name: str) -> str:
    return KINDS.get(name) or name.partition("_")[0].replace("tsv", "csv")


def written(files: test_formats.Files, folder: Path) -> Path:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


# The built-in kinds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", test_formats.FORMATS)
def test_every_format_passes(name: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    folder = written(test_formats.FORMATS[name](tmp_path), tmp_path / "data")
    check_reader(kind_of(name), Dataset.from_path("web", folder))


@pytest.mark.parametrize("name", STREAMED)
def test_every_format_that_streams_passes(name: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    folder = written(test_formats.FORMATS[name](tmp_path), tmp_path / "data")
    check_reader(kind_of(name), Dataset.from_path("web", folder, stream=True))


@pytest.mark.parametrize("name", token_data.FORMATS)
def test_every_format_of_token_ids_passes(name: str, tmp_path: Path) -> None:
    documents = [[i, i + 1, i * 7][: i % 4] for i in range(40)]
    fields = token_data.FORMATS[name](tmp_path, documents)
    kinds = {"jsonl": "jsonl", "list": "parquet", "large": "parquet", "bin": "flat", "npy": "flat"}
    check_reader(kinds.get(name.split()[0], "megatron"), Dataset.from_path("web", tmp_path, **fields))


def test_memory_passes() -> None:
    check_reader("memory", Dataset.from_documents("web", words("web", 2500)))
    check_reader("memory", faulty("web", ["a", None, "b\ud800", 7, ""], on_error="skip"))


def test_bad_records_pass(tmp_path: Path) -> None:
    texts = ["a", None, "b", 3, "", "\ud800 c", "d" * 50]
    lines = [json.dumps({"text": text}).encode() for text in texts] + [b"{cut", b"\xff\xfe", b"[1]"]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines * 9))
    (tmp_path / "b.jsonl").write_bytes(b"\n".join(lines))
    dataset = Dataset.from_path("web", tmp_path, on_error="skip")
    check_reader("jsonl", dataset)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines * 99))[:-20])
    check_reader("jsonl", dataset)
    check_reader("jsonl", Dataset.from_path("web", tmp_path, on_error="skip", stream=True))


# Bad readers ------------------------------------------------------------------------------------------------


class Lines:
    """A good reader to be spoilt: a chunk is a file, a document a line."""

    def __init__(self, origin: Origin) -> None:
        self.name, self.files = origin.dataset.name, origin.files
        self.texts_of = [read_range(self.name, file, 0, 9999).decode().splitlines() for file in self.files]

    def chunks(self) -> Chunks:
        counts = np.array([len(texts) for texts in self.texts_of])
        return Chunks(counts, counts * 10)

    def read(self, chunk: int) -> Column:
        check_file(self.name, self.files[chunk])
        return Column.from_values([text if text != "bad" else None for text in self.texts_of[chunk]])

    def identity(self) -> dict[str, Any]:
        count = int(self.chunks().num_documents.sum())
        pairs = zip(self.files, self.texts_of, strict=True)
        files = [[file.name, file.size_bytes, len(texts), self.sample(texts)] for file, texts in pairs]
        return {"kind": "lines", "num_documents": count, "files": files}

    def sample(self, texts: list[str]) -> str:
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()


class Unsampled(Lines):
    def sample(self, texts: list[str]) -> str:
        return ""


class Distracted(Lines):
    """Has attributes of the names of parts that are something else."""

    table = "a table of mine"
    read_file = view = values = stream = spool_key = "mine"

    def without(self) -> str:
        return "mine"

    def close(self) -> str:
        return "mine"


class Counting(Lines):
    calls = 0

    def read(self, chunk: int) -> Column:
        self.calls += 1
        return Column.from_values([f"{self.calls}" for _ in self.texts_of[chunk]])


class Short(Lines):
    def read(self, chunk: int) -> Column:
        return Column.from_values(self.texts_of[chunk][1:])


class Unchecked(Lines):
    def read(self, chunk: int) -> Column:
        return Column.from_values(self.texts_of[chunk])


class Opening(Lines):
    def read(self, chunk: int) -> Column:
        with open(self.files[chunk].path, "rb") as source:
            source.read()
        return super().read(chunk)


class Placed(Lines):
    def identity(self) -> dict[str, Any]:
        return super().identity() | {"folder": self.files[0].path}


class Tuples(Lines):
    def identity(self) -> dict[str, Any]:
        return super().identity() | {"sizes": tuple(file.size_bytes for file in self.files)}


class Stamped(Lines):
    def identity(self) -> dict[str, Any]:
        return super().identity() | {"times": [file.mtime_ns for file in self.files]}


class Uncounted(Lines):
    def identity(self) -> dict[str, Any]:
        return {"kind": "lines", "files": []}


class Empty(Lines):
    def chunks(self) -> Chunks:
        return Chunks(np.array([0, 3]), np.array([0, 30]))


class Latin(Lines):
    def read(self, chunk: int) -> Column:
        data = b"\xe9" * len(self.texts_of[chunk])
        return Column(data=data, offsets=np.arange(len(data) + 1))


class Sentence(Lines):
    def read(self, chunk: int) -> Column:
        column = super().read(chunk)
        return column.with_faults([(i, Fault("null", "null", "It is bad.")) for i, _ in column.faults])


class Local(Lines):
    def __init__(self, origin: Origin) -> None:
        super().__init__(origin)
        self.shorten = lambda text: text


class Random(Lines):
    """Reads at random addresses by itself, and well."""

    def texts(self, chunk: Any, record: Any, max_bytes: int) -> Texts:
        for number in sorted(set(chunk.tolist())):
            check_file(self.name, self.files[number])
        found, size = Texts([]), 0
        for c, r in zip(chunk.tolist(), record.tolist(), strict=True):
            found.texts.append(self.texts_of[c][r])
            size += len(found.texts[-1])
            if size >= max_bytes:
                break
        return found

    def where(self, chunk: int, record: int) -> tuple[str, int]:
        return self.files[chunk].name, record

    def close(self) -> None:
        pass


class Greedy(Random):
    def texts(self, chunk: Any, record: Any, max_bytes: int) -> Texts:
        return super().texts(chunk, record, 1 << 40)


class Shy(Random):
    def texts(self, chunk: Any, record: Any, max_bytes: int) -> Texts:
        return super().texts(chunk, record, max_bytes) if max_bytes > 1 else Texts([])


class Sorted(Random):
    def texts(self, chunk: Any, record: Any, max_bytes: int) -> Texts:
        order = np.lexsort((record, chunk))
        return super().texts(chunk[order], record[order], max_bytes)


class Closing(Random):
    closed = False

    def texts(self, chunk: Any, record: Any, max_bytes: int) -> Texts:
        return Texts(["closed"] * len(chunk)) if self.closed else super().texts(chunk, record, max_bytes)

    def close(self) -> None:
        self.closed = True


class Nowhere(Random):
    def where(self, chunk: int, record: int) -> tuple[str, int]:
        return self.name, record


def make(folder: Path) -> Dataset:
    (folder / "a").write_text("one\ntwo\nbad\nthree\n" * 20)
    (folder / "b").write_text("four\n\nfive\n")
    return Dataset.from_path("web", folder)


@pytest.mark.parametrize("reader", [Lines, Distracted, Random])
def test_good_readers_pass(reader: Callable[[Origin], object], tmp_path: Path) -> None:
    check_reader(reader, make(tmp_path))


@pytest.mark.parametrize(
    ("reader", "why"),
    [
        (Counting, "differ"),
        (Unchecked, "a file that was rewritten after it was opened was read"),
        (Opening, "a file that is gone must be a DataError, got FileNotFoundError"),
        (Placed, "identity() of the same files in another folder differs"),
        (Stamped, "identity() of the same files in another folder differs"),
        (Tuples, "identity() must be JSON data"),
        (Unsampled, "identity() of other content of the same size is the same"),
        (Uncounted, "identity() must have `num_documents` = 83, got None"),
        (Empty, "a chunk without documents is left out"),
        (Sentence, "a fault's rule has no full stop"),
        (Greedy, "and went on after"),
        (Shy, "gave nothing; at least one document is read"),
        (Sorted, "documents differ when they are read in another order"),
        (Closing, "documents differ after close()"),
        (Nowhere, "where() gives one place for two documents"),
    ],
)
def test_bad_readers_are_refused(reader: Callable[[Origin], object], why: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=re.escape(why)):
        check_reader(reader, make(tmp_path))


def test_what_a_run_refuses_by_itself_is_refused_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="79 records in a chunk of 80"):
        check_reader(Short, make(tmp_path))
    with pytest.raises(DataError, match="bytes that are not UTF-8"):
        check_reader(Latin, make(tmp_path))
    with pytest.raises((AttributeError, TypeError), match=r"(?i)pickle"):
        check_reader(Local, make(tmp_path))
