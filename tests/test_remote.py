"""Tests of `zephon.remote`, `retries`, `web` and `urls`: faults, secrets, processes and threads."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from tests.servers import FileServer, http_server, hub_server, s3_server, unused_port
from tests.waiting import PATIENCE_S, SLACK_S, own_threads, wait_until
from zephon import remote, retries, web
from zephon.catalogue import open_catalogue
from zephon.errors import DataError
from zephon.files import check_file, open_file, read_range
from zephon.paths import DataFile, list_files
from zephon.urls import redact, refuse_secret, variables

BYTES = bytes(range(256)) * 64
SECRETS = ("hidden", "cipher", "somebody")


PATIENT = retries.Limits(tries=3, total_s=60, request_s=20, first_wait_s=0.01)
"""For servers that answer, however long a busy machine takes."""
HASTY = replace(PATIENT, request_s=0.4)
"""For servers that do not."""


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "LIMITS", PATIENT)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with http_server({"x": BYTES}) as server:
        yield server


@pytest.fixture
def file(server: FileServer) -> DataFile:
    url = server.url.replace("http://", "http://somebody:hidden@")
    [file] = list_files([f"{url}/x?sig=cipher"], Path("/"))
    server.switches.requests.clear()
    return file


def refusal(file: DataFile) -> str:
    """Returns the error of a read, having looked for secrets in all that a traceback shows."""
    with pytest.raises(DataError) as caught:
        read_range("d", file, 1000, 500)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert not [secret for secret in SECRETS if secret in shown.replace(__file__, "")]
    return str(caught.value)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_busy_server_is_asked_again(server: FileServer, file: DataFile, status: int) -> None:
    server.switches.status, server.switches.fail = status, 2
    assert read_range("d", file, 1000, 500) == BYTES[1000:1500]
    assert len(server.switches.requests) == 3


@pytest.mark.parametrize("switch", ["reset", "short"])
def test_an_answer_cut_short_is_asked_for_again(server: FileServer, file: DataFile, switch: str) -> None:
    setattr(server.switches, switch, 1)
    assert read_range("d", file, 1000, 500) == BYTES[1000:1500]
    assert len(server.switches.requests) == 2


def test_a_server_that_stays_busy_is_one_error_of_five_lines(server: FileServer, file: DataFile) -> None:
    server.switches.fail = 99
    what, got, tried, rule, cure = refusal(file).splitlines()
    assert what == f"dataset 'd': {server.url}/x?... cannot be read"
    assert got.startswith("  got:  503, message='Service Unavailable'")
    assert tried.startswith("  tried: 3 times in ")
    assert (rule[:8], cure[:8]) == ("  rule: ", "  cure: ")
    assert len(server.switches.requests) == 3


def test_resets_have_an_end(server: FileServer, file: DataFile) -> None:
    server.switches.reset = 99
    assert "tried: 3 times" in refusal(file)


def test_a_server_that_hangs_is_given_up_in_time(
    server: FileServer, file: DataFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "LIMITS", HASTY)
    server.switches.hang = True
    begin = time.monotonic()
    assert "no answer in time\n  tried: 3 times in " in refusal(file)
    assert 3 * HASTY.request_s < time.monotonic() - begin < 3 * HASTY.request_s + SLACK_S


def test_the_time_for_all_tries_together_is_kept(
    server: FileServer, file: DataFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubborn = retries.Limits(tries=99, total_s=0.5, request_s=90, first_wait_s=0.01)
    monkeypatch.setattr(retries, "LIMITS", stubborn)
    server.switches.fail = 999
    begin = time.monotonic()
    assert "tried: " in refusal(file)
    assert 2 <= len(server.switches.requests) < 9
    server.switches.fail, server.switches.hang = 0, True
    assert "no answer in time" in refusal(file)
    assert time.monotonic() - begin < 2 * SLACK_S


def test_a_server_that_is_down_is_named(file: DataFile) -> None:
    with unused_port() as port:
        down = replace(file, path=f"http://somebody:hidden@127.0.0.1:{port}/x?sig=cipher")
        assert "Cannot connect to host 127.0.0.1" in refusal(down)


def test_short_ranges_are_faults_that_may_pass(server: FileServer, file: DataFile) -> None:
    server.switches.short = 2
    assert read_range("d", file, 1000, 500) == BYTES[1000:1500]
    server.switches.short = 99
    assert "/x?... cannot be read\n  got:  499 of 500 bytes at 1,000\n  tried: 3 times" in refusal(file)


def test_only_200_and_206_are_answers_with_a_file(server: FileServer, file: DataFile) -> None:
    server.switches.fail, server.switches.status = 99, 202
    assert "/x?... cannot be read\n  got:  HTTP 202" in refusal(file)
    assert len(server.switches.requests) == 1


def test_what_a_variable_stands_for_is_never_shown(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACE", "very hidden/cipher")
    server.files["very hidden/cipher/x"] = BYTES
    entry = server.url + "/${PLACE}/x"
    [file] = list_files([entry], Path("/"))
    assert file.shown == entry
    assert refused([entry, entry]).startswith(f"{entry} is reached twice")
    assert f"nothing at {entry}y" in refused([f"{entry}y"])
    monkeypatch.delenv("PLACE")
    for status in (400, 403, 404, 503):
        server.switches.fail, server.switches.status = 99, status
        assert f"{entry} " in refusal(file)
    server.switches.fail = 0
    server.files["very hidden/cipher/x"] = BYTES[1:]
    assert f"{entry} changed" in refusal(file)
    monkeypatch.setenv("PLACE", f"{server.url}/very%20hidden/cipher".replace("//", "//somebody:hidden@"))
    assert "nothing at ${PLACE}/none" in refused(["${PLACE}/none"])
    server.switches.fail, server.switches.status = 99, 403
    assert "${PLACE}" in refused(["${PLACE}/none"])
    with pytest.raises(DataError) as caught:
        open_catalogue("${PLACE}/none", Path("/"), Path("/nowhere"))
    assert not [secret for secret in SECRETS if secret in str(caught.value)]


def test_a_scheme_in_a_variable_hides_nothing_less(monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme, entry in (("http", "${SCHEME}://"), ("http://", "${SCHEME}")):
        monkeypatch.setenv("SCHEME", scheme)
        with unused_port() as port:
            assert "'" in refused([f"{entry}127.0.0.1:{port}/x"])
        assert not variables(entry)


def refused(entries: list[str]) -> str:
    """Returns the error of a listing, having looked for secrets in it."""
    with pytest.raises(DataError) as caught:
        list_files(entries, Path("/"))
    assert not [secret for secret in SECRETS if secret in str(caught.value)]
    return str(caught.value)


@pytest.mark.parametrize("name", ["key", "pwd", "passwd", "auth", "jwt"])
def test_secrets_in_a_query(name: str) -> None:
    with pytest.raises(ValueError, match="must not spell out a secret"):
        refuse_secret("`path`", f"https://h/x?a=b&{name}=abc")
    with pytest.raises(ValueError, match="must not spell out a secret") as caught:
        refuse_secret("`path`", f"https://h/x;{name}=cipher")
    assert "cipher" not in str(caught.value)
    refuse_secret("`path`", f"https://h/{name}=web/x?{name}=${{VAR}}")


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "may not be read"),
        (403, "signed URL that has not expired"),
        (404, "is not there"),
        (400, "cannot be read"),
    ],
)
def test_what_lasts_is_not_asked_for_again(
    server: FileServer, file: DataFile, status: int, message: str
) -> None:
    server.switches.fail, server.switches.status = 9, status
    assert message in refusal(file)
    assert len(server.switches.requests) == 1


def test_a_server_that_ignores_ranges_gives_the_right_bytes(
    server: FileServer, file: DataFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.switches.ignore_range = True
    check_file("d", file)
    assert read_range("d", file, 1000, 500) == BYTES[1000:1500]
    assert read_range("d", file, 0, 1 << 20) == BYTES
    with open_file("d", file, block_bytes=4096) as opened:
        assert opened.read() == BYTES
    monkeypatch.setattr(web, "WHOLE_BYTES", 1000)
    assert "the whole file of 16,384 bytes in answer to a request for 500" in refusal(file)
    assert read_range("d", file, 0, 1 << 20) == BYTES


def test_a_file_of_another_size_is_a_changed_file(server: FileServer, file: DataFile) -> None:
    server.switches.stamps = False
    for ignores in (False, True):
        server.switches.ignore_range = ignores
        server.files["x"] = BYTES + b"x"
        assert "16,385 bytes, 16,384 when it was opened" in refusal(file)
    server.switches.ignore_range = False
    server.files["x"] = BYTES[:10]
    assert "changed during the run" in refusal(file)


def test_without_stamps_the_size_alone_counts(server: FileServer, file: DataFile) -> None:
    server.files["x"] = BYTES[::-1]
    assert "other content than when it was opened" in refusal(file)
    server.switches.stamps = False
    check_file("d", file)


def test_a_long_range_is_read_in_parts(
    server: FileServer, file: DataFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PART_BYTES", 5000)
    server.switches.ranges.clear()
    assert read_range("d", file, 100, 12000) == BYTES[100:12100]
    assert server.switches.ranges == ["bytes=100-5099", "bytes=5100-10099", "bytes=10100-12099"]


def test_threads_read_one_file_at_once(server: FileServer, file: DataFile) -> None:
    server.switches.together = 8
    starts = list(range(0, 16000, 500))
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda start: read_range("d", file, start, 300), starts))
    assert found == [BYTES[start : start + 300] for start in starts]
    assert server.gathered.is_set()


def _read(file: DataFile) -> bytes:
    return read_range("d", file, 1000, 500)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_find_the_file_system_again(file: DataFile, method: str) -> None:
    assert _read(file) == BYTES[1000:1500]
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply_async(_read, (file,)).get(PATIENCE_S) == BYTES[1000:1500]


def test_a_request_to_stop_ends_a_wait(
    server: FileServer, file: DataFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "LIMITS", retries.Limits())
    server.switches.hang = True
    stop = threading.Event()
    begin = time.monotonic()
    threading.Timer(0.2, stop.set).start()
    with retries.stop_on(stop), pytest.raises(DataError, match="was given up"):
        read_range("d", file, 0, 1)
    server.switches.hang, server.switches.fail = False, 99
    with retries.stop_on(stop), pytest.raises(DataError, match="was given up"):
        read_range("d", file, 0, 1)
    assert time.monotonic() - begin < SLACK_S


def test_what_threads_make_comes_in_order_and_as_soon_as_it_is_there() -> None:
    last = threading.Event()

    def work(item: int) -> int:
        if item == 3:
            assert last.wait(PATIENCE_S)
        return item * item

    found = retries.each(work, range(5000), 4)
    assert [next(found), next(found), next(found)] == [0, 1, 4]  # before those behind them
    last.set()
    assert list(found) == [item * item for item in range(3, 5000)]
    assert retries.in_parallel(work, [], 4) == []


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("bad", [0, 3])
def test_an_error_of_one_thread_ends_the_others_at_once(bad: int, within: bool) -> None:
    """Four are begun: one fails, which makes room for one more at most, and the others wait."""
    begun, others = threading.Semaphore(0), list[str]()

    def work(item: int) -> None:
        if item == bad:
            assert all(begun.acquire(timeout=PATIENCE_S) for _ in range(3))
            raise KeyError(item)
        begun.release()
        try:
            retries._pause("d", 30)
        except DataError as error:
            others.append(str(error))
            raise

    begin = time.monotonic()
    with retries.stop_on(threading.Event()) if within else nullcontext(), pytest.raises(KeyError):
        retries.in_parallel(work, range(40), 4)
    assert time.monotonic() - begin < SLACK_S
    wait_until(lambda: not [name for name in own_threads() if name.startswith("zephon-each")])
    assert 3 <= len(others) <= 4  # those under way; what was not begun is left
    assert all("was given up" in error for error in others)


def test_a_request_to_stop_reaches_threads_of_threads() -> None:
    stop, ended = threading.Event(), threading.Event()

    def wait(_: int) -> None:
        try:
            retries._pause("d", 30)
        finally:
            ended.set()

    def work(_: int) -> None:
        retries.in_parallel(wait, [0, 1], 2)

    threading.Timer(0.2, stop.set).start()
    with retries.stop_on(stop), pytest.raises(DataError, match="was given up"):
        retries.in_parallel(work, [0, 1], 2)
    assert ended.wait(PATIENCE_S)


def test_what_is_written_and_asked_of_the_hub_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(BYTES)
    with s3_server() as bucket:
        remote.write("d", "s3://data/y", tmp_path / "x")
        [file] = list_files(["s3://data/y"], tmp_path)
        assert read_range("d", file, 0, len(BYTES)) == BYTES
        bucket.switches.hang = True
        monkeypatch.setattr(retries, "LIMITS", HASTY)
        begin = time.monotonic()
        with pytest.raises(DataError, match="no answer in time"):
            remote.write("d", "s3://data/y", tmp_path / "x")
        assert time.monotonic() - begin < 3 * SLACK_S
    monkeypatch.setattr(retries, "LIMITS", PATIENT)
    with hub_server() as hub:
        hub.commit({"a.jsonl": b""})
        assert remote.resolve("d", "hf://datasets/owner/data", "datasets/owner/data", None)
        hub.switches.hang = True
        monkeypatch.setattr(retries, "LIMITS", HASTY)
        begin = time.monotonic()
        with pytest.raises(DataError, match="cannot be read"):
            remote.resolve("d", "hf://datasets/owner/data", "datasets/owner/data", None)
        assert time.monotonic() - begin < 3 * SLACK_S


def test_ctrl_c_ends_a_listing_of_a_server_that_hangs(server: FileServer) -> None:
    server.switches.hang = True
    program = (
        "import sys; from pathlib import Path; from zephon.paths import list_files; print('go', flush=True)\n"
        "list_files(sys.argv[1:], Path('/'))"
    )
    entries = [f"{server.url}/{i}" for i in range(40)]
    root = Path(remote.__file__).parent.parent
    with subprocess.Popen(
        [sys.executable, "-c", program, *entries],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        wait_until(lambda: server.switches.requests)
        os.kill(process.pid, signal.SIGINT)
        begin = time.monotonic()
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - begin < SLACK_S
    assert "KeyboardInterrupt" in errors


def test_faults_of_s3_are_tried_again_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as bucket:
        bucket.put("x", BYTES)
        [file] = list_files(["s3://data/x"], Path("/"))
        for switch in ("fail", "reset"):
            setattr(bucket.switches, switch, 1)
            assert _read(file) == BYTES[1000:1500]
        bucket.switches.fail = 9999
        monkeypatch.setattr(retries, "LIMITS", HASTY)  # the library of S3 tries again by itself, for a minute
        assert "dataset 'd': s3://data/x cannot be read" in refusal(file)
        bucket.switches.fail, bucket.switches.hang = 0, True
        assert "no answer in time\n  tried: 3 times" in refusal(file)


def test_s3_without_credentials_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as bucket:
        bucket.put("x", BYTES)
        [file] = list_files(["s3://data/x"], Path("/"))
        bucket.switches.fail, bucket.switches.status = 99, 403
        assert "AWS_ACCESS_KEY_ID" in refusal(file)
        bucket.switches.requests.clear()
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        remote.disconnect()
        assert "may not be read\n  got:  Unable to locate credentials" in refusal(file)
        assert not bucket.switches.requests


def test_a_data_file_shows_and_pickles_no_connection(file: DataFile) -> None:
    assert file.shown.endswith("/x?...")
    assert not [secret for secret in SECRETS if secret in repr(file) + file.name + file.etag]
    assert len(pickle.dumps(file)) < 500


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://u:p@h/x", "https://h/x"),
        ("https://token@h:1/x?a=b&c", "https://h:1/x?..."),
        ("got url='https://h/x?X-Amz-Signature=s', then", "got url='https://h/x?...', then"),
        ("HTTPS://h/x?plain", "HTTPS://h/x?..."),
        ("s3://k:s@bucket/part-?.jsonl", "s3://bucket/part-?.jsonl"),
        ("s3://bucket/x?versionId=1", "s3://bucket/x?..."),
        ("hf://datasets/a/b@main/x", "hf://datasets/a/b@main/x"),
        ("abfs://container@account/x", "abfs://container@account/x"),
        ("abfs://u:p@account/x", "abfs://account/x"),
        ("GET /x?sig=s HTTP", "GET /x?... HTTP"),
        ("AccountKey=s;EndpointSuffix=core", "AccountKey=...;EndpointSuffix=core"),
        ("https://h/x?a='q'&sig=s", "https://h/x?...'q'&sig=..."),
        ("the cat@home is what?", "the cat@home is what?"),
    ],
)
def test_users_and_queries_are_left_out(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown
