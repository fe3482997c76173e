"""What data behind URLs costs: the corpora from the disk, over HTTP and from S3, the spool cold and warm.

    python benchmarks/remote.py [--tokens 40000000] [--latency 0.02] [--only http] [--json FILE]

The servers are those of the tests, each in a process of its own on this machine, whose cores they share; the
table says what they deliver by themselves. Every load is a process with a cache of its own, empty when it
begins; the files themselves are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from recipes import CORPORA, DATA, parquet_files
from report import MIB, Grid
from rich.console import Console

from zephon import Dataset, Loader, LoaderOptions, MixtureWorkSource, Pipeline, Recipe, open_recipe
from zephon.files import read_range
from zephon.paths import list_files

ROOT = Path(__file__).resolve().parents[1]
TOKENIZER = DATA / "tokenizers" / "qwen3" / "tokenizer.json"
LANES = 8
SEQ_LEN = 2048
PACE = 600_000
"""Tokens a second that a trainer takes, where the share of waiting is measured: ten ranks of 60,000."""
PACED_S = 5.0
PART_BYTES = 4 << 20
WIDTH = 160

SERVER = """
import json, sys
from pathlib import Path
from tests.servers import http_server, s3_server

kind, latency_s, *paths = sys.argv[1:]
contents = {"/".join(Path(path).parts[-2:]): Path(path).read_bytes() for path in paths}
with (http_server(contents) if kind == "http" else s3_server()) as server:
    for name, data in contents.items() if kind == "s3" else ():
        server.put(name, data)
    server.switches.latency_s = float(latency_s)
    print(server.url if kind == "http" else server.server.url, flush=True)
    for line in sys.stdin:
        spans = [span.removeprefix("bytes=").split("-") for span in server.switches.ranges]
        num_bytes = sum(int(last) - int(first) + 1 for first, last in spans)
        answer = {"requests": len(server.switches.requests), "bytes": num_bytes}
        server.switches.requests.clear()
        server.switches.ranges.clear()
        print(json.dumps(answer), flush=True)
"""
"""Prints its address, then for each line of standard input what was asked since the one before."""
S3_VARIABLES = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the files lie, and who reads them."""

    name: str
    workers: int
    paths: dict[str, list[str]]
    """By corpus."""
    server: subprocess.Popen[str] | None = None
    variables: tuple[tuple[str, str], ...] = ()


def make_recipe(paths: dict[str, list[str]]) -> Recipe:
    """Returns equal parts of the corpora, one row a lane in every step."""
    datasets = [Dataset.from_path(name, entries) for name, entries in paths.items()]
    mixture = MixtureWorkSource(datasets, dict.fromkeys(paths, 1))
    return Pipeline(mixture, global_batch_size=LANES).tokenize(TOKENIZER).pack(SEQ_LEN).recipe()


@contextmanager
def serving(kind: str, latency_s: float) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Gives a server of all files in a process of its own, and its address."""
    files = [str(path) for name in CORPORA for path in parquet_files(name)]
    command = [sys.executable, "-c", SERVER, kind, str(latency_s), *files]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield server, server.stdout.readline().strip()
        finally:
            server.terminate()


def asked(server: subprocess.Popen[str] | None) -> dict[str, int]:
    """Returns the requests and bytes that a server was asked for since the last call."""
    if server is None:
        return {"requests": 0, "bytes": 0}
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write("\n")
    server.stdin.flush()
    found: dict[str, int] = json.loads(server.stdout.readline())
    return found


def start_places(stack: ExitStack, options: argparse.Namespace) -> list[Place]:
    """Starts the servers, and returns all places with the numbers of workers to read them with."""
    local = {name: [str(DATA / "parquet" / name)] for name in CORPORA}
    found = [Place(name="disk", workers=workers, paths=local) for workers in options.workers]
    for latency_s in options.latency:
        for kind in options.only.split(","):
            server, url = stack.enter_context(serving(kind, latency_s))
            above = url if kind == "http" else "s3://data"
            paths = {n: [f"{above}/{n}/{path.name}" for path in parquet_files(n)] for n in CORPORA}
            variables = () if kind == "http" else (*S3_VARIABLES.items(), ("AWS_ENDPOINT_URL", url))
            found += [
                Place(
                    name=f"{kind}, {1000 * latency_s:.0f} ms",
                    workers=workers,
                    paths=paths,
                    server=server,
                    variables=variables,
                )
                for workers in options.workers
            ]
    return found


# In the process of a load -----------------------------------------------------------------------------------


def run(loader: Loader, num_tokens: int) -> float:
    """Returns the seconds in which so many tokens come."""
    begun, made = time.perf_counter(), 0
    while made < num_tokens:
        made += next(loader).inputs.size
    return time.perf_counter() - begun


def load(paths: dict[str, list[str]], workers: int, num_tokens: int) -> Iterator[dict[str, float]]:
    """Yields what a cold run of so many tokens took, a warm one, and how long a trainer waits, cold again."""
    yield {"bytes_per_s": deliver(paths, workers)}
    with tempfile.TemporaryDirectory(prefix="zephon-remote-") as folder:
        begun = time.perf_counter()
        opened = open_recipe(make_recipe(paths), cache=folder)
        open_s = time.perf_counter() - begun
        with Loader(opened, LoaderOptions(workers=workers)) as loader:
            first_s = run(loader, 1)
            yield {"open_s": open_s, "first_s": first_s, "cold_s": first_s + run(loader, num_tokens)}
        with Loader(opened, LoaderOptions(workers=workers)) as loader:
            yield {"warm_s": run(loader, num_tokens)}
        opened.close()
        shutil.rmtree(Path(folder) / "spool")
        with Loader(opened, LoaderOptions(workers=workers, prefetch=2)) as loader:
            yield wait(loader)
        opened.close()


def wait(loader: Loader) -> dict[str, float]:
    """Returns how long a trainer of PACE tokens a second waits within PACED_S, after its first batch."""
    next(loader)
    waited_s, step_s, begun = [], LANES * SEQ_LEN / PACE, time.perf_counter()
    while time.perf_counter() - begun < PACED_S:
        time.sleep(step_s)
        asked_at = time.perf_counter()
        next(loader)
        waited_s.append(time.perf_counter() - asked_at)
    return {"share": sum(waited_s) / (time.perf_counter() - begun), "longest_s": max(waited_s)}


def deliver(paths: dict[str, list[str]], workers: int) -> float:
    """Returns the bytes a second of threads that read all files in parts, and do nothing with them."""
    entries = [entry for name in CORPORA for entry in paths[name]]
    files = list_files(entries, Path("/"))
    parts = [(file, start) for file in files for start in range(0, file.size_bytes, PART_BYTES)]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda part: read_range("", part[0], 0, 1), parts[:workers]))
        begun = time.perf_counter()
        sizes = list(pool.map(lambda part: len(read_range("", part[0], part[1], PART_BYTES)), parts))
        return sum(sizes) / (time.perf_counter() - begun)


# Outside ----------------------------------------------------------------------------------------------------


def measure(place: Place, num_tokens: int) -> dict[str, float]:
    """Returns what a process of its own measured, and what its cold run asked of the server."""
    spec = json.dumps([place.paths, place.workers, num_tokens])
    command, variables = [sys.executable, __file__, "--load", spec], os.environ | dict(place.variables)
    found: dict[str, float] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdout is not None
        for line in process.stdout:
            found |= json.loads(line)
            counted = asked(place.server)
            found |= counted if "cold_s" in json.loads(line) else {}
    if process.returncode:
        raise RuntimeError(f"the load of {place.name} ended with {process.returncode}; see its message above")
    return found


def table(found: dict[tuple[str, int], list[dict[str, float]]], num_tokens: int) -> Grid:
    """Returns the medians of all places; ratios are to the disk with as many workers, turn by turn."""
    rows = []
    for (name, workers), turns in found.items():
        middle = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        cells = [f"{middle['bytes_per_s'] / MIB:.0f}", f"{middle['first_s']:.2f}"]
        for key in ("cold_s", "warm_s"):
            pairs = zip(turns, found["disk", workers], strict=True)
            ratio = statistics.median(disk[key] / turn[key] for turn, disk in pairs)
            cells += [f"{num_tokens / middle[key] / 1e6:.1f}", f"{ratio:.2f}"]
        cells += [f"{100 * middle['share']:.1f}", f"{middle['longest_s']:.2f}"]
        cells += [f"{middle['requests']:.0f}", f"{middle['bytes'] / MIB:.0f}"]
        rows.append([f"{name}, {workers} workers", *cells])
    columns = (
        "files on", "MiB/s alone", "first batch s", "cold M tok/s", "/ disk", "warm M tok/s", "/ disk",
        "waits %", "longest s", "requests", "MiB read",
    )  # fmt: skip
    total = sum(path.stat().st_size for name in CORPORA for path in parquet_files(name))
    title = f"{num_tokens / 1e6:.0f} M tokens; the files have {total / MIB:.0f} MiB"
    return Grid(title=title, columns=columns, rows=rows)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(prog="remote.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tokens", type=int, default=40_000_000, help="of a cold, and of a warm, run")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--only", default="http,s3", help="servers to read from, by commas")
    parser.add_argument("--latency", type=float, nargs="*", default=[0.02], help="seconds ahead of answers")
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 8])
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all numbers there, too")
    parser.add_argument("--load", metavar="SPEC", help="measure one place, and print JSON")
    return parser.parse_args(arguments)


def main() -> None:
    """Measures all places in turns, and prints a table."""
    options = parse(sys.argv[1:])
    if options.load:
        for part in load(*json.loads(options.load)):
            print(json.dumps(part), flush=True)
        return
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    with ExitStack() as stack:
        places = start_places(stack, options)
        for _ in range(options.turns):
            for place in places:
                turn = measure(place, options.tokens)
                found.setdefault((place.name, place.workers), []).append(turn)
    console.print(table(found, options.tokens).table())
    if options.json is not None:
        turns = {f"{name}, {workers} workers": turns for (name, workers), turns in found.items()}
        options.json.write_text(json.dumps(turns, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
