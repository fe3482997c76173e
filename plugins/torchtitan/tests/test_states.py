"""What a checkpoint holds; where it lacks the data's state, a run never begins the data anew unsaid."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import zephon as z
from plugins.torchtitan.tests.corpus import LONG, STEPS, write_jsonl
from plugins.torchtitan.tests.fixtures import Titan
from plugins.torchtitan.tests.ranks import Job, digests_of
from zephon_torchtitan import phase

REFUSED = "the run is refused"
CURE = "--dataloader.restart-data"
THREE = ("--training.steps", "3")


@pytest.fixture(scope="module")
def three_steps(titan: Titan, seeded: list[str]) -> Job:
    """Returns a run of 2 ranks to step 3, with a full checkpoint there."""
    return titan.run(2, "three_steps", *seeded, *THREE).ok()


def copied(job: Job, dump: Path) -> Path:
    """Returns a dump folder with the job's checkpoints and run folder."""
    shutil.copytree(job.dump / "checkpoint", dump / "checkpoint")
    shutil.copytree(job.dump / "data", dump / "data")
    return dump


def check_refused(job: Job, *parts: str) -> None:
    """Fails unless every rank ended with 5, with one report of `parts` and without a step."""
    assert set(job.codes) == {5}, f"exit codes {job.codes}\n{job.tail()}"
    assert job.log.count(REFUSED) == 1, job.tail()
    for part in parts:
        assert part in job.log.partition(REFUSED)[2]
    assert not job.losses


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_checkpoint_holds_one_key_for_each_lane_and_the_shared_ones(three_steps: Job) -> None:
    from torch.distributed.checkpoint import FileSystemReader, load
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    reader = FileSystemReader(three_steps.dump / "checkpoint" / "step-3")
    found = reader.read_metadata().state_dict_metadata
    ours = {key: value for key, value in found.items() if key.startswith("dataloader.")}
    lanes = [f"lane_{lane:05d}" for lane in range(8)]
    shared = ["began_at", "lock", "recipe", "schedule", "version"]
    assert sorted(ours) == sorted(f"dataloader.{name}" for name in [*lanes, *shared])
    assert all(isinstance(value, BytesStorageMetadata) for value in ours.values())
    state = dict.fromkeys(ours, b"")
    load(state, storage_reader=reader, no_dist=True)
    leaves = {key.removeprefix("dataloader."): value for key, value in state.items()}
    assert {name: type(value) for name, value in leaves.items()} == {
        **dict.fromkeys(lanes, bytes),
        **dict.fromkeys(["lock", "recipe", "schedule"], str),
        **dict.fromkeys(["began_at", "version"], int),
    }
    for lane, name in enumerate(lanes):
        entry = json.loads(leaves[name])
        assert (entry["lane"], entry["rows"]) == (lane, 3)
        assert len(leaves[name]) < 1000


def test_a_checkpoint_is_gone_on_from_in_a_new_phase(
    three_steps: Job, unbroken: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "phase1.json"
    folder = three_steps.dump / "checkpoint" / "step-3"
    monkeypatch.setattr("sys.argv", ["phase", str(folder), "--out", str(out)])
    phase.main()
    recipe = z.Recipe.from_toml(three_steps.dump / "data" / "recipe.toml").continue_from(out)
    with recipe.loader(dp_rank=0, dp_world_size=1) as loader:
        digests = [z.step_digest(z.digest(next(loader))) for _ in range(2)]
    assert digests == [unbroken.digests[step] for step in (3, 4)]
    longer = replace(recipe, packing=replace(recipe.packing, seq_len=4 * recipe.packing.seq_len))
    with longer.loader(dp_rank=0, dp_world_size=1) as loader:
        assert next(loader).step == 0


def test_what_is_no_checkpoint_of_the_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(z.StateError, match=r"step-9' holds no state of the data\n  got:  No such file"):
        phase.read_state(tmp_path / "step-9")
    (tmp_path / "checkpoint" / "step-9").mkdir(parents=True)
    with pytest.raises(z.StateError, match=r"checkpoint' holds no state of the data"):
        phase.read_state(tmp_path / "checkpoint")


def test_of_a_folder_of_checkpoints_the_newest_is_found(
    three_steps: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ZEPHON_PLUGINS", "zephon-torchtitan")
    folder, whole = tmp_path / "checkpoint", three_steps.dump / "checkpoint" / "step-3"
    shutil.copytree(whole, folder / "step-3")
    shutil.copytree(whole, folder / "step-12")
    shutil.copytree(whole, folder / "step-20", ignore=shutil.ignore_patterns(".metadata"))  # cut off
    (folder / "step-latest").touch()
    with caplog.at_level("INFO", "zephon"):
        assert z.find_state(folder) == z.find_state(whole)
    assert [record.message for record in caplog.records if "newest" in record.message] == [
        f"{folder}: the newest of 2 checkpoints is taken, step-12"
    ]
    shutil.rmtree(folder / "step-12")
    assert z.saved_steps(z.find_state(folder)) == 3


def test_a_checkpoint_of_which_the_data_is_not_loaded(titan: Titan, three_steps: Job, tmp_path: Path) -> None:
    dump = copied(three_steps, tmp_path / "dump")
    excluding = ("--checkpoint.enable", "--checkpoint.exclude-from-loading", "dataloader")
    check_refused(titan.run(2, dump, *excluding), CURE)
    job = titan.run(1, dump, *excluding, "--dataloader.restart-data").ok()
    assert list(job.losses) == [4, 5, 6, 7, 8]
    fresh = titan.run(1, tmp_path / "fresh", "--training.steps", "5").ok()
    assert job.digests == fresh.digests  # the data began anew, on purpose


def test_a_checkpoint_of_the_model_alone_begins_a_new_run(
    titan: Titan, seeded: list[str], unbroken: Job, tmp_path: Path
) -> None:
    saving = (*seeded, "--checkpoint.last-save-model-only")
    dump = tmp_path / "dump"
    titan.run(1, dump, *saving, *THREE).ok()
    check_refused(titan.run(2, dump, *saving), f"--checkpoint.initial-load-path {dump}/checkpoint/step-N")
    weights = ("--checkpoint.enable", "--checkpoint.initial-load-path", str(dump / "checkpoint" / "step-3"))
    job = titan.run(1, tmp_path / "new", *weights, *THREE).ok()
    assert list(job.losses) == [1, 2, 3]
    assert job.losses[1] < unbroken.losses[1] - 0.1  # it has learned
    assert job.digests == {step: unbroken.digests[step] for step in range(3)}


def test_a_checkpoint_of_fewer_lanes(titan: Titan, tmp_path: Path) -> None:
    one_step = ("--dataloader.set", "lanes=4", "--training.steps", "1")
    titan.run(1, tmp_path, "--checkpoint.enable", *one_step).ok()
    parts = ("dataloader.lane_0000", "set `lanes` to", CURE, "--dataloader.run-folder")
    check_refused(titan.run(2, tmp_path, "--checkpoint.enable"), *parts)
    excluding = ("--checkpoint.enable", "--checkpoint.exclude-from-loading", "dataloader", CURE)
    anew = ("--dataloader.run-folder", str(tmp_path / "anew"), "--training.steps", "3")
    job = titan.run(1, tmp_path, *excluding, *anew).ok()
    assert list(job.losses) == [2, 3]
    assert list(digests_of(tmp_path / "anew")) == [0, 1]


def test_a_checkpoint_that_the_stock_loader_wrote(titan: Titan, tmp_path: Path) -> None:
    folder = tmp_path / "c4"
    folder.mkdir()
    (folder / "data.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in LONG))
    dump = tmp_path / "dump"
    stock = ["--module", "plugins.torchtitan.tests.tiny", "--config", "stock", "--checkpoint.enable"]
    data = ("--dataloader.dataset-path", str(folder))
    titan.run_plain(1, dump, *stock, *data, *THREE).ok()
    check_refused(titan.run(2, dump, "--checkpoint.enable"), CURE, "dataloader.")
    excluding = ("--checkpoint.exclude-from-loading", "dataloader", "--dataloader.restart-data")
    job = titan.run(1, dump, "--checkpoint.enable", *excluding, "--training.steps", "5").ok()
    assert list(job.losses) == [4, 5]


@pytest.mark.full
def test_data_that_began_anew_keep_their_own_count(titan: Titan, three_steps: Job, tmp_path: Path) -> None:
    dump = copied(three_steps, tmp_path / "dump")
    excluding = ("--checkpoint.enable", "--checkpoint.exclude-from-loading", "dataloader")
    titan.run(1, dump, *excluding, "--dataloader.restart-data", "--training.steps", "6").ok()
    job = titan.run(2, dump, "--checkpoint.enable").ok()
    assert list(job.scalars["data/step"].values()) == [3, 4]
    assert list(job.scalars["data/trainer_step"].values()) == [7, 8]


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"seed": 8}, ("seed: state has 7, this run has 8",)),
        ({"lanes": 4}, ("lanes: state has 8, this run has 4",)),
        ({"weights": {0: {"short": 1, "long": 1}}}, ("the past cannot change", "schedule")),
    ],
    ids=["seed", "lanes", "past"],
)
def test_a_checkpoint_of_another_recipe(
    titan: Titan, three_steps: Job, tmp_path: Path, change: dict[str, object], parts: tuple[str, ...]
) -> None:
    recipe = titan.corpus.write(tmp_path / "recipe.toml", **change)
    dump = copied(three_steps, tmp_path / "dump")
    job = titan.run(2, dump, "--checkpoint.enable", "--dataloader.recipe", str(recipe))
    check_refused(job, *parts)
    assert len(job.digests) == 3  # of the run that was


def test_data_that_changed_since_the_checkpoint_must_be_accepted_by_name(
    titan: Titan, three_steps: Job, unbroken: Job, tmp_path: Path
) -> None:
    changed = write_jsonl(tmp_path / "long.jsonl", [text.upper() for text in LONG])
    dump = copied(three_steps, tmp_path / "dump")
    on_it = ("--checkpoint.enable", "--dataloader.set", f"datasets.long.path={changed}")
    check_refused(titan.run(2, dump, *on_it), "what the recipe names has changed", "allow", "data")
    job = titan.run(2, dump, *on_it, "--dataloader.allow", "tokenizer", "data").ok()  # apart by spaces
    assert list(job.losses) == [4, 5, 6, 7, 8]
    same = [job.digests[step] == unbroken.digests[step] for step in range(STEPS)]
    assert same == [True] * 3 + [False] * 5


def test_a_schedule_whose_future_alone_is_another_goes_on(
    titan: Titan, three_steps: Job, unbroken: Job, tmp_path: Path
) -> None:
    later = {0: {"short": 3, "long": 1}, 6: {"short": 1, "long": 3}}
    recipe = titan.corpus.write(tmp_path / "recipe.toml", weights=later)
    dump = copied(three_steps, tmp_path / "dump")
    job = titan.run(1, dump, "--checkpoint.enable", "--dataloader.recipe", str(recipe)).ok()
    same = [job.digests[step] == unbroken.digests[step] for step in range(STEPS)]
    assert same == [True] * 5 + [False] * 3


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_step_is_previewed_from_a_checkpoint(three_steps: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the rows from the checkpoint on are made, and they are those that a longer way gives."""
    zc = pytest.importorskip("zephon_curriculum")
    monkeypatch.setenv("ZEPHON_PLUGINS", "zephon-torchtitan,zephon-curriculum")
    checkpoint = three_steps.dump / "checkpoint" / "step-3"
    run = three_steps.dump / "data"
    assert z.find_state(checkpoint) == phase.read_state(checkpoint)
    cost = zc.preview_cost(run, range(4, 6), [2], checkpoint)
    assert cost.num_rows == 3
    near = zc.preview(run, range(4, 6), [2], checkpoint)
    for path in sorted((run / "snapshots").rglob("*.json")):
        path.unlink()
    far = zc.preview(run, range(4, 6), [2])
    assert near.digests() == far.digests()
