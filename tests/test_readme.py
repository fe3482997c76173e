"""What README and docs say is so: snippets and commands run, links lead somewhere, the tests named exist.

All of it on a small demo folder: the layout that `make demo` leaves, with less text.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from zephon import LoaderOptions, Recipe, open_recipe
from zephon.cli import build_app
from zephon.cli.exits import Exit
from zephon.demo import FULL
from zephon.demo.amended import run_amended
from zephon.demo.corpora import CorporaPlan, build_corpora, write_recipe
from zephon.loader import Loader
from zephon.opened import SPOOL_BYTES
from zephon.options import BUDGET_BYTES
from zephon.toml import DATASET, PACKING, TOKENIZE, TOP

pytestmark = pytest.mark.usefixtures("probed_once", "curriculum")

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
)
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
SMALL = CorporaPlan(
    code_bytes=200_000,
    prose_bytes=120_000,
    reference_bytes=60_000,
    training_bytes=120_000,
    vocab_size=512,
)
LOGGED_STEPS = 8
HEX = r"[0-9a-f]{64}"


@pytest.fixture(scope="module")
def curriculum() -> Iterator[None]:
    """Lets in the commands of zephon-curriculum, which the README shows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZEPHON_PLUGINS", "zephon-curriculum")
        yield


def blocks(language: str) -> list[str]:
    """Returns the README's code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> dict[str, str]:
    """Returns the examples of the README's table of commands."""
    return dict(re.findall(r"^\| `([^`]+)` \| [^|]* \| `(zephon [^`]+)` \|$", README, re.MULTILINE))


@pytest.fixture(scope="module")
def home(curriculum: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with `zephon-demo` in it, and `bin/zephon` for the shell."""
    home = tmp_path_factory.mktemp("home")
    demo = home / "zephon-demo"
    build_corpora(demo, SMALL, lambda what, done, total: None)
    write_recipe(
        demo / "recipe.toml",
        num_steps=FULL.num_steps,
        change_at=FULL.change_at,
        global_batch_size=FULL.global_batch_size,
        lanes=FULL.lanes,
        seq_len=FULL.seq_len,
    )
    opened = open_recipe(Recipe.from_toml(demo / "recipe.toml"), cache=home / "cache")
    for rank in range(2):
        options = LoaderOptions(dp_rank=rank, dp_world_size=2, run_folder=demo / "runs" / "dp_2")
        with Loader(opened, options) as loader:
            for _ in range(LOGGED_STEPS):
                next(loader)
    opened.close()
    amended = demo / "runs" / "amended"
    assert run_amended(demo / "recipe.toml", amended, home / "cache", FULL.amended, lambda *_: None)
    script = home / "bin" / "zephon"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m zephon "$@"\n')
    script.chmod(0o755)
    return home


def run(home: Path, *command: str) -> str:
    """Returns what a command prints to standard output; it must succeed."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "ZEPHON_CACHE": str(home / "cache"),
        "COLUMNS": "160",
    }
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def zephon(home: Path, name: str, *more: str) -> str:
    """Returns what an example of the README's table prints, in this process; it must succeed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("ZEPHON_CACHE", str(home / "cache"))
        patch.setenv("COLUMNS", "160")
        done = CliRunner().invoke(build_app(), [*shlex.split(commands()[name])[1:], *more])
    assert done.exit_code == 0, done.output
    return done.stdout


# README: Python and TOML ------------------------------------------------------------------------------------


def test_ten_lines_of_python(home: Path) -> None:
    lines = run(home, sys.executable, "-c", blocks("python")[0]).splitlines()
    assert len(lines) == 4
    for step, line in enumerate(lines[:3]):
        found = re.fullmatch(
            r"(\d+) \(4, 512\) \[0, 1, 0, 1\] \{'code': (\d+), 'prose': (\d+)\}", line
        )  # R = 2 rows of each of the lanes 0 and 1
        assert found is not None, line
        assert int(found[1]) == step
        assert int(found[2]) + int(found[3]) == 4 * 512
    assert re.fullmatch(HEX, lines[3])


def test_four_ranks_go_on_as_two(home: Path) -> None:
    assert run(home, sys.executable, "-c", blocks("python")[1]) == "1\n"


def test_a_run_is_amended(home: Path) -> None:
    found = run(home, sys.executable, "-c", blocks("python")[2])
    assert found == "5 {1: Accepted(proposal=1, step=1, from_step=4)}\n"


def test_the_page_of_the_curriculum_runs(home: Path) -> None:
    page = (ROOT / "docs" / "curriculum.md").read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(found) == 2
    lines = ["import os", "import zephon as z", "import zephon_curriculum as zc", "os.chdir('zephon-demo')"]
    assert re.match(r"\d+ .*'code': ", run(home, sys.executable, "-c", "\n".join([*lines, *found])))


def test_a_config_of_torchtitan(home: Path) -> None:
    pytest.importorskip("torchtitan")
    code = "\nconfig = my_8b()\nprint(type(config).__qualname__, config.dataloader.recipe)"
    found = run(home, sys.executable, "-W", "ignore", "-c", blocks("python")[3] + code)
    assert found.splitlines()[-1] == "ZephonTrainer.Config recipe.toml"


def test_there_are_no_other_snippets() -> None:
    assert [len(blocks(language)) for language in ("python", "toml")] == [4, 1]


def test_the_recipe_is_one(home: Path) -> None:
    path = home / "zephon-demo" / "readme.toml"
    path.write_text(blocks("toml")[0])
    recipe = Recipe.from_toml(path)
    assert (recipe.lanes, recipe.rows_per_step, recipe.names) == (8, 2, ("code", "prose"))
    assert recipe.compile_schedule().starts == (0, 20)
    with recipe.loader(dp_rank=0, dp_world_size=4, cache=home / "cache") as loader:
        assert next(loader).inputs.shape == (4, 512)


# README: the command line -----------------------------------------------------------------------------------


def test_the_table_has_every_command() -> None:
    app = build_app()
    known = {command.name for command in app.registered_commands}
    known |= {
        f"{group.name} {command.name}"
        for group in app.registered_groups
        for command in group.typer_instance.registered_commands
    }
    assert {re.sub(r" --.*", "", name) for name in commands()} == known


def test_exit_codes_are_those_of_the_program() -> None:
    sentence = README.split("Exit codes: ")[1].split(".\n")[0]
    said = [int(part.split()[0]) for part in sentence.replace("\n", " ").split(", ")]
    assert said == [int(code) for code in Exit if code is not Exit.PIPE_CLOSED]


def test_init(home: Path) -> None:
    run(home, "sh", "-c", commands()["init"])
    assert Recipe.from_toml(home / "first.toml").names == ("code", "prose")


def test_check(home: Path) -> None:
    assert "check passed: 0 errors" in zephon(home, "check")


@pytest.mark.slow
def test_hash_is_the_same_whatever_the_number_of_ranks(home: Path) -> None:
    found = [run(home, "sh", "-c", commands()["hash"]), zephon(home, "hash --compare")]
    assert re.fullmatch(rf"(\d+ {HEX}\n){{{LOGGED_STEPS}}}", found[0])
    assert found[0] == found[1]


def test_verify(home: Path) -> None:
    verified = zephon(home, "verify")
    assert verified.startswith(
        f"equal: {LOGGED_STEPS * FULL.global_batch_size} rows of {LOGGED_STEPS} steps "
    )


def test_data(home: Path) -> None:
    listed = zephon(home, "data ls")
    assert re.search(r"^code +jsonl +1 ", listed, re.MULTILINE)
    assert re.search(r"^prose +parquet +1 ", listed, re.MULTILINE)
    assert "tokens" in zephon(home, "data stats")
    assert len(re.findall(r"^code: .*, record ", zephon(home, "data sample"), re.MULTILINE)) == 2


def test_the_curriculum(home: Path) -> None:
    out = partial(zephon, home)
    assert re.search(r"^reference .* census$", out("estimate"), re.MULTILINE)
    assert "epochs" in out("plan")
    assert "digest" in out("preview")
    assert "dry run: nothing was written" in out("amend")
    assert "accepted" in out("log")
    assert "verified 3 entries" in out("log")
    assert "does not count" in out("fork")
    assert "set by entry 1" in out("explain")
    assert out("diff").startswith("equal")


@pytest.mark.slow
def test_small_runs_and_their_law(home: Path) -> None:
    zephon(home, "design")
    lines = (home / "swarm" / "ratios.csv").read_text().splitlines()
    names = lines[0].split(",")[1:]
    runs = [line.split(",") for line in lines[1:]]
    assert len(runs) == 12
    losses = (f"{name},{3 - float(ratios[names.index('prose')])}" for name, *ratios in runs)
    (home / "losses.csv").write_text("\n".join(["run,loss", *losses]) + "\n")
    assert "gain over the baseline" in zephon(home, "fit")


def test_a_catalogue_changes_no_digest(home: Path) -> None:
    assert "catalogue = " in zephon(home, "index")
    plain = zephon(home, "hash")
    assert zephon(home, "hash", "--set", f"catalogue={home / 'zephon-demo' / 'catalogue'}") == plain


def test_show(home: Path) -> None:
    shown = zephon(home, "show")
    assert "step 4 (a trainer that counts from 1 logs it as 5)" in shown
    assert [row for row in range(20) if f"lane 0, row {row}:" in shown] == [8, 9]


@pytest.mark.slow
def test_bench(home: Path) -> None:
    assert "tokens delivered a second" in zephon(home, "bench")


def test_settings_and_trainer_steps_are_options() -> None:
    group = typer.main.get_command(build_app())
    options = {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in group.commands.items()  # type: ignore[attr-defined]
        if name != "data"
    }
    for command in group.commands["data"].commands.values():  # type: ignore[attr-defined]
        assert {"--json", "--set"} <= {option for parameter in command.params for option in parameter.opts}
    assert {name for name in options if "--json" not in options[name]} == {"demo"}
    assert {name for name in options if "--set" in options[name]} == {
        "check",
        "hash",
        "verify",
        "show",
        "bench",
        "index",
        *("estimate", "plan", "preview", "explain", "design"),
    }
    assert "--trainer-step" in options["show"]
    assert "--trainer-steps" in options["hash"]


# All pages --------------------------------------------------------------------------------------------------


def names_of_tests(path: Path) -> set[str]:
    """Returns the test functions of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_test_that_a_guarantee_names_exists() -> None:
    named = set(re.findall(r"`([a-z_/.]+\.py)::(test_\w+)`", GUARANTEES))
    assert len(named) > 80
    missing = [
        f"{file}::{test}"
        for file, test in sorted(named)
        if not (ROOT / "tests" / file).exists() or test not in names_of_tests(ROOT / "tests" / file)
    ]
    assert missing == []


def test_every_promise_names_its_tests() -> None:
    promises, rest = GUARANTEES.split("## Bad input")
    tests = rest.split("## Tests")[1]
    heads = [re.findall(r"^\| (C\d+|[A-Z][a-z ]+) \|", part, re.MULTILINE) for part in (promises, tests)]
    assert heads[1] == [*heads[0], "Bad input"]
    assert all("::test_" in line for line in tests.splitlines() if re.match(r"\| (C\d|[A-Z])", line))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.isascii()
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    local = [target for target in targets if not target.startswith("https://")]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_context_decision_and_price(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Price"]
    assert re.match(rf"# {page.stem[:3]} \S", text)
    assert page.name in (page.parent / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40


def test_the_reference_has_every_field_and_keyword_with_its_default() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    heads = ("top level", "[tokenize]", "[packing]", "[datasets]]", "Keywords of the loader")
    parts = {head: part for part in text.split("\n## ") for head in heads if head in part.splitlines()[0]}
    rows = {
        head: re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|", parts[head], re.MULTILINE) for head in heads
    }
    known = (
        TOP[: TOP.index("tokenize")],
        TOKENIZE,
        PACKING,
        DATASET,
        tuple(LoaderOptions.__dataclass_fields__),
    )
    for head, names in zip(heads, known, strict=True):
        assert set(names) <= {name for name, _ in rows[head]}, head
    said = dict(rows["Keywords of the loader"])
    for name, field in LoaderOptions.__dataclass_fields__.items():
        value = field.default
        shown = {
            SPOOL_BYTES: f"{SPOOL_BYTES >> 30} GiB",
            BUDGET_BYTES: f"{BUDGET_BYTES >> 20} MiB",
            600.0: "600",
        }.get(value, str(value))
        assert said[name].strip('`"') == shown, name


def test_the_reference_says_what_is_in_the_fingerprint(home: Path) -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    config = Recipe.from_toml(home / "zephon-demo" / "recipe.toml").configuration()
    prefixes = {"top level": "", "`[tokenize]`": "tokenize.", "`[packing]`": "packing."}
    prefixes |= {"`[work_source]`": "work_source.", "`[[datasets]]`": "datasets.code."}
    for part in text.split("\n## "):
        prefix = next((p for head, p in prefixes.items() if head in part.splitlines()[0]), None)
        for name, last in re.findall(r"^\| `(\w+)` .* \| ([^|]*) \|$", part, re.MULTILINE):
            if prefix is not None and name not in ("pool_documents", "pool_bytes", "overlong", "name"):
                assert last.startswith("yes") == (prefix + name in config), name


def test_files_and_functions_of_the_architecture_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    path = text.split("## One document's path")[1].split("## Order")[0]
    rows = re.findall(r"^\| (`[^|]*) \| [^|]* \| (`[^|]*) \|$", path, re.MULTILINE)
    assert len(rows) > 15
    for files, functions in rows:
        found = [ROOT / "zephon" / name for name in re.findall(r"`([^`]+)`", files)]
        sources = [p for f in found for p in (sorted(f.glob("*.py")) if f.is_dir() else [f])]
        code = "".join(source.read_text(encoding="utf-8") for source in sources)
        for name in re.findall(r"`([\w.]+)`", functions):
            assert re.search(rf"\b(def|class) {name.split('.')[-1]}\b", code), f"{files}: {name}"
