"""What lies in folders, files and URLs of data: datasets, their kind and text column, a tokenizer near them.

Upstream: the paths that a user gives to `zephon init`. Downstream: `init.py`, which writes them down.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zephon.cli.discover_sample import find_column
from zephon.cli.discover_texts import TEXT, is_source, with_text
from zephon.cli.discover_tokens import find_token_files
from zephon.errors import DataError
from zephon.paths import DataFile, absolute, list_files
from zephon.readers import SUFFIXES, kind_by_name
from zephon.readers.beside import FLAT, INDEX, MEGATRON, OFFSETS, path_beside, without_boundaries
from zephon.readers.expanded import is_compressed
from zephon.readers.saved import INFO, SPLITS, without_metadata
from zephon.runfolder import BATCHES, LOCK, RECIPE
from zephon.tokenizer.file import FILE_NAME
from zephon.urls import is_url, last_name, redact

EVALUATION = ("test", "validation", "valid", "dev", "eval")
"""Splits that a model is not trained on."""
NUM_SHOWN = 8
ANY_FILES = 'a dataset of kind = "text" takes files of text by any name, each one document'


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDataset:
    """A dataset for the recipe."""

    name: str
    kind: str
    is_kind_named: bool = True
    """Whether the names of the files tell the kind, as of those that end in .txt."""
    paths: tuple[str, ...]
    """Absolute entries: a folder, a file or patterns."""
    num_files: int
    num_bytes: int
    """On disk."""
    text_bytes: int | None = None
    """Of Parquet about what its texts take uncompressed, as in the file looked at; of others None."""
    text: str
    """The column of texts; empty where documents are token ids."""
    tokens: str = ""
    """The column of token ids, where they lie in one."""
    dtype: str = ""
    """Of flat .bin files of token ids."""
    why: str
    """Why this is the column, or what the files hold, in a few words."""
    is_compressed: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A folder or file that gives no dataset, or some files of one."""

    path: str
    """Absolute."""
    why: str
    """What lies there instead, in one line."""
    part_of: str = ""
    """Where other files of `path` are taken: the datasets that they gave, or the folder's name."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A file, or the files of a folder, that may give a dataset of each kind."""

    path: str
    """Absolute path or URL."""
    files: Sequence[DataFile]
    name: str
    root: str
    """The path or URL that the names of files start from."""
    runs: Sequence[str] = ()
    """Run folders in it, by names as those of files, none of which is of these."""


def find_datasets(paths: Sequence[str]) -> tuple[list[FoundDataset], list[LeftOut]]:
    """Returns (datasets of the paths, what is left out), in order: one for each path and kind of file.

    A folder without data files of its own gives one dataset for each of its folders instead. What cannot be
    read, or has no text column, is left out; where nothing else is found, the error is raised. Texts beside
    other data, such as a README, are no data. Source code is text.
    """
    found: list[FoundDataset] = []
    left_out: list[LeftOut] = []
    fault: DataError | None = None
    for given in paths:
        parts, others = _parts(given)
        left_out += others
        for part in parts:
            error = _add_datasets(part, found, left_out)
            fault = fault or error
    if not found:
        raise fault or DataError.explained(
            f"{left_out[0].path} holds no data that can be read",
            got=left_out[0].why,
            rule="what a run wrote is no data to train on",
            cure="give the folder of the data",
        )
    return found, left_out


def _add_datasets(part: _Part, found: list[FoundDataset], left_out: list[LeftOut]) -> DataError | None:
    """Adds a dataset of each kind, and what is left out; returns why the first of that is."""
    fault: DataError | None = None
    names, looked_at = list[str](), set[str]()
    said = tuple(f"{other.path}/" for other in left_out if not other.part_of)
    try:
        data = without_boundaries(without_metadata(part.name, part.files))
        kinds = _kinds(data)
        if not kinds:
            raise _no_data(part.path, data)
    except DataError as error:
        left_out.append(LeftOut(redact(part.path), _first_lines(error)))
        return error
    for kind in kinds:
        name = _unique(part.name if len(kinds) == 1 else f"{part.name}_{kind}", found)
        mine = [file for file in data if _kind(file, part.files) == kind]
        try:
            mine = with_text(mine) if kind == TEXT else mine
            looked_at.update(file.path for file in mine)
            found.append(_describe(name, kind, part, data, mine))
            names.append(name)
        except DataError as error:
            fault = fault or error
            left_out.append(LeftOut(redact(part.path), _first_lines(error)))
    others = [f for f in data if f.path not in looked_at and not redact(f.path).startswith(said)]
    if names:
        left_out += _some_left_out(part.path, others, ", ".join(names))
    return fault


def _some_left_out(path: str, files: Sequence[DataFile], part_of: str) -> list[LeftOut]:
    """Returns what is left out of files that lie beside those taken: all but a tokenizer and metadata."""
    others = [file for file in files if file.name.rpartition("/")[2] not in (FILE_NAME, INFO, SPLITS)]
    return [LeftOut(redact(path), f"{_counted(others)}; {ANY_FILES}", part_of)] if others else []


def _kinds(files: Sequence[DataFile]) -> list[str]:
    kinds = {kind for file in files if (kind := _kind(file, files))}
    return sorted(kinds - {TEXT} or kinds)


def _first_lines(error: DataError) -> str:
    """Returns what is at fault and what was got, as one line."""
    what, *rest = str(error).splitlines()
    head, _, tail = what.partition(": ")
    what = tail if head.startswith("dataset ") else what  # nobody has given it that name yet
    return f"{what}: {rest[0].partition(':')[2].strip()}" if rest else what


def _parts(given: str) -> tuple[list[_Part], list[LeftOut]]:
    """Returns what gives datasets: `given`, or the folders in it where it has no data of its own."""
    path = absolute(given, Path.cwd())
    written = given if is_url(path) else path
    files, runs = list_files([written], Path.cwd()), list[str]()
    if not glob.has_magic(written):
        files, runs = without_runs(files)
    outer = written.rstrip("/")
    left_out = _runs_left_out(outer, runs)
    if not files:
        return [], left_out
    whole = _Part(written, files, _identifier(path, files), outer, runs)
    below: dict[str, list[DataFile]] = {}
    for file in files:
        below.setdefault(file.name.partition("/")[0] if "/" in file.name else "", []).append(file)
    own = below.pop("", [])
    if glob.has_magic(written) or not below:
        return [whole], left_out
    folders = {name: inner for name, inner in below.items() if _kinds(without_boundaries(inner))}
    if folders or any(_kind(file, own) for file in own):  # else all of it is refused as one
        left_out += [
            LeftOut(redact(f"{outer}/{name}"), _other_files(inner))
            for name, inner in below.items()
            if name not in folders
        ]
    if SPLITS in [file.name for file in own]:
        evaluation = [name for name in folders if name in EVALUATION and len(folders) > 1]
        why = "a split for evaluation, not for training; name its folder to take it"
        left_out += [LeftOut(redact(f"{outer}/{name}"), why) for name in evaluation]
        folders = {name: inner for name, inner in folders.items() if name not in evaluation}
    elif len(folders) < 2 or any(_is_data(file, own) for file in own):
        return [whole], left_out
    split = SPLITS in [file.name for file in own]
    left_out += _some_left_out(outer, own, last_name(outer))
    parts = []
    for name, inner in folders.items():
        named = _identifier(f"{path}_{name}" if split else name, inner)
        inside = [run for run in runs if run.startswith(f"{name}/")]
        parts.append(_Part(f"{outer}/{name}", inner, named, outer, inside))
    return parts, left_out


def without_runs(files: Sequence[DataFile]) -> tuple[list[DataFile], list[str]]:
    """Returns (the files that lie in no run folder, the run folders by name), names as those of the files."""
    names = sorted(file.name for file in files)
    folders = [name.removesuffix(RECIPE) for name in names if name.rpartition("/")[2] == RECIPE]
    runs = [
        folder
        for folder in folders
        if f"{folder}{LOCK}" in names and any(name.startswith(f"{folder}{BATCHES}/") for name in names)
    ]
    kept = [file for file in files if not file.name.startswith(tuple(runs))] if runs else list(files)
    return kept, [folder.rstrip("/") for folder in runs]


def _runs_left_out(outer: str, runs: Sequence[str]) -> list[LeftOut]:
    """Returns what is left out: each run folder, or the folder that several lie in."""
    found = []
    for parent, count in Counter(run.rpartition("/")[0] for run in runs).items():
        name = next(run for run in runs if run.rpartition("/")[0] == parent) if count == 1 else parent
        what = "a run folder" if count == 1 else f"{count:,} run folders"
        found.append(LeftOut(redact(f"{outer}/{name}".rstrip("/")), f"{what}: what a run wrote is no data"))
    return found


def _is_data(file: DataFile, files: Sequence[DataFile]) -> bool:
    """Returns whether a file beside folders is data: no text, and no binary file without boundaries."""
    kind = _kind(file, files)
    beside = {path_beside(file.name, ending) for ending in (OFFSETS, INDEX)}
    return bool(kind) and kind != TEXT and (kind != FLAT or any(other.name in beside for other in files))


def _other_files(files: Sequence[DataFile]) -> str:
    return f"{_counted(files)}; data is in files that end in {', '.join(SUFFIXES)}; {ANY_FILES}"


def _counted(files: Sequence[DataFile]) -> str:
    return f"{len(files):,} file{'s' * (len(files) != 1)}: {_suffixes(files)}"


def _suffixes(files: Sequence[DataFile]) -> str:
    suffixes = sorted({_suffix(file) or "no suffix" for file in files})
    return ", ".join([*suffixes[:NUM_SHOWN], *["..."] * (len(suffixes) > NUM_SHOWN)])


def _kind(file: DataFile, files: Sequence[DataFile]) -> str:
    """Returns the kind of a file by its name and, of a .bin file, by what lies beside it."""
    kind = kind_by_name(file) or (TEXT if is_source(file) else "")
    if kind != FLAT or not file.name.lower().endswith(".bin"):
        return kind
    index = path_beside(file.path, INDEX)
    there = any(other.path == index for other in files) if file.is_remote else os.path.exists(index)
    return MEGATRON if there else kind


def _describe(
    name: str, kind: str, part: _Part, files: Sequence[DataFile], mine: Sequence[DataFile]
) -> FoundDataset:
    """Returns the dataset of the files `mine`, those of one kind among `files`."""
    if not mine:
        raise _no_data(part.path, files)
    text = tokens = dtype = ""
    expansion = None
    is_named = all(map(kind_by_name, mine))
    if kind in (FLAT, MEGATRON):
        dtype, why = find_token_files(name, mine, kind)
    elif kind == TEXT:
        why = "every file is one document" + ("" if is_named else f": {_suffixes(mine)}")
    else:
        text, tokens, why, expansion = find_column(mine, kind)
    num_bytes = sum(file.size_bytes for file in mine)
    return FoundDataset(
        name=name,
        kind=kind,
        is_kind_named=is_named,
        paths=_entries(part, files, mine),
        num_files=len(mine),
        num_bytes=num_bytes,
        text_bytes=None if expansion is None else round(expansion * num_bytes),
        text=text,
        tokens=tokens,
        dtype=dtype,
        why=why,
        is_compressed=any(map(is_compressed, mine)),
    )


def _entries(part: _Part, files: Sequence[DataFile], mine: Sequence[DataFile]) -> tuple[str, ...]:
    """Returns the path itself where all its files are of one kind, else patterns for those that are."""
    if part.runs:
        return tuple(dict.fromkeys(_beside_runs(part, file) for file in mine))
    if len(mine) == len(files):
        return (part.path,)
    if glob.has_magic(part.path) and not os.path.isdir(part.path):
        raise DataError.explained(
            f"{redact(part.path)} matches files of several kinds",
            got=_counted(files),
            rule="all files of a dataset are of one kind",
            cure="give a pattern for each kind, such as 'data/*.jsonl'",
        )
    return tuple(f"{_literal(part.path)}/**/*{suffix}" for suffix in sorted(set(map(_suffix, mine))))


def _beside_runs(part: _Part, file: DataFile) -> str:
    """Returns an entry that reaches a file and no run folder: its outermost folder without any, or itself."""
    folders = [file.name[:at] for at, char in enumerate(file.name) if char == "/"]
    clear = (f for f in folders if not any(f"{run}/".startswith(f"{f}/") for run in part.runs))
    folder = next(clear, None)
    inner = _literal(f"{part.root}/{folder or file.name}")
    return inner if folder is None else f"{inner}/**/*{_suffix(file)}"


def _literal(path: str) -> str:
    """Returns a pattern that nothing but a folder or file itself matches."""
    return path.rstrip("/") if is_url(path) else glob.escape(path)


def _suffix(file: DataFile) -> str:
    return "".join(Path(file.name).suffixes[-2:]) if is_compressed(file) else os.path.splitext(file.name)[1]


def _identifier(path: str, files: Sequence[DataFile]) -> str:
    """Returns the folder's name or the file's stem as letters, digits and underscores."""
    parts = [part for part in path.rstrip("/").split("/") if not glob.has_magic(part)]
    stem = last_name("/".join(parts)) if is_url(path) else parts[-1]
    if len(files) == 1 and files[0].name.endswith(stem):
        while os.path.splitext(stem)[1].lower() in (*SUFFIXES, ".json", ".gz", ".zst", ".zstd", ".bz2"):
            stem = os.path.splitext(stem)[0]
    name = re.sub(r"[^A-Za-z0-9]+", "_", stem).strip("_") or "data"
    return f"d_{name}" if name[0].isdigit() else name


def _unique(name: str, found: Sequence[FoundDataset]) -> str:
    taken = {dataset.name for dataset in found}
    numbered = (f"{name}_{number}" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(other for other in numbered if other not in taken)


def _no_data(path: str, files: Sequence[DataFile]) -> DataError:
    return DataError.explained(
        f"{redact(path)} holds no data that can be read",
        got=_counted(files),
        rule=f"data is in files that end in {', '.join(SUFFIXES)}; those of lines and texts also compressed; "
        "source code is text in UTF-8",
        cure=f"give another path, convert the files, or write the recipe by hand: {ANY_FILES}",
    )


def find_tokenizer(paths: Sequence[str], out: Path) -> Path | None:
    """Returns the first tokenizer.json in or beside the local paths, or beside the recipe."""
    local = [Path(path) for path in paths if not is_url(path)]
    folders = [folder for path in local for folder in (path, path.absolute().parent)]
    folders.append(out.absolute().parent)
    return next((Path(os.path.abspath(f / FILE_NAME)) for f in folders if (f / FILE_NAME).is_file()), None)
