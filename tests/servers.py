"""Real servers for tests and benchmarks, on this machine, with switches for what goes wrong in a network.

`http_server` serves files over HTTP, `s3_server` is moto's S3 behind a proxy with the same switches, and
`hub_server` speaks as much of the Hugging Face Hub as `hf://` needs. Each is a context manager that leaves no
connection behind; with `latency_s` every answer takes its time.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from zephon import remote

S = TypeVar("S", bound="Server")


@dataclass
class Switches:
    """What a server does wrong; to be set at any time, from any thread."""

    latency_s: float = 0.0
    """Ahead of every answer."""
    together: int = 0
    """So many requests have to be under way at once before the first of them is answered."""
    fail: int = 0
    """How many of the next requests are answered with `status`."""
    status: int = 503
    reset: int = 0
    """How many of the next answers break off in the middle, with the connection."""
    short: int = 0
    """How many of the next ranges lack their last byte, in good order."""
    ignore_range: bool = False
    """Whether every answer is the whole file, with status 200."""
    hang: bool = False
    """Whether requests get no answer until the server ends."""
    stamps: bool = True
    """Whether answers carry an ETag."""
    requests: list[str] = field(default_factory=list)
    """Method and path, with the query, of each request."""
    ranges: list[str] = field(default_factory=list)
    """The Range header of each request that had one."""


class Server(ThreadingHTTPServer):
    """A threaded server on a free port; what it serves is in the classes below."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.switches = Switches()
        self.ended = threading.Event()
        self.gathered = threading.Event()
        """Set once `together` requests were under way at once."""
        self.under_way = 0
        self.lock = threading.Lock()
        self.etags: dict[int, tuple[bytes, str]] = {}

    def etag(self, data: bytes) -> str:
        """Returns the ETag of a content, computed once for each object."""
        with self.lock:
            known = self.etags.get(id(data))
            if known is None or known[0] is not data:
                known = self.etags[id(data)] = data, f'"{hashlib.md5(data).hexdigest()}"'
        return known[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def take(self, name: str) -> bool:
        """Returns whether the counter of that name was above zero, and lowers it."""
        with self.lock:
            left = getattr(self.switches, name)
            setattr(self.switches, name, max(0, left - 1))
        return bool(left)

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing: clients that go away are part of the tests."""


class FileServer(Server):
    """Serves `files`, by path from the root, without a leading slash."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(_FileHandler)
        self.files = dict(files)


class ProxyServer(Server):
    """Hands requests on to another server."""

    def __init__(self, port: int) -> None:
        super().__init__(_ProxyHandler)
        self.port = port


class HubServer(Server):
    """A dataset `owner/data` with commits and branches; files come by a redirect, as from the Hub."""

    def __init__(self) -> None:
        super().__init__(_HubHandler)
        self.commits: dict[str, dict[str, bytes]] = {}
        self.branches: dict[str, str] = {}
        self.token = ""
        """Where it is not empty, requests without this token are refused."""

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Makes `files` the content of a branch and returns the commit."""
        sha = hashlib.sha1(repr((len(self.commits), sorted(files.items()))).encode()).hexdigest()
        self.commits[sha] = dict(files)
        self.branches[branch] = sha
        return sha


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Any

    def log_message(self, *_: object) -> None:
        pass

    def _any(self) -> None:
        switches: Switches = self.server.switches
        with self.server.lock:
            switches.requests.append(f"{self.command} {self.path}")
            if "Range" in self.headers:
                switches.ranges.append(self.headers["Range"])
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if switches.latency_s:
            time.sleep(switches.latency_s)
        if switches.together:
            self._gather(switches.together)
        if switches.hang:
            self.server.ended.wait()
            self.close_connection = True
        elif self.server.take("fail"):
            code = "SlowDown" if switches.status >= 500 else "AccessDenied"
            error = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
            self.answer(switches.status, error.encode())
        else:
            self.serve(body)

    def _gather(self, number: int) -> None:
        """Waits for others, and not for ever where they come one after the other."""
        server: Server = self.server
        with server.lock:
            server.under_way += 1
            if server.under_way >= number:
                server.gathered.set()
        server.gathered.wait(20)
        with server.lock:
            server.under_way -= 1

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _any

    def serve(self, body: bytes) -> None:
        raise NotImplementedError

    def answer(self, status: int, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Sends an answer, or half of it where the switch says so."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if len(data) > 1 and status < 300 and self.server.take("reset"):
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            time.sleep(0.02)  # lets the half arrive
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_RD)
            self.close_connection = True
            return
        self.wfile.write(data)

    def answer_file(self, data: bytes) -> None:
        """Sends the range of a file that was asked for, as the switches say."""
        switches: Switches = self.server.switches
        headers = {"Accept-Ranges": "bytes"}
        if switches.stamps:
            headers["ETag"] = self.server.etag(data)
        span = self.headers.get("Range")
        if span is None or switches.ignore_range:
            self.answer(200, data, headers)
            return
        first, last = (int(number) for number in span.removeprefix("bytes=").split("-"))
        if first >= len(data):
            self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        last = min(last, len(data) - 1) - int(last > first and self.server.take("short"))
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        self.answer(206, data[first : last + 1], headers)


class _FileHandler(_Handler):
    def serve(self, body: bytes) -> None:
        data = self.server.files.get(unquote(urlsplit(self.path).path[1:]))
        if data is None:
            self.answer(404, b"")
        else:
            self.answer_file(data)


class _ProxyHandler(_Handler):
    def serve(self, body: bytes) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port)
        try:
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            data = answer.read()
            skipped = {"transfer-encoding", "connection", "date", "server"}
            headers = {name: value for name, value in answer.getheaders() if name.lower() not in skipped}
            if self.command != "HEAD":
                headers = {k: v for k, v in headers.items() if k.lower() != "content-length"}
            self.answer(
                answer.status,
                data,
                {k.title() if k.lower() == "content-length" else k: v for k, v in headers.items()},
            )
        finally:
            connection.close()


class _HubHandler(_Handler):
    def serve(self, body: bytes) -> None:
        hub: HubServer = self.server
        split = urlsplit(self.path)
        parts = [unquote(part) for part in split.path.strip("/").split("/")]
        if parts[0] == "cdn":
            self.answer_file(hub.commits[parts[1]]["/".join(parts[2:])])
            return
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.answer(401, b"", {"X-Error-Message": "Invalid username or password."})
            return
        is_api = parts[0] == "api"
        kind, owner, name, *rest = parts[is_api:]
        if (kind, owner, name) != ("datasets", "owner", "data"):
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
            return
        revision = rest[1] if len(rest) > 1 else "main"
        sha = hub.branches.get(revision, revision)
        if sha not in hub.commits:
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif is_api:
            self._api(sha, rest, parse_qs(split.query))
        elif "/".join(rest[2:]) in hub.commits[sha]:
            where = f"{hub.url}/cdn/{sha}/{'/'.join(split.path.strip('/').split('/')[5:])}?X-Signature=hidden"
            self.answer(302, b"", {"Location": where})
        else:
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    def _api(self, sha: str, rest: list[str], query: Mapping[str, list[str]]) -> None:
        if rest[:1] != ["tree"]:
            self._json({"id": "owner/data", "sha": sha, "private": False, "siblings": []})
            return
        folder = "/".join(rest[2:])
        above = f"{folder}/" if folder else ""
        files = self.server.commits[sha]
        found: dict[str, dict[str, Any]] = {}
        for path, data in sorted(files.items()):
            if not path.startswith(above):
                continue
            below = path[len(above) :].split("/")
            for num in range(1, len(below)):
                name = above + "/".join(below[:num])
                found[name] = {"type": "directory", "path": name, "size": 0, "oid": "0" * 40}
            oid = hashlib.sha1(data).hexdigest()
            found[path] = {"type": "file", "path": path, "size": len(data), "oid": oid}
        recursive = query.get("recursive", ["false"])[0].lower() == "true"
        entries = [e for path, e in found.items() if recursive or "/" not in path[len(above) :]]
        if folder and not entries:
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        else:
            self._json(entries)

    def _json(self, value: Any) -> None:
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


@contextmanager
def http_server(files: Mapping[str, bytes] | None = None) -> Iterator[FileServer]:
    """Yields a server of `files`, which may be changed at any time; `server.url` is its address."""
    with _serving(FileServer(files or {})) as server:
        yield server


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """Yields a Hub with the dataset `owner/data`, and makes `hf://` ask it, without a token."""
    from fsspec.config import conf

    with _serving(HubServer()) as server, pytest.MonkeyPatch.context() as patch:
        patch.setitem(conf, "hf", {"endpoint": server.url, "token": False})
        yield server


class Bucket:
    """The bucket `data` of an S3 server."""

    def __init__(self, server: ProxyServer, client: Any) -> None:
        self.server = server
        self.client = client

    @property
    def switches(self) -> Switches:
        return self.server.switches

    def put(self, key: str, data: bytes) -> None:
        """Writes an object, past the switches."""
        self.client.put_object(Bucket="data", Key=key, Body=data)


@contextmanager
def s3_server() -> Iterator[Bucket]:
    """Yields the empty bucket `data`, and makes `s3://` ask its server with credentials that it takes."""
    import boto3  # type: ignore[import-untyped]
    from moto.server import ThreadedMotoServer

    with pytest.MonkeyPatch.context() as patch:
        for name, value in _AWS.items():
            patch.setenv(name, value)
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        patch.setattr(logging.getLogger("werkzeug"), "disabled", True)
        moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        moto.start()
        try:
            _, port = moto.get_host_and_port()
            _reset(port)
            client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}")
            client.create_bucket(Bucket="data")
            with _serving(ProxyServer(port)) as server:
                patch.setenv("AWS_ENDPOINT_URL", server.url)
                yield Bucket(server, client)
        finally:
            client.close()
            moto.stop()


def _reset(port: int) -> None:
    """Empties moto, which keeps its buckets for as long as the process lives."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/moto-api/reset")
    connection.getresponse().read()
    connection.close()


_AWS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nowhere/config",
    "AWS_SHARED_CREDENTIALS_FILE": "/nowhere/credentials",
}


@contextmanager
def unused_port() -> Iterator[int]:
    """Yields a port on which nothing listens, and which nobody else is given meanwhile."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield unused.getsockname()[1]


@contextmanager
def _serving(server: S) -> Iterator[S]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        remote.disconnect()
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
