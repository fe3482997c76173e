"""`zephon index`: what it writes and says, one that is killed and goes on, a second over the first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.helpers import words, write_tokenizer
from zephon.catalogue import MANIFEST, open_catalogue
from zephon.cli import build_app
from zephon.cli.output import LateProgress
from zephon.recipe import Recipe

pytestmark = pytest.mark.usefixtures("probed_once")

ROOT = Path(__file__).resolve().parents[2]
RECIPE = """
seed = 7
global_batch_size = 4
{extra}
[tokenize]
tokenizer = "letters"
[packing]
seq_len = 16
[schedule]
kind = "constant"
weights = {{ web = 1 }}
[[datasets]]
name = "web"
path = "web"
"""


def write_files(folder: Path, count: int, lines: int = 20) -> None:
    """Writes a recipe over `count` JSONL files."""
    (folder / "web").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        texts = words(f"w{number}-", lines)
        (folder / "web" / f"{number:04}.jsonl").write_text(
            "".join(json.dumps({"text": text}) + "\n" for text in texts)
        )
    (folder / "recipe.toml").write_text(RECIPE.format(extra=""))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gives a folder with a recipe, which is where commands run."""
    write_tokenizer(tmp_path / "letters")
    write_files(tmp_path, 3)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZEPHON_CACHE", str(tmp_path / "cache"))
    return tmp_path


def zephon(*args: str) -> Any:
    """Returns the result of a command that goes well."""
    result = CliRunner().invoke(build_app(), list(args))
    assert result.exit_code == 0, result.output
    return result


def environment(place: Path) -> dict[str, str]:
    mine = {"PYTHONPATH": str(ROOT), "ZEPHON_CACHE": str(place / "cache"), "ZEPHON_PLUGINS": "none"}
    return {**os.environ, **mine}


def test_what_was_found_and_how_to_name_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "below").mkdir()
    monkeypatch.chdir(place / "below")
    lines = zephon("index", "../recipe.toml", "--out", "made").stdout.splitlines()
    assert lines[0].split() == ["dataset", "kind", "files", "bytes", "chunks", "documents"]
    assert lines[1].split()[:3] == ["web", "jsonl", "3"]
    assert lines[-1].endswith('name it in the recipe: catalogue = "below/made"')
    (place / "recipe.toml").write_text(RECIPE.format(extra='catalogue = "below/made"'))
    found = json.loads(zephon("index", "../recipe.toml", "--out", "made", "--json").stdout)
    assert set(found) == {"hash", "datasets", "left_out"}
    assert found["datasets"][0]["num_documents"] == 60
    assert found["hash"] == open_catalogue("below/made", place, place / "cache").hash
    assert (
        json.loads(zephon("data", "ls", "../recipe.toml", "--json").stdout)["datasets"][0]["documents"] == 60
    )


def test_the_recipes_own_catalogue_is_not_asked(place: Path) -> None:
    (place / "recipe.toml").write_text(RECIPE.format(extra='catalogue = "never made"'))
    zephon("index", "recipe.toml", "--out", "never made")
    assert (place / "never made" / MANIFEST).is_file()


def test_out_may_be_a_url(place: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    lines = zephon("index", "recipe.toml", "--out", "memory://catalogues/two").stdout.splitlines()
    assert lines[-1].endswith('catalogue = "memory://catalogues/two"')
    listed = open_catalogue("memory://catalogues/two", place, place / "brought")
    assert listed.names == ["web"]
    fsspec.filesystem("memory").rm("/catalogues", recursive=True)


def test_a_second_index_leaves_what_readers_of_the_first_read(place: Path) -> None:
    zephon("index", "recipe.toml", "--out", "made")
    recipe = Recipe.from_toml(place / "recipe.toml")
    first = open_catalogue("made", place, place / "cache")
    reader = (  # opens the catalogue, waits for the second, and only then maps the columns
        "import sys\nfrom pathlib import Path\nfrom zephon import Recipe\n"
        "from zephon.catalogue import open_catalogue\n"
        "found = open_catalogue('made', Path.cwd(), Path('cache'))\n"
        "print('open', flush=True)\nsys.stdin.readline()\n"
        "table = found.find(Recipe.from_toml('recipe.toml').datasets[0], Path.cwd()).table\n"
        "print(found.hash, len(table.files), int(table.num_documents.sum()))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", reader],
        cwd=place,
        env=environment(place),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    write_files(place, 5)
    said = zephon("index", "recipe.toml", "--out", "made").stdout
    assert "2 files of earlier catalogues" in said
    out, _ = process.communicate("go on\n", timeout=60)
    assert out == f"{first.hash} 3 60\n"
    second = open_catalogue("made", place, place / "cache")
    listed = second.find(recipe.datasets[0], place)
    assert listed is not None
    assert (second.hash != first.hash, len(listed.table.files)) == (True, 5)
    named = json.loads((place / "made" / MANIFEST).read_text())["datasets"]["web"]
    kept = {named["files"]["name"], named["chunks"]["name"], MANIFEST}
    for path in sorted((place / "made").iterdir()):
        if path.name not in kept:
            path.unlink()  # as the message says
    assert "earlier" not in zephon("index", "recipe.toml", "--out", "made").stdout
    assert open_catalogue("made", place, place / "cache").hash == second.hash


DIES = """
import os, signal
from zephon import cli
from zephon.readers import lines

left, starts = iter(range(20)), lines.record_starts

def dying(*given):
    if next(left, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
    return starts(*given)

lines.record_starts = dying
cli.main()
"""


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_where_it_was(place: Path) -> None:
    """Killed as it begins the 21st look at a file, while other threads are at theirs."""
    write_files(place, 100, lines=2)
    command = [sys.executable, "-c", DIES, "index", "recipe.toml", "--out", "made"]
    killed = subprocess.run(command, cwd=place, env=environment(place), capture_output=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    before = scans(place)
    assert 1 <= len(before) <= 20
    assert not (place / "made" / MANIFEST).exists()
    zephon("index", "recipe.toml", "--out", "made")
    after = scans(place)
    assert len(after) == 100
    assert before.items() <= after.items()  # nothing that was found was looked at again
    whole = open_catalogue("made", place, place / "cache").hash
    zephon("index", "recipe.toml", "--out", "again", "--cache", str(place / "other"))
    assert open_catalogue("again", place, place / "cache").hash == whole


def scans(place: Path) -> dict[str, int]:
    """Returns when each look at a file was kept, by name; no temporary files."""
    return {path.name: path.stat().st_mtime_ns for path in (place / "cache").glob("index/*.starts")}


def test_progress_in_a_log_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with LateProgress(delay_s=0, line_s=0) as progress:
        progress("index web", 1, 4)
        progress("index web", 4, 4)
    assert capsys.readouterr() == ("", "index web: 25%\nindex web: 100%\n")
