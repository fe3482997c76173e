"""The command line: exit codes, clean standard output, recipes it writes, and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from tests.helpers import words, write_tokenizer
from tests.waiting import SLACK_S, session, wait_until
from zephon import StateError, plugins
from zephon.cli import build_app
from zephon.cli.common import parse_range
from zephon.cli.exits import Exit

pytestmark = pytest.mark.usefixtures("probed_once")

ROOT = Path(__file__).resolve().parent.parent
RECIPE = """
seed = 7
global_batch_size = 8
lanes = 4

[tokenize]
tokenizer = "letters"
eos = true

[packing]
seq_len = 32

[schedule]
kind = "stages"
stages = [{ step = 0, weights = { web = 1, code = 1 } }, { step = 2, weights = { web = 1, code = 0 } }]

[[datasets]]
name = "web"
path = "data/web.jsonl"

[[datasets]]
name = "code"
path = "data/code"
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def write_jsonl(path: Path, texts: Sequence[str], field: str = "text") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a recipe, a tokenizer, a JSONL file and a folder of Parquet files."""
    folder = tmp_path_factory.mktemp("place")
    write_tokenizer(folder / "letters")
    write_jsonl(folder / "data" / "web.jsonl", words("web", 400, (1, 3, 20)))
    (folder / "data" / "code").mkdir()
    for part in range(2):
        table = pa.table({"text": words(f"code{part}-", 200, (2, 5))})
        pq.write_table(table, folder / "data" / "code" / f"{part}.parquet", row_group_size=50)
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


@pytest.fixture
def zephon(place: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns what runs a command in this process, in the folder `place`."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("ZEPHON_CACHE", str(place / "cache"))
    monkeypatch.delenv("ZEPHON_TRACEBACK", raising=False)

    def run(*args: str) -> Outcome:
        result = CliRunner().invoke(build_app(), list(args))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run


def shell(place: Path, *args: str, **env: str) -> Outcome:
    """Returns the outcome of a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "zephon", *args],
        cwd=place,
        env=environment(place) | env,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def environment(place: Path) -> dict[str, str]:
    mine = {"PYTHONPATH": str(ROOT), "ZEPHON_CACHE": str(place / "cache"), "ZEPHON_PLUGINS": "none"}
    return {**os.environ, **mine}


# Processes --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_hash_prints_step_and_hex_and_nothing_else_whatever_the_size(place: Path) -> None:
    one = shell(place, "hash", "recipe.toml", "--steps", "4", PYTHONHASHSEED="1")
    assert (one.code, one.err) == (0, "")
    lines = one.out.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["0", "1", "2", "3"]
    assert all(re.fullmatch(r"\d+ [0-9a-f]{64}", line) for line in lines)
    four = shell(
        place, "hash", "recipe.toml", "--steps", "2:4", "--dp", "4", "--micro-batch-size", "1",
        "--executor", "processes", "--workers", "1", "--prefetch", "1",
        "--backend", "tokenizers", PYTHONHASHSEED="2",
    )  # fmt: skip
    assert (four.code, four.out.splitlines()) == (0, lines[2:])


@pytest.mark.parametrize(
    ("args", "code", "first"),
    [
        (("hash", "nope.toml"), 3, "recipe 'nope.toml' does not exist"),
        (
            ("hash", "recipe.toml", "--set", "datasets.web.path=data/none"),
            4,
            "path 'data/none' names no file",
        ),
        (("hash", "recipe.toml", "--steps", "2:1"), 2, ""),
    ],
)
def test_errors_are_a_message_on_stderr_and_an_exit_code(
    place: Path, args: tuple[str, ...], code: int, first: str
) -> None:
    found = shell(place, *args)
    assert (found.code, found.out) == (code, "")
    assert "Traceback" not in found.err
    if first:
        lines = found.err.splitlines()
        assert [line[:8] for line in lines] == [first[:8], "  got:  ", "  rule: ", "  cure: ", "  exit: "]
        assert lines[0] == first
        assert lines[4].startswith(f"  exit: {code}, ")


def test_the_traceback_is_there_when_asked_for(place: Path) -> None:
    found = shell(place, "hash", "nope.toml", ZEPHON_TRACEBACK="1")
    assert found.code == 3
    assert found.err.startswith("Traceback")


def test_a_closed_pipe_ends_quietly(place: Path) -> None:
    command = f"{sys.executable} -m zephon hash recipe.toml --steps 5000 | head -1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=place,
        env=environment(place),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (141, "")
    assert re.fullmatch("0 [0-9a-f]{64}\n", done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="counts processes in /proc")
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_ctrl_c_ends_in_two_seconds_and_leaves_no_child(place: Path, executor: str) -> None:
    command = [sys.executable, "-m", "zephon", "hash", "recipe.toml", "--steps", "10000000"]
    process = subprocess.Popen(
        [*command, "--executor", executor, "--workers", "2"],
        cwd=place,
        env=environment(place),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"0 ")
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    spent = time.monotonic() - began
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert spent < 2 + SLACK_S
    wait_until(lambda: not session(process.pid), SLACK_S)


SWALLOWS = """
import os, signal, time
from zephon.cli import _watch_interrupts

class Swallows:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

_watch_interrupts()
try:
    Swallows()
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted", flush=True)
while True:  # does not end by itself
    try:
        time.sleep(30)
    except KeyboardInterrupt:
        print("and once more", flush=True)
"""


@pytest.mark.slow
def test_ctrl_c_during_a_finalizer_is_not_lost(place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SWALLOWS],
        env=environment(place),
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.splitlines() == [b"interrupted"]
    assert done.stderr == b""
    assert done.returncode == 130


# In this process --------------------------------------------------------------------------------------------


def test_version_and_help(zephon: Any) -> None:
    assert re.fullmatch(r"zephon-core \S+\n", zephon("--version").out)
    text = " ".join(zephon("--help").out.split())
    assert all(name in text for name in ("init", "check", "hash", "show", "bench", "demo"))
    assert "130 interrupted" in text
    for command in ("init", "check", "hash", "show", "bench", "demo"):
        shown = zephon(command, "--help").out
        assert "Exit codes" in shown
        assert "<bool>" not in shown + text


def test_trainer_steps_are_counted_from_one(zephon: Any) -> None:
    ours = zephon("hash", "recipe.toml", "--steps", "2:4")
    assert zephon("hash", "recipe.toml", "--trainer-steps", "3:5").out == ours.out != ""
    steps = zephon("hash", "recipe.toml", "--steps", "2:4", "--json").json()["steps"]
    assert [(s["step"], s["trainer_step"]) for s in steps] == [(2, 3), (3, 4)]
    assert [f"{s['step']} {s['digest']}" for s in steps] == ours.out.splitlines()
    assert zephon("hash", "recipe.toml", "--steps", "2:4", "--trainer-steps", "3:5").code == Exit.USAGE


def test_steps_past_the_length_of_the_run_are_said_and_made(zephon: Any) -> None:
    said = "steps from 3 on are past the recipe's `total_steps` of 3\n"
    setting = ("--set", "total_steps=3")
    found = zephon("hash", "recipe.toml", *setting, "--steps", "2:4")
    assert (found.code, found.err) == (0, said)
    assert found.out == zephon("hash", "recipe.toml", "--steps", "2:4").out
    assert zephon("hash", "recipe.toml", *setting, "--steps", "3").err == ""
    shown = zephon("show", "recipe.toml", *setting, "--step", "3", "--lane", "0", "--json")
    assert (shown.code, shown.err, shown.json()["step"]) == (0, said, 3)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--dp", "3", "--dp must divide the lanes, got 3 ranks"),
        ("--micro-batch-size", "3", "--micro-batch-size must divide the rank's"),
        ("--executor", "moon", "no executors named 'moon'"),
        ("--backend", "moon", "'--backend': must be one of auto, tokenizers, fastokens, got 'moon'"),
        ("--set", "seed", "--set takes NAME=VALUE, got 'seed'"),
    ],
)
def test_a_wrong_value_is_wrong_usage_of_its_option(
    zephon: Any, option: str, value: str, message: str
) -> None:
    found = zephon("hash", "recipe.toml", option, value, "--json")
    assert (found.code, found.json()["error"]["kind"]) == (Exit.USAGE, "usage")
    assert message in found.json()["error"]["message"]


def test_hash_says_how_steps_compare(zephon: Any, tmp_path: Path) -> None:
    steps = zephon("hash", "recipe.toml", "--steps", "4").out
    (tmp_path / "two").write_text("".join(steps.splitlines(keepends=True)[:2]))
    (tmp_path / "four").write_text(steps)

    def compare(name: str, *args: str) -> Outcome:
        return zephon("hash", "recipe.toml", "--steps", "4", "--compare", str(tmp_path / name), *args)

    assert (compare("four").code, compare("four").err) == (0, "all 4 steps equal\n")
    less = compare("two")
    said = f"2 steps are not in {str(tmp_path / 'two')!r} (first 2), 0 of 2 compared differ\n"
    assert (less.code, less.err, less.out) == (1, said, steps)
    assert "2 of 2 compared differ, first 0" in compare("two", "--set", "seed=8").err
    found = compare("two", "--json").json()
    assert (found["different"], found["missing"]) == ([], [2, 3])
    nothing = compare("nothing")
    assert (nothing.code, nothing.out) == (5, "")
    assert [line[:8] for line in nothing.err.splitlines()[1:4]] == ["  got:  ", "  rule: ", "  cure: "]


def test_a_folder_without_a_recipe_is_refused_and_run_folders_are_named(zephon: Any, tmp_path: Path) -> None:
    for name in (str(tmp_path), str(tmp_path / "runs")):
        found = zephon("hash", name)
        assert found.code == 3
        assert "a run folder that holds recipe.toml" in found.err


def test_the_package_runs_as_a_module(place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zephon", "--version"], env=environment(place), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("zephon-core ")


@pytest.mark.slow
def test_hash_compares_with_its_own_output_and_with_a_run(zephon: Any, place: Path, tmp_path: Path) -> None:
    from zephon import Recipe

    out = zephon("hash", "recipe.toml", "--steps", "3").out
    (tmp_path / "hashes").write_text(out)
    assert zephon("hash", "recipe.toml", "--steps", "3", "--compare", str(tmp_path / "hashes")).code == 0
    with Recipe.from_toml(place / "recipe.toml").loader(run_folder=tmp_path / "run", workers=1) as loader:
        for _ in range(3):
            next(loader)
    compared = ("--steps", "3", "--compare", str(tmp_path / "run"))
    assert zephon("hash", "recipe.toml", *compared).code == 0
    found = zephon("hash", str(tmp_path / "run"), "--set", "seed=8", *compared)
    assert found.code == 1
    assert "3 of 3 steps differ" in found.err
    both = zephon("hash", "recipe.toml", "--set", "seed=8", "--json", *compared)
    assert (both.code, both.json()["different"]) == (1, [0, 1, 2])
    assert zephon("hash", "recipe.toml", "--compare", str(place)).code == 5


def test_a_run_folder_stands_for_its_recipe(zephon: Any, place: Path, tmp_path: Path) -> None:
    from zephon import Recipe

    Recipe.from_toml(place / "recipe.toml").loader(run_folder=tmp_path / "run").close()
    ours = zephon("hash", "recipe.toml", "--steps", "2").out
    assert zephon("hash", str(tmp_path / "run"), "--steps", "2").out == ours


def test_settings_go_over_the_recipe(zephon: Any) -> None:
    plain, same, other = (
        zephon("hash", "recipe.toml", "--steps", "1", "--set", setting).out
        for setting in ("seed=7", "datasets.web.path=./data/web.jsonl", "seed=8")
    )
    assert plain == same != other
    assert zephon("hash", "recipe.toml", "--set", "seed").code == Exit.USAGE


@pytest.mark.parametrize(
    ("args", "code", "kind"),
    [
        (("hash", "nope.toml", "--json"), 3, "recipe"),
        (("hash", "--json"), 2, "usage"),
        (("show", "recipe.toml", "--lane", "4", "--json"), 2, "usage"),
        (("check", "recipe.toml", "--dp", "x", "--json"), 2, "usage"),
        (("hash", "recipe.toml", "--dp", "3", "--json"), 2, "usage"),
        (("hash", "recipe.toml", "--executor", "moon", "--json"), 2, "usage"),
        (("hash", "no_module:recipe", "--json"), 3, "recipe"),
        (("bench", "recipe.toml", "--set", "datasets.web.path=none", "--json"), 4, "data"),
    ],
)
def test_errors_are_json_when_json_is_asked_for(
    zephon: Any, args: tuple[str, ...], code: int, kind: str
) -> None:
    found = zephon(*args)
    assert found.code == code
    error = found.json()["error"]
    assert (error["kind"], error["exit_code"]) == (kind, code)
    assert error["message"]


def test_a_recipe_may_be_a_function(zephon: Any, place: Path) -> None:
    (place / "my_recipe.py").write_text(
        "from zephon import Recipe\ndef make():\n    return Recipe.from_toml('recipe.toml')\n"
    )
    try:
        found = zephon("hash", "my_recipe:make", "--steps", "1")
    finally:
        sys.path.remove(str(place))
    assert found.out == zephon("hash", "recipe.toml", "--steps", "1").out
    assert zephon("hash", "my_recipe:absent").code == 3


def test_check_says_what_is_wrong_and_exits_with_one(zephon: Any) -> None:
    good = zephon("check", "recipe.toml", "--dp", "1,4", "--set", "total_steps=3", "--backend", "tokenizers")
    assert (good.code, good.out.splitlines()[-1]) == (0, "check passed: 0 errors, 0 warnings")
    bad = zephon("check", "recipe.toml", "--dp", "3", "--set", "datasets.code.text=[bold]body", "--json")
    assert bad.code == 1
    errors = {f["subject"]: f for f in bad.json()["findings"] if f["severity"] == "error"}
    assert set(errors) == {"lanes", "dataset code"}
    drawn = zephon("check", "recipe.toml", "--set", "datasets.code.text=[bold]body")
    assert "has no column '[bold]body'" in " ".join(drawn.out.split())  # not taken for markup


def test_show_gives_every_piece_with_its_place_and_text(zephon: Any, place: Path) -> None:
    found = zephon("show", "recipe.toml", "--trainer-step", "2", "--json").json()
    assert (found["step"], found["trainer_step"], len(found["rows"])) == (1, 2, 8)
    assert [(row["lane"], row["row"]) for row in found["rows"]] == [(i // 2, 2 + i % 2) for i in range(8)]
    lines = (place / "data" / "web.jsonl").read_text().splitlines()
    for row in found["rows"]:
        at = 0
        for piece in row["pieces"]:
            assert piece["begin"] == at
            at += piece["num_tokens"]
            if piece["dataset"] == "web":
                text = json.loads(lines[piece["record"]])["text"] + "</s>"
                whole = [*text[:-4], "</s>"]
                end = piece["offset"] + piece["num_tokens"]
                assert piece["text"] == "".join(whole[piece["offset"] : end])
        assert at + row["padding_tokens"] == 32
    shares = found["datasets"]
    assert sum(share["tokens"] for share in shares.values()) == 8 * 32
    assert shares["web"]["planned"] == 0.5
    one = zephon("show", "recipe.toml", "--step", "1", "--lane", "2", "--json").json()
    assert one["rows"] == [row for row in found["rows"] if row["lane"] == 2]


def test_show_draws_rows_for_people(zephon: Any) -> None:
    lines = zephon("show", "recipe.toml", "--step", "2", "--lane", "0", "--width", "10").out.splitlines()
    assert lines[0] == "step 2 (a trainer that counts from 1 logs it as 3): 2 rows"
    assert "lane 0, row 4: 1 piece, 0 tokens of padding" in lines
    texts = [line.strip() for line in lines if line.startswith("    ")]
    assert max(map(len, texts)) == 10
    assert any(text.endswith("...") for text in texts)


def test_show_counts_one_as_one(zephon: Any) -> None:
    settings = ("--set", "global_batch_size=4", "--set", "packing.seq_len=2")
    lines = zephon("show", "recipe.toml", "--lane", "0", *settings).out.splitlines()
    assert lines[0].endswith(": 1 row")
    assert "lane 0, row 0: 1 piece, 0 tokens of padding" in lines


def test_bench_measures_the_recipe(zephon: Any) -> None:
    found = zephon("bench", "recipe.toml", "--seconds", "0.1", "--executor", "inline", "--json").json()
    assert found["tokens"] == found["steps"] * 8 * 32 > 0
    assert found["tokens_per_s"] == pytest.approx(found["tokens"] / found["wall_s"])
    assert found["workers"] == 1
    assert found["state_bytes"] > 100
    assert found["restore_s"] > 0
    drawn = zephon("bench", "recipe.toml", "--seconds", "0.1").out
    expected = ("speed", "first batch", "checkpoint", "restore", "peak memory")
    assert all(any(line.startswith(name) for line in drawn.splitlines()) for name in expected)


# init -------------------------------------------------------------------------------------------------------


def test_init_writes_a_recipe_that_checks_and_hashes(zephon: Any, place: Path) -> None:
    found = zephon("init", "data/web.jsonl", "data/code", "--tokenizer", "letters", "--out", "first.toml")
    assert found.code == 0
    assert found.out.splitlines()[-1] == "  zephon check first.toml"
    text = (place / "first.toml").read_text()
    assert 'path = "data/web.jsonl"' in text
    assert 'tokenizer = "letters/tokenizer.json"' in text
    assert max(map(len, text.splitlines())) <= 110
    small = ("--set", "packing.seq_len=16", "--set", "global_batch_size=2", "--set", "total_steps=1")
    assert zephon("check", "first.toml", *small).code == 0
    assert zephon("hash", "first.toml", "--steps", "2", *small).code == 0


def test_init_does_not_overwrite(zephon: Any, place: Path) -> None:
    (place / "mine.toml").write_text("# mine\n")
    refused = zephon("init", "data/code", "--out", "mine.toml")
    assert (refused.code, (place / "mine.toml").read_text()) == (3, "# mine\n")
    assert "--force" in refused.err
    assert zephon("init", "data/code", "--out", "mine.toml", "--force").code == 0
    assert (place / "mine.toml").read_text() != "# mine\n"


def test_init_without_a_tokenizer_leaves_a_place_that_check_refuses(zephon: Any, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "web.jsonl", words("web", 40))
    out = str(tmp_path / "recipe.toml")
    assert zephon("init", str(tmp_path / "web.jsonl"), "--out", out, "--json").json()["tokenizer"] is None
    found = zephon("check", out, "--json")
    assert found.code == 1
    [error] = [f for f in found.json()["findings"] if f["severity"] == "error"]
    assert error["subject"] == "tokenizer"
    assert "write the path of the tokenizer.json" in error["cure"]


def test_init_finds_a_tokenizer_beside_the_data(zephon: Any, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "web" / "a.jsonl", words("web", 40))
    write_tokenizer(tmp_path)
    found = zephon("init", str(tmp_path / "web"), "--out", str(tmp_path / "recipe.toml"), "--json").json()
    assert found["tokenizer"] == str(tmp_path / "tokenizer.json")


def test_init_finds_datasets_kinds_and_text(zephon: Any, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "all" / "2 web-pages" / "a.jsonl", words("a", 9), "content")
    write_jsonl(tmp_path / "all" / "notes" / "a.ndjson", words("a", 9), "story")
    (tmp_path / "all" / "notes" / "README.md").write_text("# notes\n")
    (tmp_path / "all" / "empty").mkdir()
    (tmp_path / "other" / "notes").mkdir(parents=True)
    table = pa.table({"id": ["1", "2"], "prose": ["a long text", "a longer text"], "count": [1, 2]})
    pq.write_table(table, tmp_path / "other" / "notes" / "a.parquet")
    paths = (str(tmp_path / "all"), str(tmp_path / "other" / "notes"))
    out = tmp_path / "recipe.toml"
    found = zephon("init", *paths, "--out", str(out), "--json").json()["datasets"]
    assert [(d["name"], d["kind"], d["text"], d["num_files"]) for d in found] == [
        ("d_2_web_pages", "jsonl", "content", 1),
        ("notes", "jsonl", "story", 1),
        ("notes_2", "parquet", "prose", 1),
    ]
    assert "longest strings, 12 characters in 2 records" in found[2]["why"]
    text = out.read_text()
    assert 'path = "all/notes/**/*.ndjson"' in text
    assert 'path = "other/notes"' in text


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.pdf", "plain", "holds no data that can be read"),
        ("a.jsonl", '{"count": 1}\n', "has no column of text"),
        ("a.parquet", "no parquet", "cannot be read as Parquet"),
    ],
)
def test_init_says_why_it_finds_nothing(
    zephon: Any, tmp_path: Path, name: str, content: str, said: str
) -> None:
    (tmp_path / name).write_text(content)
    found = zephon("init", str(tmp_path / name), "--out", str(tmp_path / "recipe.toml"))
    assert found.code == 4
    assert said in found.err
    assert not (tmp_path / "recipe.toml").exists()


CHAT = [{"id": f"chat-{i}", "messages": [{"role": "user", "content": "hello"}]} for i in range(3)]


def write_mixed(folder: Path) -> None:
    """Writes a folder with data, chats as JSONL and Parquet, a damaged file, another one and nothing."""
    write_jsonl(folder / "web" / "a.jsonl", words("a", 9))
    for name in ("chat", "packed", "plain", "void"):
        (folder / name).mkdir()
    (folder / "chat" / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in CHAT))
    pq.write_table(pa.Table.from_pylist(CHAT), folder / "chat" / "b.parquet")
    (folder / "packed" / "a.jsonl.gz").write_bytes(b"\x1f\x8b")
    (folder / "plain" / "a.pdf").write_text("plain")


def test_init_names_what_it_leaves_out(zephon: Any, tmp_path: Path) -> None:
    write_mixed(tmp_path / "all")
    out = tmp_path / "recipe.toml"
    found = zephon("init", str(tmp_path / "all"), "--out", str(out), "--json")
    assert [d["name"] for d in found.json()["datasets"]] == ["web"]
    left_out = [Path(other["path"]).name for other in found.json()["left_out"]]
    assert left_out == ["plain", "chat", "chat", "packed"]
    lines = found.err.splitlines()
    assert lines[0].startswith(f"left out: {tmp_path / 'all' / 'plain'}: 1 file: .pdf; data is in files")
    assert all("has no column of text: the columns id, messages in 3 records" in line for line in lines[1:3])
    assert "a.jsonl.gz is damaged: " in lines[3]
    comments = [line for line in out.read_text().splitlines() if line.startswith("# Left out: ")]
    assert comments == [f'# Left out: "all/{name}"' for name in left_out]


def test_init_names_other_folders_beside_the_only_one_with_data(zephon: Any, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "all" / "web" / "a.jsonl", words("a", 9))
    (tmp_path / "all" / "plain").mkdir()
    (tmp_path / "all" / "plain" / "a.pdf").write_text("plain")
    found = zephon("init", str(tmp_path / "all"), "--out", str(tmp_path / "recipe.toml"))
    assert found.code == 0
    assert found.err.startswith(f"left out: {tmp_path / 'all' / 'plain'}: 1 file: .pdf; ")


def test_init_refuses_chats_alone_and_says_why(zephon: Any, tmp_path: Path) -> None:
    write_mixed(tmp_path)
    found = zephon("init", str(tmp_path / "chat"), "--out", str(tmp_path / "recipe.toml"))
    assert found.code == 4
    assert "a chat is a list of messages" in found.err


# Plugins and parts ------------------------------------------------------------------------------------------


def test_commands_of_plugins_are_mounted_and_cannot_break_the_others(
    zephon: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group = typer.Typer()

    @group.command()
    def wave() -> None:
        raise StateError("the tide is out")

    @group.command()
    def rise() -> None:
        typer.echo("up")

    def single(name: str) -> None:
        typer.echo(name)

    def broken(value: str) -> None:
        """A signature that typer cannot read."""

    broken.__annotations__["value"] = "Nowhere"

    found = {"tides": group, "single": single, "broken": broken, "hash": single, "number": 7}
    monkeypatch.setattr(plugins, "load_all", lambda role: found if role == "commands" else {})
    assert zephon("tides", "rise").out == "up\n"
    assert zephon("tides", "wave").code == 5
    assert zephon("single", "me").out == "me\n"
    assert zephon("hash", "recipe.toml", "--steps", "1").out.startswith("0 ")
    assert {"broken", "hash", "number"} <= set(re.findall(r"plugin command '(\w+)' is left out", caplog.text))


def test_an_error_nobody_foresaw_has_its_own_code(zephon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd() -> None:
        raise ZeroDivisionError("one by none")

    monkeypatch.setattr(plugins, "load_all", lambda role: {"odd": odd})
    found = zephon("odd")
    assert found.code == 70
    assert found.err.splitlines()[0] == "ZeroDivisionError: one by none"


def test_ranges_are_half_open() -> None:
    assert parse_range("2:5", option="--steps") == range(2, 5)
    assert parse_range("5", option="--steps") == range(5)
    assert parse_range("1:3", option="--steps", first=1) == range(2)
    for wrong in ("", "a", "3:3", "-1:2", "1:2:3", "0:2"):
        with pytest.raises(typer.BadParameter):
            parse_range(wrong, option="--steps", first=1)


# Data that end ----------------------------------------------------------------------------------------------

ENDS = ("--set", "datasets.web.max_epochs=1", "--set", "datasets.code.max_epochs=1")


@pytest.mark.parametrize("mode", ["stop", "redistribute", "pad"])
def test_hash_prints_the_steps_there_are_whatever_the_size(zephon: Any, mode: str) -> None:
    ends = (*ENDS, "--set", f"when_exhausted={mode}")
    one = zephon("hash", "recipe.toml", *ends, "--steps", "1000")
    num_steps = len(one.out.splitlines())
    assert one.code == 0
    assert one.err == f"the data end: {num_steps} of the 1000 steps asked for are there\n"
    assert num_steps > 0
    for dp in ("2", "4"):
        assert zephon("hash", "recipe.toml", *ends, "--steps", "1000", "--dp", dp) == one
    some = zephon("hash", "recipe.toml", *ends, "--steps", f"1:{num_steps}", "--dp", "2")
    assert (some.code, some.err) == (0, "")
    assert some.out.splitlines() == one.out.splitlines()[1:]
    past = zephon("hash", "recipe.toml", *ends, "--steps", "900:1000", "--dp", "2")
    assert (past.code, past.out) == (0, "")


def test_the_commands_take_a_recipe_that_ends(zephon: Any) -> None:
    ends = (*ENDS, "--set", "when_exhausted=pad")
    num_steps = len(zephon("hash", "recipe.toml", *ends, "--steps", "1000").out.splitlines())
    last = zephon("show", "recipe.toml", *ends, "--step", str(num_steps - 1), "--json").json()
    assert len(last["rows"]) == 8
    assert any(row["padding_tokens"] for row in last["rows"])
    lane = zephon("show", "recipe.toml", *ends, "--step", str(num_steps - 1), "--lane", "2", "--json").json()
    assert lane["rows"] == [row for row in last["rows"] if row["lane"] == 2]
    after = zephon("show", "recipe.toml", *ends, "--step", str(num_steps), "--json")
    assert after.code == Exit.USAGE
    assert f"the data end at {num_steps}" in after.json()["error"]["message"]
    found = zephon("bench", "recipe.toml", *ends, "--seconds", "60", "--executor", "inline", "--json").json()
    assert found["steps"] == num_steps - 1
    assert zephon("check", "recipe.toml", *ends, "--dp", "1,2").code == 0


@pytest.mark.parametrize(
    "arguments", [("--help",), ("check", "recipe.toml"), ("check", "nothing.toml", "--json")]
)
def test_output_that_is_closed_is_no_error_of_its_own(place: Path, arguments: tuple[str, ...]) -> None:
    command = shlex.join([sys.executable, "-m", "zephon", *arguments])
    done = subprocess.run(
        ["sh", "-c", f"{command} >&-"], cwd=place, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == (3 if "nothing.toml" in arguments else 0), done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_that_json_has_no_room_for_goes_to_standard_error(place: Path) -> None:
    command = shlex.join([sys.executable, "-m", "zephon", "check", "nothing.toml", "--json"])
    done = subprocess.run(
        ["sh", "-c", f"{command} > /dev/full"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert "nothing.toml" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_step_is_given_in_one_way(zephon: Any) -> None:
    found = zephon("show", "recipe.toml", "--step", "1", "--trainer-step", "2")
    assert found.code == 2
    assert "not both" in found.err + found.out
