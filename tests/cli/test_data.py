"""`zephon data`: files, lengths and documents of every kind of dataset, and what is said of faults."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.helpers import words, write_tokenizer
from tests.token_data import ids_of, write_bin
from zephon.cli import build_app
from zephon.cli.output import visible

pytestmark = pytest.mark.usefixtures("probed_once")

ROOT = Path(__file__).resolve().parents[2]
HEAD = """
seed = 7
global_batch_size = 4
[tokenize]
tokenizer = "letters"
eos = true
[packing]
seq_len = 16
[schedule]
kind = "constant"
"""
MOVES = "\x1b[2J\u202e"
Run = Callable[..., Any]


def write_recipe(
    folder: Path, datasets: Mapping[str, str], extra: str = "", name: str = "recipe.toml"
) -> None:
    """Writes a recipe of datasets, by name the lines of their tables."""
    weights = f"weights = {{ {', '.join(f'{name} = 1' for name in datasets)} }}\n"
    tables = "".join(f'\n[[datasets]]\nname = "{name}"\n{lines}\n' for name, lines in datasets.items())
    (folder / name).write_text(extra + HEAD + weights + tables)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives a folder with JSONL that has faults, Parquet, token ids, streams and a recipe of each."""
    folder = tmp_path_factory.mktemp("place")
    write_tokenizer(folder / "letters")
    texts: list[Any] = ["a" * 3] * 40 + ["b" * 20] * 50 + [""] * 8 + [7, None]
    records = [
        {"text": text, "lang": "de" if i % 4 else "en", "score": i / 8} for i, text in enumerate(texts)
    ]
    (folder / "web.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    table = pa.table({"text": words("code", 60, (2, 5)), "id": list(range(60))})
    pq.write_table(table, folder / "code.parquet", row_group_size=10)
    write_bin(folder / "ids", ids_of([*words("tok", 9), ""]))
    (folder / "logs").mkdir()
    for number in range(3):
        line = json.dumps({"text": f"log{number} {MOVES}"}) + "\n"
        (folder / "logs" / f"{number}.jsonl.gz").write_bytes(gzip.compress(line.encode() * 1100))
    datasets = {
        "web": 'path = "web.jsonl"\ncolumns = ["lang", "score"]\non_error = "skip"',
        "code": 'path = "code.parquet"\ncolumns = ["id"]\nwhere = "id >= 20"',
        "ids": 'path = "ids"\ndtype = "uint16"',
        "logs": 'path = "logs"\nstream = true',
    }
    write_recipe(folder, datasets)
    return folder


@pytest.fixture
def zephon(place: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Gives what runs `zephon data` in this process, in the folder `place`."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("ZEPHON_CACHE", str(place / "cache"))
    monkeypatch.setenv("COLUMNS", "80")

    def run(*args: str) -> Any:
        result = CliRunner().invoke(build_app(), ["data", *args])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


def loaded(result: Any) -> Any:
    """Returns the JSON of a command that went well."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# ls ---------------------------------------------------------------------------------------------------------


def test_ls_counts_files_bytes_chunks_and_documents(zephon: Run, place: Path) -> None:
    found = {entry["name"]: entry for entry in loaded(zephon("ls", "recipe.toml", "--json"))["datasets"]}
    assert list(found) == ["web", "code", "ids", "logs"]
    assert found["code"] == {
        "name": "code",
        "kind": "parquet",
        "num_files": 1,
        "bytes": (place / "code.parquet").stat().st_size,
        "chunks": 4,
        "documents": 40,
        "documents_in_files": 60,
        "paths": ["code.parquet"],
    }
    kinds = {name: (e["kind"], e["num_files"], e["documents"], e["chunks"]) for name, e in found.items()}
    assert kinds["web"] == ("jsonl", 1, 100, 1)
    assert kinds["ids"] == ("flat", 1, 10, 1)
    assert kinds["logs"] == ("jsonl", 3, None, None)


def test_ls_draws_it_in_80_columns_and_names_every_file_when_asked(zephon: Run) -> None:
    lines = zephon("ls", "recipe.toml", "--files").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["dataset", "kind", "files", "bytes", "chunks", "documents", "path"]
    assert "40 of 60" in lines[2]
    assert re.fullmatch(r"logs +jsonl +3 .* - +not counted +logs", lines[4])
    assert [line.split()[-1] for line in lines[-3:]] == ["0.jsonl.gz", "1.jsonl.gz", "2.jsonl.gz"]
    [entry] = loaded(zephon("ls", "recipe.toml", "--files", "--dataset", "web", "--json"))["datasets"]
    assert entry["files"] == [{"name": "web.jsonl", "bytes": entry["bytes"], "documents": 100}]


def test_a_name_that_no_dataset_has_is_wrong_usage(zephon: Run) -> None:
    found = zephon("ls", "recipe.toml", "--dataset", "webb")
    assert found.exit_code == 2
    assert "there are web, code, ids, logs" in " ".join(found.stderr.replace("\u2502", " ").split())


# stats ------------------------------------------------------------------------------------------------------


def test_stats_says_lengths_faults_and_columns(zephon: Run) -> None:
    found = loaded(zephon("stats", "recipe.toml", "--documents", "0", "--json"))
    assert found["errors"] == []
    web, code, ids, logs = found["datasets"]
    assert (web["documents"], web["looked_at"], web["empty"]) == (100, 100, 8)
    assert web["faults"] == {"not_text": 1, "null": 1}
    total = 40 * 3 + 50 * 20
    assert web["bytes"] == {
        "total": total, "mean": total / 98, "least": 0, "p5": 0, "median": 20, "p95": 20, "greatest": 20,
    }  # fmt: skip
    assert web["tokens"]["total"] == web["about_tokens"] == total + 90  # EOS; an empty document gets none
    assert web["columns"]["lang"] == {
        "values": {"de": 75, "en": 25}, "others": 0, "missing": 0, "numbers": None,
    }  # fmt: skip
    assert web["columns"]["score"]["numbers"]["greatest"] == 99 / 8
    assert code["columns"]["id"]["numbers"]["least"] == 20
    assert (ids["tokens"]["total"], ids["empty"]) == (sum(map(len, ids_of(words("tok", 9)))), 1)
    assert (logs["documents"], logs["looked_at"], logs["about_tokens"]) == (None, 3300, None)


def test_stats_are_read_in_80_columns(zephon: Run) -> None:
    text = zephon("stats", "recipe.toml").stdout
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["dataset", "documents", "looked", "at", "empty", "faulty", "about", "tokens"]
    assert lines[1].split() == ["web", "100", "100", "8", "2", "1,210"]
    bars = {line.split("  ")[0].strip(): line.count("#") for line in lines if "##" in line}
    assert bars["16 to 31"] == 40
    assert "web: 1 of 100 looked at cannot be used (null)" in lines
    assert re.search(r"web: lang +documents +share\nde +75 +75.0%\nen +25 +25.0%", text)
    assert re.search(r"web: score +least +5% +median +95% +greatest\nvalues +0 +0.5 ", text)


def test_without_tokens_no_tokenizer_is_needed(zephon: Run, place: Path, tmp_path: Path) -> None:
    write_recipe(place, {"web": 'path = "web.jsonl"\non_error = "skip"'}, name="none.toml")
    missing = ("none.toml", "--set", "tokenize.tokenizer=nowhere", "--json")
    [web] = loaded(zephon("stats", *missing, "--no-tokens"))["datasets"]
    assert (web["tokens"], web["bytes"]["greatest"]) == (None, 20)
    found = zephon("stats", *missing)
    assert found.exit_code == 4
    assert [error["subject"] for error in json.loads(found.stdout)["errors"]] == ["tokenizer"]
    assert json.loads(found.stdout)["datasets"] == [web]


def test_a_sample_is_spread_and_the_same_each_time(zephon: Run, place: Path) -> None:
    lines = [json.dumps({"text": f"d{i}"}) + "\n" for i in range(20_000)]
    (place / "many.jsonl").write_text("".join(lines))
    write_recipe(place, {"many": 'path = "many.jsonl"'}, name="many.toml")

    def records(*args: str) -> list[int]:
        found = loaded(zephon("sample", "many.toml", "--no-tokens", "--json", *args))["documents"]
        assert all(entry["text"] == f"d{entry['record']}" for entry in found)
        return [entry["record"] for entry in found]

    assert records("-n", "5") == records("-n", "5") != records("-n", "5", "--set", "seed=8")
    for count in (1, 5, 300):
        got = records("-n", str(count))
        assert len(set(got)) == count
        assert got == sorted(got)
        assert count == 1 or (
            got[0] < 20_000 // min(count, 64) and got[-1] >= 20_000 - 20_000 // min(count, 60)
        )


def test_stats_leaves_out_what_is_held_out(zephon: Run, place: Path) -> None:
    base = 'path = "code.parquet"\nholdout = { documents = 25%s }'
    for part, count in (("", 35), (', part = "valid"', 25)):
        write_recipe(place, {"code": base % part}, name="held.toml")
        [entry] = loaded(zephon("stats", "held.toml", "--documents", "0", "--json"))["datasets"]
        assert (entry["documents"], entry["looked_at"]) == (count, count)
        assert loaded(zephon("ls", "held.toml", "--json"))["datasets"][0]["documents"] == count


# sample -----------------------------------------------------------------------------------------------------


def test_sample_shows_place_columns_and_text(zephon: Run) -> None:
    documents = loaded(zephon("sample", "recipe.toml", "-n", "100", "--json"))["documents"]
    web = {entry["record"]: entry for entry in documents if entry["dataset"] == "web"}
    assert web[3] == {
        "dataset": "web", "file": "web.jsonl", "record": 3, "text": "aaa", "num_bytes": 3, "num_tokens": 4,
        "fault": None, "columns": {"lang": "de", "score": 0.375},
    }  # fmt: skip
    assert web[98]["fault"] == {"kind": "not_text", "got": "7", "rule": "a text is a string"}
    assert (web[90]["num_tokens"], web[90]["text"]) == (0, "")
    [first, *_] = [entry for entry in documents if entry["dataset"] == "ids"]
    assert first["text"] == "tok0 </s>"


def test_nothing_in_the_data_moves_the_terminal(zephon: Run, place: Path) -> None:
    (place / f"odd{MOVES}.jsonl").write_text(json.dumps({"text": f"x{MOVES}", f"c{MOVES}": MOVES}) + "\n")
    odd = json.dumps(f"odd{MOVES}.jsonl")
    column = json.dumps(f"c{MOVES}")
    write_recipe(place, {"odd": f"path = {odd}\ncolumns = [{column}]"}, name="odd.toml")
    for args in (("ls", "--files"), ("stats",), ("sample",), ("sample", "--set", "datasets.odd.text=none")):
        found = zephon(args[0], "odd.toml", *args[1:])
        assert visible(found.stdout.replace("\n", "")) == found.stdout.replace("\n", "")
        assert visible(found.stderr.replace("\n", "")) == found.stderr.replace("\n", "")
    assert "\\x1b[2J\\u202e" in zephon("sample", "odd.toml").stdout


# Faults, and other recipes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["ls", "stats", "sample"])
def test_an_error_of_one_dataset_hides_no_other(zephon: Run, place: Path, command: str) -> None:
    good = 'path = "code.parquet"'
    write_recipe(place, {"gone": 'path = "gone"', "code": good, "bad": 'path = "web.jsonl"\nkind = "moon"'},
                 name="faults.toml")  # fmt: skip
    found = zephon(command, "faults.toml")
    assert found.exit_code == 4
    assert "code" in found.stdout
    assert "path 'gone' names no file" in found.stderr
    assert "there is no reader 'moon'" in found.stderr
    data = json.loads(zephon(command, "faults.toml", "--json").stdout)
    assert [error["subject"] for error in data["errors"]] == ["dataset gone", "dataset bad"]
    assert {error["exit_code"] for error in data["errors"]} == {4}
    entries = data["documents" if command == "sample" else "datasets"]
    assert {entry.get("dataset", entry.get("name")) for entry in entries} == {"code"}


@pytest.mark.parametrize(("path", "said"), [
    ("code.parquet", "has no column 'scroe'"), ("web.jsonl", "no column 'scroe' was found"),
])  # fmt: skip
def test_a_column_that_is_not_there_is_said(zephon: Run, place: Path, path: str, said: str) -> None:
    write_recipe(place, {"web": f'path = "{path}"\ncolumns = ["scroe"]'}, name="columns.toml")
    for command in ("stats", "sample"):
        found = zephon(command, "columns.toml")
        assert found.exit_code == 4
        assert said in found.stderr
        assert "cure: " in found.stderr


def test_a_streams_columns_are_not_shown_and_that_is_said(zephon: Run, place: Path) -> None:
    write_recipe(place, {"logs": 'path = "logs"\nstream = true\ncolumns = ["lang"]'}, name="stream.toml")
    found = zephon("sample", "stream.toml", "-n", "4", "--json")
    assert [entry["columns"] for entry in loaded(found)["documents"]] == [{}] * 4
    assert found.stderr == "logs: a stream's `columns` are not shown\n"
    assert len({entry["file"] for entry in loaded(found)["documents"]}) == 3


def test_a_recipe_may_be_a_function_with_texts_in_memory(zephon: Run, place: Path) -> None:
    (place / "in_memory.py").write_text(
        "from tests.helpers import make_recipe\n"
        "def make():\n    return make_recipe({'notes': ['a', 'bb', '']}, tokenizer='letters')\n"
    )
    try:
        [entry] = loaded(zephon("ls", "in_memory:make", "--json"))["datasets"]
        lines = zephon("ls", "in_memory:make").stdout.splitlines()
        [stats] = loaded(zephon("stats", "in_memory:make", "--json"))["datasets"]
    finally:
        sys.path.remove(str(place))
    assert (entry["kind"], entry["num_files"], entry["documents"]) == ("memory", 0, 3)
    assert lines[1].endswith("in memory")
    assert (stats["empty"], stats["tokens"]["total"]) == (1, 5)


def test_a_run_folder_and_a_catalogue_serve_too(zephon: Run, place: Path, tmp_path: Path) -> None:
    from zephon import Recipe

    held = {"code": 'path = "code.parquet"\nholdout = { documents = 5, part = "valid" }'}
    write_recipe(place, held, name="valid.toml")
    Recipe.from_toml(place / "valid.toml").loader(run_folder=tmp_path / "run").close()
    arguments = ("--no-tokens", "-n", "5", "--json")
    ran = loaded(zephon("sample", str(tmp_path / "run"), *arguments))
    assert ran == loaded(zephon("sample", "valid.toml", *arguments))
    plain = loaded(zephon("sample", "recipe.toml", *arguments))
    made = CliRunner().invoke(build_app(), ["index", "recipe.toml", "--out", str(place / "made")])
    assert made.exit_code == 0, made.output
    write_recipe(place, {"code": 'path = "code.parquet"\nwhere = "id >= 20"\ncolumns = ["id"]'},
                 'catalogue = "made"\n', name="listed.toml")  # fmt: skip
    listed = loaded(zephon("sample", "listed.toml", *arguments))["documents"]
    assert listed == [entry for entry in plain["documents"] if entry["dataset"] == "code"]


# Processes --------------------------------------------------------------------------------------------------


def environment(place: Path) -> dict[str, str]:
    mine = {"PYTHONPATH": str(ROOT), "ZEPHON_CACHE": str(place / "cache"), "ZEPHON_PLUGINS": "none"}
    return {**os.environ, **mine, "TERM": "xterm"}


def test_a_process_writes_results_to_stdout_and_errors_to_stderr(place: Path) -> None:
    write_recipe(place, {"gone": 'path = "gone"', "web": 'path = "web.jsonl"'}, name="shell.toml")
    command = [sys.executable, "-m", "zephon", "data", "ls", "shell.toml"]
    done = subprocess.run(command, cwd=place, env=environment(place), capture_output=True, text=True)
    assert done.returncode == 4
    assert done.stdout.splitlines()[1].startswith("web ")
    assert done.stderr.startswith("path 'gone' names no file\n  got:  ")
    help_text = subprocess.run([*command, "--help"], env=environment(place), capture_output=True, text=True)
    assert "<bool>" not in help_text.stdout
    assert "Exit codes" in help_text.stdout


@pytest.mark.slow
def test_a_terminal_sees_a_bar_after_two_seconds_and_the_output_is_clean(place: Path) -> None:
    (place / "slowly.py").write_text(
        "import time\nfrom zephon import Recipe\n"
        "def make():\n    time.sleep(2.1)\n    return Recipe.from_toml('many.toml')\n"
    )
    (place / "many").mkdir()
    for number in range(8):
        (place / "many" / f"{number}.jsonl").write_text('{"text": "a"}\n' * 50_000)
    write_recipe(place, {"many": 'path = "many"'}, name="many.toml")
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "zephon", "data", "ls", "slowly:make"],
        cwd=place,
        env=environment(place),
        stdout=subprocess.PIPE,
        stderr=terminal,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    os.close(terminal)
    shown, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([main], [], [], 0.1)[0]:
            try:
                shown += os.read(main, 4096)
            except OSError:  # the other end is closed
                break
    out = process.communicate(timeout=60)[0]
    os.close(main)
    assert process.returncode == 0
    assert b"index many" in shown
    assert b"%" in shown
    assert "\x1b" not in out
    assert "400,000" in out
