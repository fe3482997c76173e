"""Requests for files over HTTP, through the session that fsspec configures.

Upstream: `remote.py`. fsspec's own calls take every failure of a look for a missing file, and an answer that
ignores the range for the range; these look at the status, the range and the stamps of each answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zephon.retries import OtherContentError, UnusableError

WHOLE_BYTES = 64 << 20
"""Files of servers without ranges are read only up to this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A range of a file, and what is known of the file."""

    start: int
    size: int
    total: int
    """Bytes of the whole file."""
    etag: str = ""
    """The stamp of the file when it was listed; empty: not compared."""


_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_STAMPS = ("ETag", "Content-MD5", "Last-Modified")


def stamp(headers: Mapping[str, str]) -> str:
    """Returns what the headers of an answer tell of the content: the name of the stamp and its value."""
    for name in _STAMPS:
        if value := headers.get(name, "").removeprefix("W/"):
            return f"{name.lower()} {value}"
    return ""


async def look(fs: Any, url: str, headers: Mapping[str, str]) -> tuple[int, str]:
    """Returns size and stamp; asks for the first byte, as signed URLs and many servers refuse HEAD."""
    session = await fs.set_session()
    async with session.get(fs.encode_url(url), **_arguments(fs, headers, 0, 1)) as answer:
        _, _, total = _content_range(answer.headers)
        if answer.status == 416 and total == 0:
            return 0, stamp(answer.headers)
        _raise_for_status(answer)
        if answer.status != 206:
            total = int(answer.headers.get("Content-Length", -1))
        if total < 0:
            raise UnusableError("an answer that does not say how large the file is")
        return total, stamp(answer.headers)


async def read(fs: Any, url: str, headers: Mapping[str, str], part: Part) -> bytes:
    """Returns exactly the bytes of `part`, however the server answers, or raises: `EOFError` for fewer."""
    session = await fs.set_session()
    async with session.get(fs.encode_url(url), **_arguments(fs, headers, part.start, part.size)) as answer:
        _raise_for_status(answer)
        if other(part.etag, stamp(answer.headers)):
            raise OtherContentError("other content than when it was opened, by its ETag or date")
        if answer.status != 206:
            return await _part_of_whole(answer, part)
        first, last, total = _content_range(answer.headers)
        if total not in (-1, part.total):
            raise OtherContentError(f"{total:,} bytes, {part.total:,} when it was opened")
        if first != part.start:
            raise UnusableError(
                f"an answer with bytes from {first:,} on to a request for those from {part.start:,}"
            )
        if last != part.start + part.size - 1:
            raise _short(last + 1 - first, part)
        data: bytes = await answer.read()
    if len(data) != part.size:
        raise _short(len(data), part)
    return data


def other(before: str, now: str) -> bool:
    """Returns whether two stamps of one kind differ; stamps of two kinds say nothing."""
    same_kind = before.partition(" ")[0] == now.partition(" ")[0]
    return bool(before and now) and same_kind and before != now


async def _part_of_whole(answer: Any, part: Part) -> bytes:
    """Returns a range of an answer that gives the whole file, read no further than its end."""
    total = int(answer.headers.get("Content-Length", part.total))
    if total != part.total:
        raise OtherContentError(f"{total:,} bytes, {part.total:,} when it was opened")
    if total > WHOLE_BYTES and part.size != total:
        raise UnusableError(
            f"the whole file of {total:,} bytes in answer to a request for {part.size:,} of them"
        )
    end = part.start + part.size
    data = bytearray()
    while len(data) < end and (more := await answer.content.read(1 << 20)):
        data += more
    if len(data) < end:
        raise _short(len(data) - part.start, part)
    return bytes(data[part.start : end])


def _short(num_bytes: int, part: Part) -> EOFError:
    return EOFError(f"{max(0, num_bytes):,} of {part.size:,} bytes at {part.start:,}")


def _arguments(fs: Any, headers: Mapping[str, str], start: int, size: int) -> dict[str, Any]:
    """Returns the arguments of a request for a range, as it is stored: never unpacked on the way."""
    span = {"Range": f"bytes={start}-{start + size - 1}", "Accept-Encoding": "identity"}
    own = fs.kwargs.get("headers", {})
    return {**fs.kwargs, "headers": {**own, **headers, **span}, "auto_decompress": False}


def _content_range(headers: Mapping[str, str]) -> tuple[int, int, int]:
    """Returns first and last byte and size of the file that an answer states, -1 for what it does not."""
    match = _RANGE.fullmatch(headers.get("Content-Range", "").strip())
    if match is None:
        return -1, -1, -1
    return tuple(-1 if part in (None, "*") else int(part) for part in match.groups())  # type: ignore[return-value]


def _raise_for_status(answer: Any) -> None:
    if answer.status == 416:
        raise OtherContentError("the range lies beyond the end of the file")
    answer.raise_for_status()
    if answer.status not in (200, 206):
        raise UnusableError(f"HTTP {answer.status}, which is no answer with a file")
