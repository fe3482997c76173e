"""Requests for files over HTTP, through the session that fsspec configures.

Upstream: `remote.py`. fsspec's own calls take every failure of a look for a missing file, and an answer that
ignores the range for the range; these look at the status, the range and the stamps of each answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from zephon.retries import OtherContentError, UnusableError

WHOLE_BYTES = 64 << 20
"""Files of servers without ranges are read only up to this size."""
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


async def read(fs: Any, url: str, headers: Mapping[str, str], place: tuple[int, int, int, str]) -> bytes:
    """Returns the bytes at `place`: start, size, size of the file, stamp of the file or an empty string."""
    start, size, total, etag = place
    session = await fs.set_session()
    async with session.get(fs.encode_url(url), **_arguments(fs, headers, start, size)) as answer:
        _raise_for_status(answer)
        now = stamp(answer.headers)
        if other(etag, now):
            raise OtherContentError("other content than when it was opened, by its ETag or date")
        if answer.status != 206:
            return await _part_of_whole(answer, start, size, total)
        first, last, whole = _content_range(answer.headers)
        if whole not in (-1, total):
            raise OtherContentError(f"{whole:,} bytes, {total:,} when it was opened")
        if first != start:
            raise UnusableError(
                f"an answer of bytes from {first:,} on to a request for those from {start:,} on"
            )
        if last != start + size - 1:
            raise OtherContentError(f"{last + 1 - start:,} of {size:,} bytes at {start:,}")
        data: bytes = await answer.read()
    if len(data) != size:
        raise OtherContentError(f"{len(data):,} of {size:,} bytes at {start:,}")
    return data


def other(before: str, now: str) -> bool:
    """Returns whether two stamps of one kind differ; stamps of two kinds say nothing."""
    same_kind = before.partition(" ")[0] == now.partition(" ")[0]
    return bool(before and now) and same_kind and before != now


async def _part_of_whole(answer: Any, start: int, size: int, total: int) -> bytes:
    """Returns a range of an answer that gives the whole file, read no further than its end."""
    whole = int(answer.headers.get("Content-Length", total))
    if whole != total:
        raise OtherContentError(f"{whole:,} bytes, {total:,} when it was opened")
    if total > WHOLE_BYTES and (start, size) != (0, total):
        raise UnusableError(f"the whole file of {total:,} bytes in answer to a request for {size:,} of them")
    data = bytearray()
    while len(data) < start + size and (more := await answer.content.read(1 << 20)):
        data += more
    if len(data) < start + size:
        raise OtherContentError(f"{len(data):,} bytes, {total:,} when it was opened")
    return bytes(data[start : start + size])


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
