"""Files behind URLs: looked at, listed and read by range, each request within the limits of `retries.py`.

Upstream: `listing.py` and `files.py`. Downstream: the file systems of fsspec, with their own configuration and
credentials. File systems that work asynchronously are shared by the threads of a process and found again in
the next one; the others (`hf://` when it lists, `memory://`, `sftp://`) bound their own waits.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from zephon import retries, web
from zephon.errors import DataError
from zephon.retries import OtherContentError
from zephon.urls import HTTP, redact, scheme

__all__ = [
    "Look",
    "OtherContentError",
    "disconnect",
    "find",
    "list_folder",
    "look",
    "other",
    "read",
    "redact",
]

PART_BYTES = 16 << 20
"""A longer range is read in parts, each with its own time."""
other = web.other
_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs",
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
    """As the file system spells it: without the scheme."""
    size_bytes: int
    etag: str = ""
    is_folder: bool = False


def look(subject: str, url: str) -> Look:
    """Returns what is at `url`, by one request for a file; `subject` is what an error begins with."""
    target = _web_target(url)
    if target is not None:
        address, headers = target

        def ask(limit_s: float) -> Look:
            fs, _ = _connect(address())
            size, etag = retries.wait_for(fs.loop, web.look(fs, address(), headers()), limit_s)
            return Look(url, size, etag if scheme(url) in HTTP else "")

        return retries.run(subject, url, ask)
    return retries.run(subject, url, lambda limit_s: _look(_call(url, limit_s, "info")))


def list_folder(subject: str, url: str) -> list[Look]:
    """Returns what lies directly in a folder, in no order; nothing where there is none."""
    return retries.run(subject, url, lambda limit_s: _listed(url, limit_s, "ls"))


def find(subject: str, url: str) -> list[Look]:
    """Returns all files below a folder, in no order; nothing where there is none."""
    return retries.run(subject, url, lambda limit_s: _listed(url, limit_s, "find"))


def read(subject: str, url: str, span: tuple[int, int], total: int, etag: str) -> bytes:
    """Returns exactly the `span` = (start, size) of the file of `total` bytes at `url`.

    Raises `OtherContentError` for what is no longer that file; `etag` is compared where it costs no request.
    """
    start, size = span
    parts = []
    for at in range(start, start + size, PART_BYTES):
        place = (at, min(PART_BYTES, start + size - at), total, etag)
        parts.append(retries.run(subject, url, lambda limit_s, place=place: _read(url, place, limit_s)))  # type: ignore[misc]
    return parts[0] if len(parts) == 1 else b"".join(parts)
