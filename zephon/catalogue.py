"""Catalogues: the files and chunks of a recipe's datasets, found once, so that no launch lists or opens them.

Upstream: opened readers. Downstream: `opened.py`, which takes the tables of datasets from a catalogue where
the recipe names one. A catalogue is a folder, anywhere that fsspec reaches: `catalogue.json`, which names
the others by hash, and Arrow files whose columns every rank maps. It names files below the entries of
`path`, so the data may be moved as a whole.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from zephon import remote
from zephon.cachefiles import replace_file
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.files import open_file
from zephon.listing import at_commit
from zephon.paths import DataFile, absolute
from zephon.readers.table import ChunkTable
from zephon.urls import is_url, redact

MANIFEST = "catalogue.json"
VERSION = 1
_SUFFIX = ".arrow"
_BLOCK_BYTES = 8 << 20
SETTINGS = ("kind", "text", "tokens", "dtype", "on_error", "where", "limit", "order")
"""What the tables of a dataset depend on, besides its files."""

Ints = NDArray[np.integer[Any]]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What a catalogue has of one dataset."""

    table: ChunkTable
    """Of a streamed dataset it has files and no chunks."""
    chosen: Int64 | None
    """The numbers of the documents that `where` leaves, where it is given."""
    ranked: Int64 | None
    """The documents in a sorted order, where one is given."""
    commits: Mapping[str, str]
    """Of each `hf://` entry, the commit at which it was indexed."""


class Catalogue:
    """A catalogue that is at hand: its manifest, and the folder of its files on a local disk."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any], where: str) -> None:
        self._folder, self._manifest, self._where = folder, manifest, where
        self.hash = manifest_hash(manifest)

    @property
    def names(self) -> list[str]:
        """Returns the names of the datasets that are listed."""
        return list(self._manifest["datasets"])

    def find(self, dataset: Dataset, base: Path) -> Listed | None:
        """Returns what there is of `dataset`, whose columns are mapped, or None where it is not listed.

        Raises `DataError` where the dataset's description is another than that which was indexed.
        """
        entry = self._manifest["datasets"].get(dataset.name)
        if entry is None:
            return None
        self._refuse_other(dataset, entry)
        files = self._map(entry["files"])
        chunks = {name: np.zeros(0, np.int64) for name in _CHUNK_COLUMNS}
        first_chunks = np.zeros(1, np.int64)
        if "chunks" in entry:
            mapped = self._map(entry["chunks"])
            chunks = {name: mapped[name].to_numpy() for name in _CHUNK_COLUMNS}
            first_chunks = np.append(files["first_chunk"].to_numpy(), len(chunks["places"]))
        table = _Mapped(
            name=dataset.name,
            kind=entry["kind"],
            files=_Files(files, _roots(dataset, base, entry)),
            samples=_Texts(files["sample"]),
            first_chunks=first_chunks,
            places=chunks["places"],
            num_documents=chunks["num_documents"],
            num_bytes=chunks["num_bytes"],
        )
        object.__setattr__(table, "_reopen", (self._folder, self._manifest, self._where, dataset, base))
        numbers = {n: self._map(entry[n])["number"].to_numpy() for n in ("chosen", "ranked") if n in entry}
        return Listed(
            table=table,
            chosen=numbers.get("chosen"),
            ranked=numbers.get("ranked"),
            commits=entry.get("commits", {}),
        )

    def _map(self, file: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the columns of one of the files, as arrays of Arrow over mapped memory."""
        with pa.memory_map(str(self._folder / file["name"])) as source:
            table = pa.ipc.open_file(source).read_all()
        columns = ((name, table.column(name)) for name in table.column_names)
        return {name: c.chunk(0) if c.num_chunks == 1 else c.combine_chunks() for name, c in columns}

    def _refuse_other(self, dataset: Dataset, entry: Mapping[str, Any]) -> None:
        given = settings_of(dataset)
        differ = [name for name, value in given.items() if entry["settings"].get(name) != value]
        if differ:
            name = differ[0]
            raise DataError.explained(
                f"dataset {dataset.name!r} is not the one that {self._where} lists",
                got=f"{name} = {given[name]!r}; it was indexed with {entry['settings'].get(name)!r}",
                rule="a catalogue lists a dataset as the recipe describes it",
                cure="run `zephon index` again, or leave `catalogue` out of the recipe",
            )


class _Mapped(ChunkTable):
    """A table over mapped columns, which travels to other processes as the name of its catalogue."""

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Returns what the lock keeps, from the columns."""
        assert isinstance(self.files, _Files)
        names, sizes = self.files.names_and_sizes()
        files = [list(row) for row in zip(names, sizes, self.num_records, self.samples, strict=True)]
        return {"kind": self.kind, "num_documents": sum(self.num_records), "files": files}

    def __reduce__(self) -> Any:
        return _find_table, self.__dict__["_reopen"]


def _find_table(
    folder: Path, manifest: Mapping[str, Any], where: str, dataset: Dataset, base: Path
) -> ChunkTable:
    found = Catalogue(folder, manifest, where).find(dataset, base)
    assert found is not None
    return found.table


class _Texts(Sequence[str]):
    """The texts of a column, made when they are asked for."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, index: Any) -> Any:
        return self._column[index].as_py()

    def __iter__(self) -> Iterator[str]:
        return iter(self._column.to_pylist())


class _Files(Sequence[DataFile]):
    """The files of a dataset, made when they are asked for; without the stamps of local ones."""

    def __init__(self, columns: Mapping[str, Any], roots: Sequence[str]) -> None:
        self._columns, self._roots = columns, roots

    def __len__(self) -> int:
        return len(self._columns["name"])

    def __getitem__(self, index: Any) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._file(*(self._columns[name][index].as_py() for name in _FILE_COLUMNS))

    def __iter__(self) -> Iterator[DataFile]:
        return map(self._file, *(self._columns[name].to_pylist() for name in _FILE_COLUMNS))

    def names_and_sizes(self) -> tuple[list[str], list[int]]:
        """Returns the names of all files, and their sizes."""
        return self._columns["name"].to_pylist(), self._columns["size_bytes"].to_pylist()

    def _file(self, name: str, size_bytes: int, etag: str, entry: int, below: str | None) -> DataFile:
        root = self._roots[entry]
        path = f"{root}/{name if below is None else below}" if below != "" else root
        return DataFile(path=path, name=name, size_bytes=size_bytes, mtime_ns=0, etag=etag, entry=entry)


_FILE_COLUMNS = ("name", "size_bytes", "etag", "entry", "below")
_CHUNK_COLUMNS = ("places", "num_documents", "num_bytes")


def settings_of(dataset: Dataset) -> dict[str, Any]:
    """Returns what a dataset's entry in a catalogue depends on."""
    found = {name: getattr(dataset, name) for name in SETTINGS}
    return found | {"stream": dataset.stream, "entries": len(dataset.paths)}


def manifest_hash(manifest: Mapping[str, Any]) -> str:
    """Returns the hash of a catalogue: of its manifest, which has the hashes of its files."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# Writing ----------------------------------------------------------------------------------------------------


def describe(folder: Path, number: int, dataset: Dataset, base: Path, listed: Listed) -> dict[str, Any]:
    """Writes the files of the dataset `number` into `folder`, and returns its entry of the manifest."""
    table = listed.table
    files = list(table.files)
    cuts, below = _cut(dataset, base, files, listed.commits)
    columns = {
        "name": pa.array([file.name for file in files], pa.string()),
        "size_bytes": pa.array([file.size_bytes for file in files], pa.int64()),
        "etag": pa.array([file.etag for file in files], pa.string()),
        "entry": pa.array([file.entry for file in files], pa.int32()),
        "below": pa.array(below, pa.string()),
        "sample": pa.array(list(table.samples), pa.string()),
    }
    entry: dict[str, Any] = {"kind": table.kind, "settings": settings_of(dataset), "cuts": cuts}
    if not dataset.stream:
        columns["first_chunk"] = pa.array(table.first_chunks[:-1], pa.int64())
        chunks = {name: _smallest(getattr(table, name)) for name in _CHUNK_COLUMNS}
        entry["chunks"] = _write(folder, f"{number}.chunks{_SUFFIX}", chunks)
    entry["files"] = _write(folder, f"{number}.files{_SUFFIX}", columns)
    for name, numbers in (("chosen", listed.chosen), ("ranked", listed.ranked)):
        if numbers is not None:
            entry[name] = _write(
                folder, f"{number}.{name}{_SUFFIX}", {"number": pa.array(numbers, pa.int64())}
            )
    return entry | ({"commits": dict(listed.commits)} if listed.commits else {})


def superseded(folder: Path) -> list[Path]:
    """Returns the files in `folder` that catalogues before the one that is there named, and it does not.

    They stay until someone removes them: runs that have that catalogue go on reading them.
    """
    named = {file["name"] for file in _files_of(_parse((folder / MANIFEST).read_bytes(), str(folder)))}
    return [path for path in sorted(folder.glob(f"[0-9]*{_SUFFIX}")) if path.name not in named]


def finish(folder: Path, datasets: Mapping[str, Any]) -> str:
    """Writes the manifest of entries that `describe` made, and returns the catalogue's hash."""
    manifest = {"version": VERSION, "datasets": dict(datasets)}
    data = json.dumps(manifest, indent=1).encode() + b"\n"
    replace_file(folder / MANIFEST, lambda target: _put(data, target))
    return manifest_hash(manifest)


def _cut(
    dataset: Dataset, base: Path, files: Sequence[DataFile], commits: Mapping[str, str]
) -> tuple[list[int], list[str | None]]:
    """Returns how many of the last parts of each entry are not its folder, and for each file where it lies.

    None: below that folder, by its name; empty: it is the entry itself; else below it in another place.
    """
    found = ((absolute(written, base), commits.get(written)) for written in dataset.paths)
    patterns = [at_commit(pattern, commit) if commit else pattern for pattern, commit in found]
    cuts = [0] * len(patterns)
    below: list[str | None] = []
    for file in files:
        pattern, tail = patterns[file.entry], f"/{file.name}"
        root = file.path.removesuffix(tail)
        if file.path == pattern:
            below.append("")
        elif file.path.endswith(tail) and pattern.startswith(root):
            cuts[file.entry] = pattern.rstrip("/").count("/") - root.count("/")
            below.append(None)
        else:
            raise DataError.explained(
                f"dataset {dataset.name!r}: {file.shown} cannot be listed in a catalogue",
                got=f"it does not lie below {redact(dataset.paths[file.entry])!r}",
                rule="a catalogue names files below the entries of `path`",
                cure="name a folder above it in `path`",
            )
    return cuts, below


def _roots(dataset: Dataset, base: Path, entry: Mapping[str, Any]) -> list[str]:
    """Returns the folder of each entry of `path`, which may be another than when it was indexed."""
    roots = []
    for written, cut in zip(dataset.paths, entry["cuts"], strict=True):
        commit = entry.get("commits", {}).get(written)
        pattern = at_commit(absolute(written, base), commit) if commit else absolute(written, base)
        roots.append("/".join(pattern.rstrip("/").split("/")[: -cut or None]))
    return roots


def _smallest(numbers: Ints) -> Any:
    """Returns the column of whole numbers, in 32 bits where they fit."""
    fits = not len(numbers) or (int(numbers.max()) < 1 << 31 and int(numbers.min()) >= -(1 << 31))
    return pa.array(numbers, pa.int32() if fits else pa.int64())


def _write(folder: Path, name: str, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Writes columns as one record batch, and returns what the manifest says of the file.

    Its name holds its hash, so a catalogue that is made anew leaves the files of the one before as they are.
    """
    batch = pa.RecordBatch.from_pydict(dict(columns))

    def write(target: BinaryIO) -> None:
        with pa.ipc.new_file(target, batch.schema) as writer:
            writer.write_batch(batch)

    temporary = folder / f".{os.getpid()}.{name}"
    replace_file(temporary, write)
    digest, size_bytes = _sha256(temporary), temporary.stat().st_size
    named = f"{name.removesuffix(_SUFFIX)}.{digest[:16]}{_SUFFIX}"
    os.replace(temporary, folder / named)
    return {"name": named, "size_bytes": size_bytes, "sha256": digest}


def _put(data: bytes, target: BinaryIO) -> None:
    target.write(data)


# Reading ----------------------------------------------------------------------------------------------------


def open_catalogue(written: str, base: Path, cache: Path) -> Catalogue:
    """Returns the catalogue at a folder or URL; a remote one is brought into the cache once, by hash.

    Every file is compared with its hash. Cost: one reading of the files, about a second for 10^7 chunks.
    """
    where = absolute(written, base)
    shown = redact(written)
    if is_url(where):
        folder, manifest = _bring(where, shown, cache)
    else:
        folder = Path(where)
        manifest = _parse(_read_manifest(folder / MANIFEST, shown), shown)
    for file in _files_of(manifest):
        path = folder / file["name"]
        if not path.is_file() or path.stat().st_size != file["size_bytes"] or _sha256(path) != file["sha256"]:
            raise _broken(shown, f"{file['name']} is missing or not what was written")
    return Catalogue(folder, manifest, f"the catalogue {shown!r}")


def _read_manifest(path: Path, shown: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _broken(shown, f"{MANIFEST}: {error.strerror or error}") from None


def _parse(data: bytes, shown: str) -> dict[str, Any]:
    try:
        manifest = json.loads(data)
        version = manifest["version"]
    except (ValueError, KeyError, TypeError):
        raise _broken(shown, f"{MANIFEST} is no catalogue's") from None
    if version != VERSION:
        raise _broken(shown, f"version {version!r}, where this release reads {VERSION}")
    return dict(manifest)


def _files_of(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    names = ("files", "chunks", "chosen", "ranked")
    return [entry[name] for entry in manifest["datasets"].values() for name in names if name in entry]


def _bring(url: str, shown: str, cache: Path) -> tuple[Path, dict[str, Any]]:
    """Returns the folder in the cache that holds a remote catalogue, and its manifest."""
    with _open_remote(url, MANIFEST, shown) as source:
        manifest = _parse(source.read(), shown)
    folder = cache / "catalogues" / manifest_hash(manifest)[:32]
    for file in _files_of(manifest):
        path = folder / file["name"]
        if not path.is_file() or path.stat().st_size != file["size_bytes"]:
            with _open_remote(url, file["name"], shown) as source:
                replace_file(path, functools.partial(shutil.copyfileobj, source))
    return folder, manifest


def _open_remote(url: str, name: str, shown: str) -> BinaryIO:
    path = f"{url.rstrip('/')}/{name}"
    found = remote.look(f"catalogue {shown!r}", path)
    file = DataFile(path=path, name=name, size_bytes=found.size_bytes, mtime_ns=0, etag=found.etag, entry=0)
    return open_file(f"catalogue {shown}", file)


def _broken(shown: str, got: str) -> DataError:
    return DataError.explained(
        f"catalogue {shown!r} cannot be used",
        got=got,
        rule=f"a catalogue is a folder with {MANIFEST} and the files it names, as `zephon index` wrote them",
        cure="run `zephon index` again, or leave `catalogue` out of the recipe",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
