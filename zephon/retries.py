"""Requests over a network: what may pass is tried again, within limits; what stays is one error with a cure.

Upstream: `remote.py`. Downstream: whatever a file system of fsspec raises, which no list of types covers:
here such errors are caught, sorted by what they say, and rid of secrets.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from zephon.errors import DataError
from zephon.urls import Hidden, redact_parts, scheme

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a server may take; the waits between tries double from the first to the longest."""

    tries: int = 8
    total_s: float = 180.0
    """For all tries of one request together."""
    request_s: float = 30.0
    """For one try; only file systems that work asynchronously can be held to it."""
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0


LIMITS = Limits()

_POLL_S = 0.2
_AHEAD = 64
"""Items that each thread may be ahead of the one that is waited for."""
_GRACE_S = 5.0
_DENIED = {401, 403, 407}
_PASSING = {408, 425, 429}
_PASSING_NAMES = {
    "ClientConnectionError",  # aiohttp
    "ClientPayloadError",
    "HTTPClientError",  # botocore
    "IncompleteReadError",
    "ResponseParserError",
    "HTTPException",  # http.client
    "TransportError",  # httpx, google.auth
    "ServiceRequestError",  # azure
    "ServiceResponseError",
}
_DENIED_NAMES = {
    "ClientAuthenticationError", "CredentialRetrievalError", "DefaultCredentialsError", "GatedRepoError",
    "NoCredentialsError", "PartialCredentialsError", "RefreshError", "TokenRetrievalError",
    "UnauthorizedSSOTokenError",
}  # fmt: skip
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "gcs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "abfs": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "hf": "HF_TOKEN, once access was granted to this account",
    "http": "a signed URL that has not expired",
    "https": "a signed URL that has not expired",
}
_GONE, _OTHER, _REFUSED, _LATER, _UNKNOWN = "gone", "other", "refused", "later", "unknown"

_stops: contextvars.ContextVar[tuple[threading.Event, ...]] = contextvars.ContextVar("_stops", default=())
"""Each of them ends the requests of this thread."""
_hidden: contextvars.ContextVar[Hidden] = contextvars.ContextVar("_hidden", default=())


class OtherContentError(Exception):
    """What a server gives is not the file that was listed; the text says how, without secrets."""


class MissingError(DataError):
    """There is nothing at a URL."""


class UnusableError(Exception):
    """A server that answers, but not so that a file can be read; the text says how."""


@contextmanager
def stop_on(event: threading.Event) -> Iterator[None]:
    """Makes requests of this thread, and of those that `each` starts, give up soon after `event` is set."""
    token = _stops.set((*_stops.get(), event))
    try:
        yield
    finally:
        _stops.reset(token)


@contextmanager
def hiding(hidden: Hidden) -> Iterator[None]:
    """Keeps what is hidden out of the errors of this thread's requests."""
    token = _hidden.set(hidden)
    try:
        yield
    finally:
        _hidden.reset(token)


def in_parallel(work: Callable[[S], T], items: Sequence[S], num_threads: int) -> list[T]:
    """Returns what `each` yields."""
    return list(each(work, items, num_threads))


def each(work: Callable[[S], T], items: Iterable[S], num_threads: int) -> Iterator[T]:
    """Yields `work(item)` of each item in order, made by threads of their own, somewhat ahead.

    An error is raised at once, whichever item it is of. It, the end of the iteration, a request to stop and
    Ctrl-C each end the waits of all threads; what was not begun is left.
    """
    rest, stop, woken = iter(items), threading.Event(), threading.Event()
    failed: list[BaseException] = []
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="zephon-each")

    def note(future: Future[T]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            failed.append(error)
        woken.set()

    def begin(item: S) -> Future[T]:
        future = pool.submit(contextvars.copy_context().run, work, item)
        future.add_done_callback(note)
        return future

    try:
        with stop_on(stop):  # without a `yield` in it: it would be set for the caller, too
            waiting = deque(map(begin, islice(rest, _AHEAD * num_threads)))
        while waiting:
            first = waiting.popleft()
            while not (first.done() or failed):
                if not woken.wait(_POLL_S):
                    _refuse_stopped("reading")
                woken.clear()
            if failed:
                raise failed[0]
            with stop_on(stop):
                waiting.extend(map(begin, islice(rest, 1)))
            yield first.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        stop.set()


def run(subject: str, url: str, request: Callable[[float], T]) -> T:
    """Returns what `request`, called with the seconds it may take, returns; `subject` begins an error's text.

    Raises `DataError` where trying again is of no use or was of none, and `OtherContentError` where a second
    try too found other content. No error carries one of the file system as its cause: that may show secrets.
    """
    limits, begin = LIMITS, time.monotonic()
    wait_s, tried, differed = limits.first_wait_s, 0, 0
    while True:
        _refuse_stopped(subject)
        tried += 1
        left_s = limits.total_s - (time.monotonic() - begin)
        try:
            return request(max(min(limits.request_s, left_s), min(1.0, limits.request_s)))
        except DataError:
            raise
        except Exception as error:
            caught = error
        kind, text = _diagnose(caught), _text(caught, url)  # where nothing that fails can show the error
        differed += kind == _OTHER
        spent_s = time.monotonic() - begin
        if kind == _OTHER and differed > 1:
            raise OtherContentError(text)
        if kind not in (_LATER, _OTHER):
            raise _lasting(kind, subject, url, text)
        if tried >= limits.tries or spent_s + wait_s > limits.total_s:
            raise _gave_up(subject, text, f"{tried} times in {spent_s:.1f} s")
        _pause(subject, wait_s)
        wait_s = min(2 * wait_s, limits.longest_wait_s)


def wait_for(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], limit_s: float) -> T:
    """Returns what `work`, run by the loop of another thread, returns within `limit_s`.

    The work never outlives the call. Raises `TimeoutError` also where the loop itself does not answer.
    """
    future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, limit_s), loop)
    end = time.monotonic() + limit_s + _GRACE_S
    try:
        while True:
            left_s = end - time.monotonic()
            try:
                return future.result(max(0.0, min(left_s, _POLL_S) if _stops.get() else left_s))
            except concurrent.futures.TimeoutError:
                if future.done() or left_s <= 0:
                    raise
            _refuse_stopped("a request")
    finally:
        future.cancel()


def _pause(subject: str, wait_s: float) -> None:
    end = time.monotonic() + wait_s
    while (left_s := end - time.monotonic()) > 0:
        time.sleep(min(left_s, _POLL_S) if _stops.get() else left_s)
        _refuse_stopped(subject)


def _refuse_stopped(subject: str) -> None:
    if any(stop.is_set() for stop in _stops.get()):
        raise DataError.explained(
            f"{subject} was given up",
            got="a request to stop",
            rule="nothing is tried again once a run ends",
            cure="none is needed",
        )


def _diagnose(error: Exception) -> str:
    """Returns whether an error means that a file is gone, is another, is refused, or that it may pass."""
    status = _status(error)
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, OtherContentError) or status in (412, 416):
        return _OTHER
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return _GONE
    if isinstance(error, PermissionError) or status in _DENIED or names & _DENIED_NAMES:
        return _REFUSED
    if names & _PASSING_NAMES and "CertificateError" not in str(names):
        return _LATER  # whatever status an answer cut short came with
    if status:
        return _LATER if status in _PASSING or status >= 500 else _UNKNOWN
    if isinstance(error, IsADirectoryError | NotADirectoryError) or "CertificateError" in str(names):
        return _UNKNOWN
    return _LATER if isinstance(error, OSError | EOFError | asyncio.TimeoutError) else _UNKNOWN


def _status(error: BaseException | None) -> int:
    """Returns the HTTP status that an error, or one that it came from, tells; 0 if there is none."""
    for _ in range(6):
        if error is None:
            return 0
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            found = getattr(response, "status_code", None) or _first_attribute(error)
        if isinstance(found, int) and 400 <= found < 600:
            return found
        error = error.__cause__ or error.__context__
    return 0


def _first_attribute(error: BaseException) -> object:
    names = ("status", "status_code", "code")  # `code` last: reading it from an error of aiohttp warns
    return next((value for name in names if (value := getattr(error, name, None)) is not None), None)


def _text(error: Exception, url: str) -> str:
    """Returns the first line of what an error says; never its repr, which may hold headers."""
    lines = redact_parts(str(error), url, _hidden.get()).strip().splitlines()
    status = _status(error)
    shown = lines[0].strip()[:200] if lines else type(error).__name__
    if isinstance(error, asyncio.TimeoutError) and not lines:
        shown = "no answer in time"
    return f"HTTP {status}: {shown}" if status and str(status) not in shown else shown


def _lasting(kind: str, subject: str, url: str, text: str) -> DataError:
    """Returns the error of what no further try can mend."""
    if kind == _GONE:
        return MissingError.explained(
            f"{subject} is not there",
            got=text,
            rule="the files of a dataset stay where they are while it is open",
            cure="bring the file back or correct the path; what is private needs credentials too",
        )
    if kind == _REFUSED:
        return DataError.explained(
            f"{subject} may not be read",
            got=text,
            rule="credentials come from the environment or from the configuration of fsspec",
            cure=f"give this process {_CREDENTIALS.get(scheme(url), 'credentials that may read it')}",
        )
    return DataError.explained(
        f"{subject} cannot be read",
        got=text,
        rule="a server gives the size of a file, and any range of its bytes",
        cure="correct the path or the configuration of fsspec, or copy the files to a disk",
    )


def _gave_up(subject: str, text: str, tried: str) -> DataError:
    return DataError.explained(
        f"{subject} cannot be read",
        got=f"{text}\n  tried: {tried}",
        rule="faults of a network are tried again, within limits",
        cure="see whether the server can be reached from this machine, then start again from the checkpoint",
    )
