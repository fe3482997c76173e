"""Catalogues: the files and chunks of a recipe's datasets, found once, so that no launch lists or opens them.

Upstream: `indexing.py`, which writes them. Downstream: `opened.py`, which takes the tables of datasets from a
catalogue where the recipe names one. A catalogue is a folder, anywhere that fsspec reaches: `catalogue.json`,
which names the others by hash, and Arrow files, whose columns every rank maps from its cache. It names files
below the entries of `path`, so the data may be moved as a whole.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from glob import has_magic
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from zephon import remote, retries
from zephon.cachefiles import replace_file
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.files import open_file
from zephon.listing import at_commit
from zephon.paths import DataFile, absolute
from zephon.readers.table import ChunkTable
from zephon.recipe import hash_json
from zephon.urls import Hidden, is_url, redact, variables

MANIFEST = "catalogue.json"
VERSION = 1
SUFFIX = ".arrow"
SETTINGS = ("kind", "text", "tokens", "dtype", "on_error", "where", "limit", "sorted_by")
"""What the tables of a dataset depend on, besides its files."""
PARTS = ("files", "chunks", "chosen", "ranked")
"""What there may be a file of for a dataset; its name is NUMBER.PART.HASH.arrow."""

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

    def __init__(self, folder: Path, manifest: Mapping[str, Any], shown: str) -> None:
        self._folder, self._manifest, self._shown = folder, manifest, shown
        self.hash = hash_json(manifest)
        """Of the manifest, which has the hashes of its files."""

    @property
    def names(self) -> list[str]:
        """Returns the names of the datasets that are listed."""
        return list(self._manifest["datasets"])

    def find(self, dataset: Dataset, base: Path) -> Listed | None:
        """Returns what there is of `dataset`, whose columns are mapped, or None where it is not listed.

        A stream is listed as that: who counts its documents, such as an evaluation, finds nothing here.

        Raises `DataError` where the dataset's description is another than that which was indexed, and for a
        file outside the entries of `path`.
        """
        entry = self._manifest["datasets"].get(dataset.name)
        if entry is None or entry["settings"].get("stream") != dataset.stream:
            return None
        self._refuse_other(dataset, entry)
        is_counted = "chunks" in entry
        files = self._map(entry["files"], (*FILE_COLUMNS, "sample", *(["first_chunk"] if is_counted else [])))
        chunks = {name: np.zeros(0, np.int64) for name in CHUNK_COLUMNS}
        first_chunks = np.zeros(1, np.int64)
        if is_counted:
            mapped = self._map(entry["chunks"], CHUNK_COLUMNS)
            chunks = {name: mapped[name].to_numpy() for name in CHUNK_COLUMNS}
            first_chunks = np.append(files["first_chunk"].to_numpy(), len(chunks["places"]))
        hidden = [variables(written) for written in dataset.paths]
        table = _Mapped(
            name=dataset.name,
            kind=entry["kind"],
            files=_Files(files, self._roots(dataset, base, entry, files), hidden),
            samples=_Texts(files["sample"]),
            first_chunks=first_chunks,
            places=chunks["places"],
            num_documents=chunks["num_documents"],
            num_bytes=chunks["num_bytes"],
        )
        object.__setattr__(table, "_reopen", (self._folder, self._manifest, self._shown, dataset, base))
        numbered = [name for name in ("chosen", "ranked") if name in entry]
        numbers = {name: self._map(entry[name], ("number",))["number"].to_numpy() for name in numbered}
        return Listed(
            table=table,
            chosen=numbers.get("chosen"),
            ranked=numbers.get("ranked") if dataset.sorted_by else None,
            commits=entry.get("commits", {}),
        )

    def _map(self, file: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """Returns columns of one of the files, as arrays of Arrow over mapped memory."""
        try:
            with pa.memory_map(str(self._folder / file["name"])) as source:
                table = pa.ipc.open_file(source).read_all()
            columns = ((name, table.column(name)) for name in names)
            return {name: c.chunk(0) if c.num_chunks == 1 else c.combine_chunks() for name, c in columns}
        except (pa.ArrowInvalid, KeyError) as error:
            raise _broken(self._shown, f"{file['name']}: {error}") from None

    def _roots(
        self, dataset: Dataset, base: Path, entry: Mapping[str, Any], files: Mapping[str, Any]
    ) -> list[str]:
        """Returns the folder of each entry of `path`, which may be another than when it was indexed.

        Refuses names that would lead out of it.
        """
        roots = []
        patterns = patterns_of(dataset, base, entry.get("commits", {}))
        for written, pattern, cut in zip(dataset.paths, patterns, entry["cuts"], strict=True):
            parts = pattern.rstrip("/").split("/")
            if cut > most_cut(parts):
                raise self._leads_out(dataset, f"{cut} parts of {redact(written)!r}")
            roots.append("/".join(parts[: -cut or None]))
        for column in (files["name"], files["below"]):
            for name in column.filter(pc.match_substring_regex(column, r"^/|\.\.")).to_pylist():
                if leads_out(name):
                    raise self._leads_out(dataset, f"the file name {name!r}")
        return roots

    def _leads_out(self, dataset: Dataset, what: str) -> DataError:
        return _broken(self._shown, f"dataset {dataset.name!r}: {what} leads out of `path`")

    def _refuse_other(self, dataset: Dataset, entry: Mapping[str, Any]) -> None:
        given = settings_of(dataset)
        if not dataset.sorted_by:  # a sorted order that is listed is of no use here, and does no harm
            del given["sorted_by"]
        differ = [name for name, value in given.items() if entry["settings"].get(name) != value]
        if differ:
            name = differ[0]
            raise DataError.explained(
                f"dataset {dataset.name!r} is not the one that the catalogue {self._shown!r} lists",
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
    folder: Path, manifest: Mapping[str, Any], shown: str, dataset: Dataset, base: Path
) -> ChunkTable:
    found = Catalogue(folder, manifest, shown).find(dataset, base)
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

    def __init__(self, columns: Mapping[str, Any], roots: Sequence[str], hidden: Sequence[Hidden]) -> None:
        self._columns, self._roots, self._hidden = columns, roots, hidden

    def __len__(self) -> int:
        return len(self._columns["name"])

    def __getitem__(self, index: Any) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._file(*(self._columns[name][index].as_py() for name in FILE_COLUMNS))

    def __iter__(self) -> Iterator[DataFile]:
        return map(self._file, *(self._columns[name].to_pylist() for name in FILE_COLUMNS))

    def names_and_sizes(self) -> tuple[list[str], list[int]]:
        """Returns the names of all files, and their sizes."""
        return self._columns["name"].to_pylist(), self._columns["size_bytes"].to_pylist()

    def _file(self, name: str, size_bytes: int, etag: str, entry: int, below: str | None) -> DataFile:
        root = self._roots[entry]
        path = f"{root}/{name if below is None else below}" if below != "" else root
        return DataFile(
            path=path,
            name=name,
            size_bytes=size_bytes,
            mtime_ns=0,
            etag=etag,
            entry=entry,
            hidden=self._hidden[entry] if is_url(path) else (),
        )


FILE_COLUMNS = ("name", "size_bytes", "etag", "entry", "below")
CHUNK_COLUMNS = ("places", "num_documents", "num_bytes")


def settings_of(dataset: Dataset) -> dict[str, Any]:
    """Returns what a dataset's entry in a catalogue depends on."""
    found = {name: getattr(dataset, name) for name in SETTINGS}
    return found | {"stream": dataset.stream, "entries": len(dataset.paths)}


def patterns_of(dataset: Dataset, base: Path, commits: Mapping[str, str]) -> list[str]:
    """Returns the entries of `path`, absolute, those of `hf://` at their commits."""
    found = ((absolute(written, base), commits.get(written)) for written in dataset.paths)
    return [at_commit(pattern, commit) if commit else pattern for pattern, commit in found]


def most_cut(parts: Sequence[str]) -> int:
    """Returns how many last parts of an entry may not be of its folder: all from a wildcard on, or 1."""
    return next((len(parts) - i for i, part in enumerate(parts) if has_magic(part)), 1)


def leads_out(name: str) -> bool:
    """Returns whether a file's name is absolute or goes up: a catalogue's files lie below `path`."""
    return name.startswith("/") or ".." in name.split("/")


# Reading ----------------------------------------------------------------------------------------------------


def open_catalogue(written: str, base: Path, cache: Path) -> Catalogue:
    """Returns the catalogue at a folder or URL, which is brought into the cache once, by hash.

    Every file is compared with its hash, and one that differs is brought again. The copies are mapped, so a
    change of the folder ends no run. Cost: one reading of the files, about a second for 10^7 chunks.
    """
    where, shown = absolute(written, base), redact(written)
    hidden = variables(written)
    with _open(where, MANIFEST, shown, hidden) as source:
        manifest = _parse(source.read(), shown)
    folder = cache / "catalogues" / hash_json(manifest)[:32]
    for file in _files_of(manifest):
        path = folder / file["name"]
        if _is_written(path, file):
            continue
        with _open(where, file["name"], shown, hidden) as source:
            replace_file(path, functools.partial(shutil.copyfileobj, source))
        if not _is_written(path, file):
            raise _broken(shown, f"{file['name']} is not what was written")
    return Catalogue(folder, manifest, shown)


def superseded(folder: Path) -> list[Path]:
    """Returns the files in `folder` that catalogues before the one that is there named, and it does not.

    They stay until someone removes them: runs that have that catalogue go on reading them.
    """
    named = {file["name"] for file in _files_of(_parse((folder / MANIFEST).read_bytes(), str(folder)))}
    return [path for path in sorted(folder.glob(f"[0-9]*{SUFFIX}")) if path.name not in named]


def _parse(data: bytes, shown: str) -> dict[str, Any]:
    try:
        manifest = json.loads(data)
        version, datasets = manifest["version"], manifest.get("datasets")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _broken(shown, f"{MANIFEST} is no catalogue's") from None
    if version != VERSION:
        raise _broken(shown, f"version {version!r}, where this release reads {VERSION}")
    if not isinstance(datasets, dict):
        raise _broken(shown, f"{MANIFEST} has no datasets")
    for name, entry in datasets.items():
        if not _is_entry(entry):
            raise _broken(shown, f"{MANIFEST}: dataset {name!r} is not as `zephon index` writes it")
    return dict(manifest)


def _is_entry(entry: Any) -> bool:
    """Returns whether a dataset's entry has the shape that `indexing.describe` gives it."""
    if not isinstance(entry, dict) or not {"kind", "settings", "cuts", "files"} <= entry.keys():
        return False
    settings, cuts, commits = entry["settings"], entry["cuts"], entry.get("commits", {})
    return (
        isinstance(entry["kind"], str)
        and isinstance(settings, dict)
        and isinstance(cuts, list)
        and len(cuts) == settings.get("entries")
        and all(type(cut) is int and cut >= 0 for cut in cuts)
        and isinstance(commits, dict)
        and all(isinstance(commit, str) and commit.isalnum() for commit in commits.values())
        and all(_is_file(entry[part], part) for part in PARTS if part in entry)
    )


def _is_file(file: Any, part: str) -> bool:
    """Returns whether an entry names a file by its hash, in the catalogue's own folder."""
    if not isinstance(file, dict) or type(file.get("size_bytes")) is not int:
        return False
    name, digest = file.get("name"), file.get("sha256")
    if not isinstance(name, str) or not isinstance(digest, str):
        return False
    return re.fullmatch(rf"[0-9]+\.{part}\.{re.escape(digest[:16])}\{SUFFIX}", name) is not None


def _files_of(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [entry[part] for entry in manifest["datasets"].values() for part in PARTS if part in entry]


def _open(where: str, name: str, shown: str, hidden: Hidden) -> BinaryIO:
    """Returns a file of the catalogue at a folder or URL."""
    if not is_url(where):
        try:
            return (Path(where) / name).open("rb")
        except OSError as error:
            raise _broken(shown, f"{name}: {error.strerror or error}") from None
    path = f"{where.rstrip('/')}/{name}"
    with retries.hiding(hidden):
        found = remote.look(f"catalogue {shown!r}", path)
    size_bytes, etag = found.size_bytes, found.etag
    file = DataFile(
        path=path, name=name, size_bytes=size_bytes, mtime_ns=0, etag=etag, entry=0, hidden=hidden
    )
    return open_file(f"catalogue {shown}", file)


def _is_written(path: Path, file: Mapping[str, Any]) -> bool:
    """Returns whether there is the file that the manifest names."""
    return path.is_file() and path.stat().st_size == file["size_bytes"] and sha256(path) == file["sha256"]


def _broken(shown: str, got: str) -> DataError:
    return DataError.explained(
        f"catalogue {shown!r} cannot be used",
        got=got,
        rule=f"a catalogue is a folder with {MANIFEST} and the files it names, as `zephon index` wrote them",
        cure="run `zephon index` again, or leave `catalogue` out of the recipe",
    )


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
