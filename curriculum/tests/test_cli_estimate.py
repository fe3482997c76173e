"""`zephon estimate`: its table, its JSON, what it says of cost and of what it cannot know."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from tests.helpers import sized, words, write_tokenizer
from zephon_curriculum.cli.estimate import estimate, parse_pin, parse_pins
from zephon_curriculum.estimation.estimates import Estimates
from zephon_curriculum.estimation.weighing import Pinned
from zephon_curriculum.figures import short

pytestmark = pytest.mark.usefixtures("probed_once")

RECIPE = """
seed = 1
global_batch_size = 4

[tokenize]
tokenizer = "letters"
eos = true

[packing]
seq_len = 16

[schedule]
kind = "constant"
weights = { web = 1, code = 1 }

[[datasets]]
name = "web"
path = "web.parquet"

[[datasets]]
name = "code"
path = "code.jsonl"
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """Returns the command, in a folder with a recipe of two datasets."""
    write_tokenizer(tmp_path / "letters")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    table = pa.table({"text": sized(400, [3, 10, 30, 5, 100, 8, 41])})
    pq.write_table(table, tmp_path / "web.parquet", row_group_size=20, use_dictionary=False)
    lines = [json.dumps({"text": text}) for text in words("code", 10)]
    (tmp_path / "code.jsonl").write_text("\n".join(lines))
    app = typer.Typer()
    app.command()(estimate)

    def invoke(*options: str) -> Any:
        fixed = [str(tmp_path / "recipe.toml"), "--cache", str(tmp_path / "cache")]
        found = CliRunner().invoke(app, [*fixed, *options], catch_exceptions=False)
        assert found.exit_code == 0, found.output
        return found

    return invoke


def test_the_table_shows_intervals_and_how_each_was_made(run: Callable[..., Any]) -> None:
    found = run("--chunks", "5", "--bytes", "800")
    lines = found.stdout.splitlines()
    [web] = [line for line in lines if line.startswith("web ")]
    [code] = [line for line in lines if line.startswith("code ")]
    assert "5/20" in web
    assert "+-" in web
    assert code.split()[-1] == "census"


def test_the_cost_is_said_before_the_work_and_not_in_json(run: Callable[..., Any]) -> None:
    asked = ("--chunks", "5", "--bytes", "800")
    said = run(*asked).stderr
    assert said.startswith("looks at about ")
    assert "bytes of 6 chunks of 2 datasets, tokenizes" in said  # 5 of web, and all of code, which is one
    assert run(*asked).stderr.startswith("reads nothing")
    assert run("--bytes", "900", "--json").stderr == ""


def test_json_is_what_the_file_holds(run: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "estimates.json"
    found = run("--bytes", "800", "--json", "--out", str(out))
    estimates = Estimates.read(out)
    assert json.loads(found.stdout) == estimates.to_json()
    assert list(estimates) == ["web", "code"]


def test_no_interval_is_said_with_its_cure(run: Callable[..., Any]) -> None:
    found = run("--chunks", "1", "--bytes", "50")
    assert "web: no interval: 1 of 20 chunks was drawn" in found.stdout
    assert "+- ?" in found.stdout


def test_what_is_pinned_is_shown_as_said(run: Callable[..., Any]) -> None:
    found = run("--pin", "web=1e9", "--pin", "code=5/document")
    cells = {line.split()[0]: line.split()[1:] for line in found.stdout.splitlines() if line}
    assert cells["web"] == ["400", "unknown", "unknown", "2.5M", "1G", "pinned"]
    assert cells["code"] == ["10", "unknown", "unknown", "5", "50", "pinned"]


def test_pins_are_read() -> None:
    assert parse_pin("a=b=0.25/byte") == ("a=b", Pinned(tokens_per_byte=0.25))
    assert parse_pins(["a=1", "b=2"]) == {"a": Pinned(tokens=1), "b": Pinned(tokens=2)}
    with pytest.raises(typer.BadParameter, match="once a dataset; got a=1, a=2"):
        parse_pins(["a=1", "a=2"])
    for wrong in ("web", "web=x", "web=1/line", "web=-1", "web=0", "web=inf", "web=1e400", "web=nan"):
        with pytest.raises(typer.BadParameter, match="--pin takes"):
            parse_pin(wrong)


def test_numbers_are_short() -> None:
    assert [short(n) for n in (0.340726, 7, 9999, 10_000, 123_456_789, 2.5e12)] == [
        "0.3407", "7", "9,999", "10k", "123.5M", "2.5T",
    ]  # fmt: skip
