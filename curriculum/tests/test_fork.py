"""Forks on disk: whole or not there, whenever they are killed; and what a fork says of what it lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import digests, open_small
from tests.log_cases import STAGES, propose, recipe, run, with_recipe
from zephon import StateError
from zephon_curriculum.log.folder import CurriculumLog, log_of
from zephon_curriculum.log.fork import fork_run
from zephon_curriculum.log.history import History

OPENED = open_small(recipe())
KILLED = """
import os, signal, sys
from zephon_curriculum.log.fork import fork_run

run, place = sys.argv[1:]
writes = ("os.mkdir", "os.link", "os.rename", "os.remove", "os.rmdir", "open")
for number in range(1000):
    into = f"{place}/{number}/new"
    os.mkdir(os.path.dirname(into))
    if (child := os.fork()) == 0:
        left = [number]

        def killing(event, arguments):
            if event in writes and (event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR)):
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1

        sys.addaudithook(killing)
        fork_run(run, 6, into)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
print(number)
"""


def parent(folder: Path) -> Path:
    """Writes what a run leaves, with an amendment that a fork at step 6 keeps and one that it drops."""
    with run(OPENED, folder / "curriculum") as ranks:
        propose(folder / "curriculum", at_step=4, scale="code=2")
        propose(folder / "curriculum", at_step=9, skip_documents=(("web", "web", 1),))
        ranks.steps(1)
    for name in ("recipe.toml", "lock.json"):
        (folder / name).write_text(f"{name} of the run\n")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_fork_that_is_killed_leaves_no_run_folder_and_none_to_remove(tmp_path: Path) -> None:
    """Killed ahead of each write in turn: what is there is whole, and the next fork says what is left."""
    made, expected = parent(tmp_path / "run"), tmp_path / "expected"
    fork_run(made, 6, expected)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(made), str(tmp_path)], check=True, capture_output=True, text=True
    )
    number_of_writes = int(done.stdout)
    assert number_of_writes > 15
    num_whole = 0
    for number in range(number_of_writes):
        into = tmp_path / str(number) / "new"
        if into.exists():  # only the hidden folder, empty, was to be removed
            num_whole += 1
        else:
            left = sorted(into.parent.iterdir())
            found = fork_run(made, 6, into)
            assert list(found.left) == left
            assert [f"{path} is of a fork that was killed" in str(found) for path in left] == [True] * len(
                left
            )
        assert contents(into) == contents(expected)
    assert num_whole <= 2


def test_a_fork_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = parent(tmp_path / "run")

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(CurriculumLog, "append", full)
    with pytest.raises(
        StateError, match=r"new/fork'\n  got:  No space left on device\n.*\n  cure: make room"
    ):
        fork_run(made, 6, tmp_path / "new" / "fork")
    assert not list((tmp_path / "new").iterdir())
    for name in ("run/recipe.toml/new", "n" * 250, "n" * 300):  # below a file, and too long
        with pytest.raises(StateError, match=f"no fork can be made at '{tmp_path}/{name}'\n  got: "):
            fork_run(made, 6, tmp_path / name)


@pytest.mark.parametrize("into", ["new", "new/fork"])
def test_a_fork_breaks_no_log_by_lying_in_it(into: str, tmp_path: Path) -> None:
    made = parent(tmp_path / "run")
    (tmp_path / "named").symlink_to("run/curriculum")
    before = contents(made)
    for folder in ("run/curriculum", "named"):
        with pytest.raises(
            StateError, match=r"got:  it is in the curriculum log .*/run/curriculum, which has"
        ):
            fork_run(made, 6, tmp_path / folder / into)
    assert contents(made) == before
    fork_run(made, 6, made / "forks" / into)  # a run folder may have more
    assert len(log_of(made).read()) == 5


def test_a_fork_takes_the_place_of_an_empty_folder_and_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = parent(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    (tmp_path / "named").symlink_to("empty")
    fork_run(made, 6, tmp_path / "named")
    assert log_of(tmp_path / "empty").exists
    (tmp_path / "file").write_text("x")
    with pytest.raises(StateError, match=r"file'\n  got:  .*Not a directory"):
        fork_run(made, 6, tmp_path / "file")
    with pytest.raises(StateError, match="got:  it is not empty: curriculum and 2 more in it"):
        fork_run(made, 6, tmp_path / "empty")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(StateError, match="got:  it is the folder in which this runs"):
        fork_run(made, 6, ".")
    assert sorted(os.listdir(tmp_path)) == ["empty", "file", "here", "named", "run"]


def test_a_fork_of_a_bare_log_says_that_it_has_no_recipe(tmp_path: Path) -> None:
    made = parent(tmp_path / "run")
    whole, bare = (fork_run(made / f, 6, tmp_path / f"new{f}") for f in ("", "curriculum"))
    assert (whole.has_recipe, bare.has_recipe) == (True, False)
    notes = str(bare).splitlines()
    assert (
        f"no recipe.toml is in {bare.folder}, as none lies beside the log; the first start writes it" in notes
    )
    assert notes[-1].endswith(
        f"with `run_folder` {bare.folder} and the run's recipe: zc.Run('{bare.folder}', recipe).loader(...)"
    )
    assert "recipe" not in str(whole)
    assert History.read(log_of(bare.folder)).base == History.read(log_of(whole.folder)).base


def test_a_state_of_the_parent_from_behind_the_fork_is_named_as_such(tmp_path: Path) -> None:
    """And one of the fork itself, or with shares that are the same, is not."""
    log, fork = tmp_path / "run" / "curriculum", tmp_path / "fork" / "curriculum"
    states = {}
    with run(OPENED, log, world=2) as ranks:
        propose(log, at_step=6, retire=("web",))
        for step in range(1, 9):
            ranks.steps(1)
            states[step] = ranks.state()
    fork_run(tmp_path / "run", 4, tmp_path / "fork")
    says = (
        r"the state is behind the fork: this run folder goes its own way from step 4 on\n"
        rf"  got:  a state after 8 steps, of {tmp_path}/run, with other shares in them\n"
        r"(.*\n)*  cure: give a checkpoint of at most 4 steps, or fork at step 8 or later"
    )
    with run(OPENED, fork, world=2) as ranks:
        for loader in ranks.loaders:
            with pytest.raises(StateError, match=says):
                loader.load_state_dict(states[8])
            loader.load_state_dict(states[8], allow=["schedule"])
            loader.load_state_dict(states[6])  # in steps [4, 6) nothing differs
            loader.load_state_dict(states[4])
        assert ranks.steps(5) == digests(OPENED, 9)[4:]
        own = ranks.state()
    edited = with_recipe(OPENED, recipe({**STAGES, 6: {"web": 0, "code": 1, "math": 3}}))
    shutil.copytree(fork, tmp_path / "edited")
    with run(edited, tmp_path / "edited") as ranks:
        ranks.steps(1)
    with (
        run(edited, tmp_path / "edited") as ranks,
        pytest.raises(StateError, match="the schedule differs from the state's in steps that are done"),
    ):
        ranks.loaders[0].load_state_dict(own)
