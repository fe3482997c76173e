"""A finished run is made again from its run folder, on other ranks, by the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from plugins.torchtitan.tests.corpus import STEPS
from plugins.torchtitan.tests.ranks import Job


def zephon(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Returns how the command line ended."""
    command = [sys.executable, "-m", "zephon", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_verify_makes_a_run_again_on_other_ranks(unbroken: Job) -> None:
    done = zephon("verify", str(unbroken.dump / "data"), "--dp", "4", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["equal"], found["num_steps"], found["num_rows"]) == (True, STEPS, STEPS * 8)
    assert not found["changed"]


def test_verify_names_the_first_row_that_differs(unbroken: Job, tmp_path: Path) -> None:
    shutil.copytree(unbroken.dump / "data", tmp_path / "data")
    (log,) = (tmp_path / "data" / "batches").iterdir()
    lines = log.read_text().splitlines()
    entry = next(i for i, line in enumerate(lines) if json.loads(line).get("step") == 5)
    batch = json.loads(lines[entry])
    batch["rows"][0][2] = "1" * 64
    lines[entry] = json.dumps(batch)
    log.write_text("\n".join(lines) + "\n")
    done = zephon("verify", str(tmp_path / "data"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "first at step 5 (a trainer that counts from 1 logs it as 6)" in done.stdout


def test_hash_compares_with_a_run_folder(unbroken: Job) -> None:
    folder = str(unbroken.dump / "data")
    done = zephon("hash", folder, "--steps", f"0:{STEPS}", "--dp", "2", "--compare", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert unbroken.digests[0] in done.stdout
