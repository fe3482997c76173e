"""The launch check: every fault its own finding, one report, and what it says can be acted on."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import BOS, EOS, faulty, make_recipe, open_small, words, write_tokenizer
from tests.token_data import write_bin, write_jsonl, write_npy
from zephon import CheckError, Constant, Dataset, Packing, Recipe, Stages
from zephon.check import check_recipe
from zephon.check import data as check_data
from zephon.check.plan import check_shape
from zephon.check.probe import Probe
from zephon.check.report import ERROR, WARNING, CheckReport, Finding, format_bytes
from zephon.indexing import index_recipe
from zephon.paths import DataFile
from zephon.readers import ChunkTable, Origin, open_reader
from zephon.spool import Spool

pytestmark = pytest.mark.usefixtures("probed_once")


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tokenizer(tmp_path_factory.mktemp("letters")))


def run(recipe: Recipe, tmp_path: Path, sizes: Sequence[int] = (1,), micro: int | None = None) -> CheckReport:
    return check_recipe(
        recipe, dp_world_sizes=sizes, micro_batch_size=micro, cache=tmp_path / "cache", backend="tokenizers"
    )


def named(report: CheckReport, severity: str) -> dict[str, str]:
    """Returns the messages of one severity by subject, joined."""
    found: dict[str, str] = {}
    for finding in report.by_severity(severity):
        found[finding.subject] = found.get(finding.subject, "") + finding.message
    return found


def shape(recipe: Recipe, sizes: Sequence[int], severity: str, micro: int | None = None) -> list[Finding]:
    return [f for f in check_shape(recipe, sizes, micro) if f.severity == severity]


def test_a_good_recipe_passes_and_its_facts_are_those_of_the_data(letters: str, tmp_path: Path) -> None:
    documents = {"web": ["abcde"] * 40, "code": ["abcdefghi"] * 10}
    recipe = make_recipe(
        documents, Constant({"web": 3, "code": 1}), tokenizer=letters, lanes=2, total_steps=5
    )
    report = run(recipe, tmp_path, (1, 2))
    assert report.ok
    assert named(report, WARNING) == {}
    assert named(report, "ok")["dataset web"] == "all 40 documents read, no fault"
    web, code = report.datasets
    assert (web.num_documents, web.tokens_per_document, web.num_tokens, web.share) == (40, 6.0, 240, 0.75)
    assert code.num_tokens == 100
    assert web.epochs_per_1000_steps == pytest.approx(1000 * 64 * 0.75 / 240)
    assert [rank.num_streams for rank in report.memory] == [4, 2]
    assert report.memory[0].total_bytes > report.memory[1].total_bytes
    assert repr(report) == "CheckReport: check passed: 0 errors, 0 warnings"
    report.raise_if_failed()


@pytest.mark.parametrize(("total_steps", "share"), [(1000, 0.75), (None, 0.375)])
def test_share_and_epochs_are_those_of_the_whole_run(
    letters: str, tmp_path: Path, total_steps: int | None, share: float
) -> None:
    stages = Stages({0: {"web": 1, "code": 0}, 500: {"web": 1, "code": 1}, 1000: {"web": 0, "code": 1}})
    documents = {"web": ["abcde"] * 40, "code": ["abcdefghi"] * 10}
    recipe = make_recipe(documents, stages, tokenizer=letters, lanes=2, total_steps=total_steps)
    web, code = run(recipe, tmp_path).datasets
    assert (web.share, code.share) == (share, 1 - share)
    assert web.epochs_per_1000_steps == pytest.approx(1000 * 64 * share / 240)
    assert code.epochs_per_1000_steps == pytest.approx(1000 * 64 * (1 - share) / 100)


@pytest.mark.parametrize(
    ("controller", "message"),
    [
        ({"kind": "threshold"}, "'dataset' is missing"),
        ({"kind": "exp3", "evry": 7}, "evry"),
        ({"kind": "nobodys"}, "no controllers named 'nobodys'"),
        ({"every": 7}, "[controller] must have a `kind`"),
    ],
)
def test_a_controller_that_no_start_could_build_is_a_finding(
    letters: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controller: Any, message: str
) -> None:
    monkeypatch.setenv("ZEPHON_PLUGINS", "zephon-curriculum")
    recipe = make_recipe({"web": words("web", 40, (3,))}, Constant({"web": 1}), tokenizer=letters, lanes=2)
    good = run(replace(recipe, controller={"kind": "exp3", "every": 7}), tmp_path)
    assert "controller" not in named(good, ERROR)
    assert "are the schedule's, the base; the controller may" in named(good, "ok")["controller"]
    assert "controller" not in named(run(recipe, tmp_path), "ok")
    report = run(replace(recipe, controller=controller), tmp_path)
    assert message in named(report, ERROR)["controller"]
    assert "controller" not in named(report, "ok")
    assert not report.ok


def test_every_fault_is_its_own_finding_of_one_report(letters: str, tmp_path: Path) -> None:
    (tmp_path / "ref.jsonl").write_text('{"text": "one"}\n{"body": "two"}\n')
    datasets = (
        Dataset.from_path("nowhere", str(tmp_path / "nowhere")),
        Dataset.from_path("ref", str(tmp_path / "ref.jsonl")),
        Dataset.from_documents("web", words("web", 40)),
    )
    recipe = make_recipe(datasets=datasets, schedule={"kind": "mad"}, tokenizer=str(tmp_path / "none"))
    report = run(replace(recipe, packing=Packing(seq_len=16, kind="square")), tmp_path, (3,))
    errors = named(report, ERROR)
    expected = {"lanes", "schedule", "work_source", "packing", "dataset nowhere", "dataset ref", "tokenizer"}
    assert set(errors) == expected
    assert "first record 1 of ref.jsonl" in errors["dataset ref"]
    assert all(finding.cure for finding in report.findings if finding.subject in ("lanes", "dataset nowhere"))
    [first, *_] = report.by_severity(ERROR)
    line = "CheckReport: check failed: 7 errors, 2 warnings; lanes: "
    assert repr(report) == line + first.message.splitlines()[0]
    with pytest.raises(CheckError) as caught:
        report.raise_if_failed()
    assert all(f"error:   {subject}: " in str(caught.value) for subject in expected)
    assert report.verdict() in str(caught.value)
    assert json.loads(json.dumps(report.to_json()))["ok"] is False


def test_the_report_is_the_same_for_the_same_recipe(letters: str, tmp_path: Path) -> None:
    recipe = make_recipe({"web": words("web", 3000, (1, 9, 4))}, tokenizer=letters)
    assert run(recipe, tmp_path) == run(recipe, tmp_path)


@pytest.mark.parametrize(
    ("batch", "lanes", "sizes", "cure"),
    [
        (64, 16, (8, 32), "set lanes = 32 or 64; or global_batch_size = 64 or 96 with lanes = 32"),
        (32, 32, (3, 6), "no lane count fits 32 rows and every size asked: set global_batch_size = 30 or 36"),
        (4, 4, (8,), "no lane count fits 4 rows and 8 ranks: set global_batch_size = 8 or 16 with lanes = 8"),
    ],
)
def test_the_cure_lists_what_fits_every_size(
    batch: int, lanes: int, sizes: tuple[int, ...], cure: str
) -> None:
    [finding] = shape(make_recipe(global_batch_size=batch, lanes=lanes), sizes, ERROR)
    assert finding.cure.startswith(cure)


def test_what_the_cure_proposes_fits() -> None:
    for lanes in (32, 64):
        assert shape(make_recipe(global_batch_size=64, lanes=lanes), (8, 32), ERROR) == []
    for batch in (30, 36):
        assert shape(make_recipe(global_batch_size=batch, lanes=6), (3, 6), ERROR) == []


def test_as_many_lanes_as_rows_is_a_warning_that_names_fewer() -> None:
    [finding] = shape(make_recipe(global_batch_size=32), (4,), WARNING)
    assert "only multiples of 32 rows" in finding.message
    assert "lanes = 4, 8 or 16" in finding.cure
    assert shape(make_recipe(global_batch_size=32, lanes=16), (4,), WARNING) == []


def test_micro_batches_must_divide_the_rows_of_a_rank() -> None:
    recipe = make_recipe(global_batch_size=32, lanes=8)
    [finding] = shape(recipe, (1, 8), ERROR, micro=8)
    assert finding.message == "8 does not divide the 4 rows that each of 8 ranks has"
    assert finding.cure == "set one of 1, 2, 4"


@pytest.mark.parametrize(("sizes", "micro"), [((), None), ((0,), None), ((True,), None), ((1,), 0)])
def test_wrong_arguments_are_refused(sizes: tuple[int, ...], micro: int | None, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be"):
        run(make_recipe(), tmp_path, sizes, micro)


def test_weights_that_come_to_nothing_are_warned_of(letters: str, tmp_path: Path) -> None:
    documents = {name: words(name, 900) for name in ("web", "code", "ref")}
    stages = Stages({0: {"web": 1e9, "code": 1, "ref": 0}, 50: {"web": 1, "code": 1, "ref": 0}})
    recipe = make_recipe(documents, stages, tokenizer=letters, lanes=2, total_steps=40)
    said = named(run(recipe, tmp_path), WARNING)["schedule"]
    assert "the share of 'code' at step 0 rounds to zero: weight 1 " in said
    assert "dataset 'ref' is never drawn" in said
    assert "the weights change at step 50, but the run ends at total_steps = 40" in said


def test_small_datasets_are_warned_of(letters: str, tmp_path: Path) -> None:
    recipe = make_recipe({"web": words("web", 900), "tiny": ["a", "b", "c"]}, tokenizer=letters)
    report = run(recipe, tmp_path)
    said = named(report, WARNING)["dataset tiny"]
    assert "3 documents for 4 lanes" in said
    assert "epochs in 1,000 steps: it has about 6 tokens" in said
    assert report.ok


def test_bad_records_fail_or_warn_as_the_dataset_says(letters: str, tmp_path: Path) -> None:
    documents = ["good", None, "fine", 7]
    stops, skips = faulty("stops", documents), faulty("skips", documents, on_error="skip", max_bad=9)
    report = run(make_recipe(datasets=(stops, skips), tokenizer=letters), tmp_path)
    assert set(named(report, ERROR)) == {"dataset stops"}
    said = named(report, WARNING)["dataset skips"]
    assert "1 of 4 records sampled cannot be used (null), first record 1 of skips" in said
    assert "(not_text), first record 3 of skips" in said


def test_a_dataset_without_text_fails(letters: str, tmp_path: Path) -> None:
    report = run(make_recipe({"web": words("web", 9), "blank": [""] * 9}, tokenizer=letters), tmp_path)
    assert named(report, ERROR) == {"dataset blank": "none of the 9 documents sampled has text"}


def test_half_empty_documents_and_surrogates_are_warned_of(letters: str, tmp_path: Path) -> None:
    report = run(make_recipe({"web": ["a", "", "b\ud800", ""]}, tokenizer=letters), tmp_path)
    said = named(report, WARNING)["dataset web"]
    assert "2 of 4 documents sampled are empty" in said
    assert "1 documents sampled hold lone surrogates" in said


def test_the_tokenizer_is_described(letters: str, tmp_path: Path) -> None:
    report = run(make_recipe(tokenizer=letters, bos="<s>"), tmp_path)
    said = named(report, "ok")["tokenizer"]
    assert f"{letters}/tokenizer.json, 258 ids, BOS '<s>' (id 256), EOS '</s>' (id 257)" in said
    assert "`tokenizers` serves because it was asked for" in said
    bare = run(make_recipe(tokenizer=letters, eos=False), tmp_path)
    assert "nothing marks where a document begins or ends" in named(bare, WARNING)["tokenizer"]


def test_padding_must_be_a_token(letters: str, tmp_path: Path) -> None:
    recipe = make_recipe(tokenizer=letters)
    report = run(replace(recipe, packing=replace(recipe.packing, pad_id=258)), tmp_path)
    assert named(report, ERROR) == {"packing": "pad_id = 258 is no token id: the vocabulary has 258"}


def test_what_was_not_looked_at_is_said(letters: str, tmp_path: Path) -> None:
    recipe = make_recipe({"web": words("web", 3000)}, tokenizer=letters)
    said = named(check_recipe(recipe, cache=tmp_path, backend="tokenizers", probe_s=0), "ok")["dataset web"]
    assert "of 3,000 documents read, in 1 of 3 chunks" in said
    assert "the others were not looked at" in said


def test_compressed_chunks_are_counted_against_the_disk(letters: str, tmp_path: Path) -> None:
    table = pa.table({"text": words("web", 64)})
    pq.write_table(table, tmp_path / "web.parquet", row_group_size=8)
    recipe = make_recipe(
        datasets=(Dataset.from_path("web", str(tmp_path / "web.parquet")),), tokenizer=letters, lanes=2
    )
    said = named(run(recipe, tmp_path), "ok")["cache"]
    assert said.startswith("compressed chunks expand to about 2.1 KiB in")
    assert "less what is there already" in said


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_chunks_that_are_read_where_they_lie_take_no_room(
    letters: str, tmp_path: Path, compression: str | None
) -> None:
    table, path = pa.table({"text": words("web", 64)}), tmp_path / "web.arrow"
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(str(path), table.schema, options=options) as writer:
        writer.write_table(table, 8)
    recipe = make_recipe(datasets=(Dataset.from_path("web", str(path)),), tokenizer=letters, lanes=2)
    report = run(recipe, tmp_path)
    assert report.ok
    assert ("cache" in named(report, "ok")) == (compression is not None)


def test_a_file_that_vanishes_is_a_finding_and_not_an_error(letters: str, tmp_path: Path) -> None:
    path = tmp_path / "web.parquet"
    pq.write_table(pa.table({"text": words("web", 64)}), path)
    dataset = Dataset.from_path("web", str(path))
    reader = open_reader(dataset, base=tmp_path, cache=tmp_path / "cache", spool_bytes=1 << 30)
    path.unlink()
    probe = Probe(dataset, reader, 0)
    assert probe.visit() is False
    [finding] = probe.findings()
    assert (finding.severity, finding.subject) == (ERROR, "dataset web")


def test_samples_are_spread_and_do_not_repeat(tmp_path: Path) -> None:
    dataset = Dataset.from_documents("web", words("web", 40_000))
    reader = open_reader(dataset, base=tmp_path, cache=tmp_path, spool_bytes=1 << 30)
    probes = [Probe(dataset, reader, seed) for seed in (0, 0, 1)]
    for probe in probes:
        while probe.visit():
            pass
    texts = [probe.first_texts() for probe in probes]
    assert texts[0] == texts[1] != texts[2]
    assert len(set(texts[0])) == len(texts[0])
    assert probes[0].sampled_chunks >= 32


def test_documents_read_of_a_chunk_stand_for_all_of_it(letters: str, tmp_path: Path) -> None:
    path = tmp_path / "web.parquet"  # row groups of 2,000 short documents, and as many of 20 long ones
    texts = (["a"] * 2000 + ["a" * 199] * 20) * 40
    tables = [pa.table({"text": texts[at:end]}) for at, end in ((0, 2000), (2000, 2020))]
    with pq.ParquetWriter(path, tables[0].schema) as writer:
        for table in tables * 40:
            writer.write_table(table)
    recipe = make_recipe(datasets=(Dataset.from_path("web", str(path)),), tokenizer=letters)
    [facts] = run(recipe, tmp_path).datasets
    exact = (2000 * 2 + 20 * 200) / 2020  # with EOS
    assert facts.sampled_documents < 0.02 * len(texts)
    assert facts.tokens_per_document == pytest.approx(exact, rel=0.3)


def test_files_that_were_not_read_count_by_their_bytes(letters: str, tmp_path: Path) -> None:
    lengths = [1 + 40 * (number % 7) ** 2 for number in range(400)]
    for number, length in enumerate(lengths):
        (tmp_path / f"{number:03}.jsonl").write_text((json.dumps({"text": "a" * length}) + "\n") * 20)
    recipe = make_recipe(datasets=(Dataset.from_path("web", str(tmp_path)),), tokenizer=letters)
    [facts] = run(recipe, tmp_path).datasets
    assert facts.sampled_chunks < 50
    exact = sum(length + 1 for length in lengths) / len(lengths)  # with EOS
    assert facts.tokens_per_document == pytest.approx(exact, rel=0.03)


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes_are_written_for_people(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


# Data that end, and held-out documents ----------------------------------------------------------------------


def finite_recipe(letters: str, mode: str, epochs: int = 1, **fields: object) -> Recipe:
    web = Dataset.from_documents("web", ["abcde"] * 40, max_epochs=epochs)
    code = Dataset.from_documents("code", ["abcdefghi"] * 100)
    weights = Constant({"web": 3, "code": 1})
    return make_recipe(
        datasets=(web, code), schedule=weights, tokenizer=letters, when_exhausted=mode, **fields
    )


def test_a_run_that_ends_before_its_total_steps_is_a_warning(letters: str, tmp_path: Path) -> None:
    def warnings(mode: str, **fields: object) -> dict[str, str]:
        return named(run(finite_recipe(letters, mode, lanes=2, **fields), tmp_path), WARNING)

    ends = "max_epochs = 1 ends it after about 5 steps"
    assert warnings("stop", total_steps=6) == {
        "dataset web": f"{ends}, and with it the run, before total_steps = 6"
    }
    for fields in ({"total_steps": 5}, {"epochs": 2, "total_steps": 6}):
        assert warnings("stop", **fields) == {}
    assert warnings("redistribute", total_steps=6) == {}
    report = run(finite_recipe(letters, "redistribute", total_steps=6), tmp_path)
    assert ends in named(report, "ok")["dataset web"]


@pytest.mark.parametrize(("mode", "is_warned_of"), [("stop", True), ("redistribute", True), ("pad", False)])
def test_a_few_documents_in_each_lane_are_warned_of(
    letters: str, tmp_path: Path, mode: str, is_warned_of: bool
) -> None:
    recipe = finite_recipe(letters, mode, lanes=8, global_batch_size=8)
    found = named(run(recipe, tmp_path), WARNING).get("dataset web", "")
    assert ("40 documents to read for 8 lanes, 5 or one more in each" in found) is is_warned_of


def test_lanes_without_documents_are_warned_of(letters: str, tmp_path: Path) -> None:
    def warning(mode: str) -> str:
        recipe = finite_recipe(letters, mode, lanes=64, global_batch_size=64)
        return named(run(recipe, tmp_path), WARNING)["dataset web"]

    assert warning("pad") == "40 documents for 64 lanes: 24 lanes have none of it"
    assert warning("stop").endswith("of it, and the run ends when such a lane is to draw from it")


def test_what_is_held_out_is_said(letters: str, tmp_path: Path) -> None:
    for part in Dataset.from_documents("web", ["abcde"] * 40).holdout(documents=8, seed=2):
        report = run(make_recipe(datasets=(part,), tokenizer=letters, total_steps=1), tmp_path)
        assert report.ok
        said = named(report, "ok")["dataset web"]
        assert said.startswith("8 of 40 documents are held out (seed 2); this is the part ")
        assert report.datasets[0].num_documents == (8 if "'valid'" in said else 40)
    too_many = Dataset.from_documents("web", ["abcde"] * 40).holdout(documents=21)[0]
    report = run(make_recipe(datasets=(too_many,), tokenizer=letters), tmp_path)
    assert "too many documents to hold out" in named(report, ERROR)["dataset web"]


def test_token_ids_are_counted_and_never_encoded(letters: str, tmp_path: Path) -> None:
    documents = [[BOS, 1, 2, EOS], [BOS, 3, EOS], []] * 10
    dataset = Dataset.from_path("ids", str(tmp_path / "ids"), **write_bin(tmp_path / "ids", documents))
    recipe = make_recipe(datasets=(dataset,), tokenizer=letters, lanes=2, bos="<s>")
    reader = open_reader(dataset, base=tmp_path, cache=tmp_path / "cache", spool_bytes=1 << 30)
    probe = Probe(dataset, reader, 0)
    assert probe.visit()
    assert probe.first_texts() == []
    report = run(recipe, tmp_path)
    assert report.ok
    [facts] = report.datasets
    assert (facts.num_documents, facts.tokens_per_document) == (30, 7 / 3)
    warned = named(report, WARNING)
    assert warned["dataset ids"].startswith("10 of 30 documents sampled are empty")


@pytest.mark.parametrize(
    ("bos", "eos", "warned"),
    [
        ("<s>", "</s>", ["do not begin with the recipe's BOS (id 256)", "do not end with the recipe's EOS"]),
        (False, "</s>", ["1 of 3 documents sampled do not end with the recipe's EOS (id 257)"]),
        (False, False, []),
    ],
)  # fmt: skip
def test_marks_that_documents_of_token_ids_lack_are_warned_of(
    bos: str | bool, eos: str | bool, warned: list[str], letters: str, tmp_path: Path
) -> None:
    documents = [[1, 2, EOS], [3, EOS], [4]]
    dataset = Dataset.from_path("ids", str(tmp_path / "ids"), **write_jsonl(tmp_path / "ids", documents))
    report = run(make_recipe(datasets=(dataset,), tokenizer=letters, lanes=1, bos=bos, eos=eos), tmp_path)
    found = [f for f in report.by_severity(WARNING) if f.subject == "dataset ids" and "sampled" in f.message]
    assert len(found) == len(warned)
    for finding, message in zip(found, warned, strict=True):
        assert message in finding.message
        assert "token ids are taken as they are" in finding.message


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_ids_beyond_the_vocabulary_are_found(on_error: str, letters: str, tmp_path: Path) -> None:
    fields = write_npy(tmp_path / "ids", [[1], [-1, 2], [3], [258], [4]])
    dataset = Dataset.from_path("ids", str(tmp_path / "ids"), **fields, on_error=on_error)
    report = run(make_recipe(datasets=(dataset,), tokenizer=letters, lanes=1, eos=False), tmp_path)
    message = named(report, ERROR if on_error == "raise" else WARNING)["dataset ids"]
    assert "2 of 5 records sampled cannot be used (not_tokens), first record 1 of a.npy" in message
    assert "the id -1" in message
    assert report.ok == (on_error == "skip")


def test_a_dataset_of_token_ids_without_any_is_an_error(letters: str, tmp_path: Path) -> None:
    fields = write_npy(tmp_path / "ids", [[], [], []])
    dataset = Dataset.from_path("ids", str(tmp_path / "ids"), **fields)
    report = run(make_recipe(datasets=(dataset,), tokenizer=letters, lanes=1), tmp_path)
    assert "none of the 3 documents sampled has tokens" in named(report, ERROR)["dataset ids"]


# Files, conditions, orders and streams ----------------------------------------------------------------------


def write_scores(folder: Path) -> str:
    """Writes 60 documents with a score of 0 to 4, or none or NaN in every sixth, and returns the path."""
    rows = [{"text": "abcde", "score": None if i % 12 == 5 else float(i % 6) if i % 6 < 5 else float("nan"),
             "lang": "en" if i % 2 else "de"} for i in range(60)]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), folder / "scores.parquet", row_group_size=7)
    return str(folder / "scores.parquet")


def write_streams(folder: Path, count: int) -> str:
    for number in range(count):
        (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(b'{"text": "abcde"}\n' * 30 * number))
    return str(folder / "*.jsonl.gz")


def checked(datasets: Sequence[Dataset], letters: str, tmp_path: Path, **fields: Any) -> CheckReport:
    values: dict[str, Any] = {"lanes": 2, "global_batch_size": 4, "total_steps": 1, "base": tmp_path}
    return run(make_recipe(datasets=tuple(datasets), tokenizer=letters, **values | fields), tmp_path)


def test_what_conditions_leave_is_said(letters: str, tmp_path: Path) -> None:
    path = write_scores(tmp_path)
    some = Dataset.from_path("some", path, where='score >= 2 and lang == "en"')
    first = Dataset.from_path("first", path, limit=12)
    both = Dataset.from_path("both", path, where="score >= 2", limit=12)
    report = checked([some, first, both], letters, tmp_path)
    said = named(report, "ok")
    assert "10 of 60 documents are left by `where`" in said["dataset some"]
    assert "12 of 60 documents are left by `limit`" in said["dataset first"]
    assert "12 of 60 documents are left by `where` and `limit`" in said["dataset both"]
    assert [facts.num_documents for facts in report.datasets] == [10, 12, 12]


@pytest.mark.parametrize("order", ["sorted:score", "sorted:-score"])
def test_documents_without_a_value_to_sort_by_are_counted(letters: str, tmp_path: Path, order: str) -> None:
    path = write_scores(tmp_path)
    mixed = Dataset.from_path("mixed", path, order=order)
    whole = Dataset.from_path("whole", path, order=order, where="score >= 0")
    report = checked([mixed, whole], letters, tmp_path)
    warned = named(report, WARNING)
    assert warned["dataset mixed"] == (
        "60 documents in order of 'score'; 10 of them have no value and come last"
    )
    assert "50 documents in order of 'score'; each has a value" in named(report, "ok")["dataset whole"]
    assert "dataset whole" not in warned


def test_streams_are_sampled_and_not_counted(letters: str, tmp_path: Path) -> None:
    stream = Dataset.from_path("logs", write_streams(tmp_path, 4), stream=True)
    report = checked([stream], letters, tmp_path)
    said = named(report, "ok")["dataset logs"]
    assert "a stream of 4 files, of which nothing is counted; each of 2 lanes takes whole files" in said
    assert "180 documents read, of the first records of 4 of 4 files, no fault" in said
    [facts] = report.datasets
    assert (facts.num_documents, facts.num_tokens, facts.tokens_per_document) == (None, None, 6.0)
    assert report.ok
    assert "documents not counted" in str(report)
    json.dumps(report.to_json())


def test_fewer_files_than_lanes_of_a_stream_fail_with_the_cure(letters: str, tmp_path: Path) -> None:
    stream = Dataset.from_path("logs", write_streams(tmp_path, 3), stream=True)
    report = checked([stream], letters, tmp_path, lanes=4)
    [error] = report.by_severity(ERROR)
    assert error.subject == "dataset logs"
    assert "fewer files than lanes" in error.message
    assert error.cure.startswith("set lanes to 3 or fewer")


def test_a_catalogue_is_opened_once_and_named(
    letters: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_scores(tmp_path)
    old = Dataset.from_path("old", path, where="score >= 2", order="sorted:score")
    new = Dataset.from_path("new", path)
    recipe = make_recipe(datasets=(old,), tokenizer=letters, lanes=2, base=tmp_path)
    catalogue_hash, _, _ = index_recipe(recipe, str(tmp_path / "made"), cache=tmp_path / "other")
    monkeypatch.setattr(check_data, "MANY_FILES", 2)
    texts = Dataset.from_documents("notes", ["abcde"] * 40)
    report = checked([old, new, texts], letters, tmp_path, catalogue="made")
    assert report.ok
    said = named(report, "ok")
    assert said["catalogue"] == (
        f"{catalogue_hash[:12]} of 'made' lists 1 of 2 datasets with files; these were not listed anew; "
        "not in it, so looked at: new"
    )
    assert "30 of 60 documents are left by `where`" in said["dataset old"]
    assert "files" not in named(report, WARNING)  # one file is unlisted


def test_without_its_catalogue_files_are_not_looked_at(letters: str, tmp_path: Path) -> None:
    web = Dataset.from_path("web", write_scores(tmp_path))
    texts = Dataset.from_documents("notes", ["abcde"] * 40)
    report = checked([web, texts], letters, tmp_path, catalogue="nowhere")
    [error] = report.by_severity(ERROR)
    assert error.subject == "catalogue"
    assert error.message.endswith("the datasets with files were not looked at")
    assert error.cure.startswith("run `zephon index` again")
    assert [facts.name for facts in report.datasets] == ["notes"]


def test_many_files_without_a_catalogue_are_warned_of(
    letters: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_data, "MANY_FILES", 4)
    stream = Dataset.from_path("logs", write_streams(tmp_path, 3), stream=True)
    scores = Dataset.from_path("scores", write_scores(tmp_path))
    report = checked([stream, scores], letters, tmp_path)
    [warning] = [f for f in report.by_severity(WARNING) if f.subject == "files"]
    assert warning.message.startswith("4 files are in no catalogue: opening them took 0 s here")
    assert warning.cure.startswith("run `zephon index RECIPE --out FOLDER` once")


def test_remote_files_are_said_and_counted_against_the_disk(letters: str, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for number in range(2):
        memory.pipe(f"/check/{number}.jsonl", b'{"text": "abcde"}\n' * 40)
        memory.pipe(f"/check/{number}.txt", b"abcde")
    web = Dataset.from_path("web", "memory://check/*.jsonl")
    texts = Dataset.from_path("texts", "memory://check/*.txt")
    away = Dataset.from_path("away", "gs://bucket/a.jsonl")
    report = checked([web, texts, away], letters, tmp_path)
    memory.rm("/check", recursive=True)
    said = named(report, "ok")
    assert "2 of 2 files are remote (memory://): what is read is kept in the cache" in said["dataset web"]
    assert "every document is fetched whenever it is read" in said["dataset texts"]
    assert said["cache"].startswith("compressed or remote chunks expand to about 2.0 KiB")
    [error] = report.by_severity(ERROR)
    assert (error.subject, error.cure) == ("dataset away", "pip install gcsfs")


def test_only_the_chunks_of_a_part_are_counted_against_the_disk(letters: str, tmp_path: Path) -> None:
    path = write_scores(tmp_path)

    def expands(dataset: Dataset) -> int:
        recipe = make_recipe(datasets=(dataset,), tokenizer=letters, lanes=2)
        data = check_data.DataCheck(recipe, tmp_path / "cache", None)
        data.run()
        return check_data.expanded_bytes([data.opened[0].reader])

    whole = expands(Dataset.from_path("web", path))
    sizes = [
        expands(Dataset.from_path("web", path, limit=limit, where=where))
        for limit, where in ((14, ""), (15, ""), (None, "score == 4"))
    ]
    assert sizes[0] < sizes[1] < whole
    assert sizes[2] == whole  # every chunk has one of these


def test_millions_of_chunks_are_counted_against_the_disk_at_once(tmp_path: Path) -> None:
    count = 1_000_000
    ones = np.ones(count, np.int32)
    table = ChunkTable(
        name="web", kind="parquet", files=[DataFile(path="/a", name="a", size_bytes=1, mtime_ns=1, entry=0)],
        samples=["x"], first_chunks=np.array([0, count]), places=ones, num_documents=1000 * ones,
        num_bytes=(2**31 - 100) * ones,
    )  # fmt: skip
    dataset = Dataset.from_path("web", "/a")
    source: Any = SimpleNamespace(table=table, chunks=table.chunks, read=None, identity=dict)
    spool = Spool(source, Origin(dataset=dataset, files=table.files, cache=tmp_path), limit_bytes=1)
    begin = time.process_time()
    assert check_data.expanded_bytes([spool]) == count * (2**31 - 100 + 8 * 1000)
    assert time.process_time() - begin < 2


def test_what_a_condition_keeps_in_memory_is_estimated(letters: str, tmp_path: Path) -> None:
    path = write_scores(tmp_path)
    sizes = [
        checked([Dataset.from_path("web", path, where=where)], letters, tmp_path).memory[0].orders_bytes
        for where in ("", "score >= 2")
    ]
    assert sizes == [4 * 60, (4 + 8) * 30]


def test_what_stays_unread_at_the_end_is_said_beforehand(letters: str, tmp_path: Path) -> None:
    short, long = ["short"] * 30, ["long text"] * 300
    datasets = (
        Dataset.from_documents("short", short, max_epochs=1),
        Dataset.from_documents("long", long, max_epochs=1),
    )
    report = run(make_recipe(datasets=datasets, eos=False, seq_len=16, tokenizer=letters), tmp_path)
    messages = [f.message for f in report.findings if f.subject == "dataset long" and "unread" in f.message]
    # 150 tokens of one dataset and as many of the other: of 2,700 about 2,550 are left, less part of a step.
    assert len(messages) == 1
    assert "of its 2,700 tokens (9" in messages[0]
    assert "the run ends after about 4 steps" in messages[0]


def test_windows_that_the_spool_cannot_hold_together_are_warned_of(
    letters: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = pa.table({"text": [f"document {i} " * 8 for i in range(8000)]})
    pq.write_table(texts, tmp_path / "a.parquet", row_group_size=100)  # 80 groups of rows, 4 groups of lanes
    dataset = Dataset.from_path("web", str(tmp_path / "a.parquet"))
    recipe = make_recipe(datasets=(dataset,), base=tmp_path, tokenizer=letters)
    assert not any("at once" in f.message for f in run(recipe, tmp_path).findings)
    sizes = [check_data.windows_bytes([open_small(recipe).readers[0]], lanes) for lanes in (1, 4)]
    assert sizes[1] == pytest.approx(4 * sizes[0], rel=0.01)
    monkeypatch.setattr("zephon.check.SPOOL_BYTES", sizes[1] - 1)
    [found] = [f for f in run(recipe, tmp_path).findings if "at once" in f.message]
    assert (found.severity, found.subject) == ("warning", "cache")
