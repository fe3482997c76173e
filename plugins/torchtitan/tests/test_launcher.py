"""The documented command, as a user types it: torchrun, the example's config, data made by `zephon demo`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plugins.torchtitan.tests.corpus import words, write_jsonl
from plugins.torchtitan.tests.ranks import PLUGIN, digests_of, read_scalars

LOSS = "loss_metrics/global_avg_loss"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Returns a folder with what the example's recipe names, as `zephon demo` makes it, but smaller."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    code, prose = words("code", 200, (5, 40)), words("prose", 100, (30, 90))
    write_jsonl(tmp_path / "data" / "code" / "stdlib.jsonl", code)
    (tmp_path / "data" / "prose").mkdir()
    pq.write_table(pa.table({"text": prose}), tmp_path / "data" / "prose" / "texts.parquet")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=letters, show_progress=False
    )
    tokenizer.train_from_iterator([*code, *prose], trainer)
    tokenizer.save(str(tmp_path / "data" / "tokenizer.json"))
    return tmp_path / "data"


def command(data: Path, dump: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Returns how the launcher ended, in the plugin's folder."""
    environment = os.environ | {"ZEPHON_DATA": str(data)}
    common = ["--module", "example", "--config", "laptop", "--hf-assets-path", str(data)]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "zephon_torchtitan.cpu",
            *arguments,
            *common,
            "--dump-folder",
            str(dump),
            "--training.steps",
            "2",
        ],
        cwd=PLUGIN,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_the_documented_command_trains_the_example(data: Path, tmp_path: Path) -> None:
    done = command(data, tmp_path / "dump", "--processes", "2")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert sorted(digests_of(tmp_path / "dump" / "data")) == [0, 1]
    scalars = read_scalars(sorted((tmp_path / "dump").glob("tb/**/events.out.tfevents.*")))
    assert list(scalars[LOSS]) == [1, 2]
    assert (tmp_path / "dump" / "checkpoint" / "step-2").is_dir()


@pytest.mark.full
def test_a_refusal_is_said_once_through_torchrun_too(tmp_path: Path) -> None:
    done = command(tmp_path / "no_data", tmp_path / "dump", "--processes", "2")
    said = done.stdout + done.stderr
    assert done.returncode == 1  # torchrun's own
    assert said.count("the run is refused") == 1


@pytest.mark.parametrize("given", [(), ("0",), ("two",)])
def test_a_wrong_number_of_processes(given: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zephon_torchtitan.cpu", "--processes", *given],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert "--processes takes a number of processes >= 1" in done.stderr


def test_a_command_without_a_config_says_what_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zephon_torchtitan.cpu", "--help"],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("name a config: --module")
