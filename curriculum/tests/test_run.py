"""Runs on disk: `zc.Run`, datasets that are added, forks, and the commands amend, fork and log."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from tests.helpers import digest_of, take_steps, union
from tests.log_place import make_place
from tests.waiting import wait_until
from zephon import (
    PARTS,
    DataError,
    Loader,
    LoaderOptions,
    Recipe,
    StateError,
    find_plugin,
    open_recipe,
    write_state_file,
)
from zephon.cli import Commands
from zephon.cli.verify import verify as verify_command
from zephon_curriculum.cli.amend import amend as amend_command
from zephon_curriculum.cli.fork import fork as fork_command
from zephon_curriculum.cli.log import log as log_command
from zephon_curriculum.log.added import recipe_of_run
from zephon_curriculum.log.documents import read_documents
from zephon_curriculum.log.entries import Accepted, Proposal, Refused
from zephon_curriculum.log.ops import Add
from zephon_curriculum.log.propose import Changes
from zephon_curriculum.log.steps import AmendError
from zephon_curriculum.opening import table_of
from zephon_curriculum.preview import preview, preview_cost
from zephon_curriculum.run import Run

OPTIONS = LoaderOptions(executor="inline", backend="tokenizers")
pytestmark = pytest.mark.usefixtures("probed_once")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZEPHON_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return make_place(tmp_path)


def go(run: Run, num_steps: int, state: Any = None) -> tuple[list[str], dict[str, Any]]:
    """Returns the digests of the next steps of a run, and the state after them."""
    with run.loader(OPTIONS) as loader:
        if state is not None:
            loader.load_state_dict(state)
        found = [digest_of(take_steps([loader], 1)[0]) for _ in range(num_steps)]
        return found, union([loader])


def fresh(run: Run, num_steps: int) -> list[str]:
    """Returns the digests of a fresh run with the log's table."""
    opened = open_recipe(run.recipe, backend="tokenizers")
    with Loader(replace(opened, table=run.table), OPTIONS, owns_opened=True) as loader:
        return [digest_of(take_steps([loader], 1)[0]) for _ in range(num_steps)]


def begun(place: Path) -> Run:
    return Run(place / "run", Recipe.from_toml(place / "recipe.toml"))


def test_the_table_of_a_run_without_a_log_is_the_one_that_it_ran_by(place: Path) -> None:
    opened = open_recipe(Recipe.from_toml(place / "recipe.toml"), backend="tokenizers")
    table = replace(opened.table, starts=(0,), shares=((PARTS // 4, 3 * PARTS // 4),))
    options = replace(OPTIONS, run_folder=place / "plain")
    with Loader(replace(opened, table=table), options, owns_opened=True) as loader:
        take_steps([loader], 2)
    run = Run(place / "plain")
    assert run.table == table_of(run) == table != run.recipe.compile_schedule()


def test_a_run_is_amended_measured_and_verified(place: Path) -> None:
    run = begun(place)
    with run.loader(OPTIONS) as loader:
        found = [digest_of(take_steps([loader], 1)[0]) for _ in range(4)]
        entry = run.amend(
            at_step=8, weights={"web": 0, "code": 1}, until=11, reason="more code", author="ann"
        )
        found += [digest_of(take_steps([loader], 1)[0]) for _ in range(9)]
    again = Run(place / "run")
    assert again.history.verdicts[entry.number] == Accepted(proposal=entry.number, step=4, from_step=8)
    assert found == fresh(again, 13)
    metrics = again.metrics(range(6, 12))
    assert metrics.names == ("web", "code")
    assert metrics.steps.tolist() == [6, 7, 8, 9, 10, 11]
    assert metrics.tokens.sum(axis=1).tolist() == [64] * 6
    assert metrics.tokens[2:5, 0].tolist() == [0, 0, 0]
    np.testing.assert_allclose(metrics.shares().sum(axis=1), 1)
    assert repr(metrics).startswith("Metrics: 6 steps from step 6 (a trainer that counts from 1")
    assert repr(entry).endswith("weights web=0, code=1 from step 8 until 11 by ann: more code)")
    verified = again.verify(options=OPTIONS)
    assert (verified.steps, verified.num_rows) == (range(13), 52)
    assert repr(verified) == "Verified: 52 rows of steps [0, 13), all equal"
    assert again.verify(range(9, 11), OPTIONS).num_rows == 8


def test_a_row_that_is_not_the_runs_is_found(place: Path) -> None:
    run = begun(place)
    go(run, 4)
    log = next((place / "run" / "batches").glob("*.jsonl"))
    lines = log.read_text().splitlines(keepends=True)
    digest = json.loads(lines[3])["rows"][1][2]
    log.write_text("".join(lines).replace(digest, "0" * 63 + "1"))
    with pytest.raises(StateError, match=r"step 2 .*lane 1"):
        run.verify(options=OPTIONS)


def test_a_run_amended_twice_with_a_rollback_between_is_verified(place: Path) -> None:
    run = begun(place)
    _, state = go(run, 3)
    run.amend(at_step=6, scale="code=4", reason="a")
    go(run, 6, state)
    run.amend(at_step=7, skip_steps=(7, 9), reason="b")
    found, _ = go(run, 9, state)
    assert found == fresh(run, 12)[3:]
    assert run.verify(options=OPTIONS).num_rows == 48
    app = typer.Typer(cls=Commands)
    app.command("verify")(verify_command)
    app.command("log")(log_command)
    for more in ([], ["--replay"]):
        result = CliRunner().invoke(app, ["verify", str(run.folder), "--backend", "tokenizers", *more])
        assert result.exit_code == 0, result.output


@pytest.fixture
def added(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers the schedule `added`, where the distribution that is installed is an older one."""
    try:
        find_plugin("schedules", "added")
    except LookupError:
        info = place / "site" / "added_schedule-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: added-schedule\nVersion: 1\n")
        target = "zephon_curriculum.log.added:Added.from_config"
        (info / "entry_points.txt").write_text(f"[zephon.schedules]\nadded = {target}\n")
        monkeypatch.syspath_prepend(str(place / "site"))


MATH = '[[datasets]]\nname = "math"\npath = "data/math.jsonl"\n'


@pytest.mark.usefixtures("added")
def test_a_dataset_is_added_at_a_start_and_refused_by_a_run_that_lives(place: Path) -> None:
    run = begun(place)
    (place / "math.toml").write_text(MATH)
    add = {"math": {"path": str(place / "data" / "math.jsonl")}}
    request = Changes(at_step=8, add=add, points="math=+50")
    with run.loader(OPTIONS) as loader:
        take_steps([loader], 3)
        refused = run.amend(reason="more math", **request)
        take_steps([loader], 1)
        state = union([loader])
    verdict = run.history.verdicts[refused.number]
    assert isinstance(verdict, Refused)
    assert "not open in this run" in verdict.why
    accepted = run.amend(reason="more math", **request)
    assert run.recipe.names == ("web", "code", "math")
    found, state = go(run, 6, state)
    assert isinstance(run.history.verdicts[accepted.number], Accepted)
    assert found == fresh(run, 10)[4:]
    assert run.metrics(range(8, 10)).tokens[:, 2].min() > 0
    again = Run(place / "run")
    assert again.recipe.names == ("web", "code", "math")
    assert again.verify(options=OPTIONS).num_rows == 40
    assert go(again, 2, state)[0] == fresh(again, 12)[10:]


@pytest.mark.usefixtures("added")
def test_a_dataset_is_added_to_a_schedule_that_was_read_from_a_file(place: Path) -> None:
    """The run folder keeps what the file said: the file does not lie beside the recipe there."""
    (place / "plan.csv").write_text("step,web,code\n0,3,1\n20,1,1\n")
    schedule = {"kind": "table", "file": "plan.csv"}
    run = Run(place / "run", replace(Recipe.from_toml(place / "recipe.toml"), schedule=schedule))
    _, state = go(run, 3)
    run.amend(at_step=6, add={"math": {"path": str(place / "data" / "math.jsonl")}}, reason="more math")
    found, _ = go(run, 5, state)
    again = Run(place / "run")
    assert again.recipe.names == ("web", "code", "math")
    assert found == fresh(again, 8)[3:]
    assert again.verify(options=OPTIONS).num_rows == 32


def test_a_dataset_that_cannot_be_is_refused_at_once(place: Path) -> None:
    run = begun(place)
    go(run, 1)
    with pytest.raises(AmendError, match="'web' is there already"):
        run.draft(at_step=9, add={"web": {"path": "x"}}, reason="x")
    with pytest.raises(ValueError, match="dataset 'math'"):
        run.draft(at_step=9, add={"math": {"path": "x", "texts": "y"}}, reason="x")


# Forks ------------------------------------------------------------------------------------------------------


def test_a_fork_goes_its_own_way_and_its_chain_is_the_parents(place: Path) -> None:
    run = begun(place)
    with run.loader(OPTIONS) as loader:
        take_steps([loader], 1)
        kept = run.amend(at_step=5, scale="code=2", reason="kept")
        dropped = run.amend(at_step=9, retire=("web",), reason="not in the fork")
        take_steps([loader], 5)
        state = union([loader])
        take_steps([loader], 6)
    write_state_file(state, place / "state.json")
    made = run.fork(9, place / "fork", state=place / "state.json")
    assert made.dropped == (dropped.number,)
    assert f"go on from {made.folder / 'state.json'} with" in str(made)
    fork = Run(place / "fork")
    entries = fork.log.read()
    assert entries[:-1] == run.log.read()
    assert fork.history.begins() == {kept.number: 5}
    found, _ = go(fork, 6, state)
    assert found[:3] == fresh(run, 9)[6:]
    assert found == fresh(fork, 12)[6:] != fresh(run, 12)[6:]
    assert fork.verify(range(6, 12), OPTIONS).num_rows == 24


def test_a_fork_refuses_a_folder_in_use_and_a_state_behind_it(place: Path) -> None:
    run = begun(place)
    _, state = go(run, 6)
    write_state_file(state, place / "state.json")
    with pytest.raises(StateError, match="the state is behind the fork at step 4"):
        run.fork(4, place / "fork", state=place / "state.json")
    assert not (place / "fork").exists()
    with pytest.raises(StateError, match="is not empty"):
        run.fork(4, place / "data")
    with pytest.raises(StateError, match="has no entries"):
        Run(place / "data").fork(4, place / "fork")
    assert not (place / "fork").exists()


def test_a_fork_refuses_a_state_of_an_attempt_that_was_given_up(place: Path) -> None:
    run = begun(place)
    _, early = go(run, 1)
    _, state = go(run, 7, early)
    write_state_file(state, place / "state.json")
    run.amend(at_step=5, retire=("web",), reason="another way")
    go(run, 7, early)
    with pytest.raises(StateError, match="not one of this run as its log has it"):
        run.fork(8, place / "fork", state=place / "state.json")


# Commands ---------------------------------------------------------------------------------------------------

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(place: Path) -> Call:
    app = typer.Typer(cls=Commands)
    for name, command in {"amend": amend_command, "fork": fork_command, "log": log_command}.items():
        app.command(name)(command)

    def invoke(*args: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, [*args])
        return result.exit_code, result.stdout + result.stderr

    return invoke


def test_amend_shows_what_it_would_do_and_writes_a_proposal(place: Path, call: Call) -> None:
    run = begun(place)
    go(run, 3)
    ask = ("amend", "run", "--at-step", "8", "--weights", "web=6,code=4", "--reason", "try")
    ask += ("--author", "ann")  # type: ignore[assignment]
    code, shown = call(*ask, "--dry-run")
    assert code == 0
    assert "dry run: nothing was written" in shown
    assert "8:20   web      75.00%  60.00%" in shown
    assert "the weights hide 1 later change of the schedule, first at step 20" in shown
    assert "code           37.50%  36.99%" in shown  # of the whole run
    assert len(run.log.read()) == 1
    assert call(*ask, "--wait", "0.1") == (
        1,
        shown.replace(
            "dry run: nothing was written",
            "entry 1: no verdict yet; it waits for the run",
        ),
    )
    with run.loader(OPTIONS) as loader:
        take_steps([loader], 1)
    code, shown = call("log", "run")
    assert code == 0
    assert "weights web=6, code=4 ann try accepted" in " ".join(shown.split())
    assert f"verified 3 entries, head {run.history.head[:12]}" in shown


def test_another_schedule_reads_its_files_from_beside_its_own(place: Path, call: Call) -> None:
    run = begun(place)
    go(run, 1)
    (place / "more").mkdir()
    (place / "more" / "schedule.toml").write_text('[schedule]\nkind = "table"\nfile = "x.csv"\n')
    for folder, weights in (("more", "1,3"), ("run", "1,1")):
        (place / folder / "x.csv").write_text(f"step,web,code\n0,{weights}\n")
    ask = ("amend", "run", "--at-step", "9", "--schedule", "more/schedule.toml", "--reason", "x")
    code, shown = call(*ask, "--json")
    assert code == 0, shown
    assert json.loads(shown)["shares"][0]["after"] == {"web": 0.25, "code": 0.75}


def test_a_proposal_has_the_name_of_the_user_where_no_other_is_given(
    place: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    run = begun(place)
    go(run, 1)
    assert call("amend", "run", "--at-step", "9", "--retire", "web", "--reason", "x")[0] == 0
    run.amend(at_step=12, retire=("web",), reason="x")
    run.amend(at_step=15, retire=("web",), reason="x", author="")
    bodies = [entry.body for entry in run.history.entries]
    assert [body.author for body in bodies if isinstance(body, Proposal)] == ["ann", "ann", ""]


def test_a_withdrawal_of_what_has_begun_names_no_legal_step(place: Path, call: Call) -> None:
    run = begun(place)
    _, early = go(run, 3)
    gone = run.amend(at_step=6, retire=("web",), reason="x")
    _, late = go(run, 9, early)
    ask = ("amend", "run", "--withdraw", str(gone.number), "--reason", "back")
    says = (
        "entry 1 begins at step 6, and at step 12 rows of steps up to 14 may be mixed; only what has not "
        "begun can be withdrawn: go on from a state of at most 3 steps, or amend against it"
    )
    code, shown = call(*ask)
    assert (code, says in shown, "first legal" in shown) == (0, True, False), shown
    go(run, 1, late)
    refused = run.history.verdicts[3]
    assert refused == Refused(proposal=3, step=12, why=says, first_legal=None)
    assert [e["verdict"] for e in json.loads(call("log", "run", "--json")[1])["entries"]][3] == "refused"
    assert call(*ask)[0] == 0
    go(run, 1, early)
    assert run.history.verdicts[5] == Accepted(proposal=5, step=3, from_step=6)


def test_amend_and_fork_say_that_a_step_is_past_the_run(place: Path, call: Call) -> None:
    go(begun(place), 3)
    says = "steps from 40 on are past the recipe's `total_steps` of 40\n"
    ask = ("amend", "run", "--retire", "web", "--reason", "x", "--dry-run", "--at-step")
    assert [says in call(*ask, step)[1] for step in ("39", "40", "500")] == [False, True, True]
    forks = [call("fork", "run", "--at-step", step, "--into", f"at-{step}")[1] for step in ("3", "4", "500")]
    assert [says in shown for shown in forks] == [False, False, True]
    assert ["the run is at step 3, before " in shown for shown in forks] == [False, True, True]


def test_what_the_run_does_not_have_is_named_before_it_is_proposed_to_be_skipped(
    place: Path, call: Call
) -> None:
    """All of it; and a refusal by the run itself says no other step, since none would do."""
    run = begun(place)
    go(run, 3)
    (place / "list").write_text("web nope.jsonl 3\ncode code.jsonl 60\nweb web.jsonl 59\n")
    ask = ("amend", "run", "--at-step", "9", "--skip-documents", "list", "--reason", "x")
    for more in ((), ("--dry-run",)):
        code, shown = call(*ask, *more)
        text = " ".join(shown.replace("\u2502", " ").split())
        assert code == 2
        says = (
            "no record 60 of code, file 'code.jsonl', which has 60; no file 'nope.jsonl' of web; a document"
        )
        assert f"--skip-documents names what the run does not have: {says}" in text
    with pytest.raises(AmendError, match="and 3 more; a document"):
        run.amend(at_step=9, skip_documents=tuple(("web", "f", n) for n in range(13)), reason="x")
    assert len(run.log.read()) == 1
    (place / "run" / "lock.json").unlink()  # as where only the log is at hand
    late = run.amend(at_step=2, skip_documents=(("web", "nope.jsonl", 3),), reason="x")
    go(run, 4)
    refused = run.history.verdicts[late.number]
    assert isinstance(refused, Refused)
    assert ("no such document" in refused.why, refused.first_legal) == (True, None)


def test_a_folder_that_is_not_there_is_said_to_be_so(place: Path, call: Call) -> None:
    says = "run folder 'runs/none' does not exist"
    for ask in (("log",), ("amend", "--at-step", "9", "--retire", "web", "--reason", "x")):
        code, shown = call(ask[0], "runs/none", *ask[1:])
        assert (code, says in shown) == (5, True), shown
    with pytest.raises(StateError, match=says):
        _ = Run("runs/none").history
    (place / "plain").mkdir()
    with pytest.raises(StateError, match=r"curriculum log 'plain/curriculum' has no entries"):
        _ = Run("plain").history


def test_a_keyword_that_no_proposal_has_is_named_with_those_it_has(place: Path) -> None:
    run = begun(place)
    go(run, 1)
    with pytest.raises(TypeError, match=r"takes no 'dry_run'; it takes at_step, until, .*`run\.draft"):
        run.amend(at_step=9, retire=("web",), reason="x", dry_run=True)  # type: ignore[call-arg]


def test_amend_counts_as_the_trainer_does_where_asked(place: Path, call: Call) -> None:
    go(begun(place), 3)
    code, shown = call(
        "amend", "run", "--skip-steps", "9:11", "--trainer-step", "--reason", "nan", "--json", "--dry-run"
    )
    data = json.loads(shown)
    assert (code, data["at_step"], data["ops"]) == (0, 8, ["skip steps 8:10"])
    assert (data["first_step"], data["first_legal_step"]) == (8, 6)


def test_amend_says_that_it_is_late_and_exits_1_when_the_run_refuses(place: Path, call: Call) -> None:
    run = begun(place)
    _, state = go(run, 6)
    ask = ("amend", "run", "--at-step", "8", "--retire", "web", "--reason", "late")
    shown = call(*ask, "--dry-run")[1]
    assert shown.startswith("too late where the run is: it accepts this only if it goes on from an earlier")
    assert "else the first legal step is 9" in shown
    found: list[tuple[int, str]] = []
    waits = Thread(target=lambda: found.append(call(*ask, "--wait", "60")))
    with run.loader(OPTIONS) as loader:
        loader.load_state_dict(state)
        waits.start()
        wait_until(lambda: len(run.log.read()) > 1)
        take_steps([loader], 1)
        waits.join(60)
    code, shown = found[0]
    assert code == 1
    assert "entry 1: refused, first legal step 9: it changes step 8, and at step 6" in shown
    go(run, 1)  # from step 0 it would have been in time
    entries = json.loads(call("log", "run", "--json")[1])["entries"]
    assert [(entry["kind"], entry["verdict"]) for entry in entries] == [
        ("base", ""), ("proposal", "refused, first legal step 9"), ("refused", ""),
    ]  # fmt: skip


def test_a_command_sent_twice_asks_once_and_says_so(place: Path, call: Call) -> None:
    run = begun(place)
    go(run, 1)
    ask = ("amend", "run", "--at-step", "9", "--scale", "code=1.1", "--reason", "x", "--author", "ann")
    assert call(*ask)[0] == 0
    code, shown = call(*ask)
    assert (code, "entry 1 asks for this in the same words, which counts once; see --again" in shown) == (
        0,
        True,
    )
    assert "entry 1: proposed" in shown
    assert json.loads(call(*ask, "--json")[1])["repeats"] == 1
    assert len(run.log.read()) == 2
    assert "entry 2: proposed" in call(*ask, "--again")[1]
    assert len(run.log.read()) == 3
    go(run, 12)
    shown = call(*ask)[1]
    assert ("entry 1: accepted" in shown, "first legal step" in shown) == (True, False), shown
    assert "in the same words" in shown.splitlines()[1]
    assert "dataset" not in shown  # no table of what does not change


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--at-step", "9", "--scale", "wbe=2"), "no dataset is named 'wbe'"),
        (("--at-step", "9", "--weights", "web=2"), "no weight for dataset 'code'"),
        (("--at-step", "9", "--points", "web=+60"), "at step 9: the share of web leaves"),
        (("--at-step", "9", "--weights", "web:2"), "takes NAME=NUMBER"),
        (("--at-step", "9", "--until", "9", "--retire", "web"), "--until must be > --at-step, got [9, 9)"),
        (("--withdraw", "1"), "entry 1 cannot be withdrawn: it is none that was accepted"),
        (("--retire", "web"), "--at-step is missing"),
        (("--at-step", "0", "--trainer-step", "--retire", "web"), "--trainer-step steps count from 1, got 0"),
        (("--at-step", "9"), "it asks for nothing; say what is to change: weights, scale"),
        (
            ("--skip-steps", "9:41"),
            "Invalid value: --skip-steps must lie in the run's steps [0, 40), got [9, 41); skip fewer, or",
        ),
        (("--skip-steps", "9"), "--skip-steps takes A:B, half-open, got '9'; one step alone is 7:8"),
        (
            ("--skip-steps", "9:11", "--until", "11"),
            "--until does not go with --skip-steps, which has no end",
        ),
        (("--withdraw", "1", "--until", "11", "--at-step", "9"), "--until does not go with --withdraw"),
        (
            ("--skip-steps", "9:11", "--at-step", "10"),
            "with a < b, and --at-step the first of them, got [9, 11) and 10; without --at-step it is a",
        ),
        (
            ("--at-step", "9", "--schedule", "no.toml"),
            "'--schedule': file 'no.toml' does not exist",
        ),
        (("--at-step", "9", "--add", "no.toml"), "'--add': file 'no.toml' does not exist"),
        (("--at-step", "9", "--skip-documents", "no"), "'--skip-documents': file 'no' does not exist"),
        (("--at-step", "9", "--add", "data"), "'--add': file 'data' is a directory"),
        (("--at-step", "9", "--schedule", "data/web.jsonl"), "'--schedule': data/web.jsonl is no TOML file"),
        (("--at-step", "9", "--add", "data/web.jsonl"), "'--add': data/web.jsonl is no TOML file"),
        (
            ("--at-step", "9", "--skip-documents", "recipe.toml"),
            "'--skip-documents': recipe.toml, line 6: a document is",
        ),
    ],
)
def test_amend_refuses_what_the_log_as_it_is_leaves_no_room_for(
    args: tuple[str, ...], says: str, place: Path, call: Call
) -> None:
    go(begun(place), 1)
    code, shown = call("amend", "run", *args, "--reason", "x")
    assert (code, says in " ".join(shown.replace("\u2502", " ").split())) == (2, True), shown
    assert len(Run(place / "run").log.read()) == 1


def test_fork_and_log_say_what_they_did(place: Path, call: Call) -> None:
    run = begun(place)
    go(run, 2)
    run.amend(at_step=9, retire=("web",), reason="x")
    go(run, 1)
    run.amend(at_step=5, retire=("web",), reason="y")
    code, shown = call("fork", "run", "--at-step", "6", "--into", "fork")
    assert code == 0
    assert "entry 3 has no verdict and does not count: propose again" in shown
    assert f"fork: forked from {place / 'run'} at step 6 (a trainer logs it as 7)" in shown
    assert "entry 1 begins there or later and does not count" in shown
    assert "next: go on from a checkpoint of at most 6 steps with `run_folder` fork" in shown
    code, shown = call("fork", "run", "--at-step", "0", "--trainer-step", "--into", "other")
    assert (code, "steps count from 1, got 0" in shown) == (2, True)
    code, shown = call("fork", "run", "--at-step", "6", "--into", "memory://there/new")
    says = "--into must be a folder of this machine, got 'memory://there/new'"
    assert (code, says in " ".join(shown.replace("\u2502", " ").split())) == (2, True)
    assert not (place / "memory:").exists()
    code, shown = call("log", "fork")
    assert (code, "goes its own way from" in shown, "accepted; withdrawn" in shown) == (0, True, True)


def test_a_fork_says_which_amendments_end_without_those_it_drops(place: Path, call: Call) -> None:
    """From step 20 on code has a half, so that +60 points fit in only by the weights of entry 1."""
    run = begun(place)
    go(run, 1)
    whole = run.amend(at_step=20, weights={"web": 3, "code": 1}, reason="x")
    go(run, 1)
    points = run.amend(at_step=6, points="code=+60", reason="x")
    found = go(run, 12)[0]
    assert {type(run.history.verdicts[entry.number]) for entry in (whole, points)} == {Accepted}
    code, shown = call("fork", "run", "--at-step", "10", "--into", "fork")
    assert (code, "entry 3 ends before step 20: from there on it stood on" in shown) == (0, True), shown
    fork = Run(place / "fork")
    assert fork.table.past(10) == run.table.past(10)
    assert fork.table.at(20) == run.recipe.compile_schedule().at(20)
    assert go(fork, 12)[0] == found
    assert Run(place / "fork").verify(options=OPTIONS).num_rows == 48


def test_log_exits_5_where_the_chain_is_broken(place: Path, call: Call) -> None:
    run = begun(place)
    go(run, 1)
    path = place / "run" / "curriculum" / "000000.json"
    path.write_text(path.read_text().replace('"lead_steps": 2', '"lead_steps": 3'))
    code, shown = call("log", "run")
    assert (code, "000000.json breaks the chain" in shown) == (5, True)


def test_documents_are_read_from_lines_or_from_what_show_prints(tmp_path: Path) -> None:
    fields = ("dataset", "file", "record")
    expected = (("code", "a b.jsonl", 7), ("web", "web.jsonl", 3))
    texts = [
        "web web.jsonl 3\n\ncode a b.jsonl 7\n",
        '["web", "web.jsonl", 3]\n{"dataset": "code", "file": "a b.jsonl", "record": 7, "text": "x"}\n',
        json.dumps({"rows": [{"pieces": [dict(zip(fields, d, strict=True)) for d in expected]}]}),
        "\ufeffweb web.jsonl 3\r\ncode a b.jsonl 7\r\n",  # of a program that begins a file with its mark
    ]
    for text in texts:
        (tmp_path / "list").write_text(text, encoding="utf-8")
        assert read_documents(tmp_path / "list") == expected
    (tmp_path / "list").write_text("web web.jsonl\n")
    with pytest.raises(ValueError, match="line 1: a document is"):
        read_documents(tmp_path / "list")
    (tmp_path / "list").write_bytes(b"web f\xe9.jsonl 3\n")
    with pytest.raises(ValueError, match="list: a list of documents is UTF-8"):
        read_documents(tmp_path / "list")


# What others may write, and what follows --------------------------------------------------------------------


def test_a_run_goes_on_where_its_added_dataset_was_refused_after_all(place: Path) -> None:
    """It was started with the dataset, so the log says so, whatever becomes of the proposal."""
    run = begun(place)
    state = go(run, 4)[1]
    add = {"math": {"path": str(place / "data" / "math.jsonl")}}
    late = run.amend(at_step=2, add=add, points="math=+50", reason="too late")
    _, state = go(run, 3, state)
    assert isinstance(run.history.verdicts[late.number], Refused)
    assert [entry.body.kind for entry in run.log.read()].count("datasets") == 1
    assert Run(place / "run").recipe.names == ("web", "code", "math")
    assert go(Run(place / "run"), 2, state)[0] == fresh(run, 9)[7:]


def test_a_launch_with_a_table_of_no_dataset_names_the_entry_that_waits_with_it(place: Path) -> None:
    """Such as one by hand: no run could start before somebody gives it up."""
    run = begun(place)
    state = go(run, 1)[1]
    ops = (Add("more", {"path": 5}),)
    body = Proposal(at_step=9, until=None, ops=ops, reason="more", author="ann")
    run.log.append(body, 1, run.history.head)
    says = "`path` must be a path .*\n  from: entry 1, add more from step 9 by ann: more; give it up: `zephon"
    with pytest.raises(ValueError, match=says):
        go(run, 1, state)
    run.amend(withdraw=(1,), reason="no dataset")
    go(run, 1, state)


def test_another_dataset_of_a_name_that_was_added_is_refused(place: Path) -> None:
    run = begun(place)
    state = go(run, 2)[1]
    add = {"math": {"path": str(place / "data" / "math.jsonl")}}
    first = run.amend(at_step=6, add=add, reason="one")
    go(run, 1, state)
    assert run.amend(at_step=6, add=add, reason="one") == first
    with pytest.raises(AmendError, match="another dataset 'math' is there already"):
        run.amend(at_step=9, add={"math": {"path": "elsewhere.jsonl"}}, reason="another")


@pytest.mark.parametrize("number", ["1e999999999", "nan", "inf", "1/0", "\u0663", "9" * 60, "-1"])
def test_numbers_that_the_run_would_stand_still_over_are_refused(place: Path, number: str) -> None:
    run = begun(place)
    go(run, 1)
    with pytest.raises((ValueError, AmendError)):
        run.amend(at_step=9, weights={"web": number, "code": "1"}, reason="x")
    assert len(run.history.entries) == 1


def test_a_proposal_that_waits_can_be_given_up(place: Path) -> None:
    run = begun(place)
    state = go(run, 2)[1]
    first = run.amend(at_step=6, retire=("web",), reason="no more web")
    run.amend(withdraw=(first.number,), reason="after all")
    found, _ = go(run, 8, state)
    assert isinstance(run.history.verdicts[first.number], Accepted)
    assert first.number in run.history.withdrawn
    assert found == fresh(run, 10)[2:]
    assert run.table.at(9) == run.recipe.compile_schedule().at(9)


def test_a_waiting_dataset_that_is_withdrawn_is_neither_opened_nor_missed(place: Path) -> None:
    """What it would be refused for is no matter then, and the withdrawal counts; so at a replay."""
    run = begun(place)
    state = go(run, 2)[1]
    add = {"math": {"path": str(place / "data" / "math.jsonl")}}
    first = run.amend(at_step=6, add=add, points="math=+10", reason="more")
    gone = run.amend(withdraw=(first.number,), reason="after all")
    go(run, 8, state)
    refused = run.history.verdicts[first.number]
    assert refused == Refused(
        proposal=1, step=2, why="withdrawn by 2 before it was decided", first_legal=None
    )
    assert isinstance(run.history.verdicts[gone.number], Accepted)
    assert run.history.withdrawn == {first.number}
    assert run.recipe.names == ("web", "code")
    with pytest.raises(AmendError, match="entry 1 cannot be withdrawn: it is withdrawn already"):
        run.amend(withdraw=(first.number,), reason="once more", again=True)
    assert go(Run(run.folder), 10)[0] == fresh(run, 10)


def test_a_nan_hunt(place: Path) -> None:
    """A past step is shown from a state, skipped, and the rest is that of a fresh run with the log."""
    run = begun(place)
    with run.loader(OPTIONS) as loader:
        plain = [digest_of(take_steps([loader], 1)[0]) for _ in range(4)]
        state = union([loader])
        plain += [digest_of(take_steps([loader], 1)[0]) for _ in range(8)]
    write_state_file(state, place / "step-4.json")
    shown = preview(run, [8], None, place / "step-4.json")
    assert shown.digests() == preview(run, [8], None).digests()
    assert preview_cost(run, [8], None, place / "step-4.json").num_rows == 5 * run.recipe.global_batch_size
    skipping = run.amend(skip_steps=(8, 10), reason="NaN in step 8")
    found: list[str] = []
    for _ in range(2):
        more, state = go(run, 4, state)
        found += more
    assert isinstance(run.history.verdicts[skipping.number], Accepted)
    assert found == fresh(run, 12)[4:]
    assert found[:4] == plain[4:8]
    assert found[4:] != plain[8:12]
    assert run.verify(options=OPTIONS).steps == range(12)


def test_a_dataset_that_no_run_could_start_with_is_refused_when_it_is_proposed(
    place: Path, call: Call
) -> None:
    go(begun(place), 1)
    (place / "bad.toml").write_text('[[datasets]]\nname = "papers"\npath = "/no/such/*.jsonl"\n')
    arguments = ("amend", "run", "--at-step", "9", "--add", "bad.toml", "--reason", "x")
    code, err = call(*arguments)
    assert code == 4
    assert "papers" in err
    assert len(begun(place).history.entries) == 1
    assert call(*arguments, "--no-check")[0] == 0
    waits = begun(place).history
    assert list(waits.pending) == [1]
    assert call("amend", "run", "--withdraw", "1", "--reason", "wrong path")[0] == 0
    assert begun(place).recipe.names == ("web", "code")
    go(begun(place), 2)


def test_what_no_table_of_shares_shows_is_said(place: Path, call: Call) -> None:
    go(begun(place), 1)
    ask = ("amend", "run", "--skip-steps", "7:9", "--reason", "x", "--dry-run")
    assert "drops the rows of 2 steps: 128 tokens\n" in call(*ask)[1]
    assert json.loads(call(*ask, "--json")[1])["skipped_tokens"] == 128


def test_steps_behind_the_end_are_not_skipped_whoever_asks(place: Path) -> None:
    """By a folder without a recipe nobody but the run knows its end."""
    run = begun(place)
    go(run, 1)
    with pytest.raises(
        AmendError, match=r"`skip_steps` must lie in the run's steps \[0, 40\), got \[9, 41\)"
    ):
        Run(place / "run").draft(skip_steps=(9, 41), reason="x")
    (place / "run" / "recipe.toml").unlink()
    wide = Run(place / "run").amend(skip_steps=(9, 1 << 40), reason="x")
    last = Run(place / "run").amend(skip_steps=(38, 40), reason="x")
    go(run, 2)
    refused = run.history.verdicts[wide.number]
    assert isinstance(refused, Refused)
    assert "must lie in the run's steps [0, 40)" in refused.why
    assert isinstance(run.history.verdicts[last.number], Accepted)


def test_a_proposal_is_not_written_and_then_failed_for_a_recipe_that_cannot_be_read_here(
    place: Path, call: Call
) -> None:
    """A run of in-memory data has no recipe in TOML; one of a variable is not set everywhere."""
    go(begun(place), 1)
    (place / "run" / "recipe.toml").write_text("# this recipe has no TOML form: x\n")
    code, shown = call("amend", "run", "--at-step", "9", "--retire", "web", "--reason", "x")
    assert (code, "entry 1: proposed" in shown) == (0, True), shown


def test_a_launch_that_cannot_open_an_added_dataset_names_the_entry(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "zephon")
    run = begun(place)
    state = go(run, 2)[1]
    data = place / "data" / "math.jsonl"
    add = Changes(at_step=8, add={"math": {"path": str(data)}}, points="math=+50", author="ann")
    entry = run.amend(reason="more math", **add)
    data.rename(place / "away.jsonl")
    says = (
        r"math\.jsonl' names no file\n(.*\n)*  from: entry 1, add math; points math=\+50 from step 8 by ann:"
    )
    with pytest.raises(
        DataError, match=says + r" more math; give it up: `zephon amend \S*curriculum --withdraw 1"
    ):
        run.loader(OPTIONS)
    (place / "away.jsonl").rename(data)
    go(run, 2, state)
    assert isinstance(run.history.verdicts[entry.number], Accepted)
    (place / "data" / "web.jsonl").rename(place / "web.jsonl")
    with pytest.raises(DataError, match=r"web\.jsonl' names no file\n") as plain:
        Run(place / "run").loader(OPTIONS)
    assert "entry 1" not in str(plain.value)
    data.unlink()
    with pytest.raises(DataError, match=says + r" more math$"):
        Run(place / "run").loader(OPTIONS)
    caplog.clear()
    recipe_of_run(Recipe.from_toml(place / "recipe.toml"), place / "run")
    assert "dataset 'math' is opened as entry 1, add math; points math=+50 from step 8 by ann" in caplog.text


def test_keywords_of_a_loader_are_those_of_a_recipe(place: Path) -> None:
    with begun(place).loader(executor="inline", backend="tokenizers") as loader:
        assert next(loader).step == 0
    assert repr(begun(place).history).startswith("History(1 entry, 0 to decide, head ")
