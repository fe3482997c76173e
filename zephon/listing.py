"""From the URLs that a dataset names to its files: by listings, without a request for each file.

Upstream: `paths.py`, whose rules these are. Downstream: `remote.py`. `hf://` is read at the commit that its
branch is at when it is first asked, or at the one that is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic
from urllib.parse import unquote

from zephon import remote, retries
from zephon.errors import DataError
from zephon.remote import Look
from zephon.retries import MissingError
from zephon.urls import HTTP, last_name, redact, scheme, variables, without_query

LEFT_OUT = (".", "_")
_NUM_THREADS = 16
_HUB = re.compile(
    r"hf://(?:models/)?((?:(?:datasets|spaces)/)?(?!(?:datasets|spaces)/)[^/@]+/[^/@]+)"
    r"(?:@(refs(?:/|%2F)(?:convert|pr)(?:/|%2F)[^/]+|[^/]+))?(?:/(.*))?",
    re.DOTALL | re.IGNORECASE,
)
_COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file that a listing found."""

    url: str
    name: str
    """POSIX path below the wildcard-free folder."""
    size_bytes: int
    etag: str


def branch(written: str, url: str) -> tuple[str, str] | None:
    """Returns repository and revision (empty: the default branch); None for what has no commits."""
    match = _hub(url, written)
    return None if match is None else (match[1], unquote(match[2] or ""))


def commit(written: str, url: str) -> str:
    """Returns the commit at which the entry's branch is, which is asked for unless the entry is a commit."""
    match = _hub(url)
    assert match is not None
    revision = unquote(match[2] or "")
    if _COMMIT.fullmatch(revision):
        return revision
    with retries.hiding(variables(written)):
        return remote.resolve(_subject(written), url, match[1], revision or None)


def at_commit(url: str, revision: str) -> str:
    """Returns the URL of an entry with its branch replaced by a commit."""
    match = _hub(url)
    assert match is not None
    return f"hf://{match[1]}@{revision}" + (f"/{match[3]}" if match[3] else "")


def expand_all(written: Sequence[str], urls: Sequence[str]) -> list[list[RemoteFile]]:
    """Returns the files of each URL, in no order; `written` are the entries that they come from."""
    pairs = list(zip(written, urls, strict=True))
    return retries.in_parallel(lambda pair: _expand_hiding(*pair), pairs, _NUM_THREADS)


def _expand_hiding(written: str, url: str) -> list[RemoteFile]:
    with retries.hiding(variables(written)):
        return _expand(written, url)


def _expand(written: str, url: str) -> list[RemoteFile]:
    """Returns the files of one entry: a file, a folder taken recursively, or a glob."""
    subject = _subject(written)
    if scheme(url) in HTTP:
        return _http_file(subject, url)
    root, pattern = _wildcard_free(url)
    if pattern and not ("[" in url and _explore(subject, url)):  # brackets may be part of a name
        return [_file(root, *found) for found in _matching(subject, root, pattern)]
    found = _explore(subject, url)
    if found is None:
        return []
    if not found.is_folder:
        return [RemoteFile(url=url, name=last_name(url), size_bytes=found.size_bytes, etag=found.etag)]
    root = url.rstrip("/")
    return [_file(root, names, look) for names, look in _below(subject, root) if not _is_left_out(names)]


def _http_file(subject: str, url: str) -> list[RemoteFile]:
    path = without_query(url).partition("://")[2].partition("/")[2]
    if not path or path.endswith("/") or has_magic(path):
        raise DataError.explained(
            f"{subject} names no single file",
            got="a wildcard" if has_magic(path) else "a folder",
            rule="a web server does not list its files",
            cure="name each file, as a list of paths, or give a `catalogue` of them",
        )
    try:
        found = remote.look(subject, url)
    except MissingError:
        return []
    return [RemoteFile(url=url, name=last_name(url), size_bytes=found.size_bytes, etag=found.etag)]


def _explore(subject: str, url: str) -> Look | None:
    try:
        return remote.explore(subject, url)
    except MissingError:
        return None


def _wildcard_free(url: str) -> tuple[str, tuple[str, ...]]:
    """Returns the folder ahead of the first part with a wildcard, and the parts from there on."""
    begin, _, rest = url.rstrip("/").partition("://")
    parts = rest.split("/")
    num = next((i for i, part in enumerate(parts) if has_magic(part)), len(parts))
    return f"{begin}://{'/'.join(parts[:num])}", tuple(parts[num:])


def _matching(subject: str, root: str, pattern: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Look]]:
    """Yields the names below `root`, and a look, of the files that the pattern or a folder reaches."""
    spelled = any(part.startswith(LEFT_OUT) for part in pattern)
    for names, found in _candidates(subject, root, (), pattern):
        if not spelled and _is_left_out(names):
            continue
        if any(
            _matches(names[:num], pattern, num < len(names)) and not _is_left_out(names[num:])
            for num in range(len(names) + 1)
        ):
            yield names, found


def _candidates(
    subject: str, folder: str, above: tuple[str, ...], pattern: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Look]]:
    """Yields the files that may match: those of folders that do so far, listed one level after the other."""
    if not pattern or pattern[0] == "**":
        yield from ((above + names, found) for names, found in _below(subject, folder))
        return
    part, rest = pattern[0], pattern[1:]
    if has_magic(part):
        listed = [(found.name.rstrip("/"), found) for found in remote.list_folder(subject, folder)]
    elif rest:
        listed = [(part, Look(part, 0, is_folder=True))]
    else:
        found_there = _explore(subject, f"{folder}/{part}")
        listed = [(part, found_there)] if found_there else []
    for name, found in listed:
        if not _fits(name, part):
            continue
        if found.is_folder:
            yield from _candidates(subject, f"{folder}/{name}", (*above, name), rest)
        elif not rest:
            yield (*above, name), found


def _below(subject: str, folder: str) -> Iterator[tuple[tuple[str, ...], Look]]:
    """Yields all files below a folder; an object that only stands for a folder is none."""
    for found in remote.find(subject, folder):
        if not found.is_folder and found.name and not found.name.endswith("/"):
            yield tuple(found.name.split("/")), found


def _matches(names: Sequence[str], pattern: Sequence[str], is_folder: bool) -> bool:
    """Returns whether a path is what the pattern spells; `**` stands for any number of parts.

    At the end it stands for what lies in a folder, so there a file is at least one part.
    """
    if not pattern:
        return not names
    first, rest = pattern[0], pattern[1:]
    if first != "**":
        return bool(names) and _fits(names[0], first) and _matches(names[1:], rest, is_folder)
    if not rest and not names:
        return is_folder
    return any(
        _matches(names[num:], rest, is_folder)
        for num in range(len(names) + 1)
        if not any(name.startswith(".") for name in names[:num])
    )


def _fits(name: str, part: str) -> bool:
    return fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))


def _is_left_out(names: Sequence[str]) -> bool:
    return any(name.startswith(LEFT_OUT) for name in names)


def _file(root: str, names: Sequence[str], found: Look) -> RemoteFile:
    name = "/".join(names)
    return RemoteFile(url=f"{root}/{name}", name=name, size_bytes=found.size_bytes, etag=found.etag)


def _hub(url: str, written: str = "") -> re.Match[str] | None:
    """Returns repository, revision and path of an `hf://` URL; None for a bucket and for other schemes.

    `written` is how an error shows it.
    """
    if scheme(url) != "hf" or url.startswith("hf://buckets/"):
        return None
    match = _HUB.fullmatch(url.rstrip("/"))
    if match is None:
        raise DataError.explained(
            f"{redact(written or url)!r} names no repository",
            got="fewer than an owner and a name",
            rule="a path on the Hub is hf://datasets/OWNER/NAME[@REVISION][/PATH]",
            cure="write owner and name out",
        )
    return match


def _subject(written: str) -> str:
    """Returns what an error of an entry begins with."""
    return f"path {redact(written)!r}"
