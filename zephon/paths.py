"""From the path entries of a dataset to its files, in an order that no file system can change.

Upstream: `Dataset.paths` and the recipe's folder. Downstream: `listing.py` for URLs; the readers, which take
`DataFile`s. An entry is a file, a folder (taken recursively) or a glob with `*`, `?`, `[...]` and `**`.
"""

from __future__ import annotations

import functools
import glob
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zephon import listing
from zephon.errors import DataError
from zephon.listing import LEFT_OUT
from zephon.urls import LOCAL, VARIABLE, Hidden, hide, is_url, redact, scheme, variables

_NUM_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file of a dataset, as it stood when the dataset was opened."""

    path: str
    """Absolute, or a URL, which may hold secrets: messages take `shown`."""
    name: str
    """POSIX path relative to the entry's wildcard-free folder; part of the dataset's identity."""
    size_bytes: int
    mtime_ns: int
    """Tells a changed local file from the one that was indexed; never part of the identity."""
    ctime_ns: int = 0
    """When the file was last changed or replaced, whatever its `mtime_ns` was set to."""
    etag: str = ""
    """Of a remote file: what its server changes with the content; empty where it says nothing. Never part
    of the identity."""
    entry: int
    """Index of the entry that reached it."""
    hidden: Hidden = field(default=(), repr=False, compare=False)
    """Of a remote file: what the variables of its entry stand for, which no message shows."""

    @property
    def is_remote(self) -> bool:
        """Returns whether the file lies behind a URL."""
        return is_url(self.path)

    @property
    def shown(self) -> str:
        """Returns the path as messages may show it: on one line, without user, query and what is hidden."""
        path = redact(hide(self.path, self.hidden)) if self.is_remote else self.path
        return path if path.isprintable() else repr(path)[1:-1]

    def __repr__(self) -> str:
        return f"DataFile({self.shown!r}, {self.size_bytes:,} bytes)"


def list_files(
    entries: Sequence[str], base: Path, *, revisions: Mapping[str, str] | None = None, dataset: str = ""
) -> list[DataFile]:
    """Returns the files of `entries`, ordered by (entry, name in UTF-8 byte order).

    Relative entries start at `base`; `${VAR}` and a leading `~` are expanded; an entry may be a URL of any
    scheme of fsspec. In folders, and where a wildcard stands for the name, names that start with `.` or `_`
    are left out. `revisions` are commits of `hf://` entries, as `resolve` gives them; others are asked for.
    `dataset` is whose entries they are, for an error of a folder that may not be listed.
    Raises `DataError` for an entry without files and for a file that is reached twice.
    """
    commits = resolve(entries, base, revisions or {})
    patterns = [absolute(written, base) for written in entries]
    urls = [i for i, pattern in enumerate(patterns) if is_url(pattern)]
    for i in urls:
        if entries[i] in commits:
            patterns[i] = listing.at_commit(patterns[i], commits[entries[i]])
    listed = listing.expand_all([entries[i] for i in urls], [patterns[i] for i in urls])
    remote = dict(zip(urls, listed, strict=True))
    files: list[DataFile] = []
    for entry, (written, pattern) in enumerate(zip(entries, patterns, strict=True)):
        if entry in remote:
            hidden = variables(written)
            found = [_remote_file(file, entry, hidden) for file in remote[entry]]
        else:
            try:
                root, paths = _find(pattern)
            except OSError as error:
                raise _not_listed(dataset, written, error) from error
            found = [_data_file(path, root, entry) for path in paths]
        if not found:
            raise _nothing_found(written, pattern, base)
        files += sorted(found, key=lambda file: file.name.encode("utf-8", "surrogateescape"))
    _refuse_twice(files, entries)
    return files


def resolve(entries: Sequence[str], base: Path, pinned: Mapping[str, str]) -> dict[str, str]:
    """Returns the commit at which each `hf://` entry is read, by the entry as written.

    Those in `pinned`, from an earlier lock, are taken from there; each other branch costs one request.
    """
    commits: dict[str, str] = {}
    asked: dict[tuple[str, str], str] = {}  # entries of one branch are read at one commit
    for written in entries:
        url = absolute(written, base)
        branch = listing.branch(written, url) if is_url(url) else None
        if branch is None:
            continue
        if written in pinned:
            commits[written] = pinned[written]
        else:
            commits[written] = asked[branch] = asked.get(branch) or listing.commit(written, url)
    return commits


def expand(written: str, what: str) -> str:
    """Returns `written`, a path to `what`, with every `${VAR}` and a leading `~` expanded."""

    def value(match: re.Match[str]) -> str:
        if match[1] in os.environ:
            return os.environ[match[1]]
        raise DataError.explained(
            f"{what} {redact(written)!r} uses {match[0]}",
            got="the environment variable is not set",
            rule="every ${VAR} in a path is set where the run starts",
            cure=f"export {match[1]}=... or write the path out",
        )

    return os.path.expanduser(VARIABLE.sub(value, written))


def absolute(written: str, base: Path) -> str:
    """Returns the entry with variables expanded: a URL, or an absolute path without `.` and `..`."""
    expanded = expand(written, "path")
    if is_url(expanded):
        if "::" in re.sub(r"//\[[^/]*\]", "", expanded):  # not the host of an IPv6 address
            raise DataError.explained(
                f"path {redact(written)!r} is a chain of file systems",
                got="`::`",
                rule="an entry is one path or one URL",
                cure="give the URL of the files themselves; compressed files are unpacked by their name",
            )
        if scheme(expanded) not in LOCAL:
            return expanded
        expanded = expanded.partition("://")[2]
    return os.path.normpath(os.path.join(os.path.abspath(base), expanded))


def anchor(written: str, base: Path) -> str:
    """Returns a path of a recipe as it may stand in one in another folder; `${VAR}` and `~` stay."""
    if written.startswith(("~", "${")) or is_url(written):
        return written
    return os.path.normpath(os.path.join(os.path.abspath(base), written))


def _find(pattern: str) -> tuple[str, list[str]]:
    """Returns the wildcard-free folder of `pattern` and the paths of its files, each once, in no order."""
    if os.path.isdir(pattern):
        return pattern, list(_walk(pattern, ()))
    if os.path.lexists(pattern) or not glob.has_magic(pattern):
        return os.path.dirname(pattern), [pattern] if os.path.lexists(pattern) else []
    root = os.path.dirname(pattern)
    while not os.path.isdir(root):  # a folder may itself be named like a pattern
        root = os.path.dirname(root)
    below = os.path.relpath(pattern, root)
    wild = below.split(os.sep)
    spelled = any(part.startswith(LEFT_OUT) for part in wild)
    paths: set[str] = set()
    for match in glob.iglob(os.path.join(glob.escape(root), below), recursive=True):
        path = os.path.normpath(match)
        parts = os.path.relpath(path, root).split(os.sep)
        if path != root and not spelled and any(part.startswith(LEFT_OUT) for part in parts):
            continue
        paths.update(_walk(path, ()) if os.path.isdir(path) else (path,))
    return root, list(paths)


def _walk(folder: str, above: tuple[str, ...]) -> Iterator[str]:
    """Yields the files under `folder`, following links; `above` are the real paths of its parents."""
    real = os.path.realpath(folder)
    if real in above:
        raise DataError.explained(
            f"folder {folder} contains itself",
            got=f"a link back to {real}",
            rule="the folders of a dataset form a tree",
            cure="remove the link or name the files with a pattern",
        )
    for name in os.listdir(folder):
        if not name.startswith(LEFT_OUT):
            path = os.path.join(folder, name)
            if os.path.isdir(path):
                yield from _walk(path, (*above, real))
            else:
                yield path


def _data_file(path: str, root: str, entry: int) -> DataFile:
    try:
        status = os.stat(path)
    except OSError as error:
        raise _not_a_file(path, error.strerror or str(error)) from error
    if not stat.S_ISREG(status.st_mode):
        raise _not_a_file(path, "not a regular file")
    name = path.removeprefix(root.rstrip(os.sep) + os.sep).replace(os.sep, "/")
    return DataFile(
        path=path,
        name=os.fsencode(name).decode("utf-8", "surrogateescape"),  # the same in every locale
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        entry=entry,
    )


def _remote_file(file: listing.RemoteFile, entry: int, hidden: Hidden) -> DataFile:
    return DataFile(
        path=file.url,
        name=file.name,
        size_bytes=file.size_bytes,
        mtime_ns=0,
        etag=file.etag,
        entry=entry,
        hidden=hidden,
    )


def _not_listed(dataset: str, written: str, error: OSError) -> DataError:
    place = str(error.filename)
    return DataError.explained(
        (f"dataset {dataset!r}: " if dataset else "") + f"path {written!r} cannot be listed",
        got=f"{place if place.isprintable() else repr(place)}: {error.strerror or error}",
        rule="every folder below an entry is read",
        cure="make the folder readable, or name the others with a pattern",
    )


def _not_a_file(path: str, got: str) -> DataError:
    return DataError.explained(
        f"{path if path.isprintable() else repr(path)} cannot be read",
        got=got,
        rule="a dataset is made of regular files, or of links to them",
        cure="remove it, repair the link, or name the files with a pattern",
    )


def _refuse_twice(files: Sequence[DataFile], entries: Sequence[str]) -> None:
    seen: dict[str, DataFile] = {}
    real = functools.cache(os.path.realpath)
    for file in files:
        path = file.path
        if not file.is_remote and os.path.islink(path):
            path = os.path.realpath(path)
        elif not file.is_remote:
            path = os.path.join(real(os.path.dirname(path)), os.path.basename(path))
        other = seen.setdefault(path, file)
        if other is not file:
            raise DataError.explained(
                f"{file.shown} is reached twice",
                got=f"as {hide(other.name, other.hidden)} by {redact(entries[other.entry])!r} "
                f"and as {hide(file.name, file.hidden)} by {redact(entries[file.entry])!r}",
                rule="a file belongs to a dataset once",
                cure="make the entries disjoint",
            )


def _nothing_found(written: str, pattern: str, base: Path) -> DataError:
    if is_url(pattern):
        return DataError.explained(
            f"path {redact(written)!r} names no file",
            got=f"nothing at {redact(hide(pattern, variables(written)))}",
            rule="an entry is a file, a folder with files or a glob that matches files "
            "(names that start with . or _ are left out)",
            cure="correct the path; what is private may need credentials to be seen",
        )
    parent = pattern
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    names = sorted(os.listdir(parent), key=os.fsencode)
    more = f", ... ({len(names)} in all)" if len(names) > _NUM_SHOWN else ""
    shown = ", ".join(names[:_NUM_SHOWN]) + more
    return DataError.explained(
        f"path {written!r} names no file",
        got=f"nothing at {pattern}; {parent} holds {shown or 'nothing'}",
        rule="an entry is a file, a folder with files or a glob that matches files "
        "(names that start with . or _ are left out)",
        cure="correct the path"
        + ("" if os.path.isabs(written) else f"; relative ones start at {os.path.abspath(base)}"),
    )
