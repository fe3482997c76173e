"""Which documents a survey looks at, and what it counts of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import Letters, words
from zephon import survey
from zephon.dataset import Dataset
from zephon.errors import Fault
from zephon.readers import open_reader
from zephon.survey import MAX_VALUES, Seen, Survey, histogram, look, mean_bytes, quantiles


def seen(**fields: object) -> Seen:
    """Returns a document of three bytes that was looked at."""
    values = {"file": "a", "record": 0, "text": "abc", "num_bytes": 3, "num_tokens": 4, "fault": None}
    return Seen(**values | {"columns": {}} | fields)  # type: ignore[arg-type]


@given(total=st.integers(2, 5000), data=st.data(), key=st.integers(0, 1 << 60))
def test_a_sample_has_as_many_documents_as_asked_each_once(total: int, data: st.DataObject, key: int) -> None:
    wanted = data.draw(st.integers(1, total - 1))
    numbers = survey._spread(key, total, wanted)
    assert len(numbers) == wanted
    assert (np.diff(numbers) > 0).all()
    assert 0 <= numbers[0] <= numbers[-1] < total


def test_a_sample_is_spread_evenly_and_keeps_its_places() -> None:
    assert survey._spread(7, 1000, 5).tolist() == survey._spread(7, 1000, 5).tolist()
    for key in range(20):
        few = survey._spread(key, 1000, 10)
        assert (few // 100).tolist() == list(range(10))
        many = survey._spread(key, 1_000_000, 6400)
        assert np.bincount(many // 100_000).tolist() == [640] * 10


@pytest.mark.parametrize("long", [False, True])
def test_a_document_is_as_likely_as_any_other_whatever_its_length(tmp_path: Path, long: bool) -> None:
    """Chunks of JSONL have a MiB, so one has few long documents or many short ones."""
    texts = ["s" * 5] * 9000 + (["l" * 40_000] * 1000 if long else ["s" * 6] * 1000)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    dataset = Dataset.from_path("web", str(path))
    reader = open_reader(dataset, base=tmp_path, cache=tmp_path / "cache", spool_bytes=1 << 30)
    lengths = [found.num_bytes for found in look(dataset, reader, seed=0, num_documents=500)]
    assert len(lengths) == 500
    assert 40 <= sum(length > 5 for length in lengths) <= 60
    reader.close()


def test_one_call_that_reads_only_a_part_is_followed_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "MAX_BYTES", 10)
    dataset = Dataset.from_documents("web", words("w", 50))
    reader = open_reader(dataset, base=tmp_path, cache=tmp_path, spool_bytes=1)
    reports: list[tuple[str, int, int]] = []
    found = list(look(dataset, reader, seed=0, num_documents=None, encoder=Letters(eos=True),
                      report=lambda *at: reports.append(at)))  # fmt: skip
    assert [one.text for one in found] == words("w", 50)
    assert [one.record for one in found] == list(range(50))
    assert [one.num_tokens for one in found] == [len(text) + 1 for text in words("w", 50)]
    assert reports[-1] == ("look at web", 50, 50)


def test_faults_count_for_themselves_and_empty_documents_too() -> None:
    found = Survey("web")
    for one in (seen(), seen(num_bytes=0, num_tokens=0), seen(fault=Fault("null", "null", "a text"))):
        found.add(one)
    assert (found.num_seen, found.num_empty, dict(found.faults)) == (3, 1, {"null": 1})
    assert (list(found.bytes), list(found.tokens)) == ([3, 0], [4, 0])


def test_values_are_counted_up_to_a_bound() -> None:
    found = Survey("web")
    for i in range(MAX_VALUES + 5):
        found.add(seen(columns={"id": i, "tags": ["a", 1], "lang": None}))
    assert len(found.columns["id"]) == MAX_VALUES
    assert found.num_others == {"id": 5}
    assert found.columns["tags"] == {"['a', 1]": MAX_VALUES + 5}
    assert found.columns["lang"] == {None: MAX_VALUES + 5}


def test_a_histogram_has_a_bin_for_each_power_of_two() -> None:
    assert histogram([]) == []
    assert histogram([5]) == [(4, 8, 1)]
    assert histogram([0, 1, 2, 3, 9]) == [(0, 1, 1), (1, 2, 1), (2, 4, 2), (4, 8, 0), (8, 16, 1)]


@given(st.lists(st.integers(0, 1 << 40), min_size=1))
def test_every_value_is_in_its_bin(values: list[int]) -> None:
    for first, last, number in histogram(values):
        assert number == sum(first <= value < last for value in values)


def test_quantiles_are_values_that_are_met() -> None:
    assert quantiles([]) is None
    found = quantiles([1, 2, 3, 10])
    assert found == {"least": 1, "p5": 1, "median": 2, "p95": 3, "greatest": 10}


# Tokens of a whole dataset ----------------------------------------------------------------------------------


def corpus(folder: Path, kind: str) -> tuple[Dataset, int]:
    """Returns a dataset whose documents' lengths differ by file and inside each, and its tokens with EOS."""
    chance, lengths = np.random.default_rng(3), list[int]()
    folder.mkdir()
    for number in range(6):
        of_file = np.minimum(20_000, chance.lognormal(3 + 0.7 * number, 1, 300 >> number)).astype(int) + 1
        lengths += of_file.tolist()
        rows = [{"url": "u" * int(chance.integers(20, 300)), "text": "a" * length} for length in of_file]
        path = folder / f"{number}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=50, use_dictionary=False)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Dataset.from_path("web", str(folder)), sum(lengths) + len(lengths)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("is_sampled", [False, True])
def test_the_tokens_of_a_dataset_are_estimated_by_its_bytes(
    kind: str, is_sampled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, exact = corpus(tmp_path / "web", kind)
    reader = open_reader(dataset, base=tmp_path, cache=tmp_path / "cache", spool_bytes=1 << 30)
    total = int(reader.chunks().num_documents.sum())
    if is_sampled:
        monkeypatch.setattr(survey, "MEASURED_BYTES", 100_000)
    for seed in range(5):
        found = Survey("web")
        for each in look(dataset, reader, seed=seed, num_documents=50, encoder=Letters()):
            found.add(each)
        found.mean_bytes = mean_bytes(dataset, reader, seed=seed)
        assert found.tokens_of(total) == pytest.approx(exact, rel=0.25 if is_sampled else 0.02)
    reader.close()


def test_tokens_are_exact_where_every_document_was_looked_at() -> None:
    found = Survey("web", mean_bytes=1000.0)
    assert found.tokens_of(2) is None
    found.add(seen())
    found.add(seen(num_tokens=9, num_bytes=8))
    assert found.tokens_of(2) == 13
