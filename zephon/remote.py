"""Files behind URLs: looked at, listed and read by range, each request within the limits of `retries.py`.

Upstream: `listing.py` and `files.py`. Downstream: the file systems of fsspec, with their own configuration
and credentials. Those that work asynchronously are shared by the threads of a process and found again in the
next one; the others (`hf://` when it lists, `memory://`, `sftp://`) bound their waits themselves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from zephon import retries, web
from zephon.errors import DataError
from zephon.retries import OtherContentError, UnusableError
from zephon.urls import HTTP, redact, scheme

PART_BYTES = 16 << 20
"""A longer range is read in parts, each with its own time."""
SLOWEST_BYTES_S = 1 << 20
"""What is written is given the time that it takes at this speed, besides that of a request."""
_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs",
    "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs",
    "hf": "huggingface_hub aiohttp", "http": "aiohttp", "https": "aiohttp",
}  # fmt: skip
_WITHOUT_LISTINGS = {"s3", "s3a", "gs", "gcs"}
"""File systems that take the option to keep no listings."""
_STAMPS = (
    "generation", "ETag", "etag", "e_tag", "blob_id", "xet_hash", "md5Hash", "content_md5", "VersionId",
    "LastModified", "last_modified", "updated", "mtime", "modified", "created",
)  # fmt: skip
_PINNED = re.compile(r"hf://((?:datasets/|spaces/)?[^/@]+/[^/@]+)@([0-9a-f]{40})/(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Look:
    """What a server says of a file or folder."""

    name: str
    """POSIX path below the folder that was listed; empty for what was looked at itself."""
    size_bytes: int
    etag: str = ""
    is_folder: bool = False


def look(subject: str, url: str) -> Look:
    """Returns size and stamp of the file at `url`, by one request; `subject` is what an error begins with."""
    return retries.run(subject, url, lambda limit_s: _look(url, limit_s))


def explore(subject: str, url: str) -> Look:
    """Returns what is at `url`, a file or a folder of a file system that has folders."""
    return retries.run(subject, url, lambda limit_s: _from_info("", _call(url, "info", limit_s)))


def list_folder(subject: str, url: str) -> list[Look]:
    """Returns what lies directly in a folder, in no order; nothing where there is none."""
    return retries.run(subject, url, lambda limit_s: _listed(url, "ls", limit_s))


def find(subject: str, url: str) -> list[Look]:
    """Returns all files below a folder, in no order; nothing where there is none."""
    return retries.run(subject, url, lambda limit_s: _listed(url, "find", limit_s))


def read(subject: str, url: str, part: web.Part) -> bytes:
    """Returns exactly the bytes of `part` of the file at `url`.

    Raises `OtherContentError` for what is no longer that file; its stamp is compared where that costs no
    request of its own.
    """
    ends = range(part.start, part.start + part.size, PART_BYTES)
    parts = [replace(part, start=at, size=min(PART_BYTES, part.start + part.size - at)) for at in ends]
    done = [retries.run(subject, url, partial(_read, url, each)) for each in parts]
    return done[0] if len(done) == 1 else b"".join(done)


def resolve(subject: str, url: str, repo: str, revision: str | None) -> str:
    """Returns the commit that `revision` (None: the default branch) of a `repo` of `hf://` is at this moment.

    `repo` is the path of its URL: with `datasets/` or `spaces/` for what is no model.
    """

    kind, name = ("model", repo) if repo.count("/") == 1 else tuple(repo.split("/", 1))

    def ask(limit_s: float) -> str:
        hub, _path = _connect(url)
        repo_type = kind.removesuffix("s")
        return str(hub._api.repo_info(name, repo_type=repo_type, revision=revision, timeout=limit_s).sha)

    return retries.run(subject, url, ask)


def write(subject: str, url: str, path: Path) -> None:
    """Puts a local file at `url`, over what is there; a large one may take its time at SLOWEST_BYTES_S."""
    extra_s = path.stat().st_size / SLOWEST_BYTES_S

    def put(limit_s: float) -> None:
        fs, address = _connect(url)
        if fs.async_impl:
            retries.wait_for(fs.loop, fs._put_file(str(path), address), limit_s + extra_s)
        else:
            fs.put_file(str(path), address)

    retries.run(subject, url, put)


def disconnect() -> None:
    """Lets go of the connections of this process; the next request makes them anew, as configured then."""
    _shared.cache_clear()


def _look(url: str, limit_s: float) -> Look:
    target = _as_web(url)
    if target is None:
        return _from_info("", _call(url, "info", limit_s))
    fs, address = _connect(target[0])
    size, etag = retries.wait_for(fs.loop, web.look(fs, address, target[1]), limit_s)
    return Look("", size, etag)


def _read(url: str, part: web.Part, limit_s: float) -> bytes:
    target = _as_web(url)
    if target is not None:
        fs, address = _connect(target[0])
        return retries.wait_for(fs.loop, web.read(fs, address, target[1], part), limit_s)
    data = _call(url, "cat_file", limit_s, start=part.start, end=part.start + part.size)
    if len(data) != part.size:
        if (found := _look(url, limit_s)).size_bytes != part.total:
            raise OtherContentError(f"{found.size_bytes:,} bytes, {part.total:,} when it was opened")
        raise EOFError(f"{len(data):,} of {part.size:,} bytes at {part.start:,}")
    return bytes(data)


def _listed(url: str, how: str, limit_s: float) -> list[Look]:
    try:
        found = _call(url, how, limit_s, detail=True)
    except FileNotFoundError:
        return []
    infos = found.values() if isinstance(found, dict) else found
    above = _connect(url)[1].rstrip("/") + "/"
    named = [(str(info["name"]), info) for info in infos]
    return [_from_info(name[len(above) :], info) for name, info in named if name.startswith(above)]


def _from_info(name: str, info: Mapping[str, Any]) -> Look:
    is_folder = info.get("type") == "directory"
    size = info.get("size")
    if size is None and not is_folder:
        raise UnusableError(f"no size of {redact(str(info.get('name')))}")
    return Look(name, int(size or 0), "" if is_folder else _stamp(info), is_folder)


def _stamp(info: Mapping[str, Any]) -> str:
    """Returns the name of what best tells a file's content, and its value."""
    for name in _STAMPS:
        if value := info.get(name):
            return f"{name.lower()} {value.timestamp() if isinstance(value, datetime) else value}"
    return ""


def _as_web(url: str) -> tuple[str, dict[str, str]] | None:
    """Returns address and headers of a file that is read over plain HTTP; None for other file systems."""
    if scheme(url) in HTTP:
        return url, {}
    if (match := _PINNED.fullmatch(url)) is None:
        return None
    hub, _ = _connect(url)
    address = f"{hub.endpoint}/{match[1]}/resolve/{match[2]}/{quote(match[3])}"
    return address, dict(hub._api._build_hf_headers())


def _call(url: str, method: str, limit_s: float, **options: Any) -> Any:
    """Returns what a method of the file system returns, its asynchronous form where it has one."""
    fs, path = _connect(url)
    if method != "cat_file" and scheme(url) not in _WITHOUT_LISTINGS:
        fs.invalidate_cache()
    if fs.async_impl:
        return retries.wait_for(fs.loop, getattr(fs, f"_{method}")(path, **options), limit_s)
    return getattr(fs, method)(path, **options)


def _connect(url: str) -> tuple[Any, str]:
    """Returns the file system of `url` in this process, and the path in it."""
    import fsspec

    protocol = scheme(url)
    try:
        kind: Any = fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        raise _no_file_system(protocol, error) from None
    options = dict(kind._get_kwargs_from_urls(url))
    if protocol in _WITHOUT_LISTINGS:
        options["use_listings_cache"] = False
    path = str(kind._strip_protocol(url))
    if not kind.async_impl:
        return kind(skip_instance_cache=protocol == "hf", **options), path
    configured = repr(fsspec.config.conf.get(protocol))
    return _shared(os.getpid(), protocol, tuple(sorted(options.items())), configured), path


@lru_cache(maxsize=32)
def _shared(_process: int, protocol: str, options: tuple[tuple[str, Any], ...], _configured: str) -> Any:
    """Returns the file system that all threads of a process use; fsspec would keep one for each thread."""
    import fsspec

    return fsspec.filesystem(protocol, skip_instance_cache=True, **dict(options))


def _no_file_system(protocol: str, error: Exception) -> DataError:
    package = _PACKAGES.get(protocol)
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return DataError.explained(
        f"{protocol}:// cannot be read",
        got=redact(first),
        rule="a URL is read by the file system that fsspec has for its scheme",
        cure=f"pip install {package}" if package else "correct the scheme, or install its package for fsspec",
    )
