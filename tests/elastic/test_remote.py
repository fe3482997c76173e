"""The whole loader over files behind URLs: the same batches as over local files, or one error in seconds."""

from __future__ import annotations

import gc
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import (
    digest_of,
    digests,
    loaders,
    make_recipe,
    open_small,
    take_steps,
    union,
    words,
    write_tokenizer,
)
from tests.servers import Bucket, FileServer, Switches, http_server, s3_server
from tests.waiting import SLACK_S, own_threads, session, wait_for_none_of, wait_until
from zephon import digest, feed, retries, step_digest, views
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.loader import Loader
from zephon.options import LoaderOptions
from zephon.recipe import Recipe

ROOT = Path(__file__).parents[2]
STEPS = 12
NUM_FILES = 6
PER_FILE = 40
QUICK = retries.Limits(tries=6, total_s=60, request_s=20, first_wait_s=0.01)
THREADS = LoaderOptions(workers=2)
PROCESSES = LoaderOptions(executor="processes", workers=1)

Files = dict[str, bytes]

# The files and where they lie -------------------------------------------------------------------------------


def lines(documents: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in documents)


def parquet(documents: list[str]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": documents}), sink, row_group_size=5)
    return bytes(sink.getvalue().to_pybytes())


@dataclass(frozen=True)
class Format:
    """How the documents are written, and read."""

    suffix: str
    write: Callable[[list[str]], bytes]
    stream: bool = False

    def files(self) -> Files:
        parts = [words(f"{letter}-", PER_FILE) for letter in "abcdefgh"[:NUM_FILES]]
        return {f"{i}{self.suffix}": self.write(part) for i, part in enumerate(parts)}

    def recipe(self, paths: list[str], folder: Path) -> Recipe:
        """Returns the recipe of these files; what it makes lies in `folder`."""
        dataset = Dataset.from_path("web", paths, stream=self.stream)
        return make_recipe(datasets=(dataset,), base=folder, lanes=4, global_batch_size=8)


PARQUET = Format(".parquet", parquet)
GZIPPED = Format(".jsonl.gz", lambda documents: gzip.compress(lines(documents), mtime=0))
FORMATS = {
    "parquet": PARQUET,
    "jsonl": Format(".jsonl", lines),
    "jsonl_gz": GZIPPED,
    "stream": replace(GZIPPED, stream=True),
}


@pytest.fixture(scope="module", autouse=True)
def _leaves_nothing_open() -> Iterator[None]:
    """Lets go of the descriptors of readers, which stand in cycles."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes chunks and blocks small, so that files are read during the whole run, and faults pass soon."""
    monkeypatch.setattr("zephon.readers.lines.CHUNK_BYTES", 256)
    monkeypatch.setattr(feed, "MIN_BLOCK_BYTES", 64)
    monkeypatch.setattr(feed, "MAX_BLOCK_BYTES", 64)
    monkeypatch.setattr(feed, "GROUP_BYTES", 256)
    monkeypatch.setattr(retries, "LIMITS", QUICK)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with http_server() as server:
        yield server


@pytest.fixture(scope="module")
def _bucket() -> Iterator[Bucket]:
    with s3_server() as bucket:
        yield bucket


@pytest.fixture
def bucket(_bucket: Bucket) -> Iterator[Bucket]:
    """Returns the one S3 server of these tests, rid of the switches of others."""
    _bucket.server.switches = Switches()
    yield _bucket
    _bucket.server.switches = Switches()


def serve(server: FileServer, files: Mapping[str, bytes]) -> list[str]:
    server.files = {f"web/{name}": data for name, data in files.items()}
    return [f"{server.url}/web/{name}" for name in files]


def put(bucket: Bucket, files: Mapping[str, bytes], folder: str) -> list[str]:
    for name, data in files.items():
        bucket.put(f"{folder}/{name}", data)
    return [f"s3://data/{folder}"]


def write(folder: Path, files: Mapping[str, bytes]) -> list[str]:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [str(folder)]


@contextmanager
def in_memory(files: Mapping[str, bytes]) -> Iterator[list[str]]:
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pipe({f"/web/{name}": data for name, data in files.items()})
    yield ["memory://web"]
    memory.store.clear()


def expected_of(made: Format, tmp_path: Path, num_steps: int = STEPS) -> list[str]:
    """Returns the digests of a run over the same files on the local disk."""
    recipe = made.recipe(write(tmp_path / "local", made.files()), tmp_path)
    found = digests(open_small(recipe), num_steps)
    assert len(set(found)) == num_steps
    return found


# The same batches -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_every_place_gives_the_same_steps(
    name: str, tmp_path: Path, server: FileServer, bucket: Bucket
) -> None:
    made = FORMATS[name]
    files, expected = made.files(), expected_of(made, tmp_path)
    with in_memory(files) as in_memory_paths:
        places = {
            "http": serve(server, files), "s3": put(bucket, files, name), "memory": in_memory_paths
        }  # fmt: skip
        for place, paths in places.items():
            recipe = made.recipe(paths, tmp_path)
            for world in (1, 2):
                opened = open_small(recipe, tmp_path / f"{place}{world}")
                assert digests(opened, STEPS, world, THREADS) == expected, (place, world)


@pytest.mark.slow
def test_worker_processes_find_their_own_way(tmp_path: Path, bucket: Bucket) -> None:
    """D = 2, so that two processes read, which share nothing but the cache."""
    expected = expected_of(PARQUET, tmp_path, 4)
    paths = put(bucket, PARQUET.files(), "processes")
    opened = open_small(PARQUET.recipe(paths, tmp_path), tmp_path / "cache")
    assert digests(opened, 4, 2, PROCESSES) == expected


@pytest.mark.parametrize("name", FORMATS)
def test_a_run_goes_on_elsewhere(name: str, tmp_path: Path, server: FileServer, bucket: Bucket) -> None:
    """From the disk to HTTP to S3, on 1, 2 and 4 ranks, each time with an empty cache."""
    made = FORMATS[name]
    files, expected = made.files(), expected_of(made, tmp_path)
    places = [[str(tmp_path / "local")], serve(server, files), put(bucket, files, f"on-{name}")]
    found: list[str] = []
    state = None
    for number, (paths, world) in enumerate(zip(places, (1, 2, 4), strict=True)):
        opened = open_small(made.recipe(paths, tmp_path), tmp_path / f"cache{number}")
        with loaders(opened, world, THREADS) as ranks:
            for loader in ranks:
                if state is not None:
                    loader.load_state_dict(state)
            found += [digest_of(step) for step in take_steps(ranks, STEPS // 3)]
            state = union(ranks)
    assert found == expected


@pytest.mark.parametrize(
    ("place", "name"), [*(("http", name) for name in FORMATS), ("s3", "jsonl"), ("s3", "stream")]
)
def test_faults_that_pass_change_nothing(
    name: str, place: str, tmp_path: Path, server: FileServer, bucket: Bucket
) -> None:
    """Ahead of every step 503, an answer cut off, one that is short, each for the next request; all slow."""
    made = FORMATS[name]
    files, expected = made.files(), expected_of(made, tmp_path)
    paths = serve(server, files) if place == "http" else put(bucket, files, f"faults-{name}")
    switches = server.switches if place == "http" else bucket.switches
    opened = open_small(made.recipe(paths, tmp_path), tmp_path / "cache")
    switches.latency_s = 0.002
    found, num_faults = [], 0
    with loaders(opened, 2, THREADS) as ranks:
        for step in range(STEPS):
            if place == "http" or not step:  # the client of S3 waits long before it tries again
                switches.fail, switches.reset, switches.short = 1, 1, int(place == "http")
            num_set = switches.fail + switches.reset + switches.short
            found.append(digest_of(take_steps(ranks, 1)[0]))
            num_faults += num_set - switches.fail - switches.reset - switches.short
    assert found == expected
    assert num_faults >= 2


def test_a_spool_smaller_than_the_data_gives_the_same_steps(
    tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch, probed_once: None
) -> None:
    """Few chunks stay open and few spool files stay, so chunks are read from the server again and again."""
    monkeypatch.setattr(views, "MAX_OPEN_CHUNKS", 4)
    files, limit_bytes = PARQUET.files(), 2048
    local, remote = write(tmp_path / "local", files), serve(server, files)
    tokenizer = str(write_tokenizer(tmp_path))
    found, num_ranges = {}, {}
    for name, paths, spool_bytes in (
        ("local", local, 1 << 30),
        ("whole", remote, 1 << 30),
        ("", remote, limit_bytes),
    ):
        recipe = PARQUET.recipe(paths, tmp_path)
        recipe = replace(recipe, tokenize=replace(recipe.tokenize, tokenizer=tokenizer))
        server.switches.ranges.clear()
        with recipe.loader(
            workers=2, cache=tmp_path / f"cache {name}", spool_bytes=spool_bytes, backend="tokenizers"
        ) as loader:
            found[name] = [step_digest(digest(next(loader))) for _ in range(3 * STEPS)]
        num_ranges[name] = len(server.switches.ranges)
    assert found[""] == found["whole"] == found["local"]
    assert num_ranges[""] > 2 * num_ranges["whole"]
    kept = [path.stat().st_size for path in (tmp_path / "cache ").glob("spool/*/*")]
    assert sum(kept) < limit_bytes + 12 * max(kept)


def test_the_chunks_of_a_block_are_read_together(
    tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block of all documents needs 48 chunks; none is given before so many are asked for at once."""
    monkeypatch.setattr(feed, "MIN_BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr(feed, "MAX_BLOCK_BYTES", 1 << 16)
    opened = open_small(PARQUET.recipe(serve(server, PARQUET.files()), tmp_path), tmp_path / "cache")
    server.switches.together = 8
    server.switches.requests.clear()
    digests(opened, STEPS, 1, THREADS)
    assert len(server.switches.requests) >= 48
    assert server.gathered.is_set()


# What cannot pass: one error, in seconds --------------------------------------------------------------------


def read_on(loader: Loader, num_steps: int = 400) -> str:
    """Returns the error that ends the run, which comes within seconds."""
    begun = time.monotonic()
    with pytest.raises(DataError) as caught:  # noqa: PT012
        for _ in range(num_steps):
            next(loader)
    assert time.monotonic() - begun < 2 * SLACK_S
    return str(caught.value)


@contextmanager
def reading(
    paths: list[str], made: Format, tmp_path: Path, options: LoaderOptions = THREADS
) -> Iterator[Loader]:
    """Gives a loader that has given a step, and has most of its files to read yet."""
    opened = open_small(made.recipe(paths, tmp_path), tmp_path / "cache")
    with loaders(opened, 1, options) as (loader,):
        next(loader)
        yield loader


@pytest.mark.parametrize(
    ("place", "name"), [*(("http", name) for name in FORMATS), ("s3", "parquet"), ("s3", "stream")]
)
@pytest.mark.parametrize("how", ["changes", "vanishes"])
def test_a_file_that_does_not_stay_is_named(
    name: str, place: str, how: str, tmp_path: Path, server: FileServer, bucket: Bucket
) -> None:
    """All files change, their size stays; those that are in the spool already do not matter."""
    made = FORMATS[name]
    files = made.files()
    paths = serve(server, files) if place == "http" else put(bucket, files, f"{how}-{name}")
    with reading(paths, made, tmp_path) as loader:
        for file, data in files.items():
            other = data[:50] + bytes(255 - byte for byte in data[50:60]) + data[60:]
            if place == "http" and how == "changes":
                server.files[f"web/{file}"] = other
            elif place == "http":
                del server.files[f"web/{file}"]
            elif how == "changes":
                bucket.put(f"{how}-{name}/{file}", other)
            else:
                bucket.client.delete_object(Bucket="data", Key=f"{how}-{name}/{file}")
        error = read_on(loader)
    assert error.startswith("dataset 'web': " + ("http://127.0.0.1:" if place == "http" else "s3://data/"))
    first = error.splitlines()[0]
    assert any(f"/{file}" in first for file in files)
    assert "changed during the run" in first if how == "changes" else "is not there" in first


@pytest.mark.parametrize("status", [401, 403])
def test_credentials_that_are_refused_in_mid_run(
    status: int, tmp_path: Path, server: FileServer, bucket: Bucket
) -> None:
    files = PARQUET.files()
    paths = serve(server, files) if status == 401 else put(bucket, files, "denied")
    switches = server.switches if status == 401 else bucket.switches
    with reading(paths, PARQUET, tmp_path) as loader:
        switches.fail, switches.status = 10**6, status
        error = read_on(loader)
    assert "may not be read" in error
    assert ("a signed URL that has not expired" if status == 401 else "AWS_ACCESS_KEY_ID") in error
    with pytest.raises(DataError, match="may not be"):
        open_small(PARQUET.recipe(paths, tmp_path), tmp_path / "other")


@pytest.mark.parametrize("name", ["parquet", "stream"])
def test_a_server_that_hangs_is_an_error_within_the_limits(
    name: str, tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = FORMATS[name]
    paths = serve(server, made.files())
    with reading(paths, made, tmp_path) as loader:
        monkeypatch.setattr(retries, "LIMITS", replace(QUICK, tries=2, request_s=0.3))
        server.switches.hang = True
        assert "no answer in time\n  tried: 2 times" in read_on(loader)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_close_ends_a_wait_for_a_server_that_hangs(
    prefetch: int, tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = serve(server, PARQUET.files())
    options = replace(THREADS, prefetch=prefetch)
    with reading(paths, PARQUET, tmp_path, options) as loader:
        monkeypatch.setattr(retries, "LIMITS", retries.Limits())
        server.switches.hang = True
        hung = threading.Event()

        def read_until_it_ends() -> None:
            with suppress(Exception):
                while True:
                    next(loader)
            hung.set()

        reader = threading.Thread(target=read_until_it_ends)
        num_before = len(server.switches.requests)
        reader.start()
        wait_until(lambda: len(server.switches.requests) > num_before)
        time.sleep(0.2)
        assert not hung.is_set()
        begun = time.monotonic()
        loader.close()
        assert time.monotonic() - begun < SLACK_S
        reader.join(SLACK_S)
        assert hung.is_set()
    wait_until(lambda: not own_threads())


# A process of its own ---------------------------------------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path

from tests.helpers import make_recipe, open_small
from zephon import feed
from zephon.dataset import Dataset
from zephon.loader import Loader
from zephon.options import LoaderOptions


def main(executor, ending, *paths):
    print("begun", flush=True)
    feed.MIN_BLOCK_BYTES = feed.MAX_BLOCK_BYTES = 64
    here, data = Path.cwd(), Dataset.from_path("web", paths)
    recipe = make_recipe(datasets=(data,), base=here, lanes=4, global_batch_size=8)
    opened = open_small(recipe, here / "cache")
    loader = Loader(opened, LoaderOptions(executor=executor, workers=2, run_folder=here / "run"))
    try:
        for batch in loader:
            print(batch.step, flush=True)
            sys.stdin.readline()
    except BaseException:
        shown = (opened.recipe, opened.recipe.datasets, opened, loader, loader.state_dict())
        print(*map(repr, shown))
        if ending == "close":
            loader.close()
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@contextmanager
def program(tmp_path: Path, arguments: list[str], **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Gives the running program, which has said so, in a session of its own that ends here."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    running = subprocess.Popen(
        [sys.executable, str(script), *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "ZEPHON_PLUGINS": "none"} | variables,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        yield running
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate(timeout=60)


def wait_for_step(running: subprocess.Popen[str]) -> None:
    assert running.stdout is not None
    assert running.stdout.readline() == "0\n"


def let_run(running: subprocess.Popen[str], num_steps: int = 400) -> None:
    """Lets the program, which waits after its first step, go on for so many steps."""
    assert running.stdin is not None
    running.stdin.write("\n" * num_steps)
    running.stdin.flush()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("executor", "ending"), [("threads", "close"), ("threads", "leave"), ("processes", "leave")]
)
def test_an_interrupt_ends_a_run_whose_server_hangs(
    executor: str, ending: str, tmp_path: Path, server: FileServer
) -> None:
    """With the limits as they are: minutes. `leave`: the script does not close its loader."""
    paths = serve(server, PARQUET.files())
    with program(tmp_path, [executor, ending, *paths]) as running:
        wait_for_step(running)
        pids = session(running.pid)
        server.switches.hang = True
        num_before = len(server.switches.requests)
        let_run(running)
        wait_until(lambda: len(server.switches.requests) > num_before)
        time.sleep(0.3)
        begun = time.monotonic()
        os.killpg(running.pid, signal.SIGINT)
        _, errors = running.communicate(timeout=60)
        assert time.monotonic() - begun < 2 + SLACK_S
        assert running.returncode == -signal.SIGINT
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert wait_for_none_of(pids, SLACK_S) == []


@pytest.mark.slow
def test_an_interrupt_ends_an_opening_whose_server_hangs(tmp_path: Path, server: FileServer) -> None:
    """Each file is found by one request; the server hangs when they are looked into."""
    paths = serve(server, PARQUET.files())
    server.switches.latency_s = 0.2
    with program(tmp_path, ["threads", "leave", *paths]) as running:
        wait_until(lambda: len(server.switches.requests) > len(paths))
        server.switches.hang = True
        time.sleep(0.5)
        begun = time.monotonic()
        os.killpg(running.pid, signal.SIGINT)
        _, errors = running.communicate(timeout=60)
        assert time.monotonic() - begun < 2 + SLACK_S
        assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_no_secret_is_shown_or_written(executor: str, tmp_path: Path, server: FileServer) -> None:
    """User, password and signature come from variables; the run ends with an error that names a file."""
    serve(server, PARQUET.files())
    above = server.url.replace("http://", "http://${THE_USER}:${THE_PASSWORD}@")
    paths = [f"{above}/{name}?part=1&sig=${{THE_SIGNATURE}}" for name in server.files]
    secrets = {"THE_USER": "somebody", "THE_PASSWORD": "letmein", "THE_SIGNATURE": "c1pher"}
    with program(tmp_path, [executor, "close", *paths], **secrets) as running:
        wait_for_step(running)
        assert all(request.endswith("?part=1&sig=c1pher") for request in server.switches.requests)
        server.files.clear()
        let_run(running)
        output, errors = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "is not there" in errors
    assert "${THE_SIGNATURE}" in output
    assert "lane_00000" in output
    assert "${THE_PASSWORD}" in (tmp_path / "run" / "recipe.toml").read_text()
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    names = {path.name for path in written}
    assert {"lock.json", "recipe.toml", "rank_00000_00000.jsonl"} <= names
    for secret in secrets.values():
        assert secret not in output + errors
        assert [
            path for path, data in written.items() if secret.encode() in data or secret in str(path)
        ] == []
