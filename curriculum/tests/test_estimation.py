"""Estimates of real files: what they count, what they hold, when they refuse an interval, what is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from tests.helpers import Letters, make_recipe, open_small, sized, words, write_tokenizer
from tests.helpers import loaders as loaders_of
from tests.token_data import ids_of, write_bin, write_megatron
from zephon import Dataset, Opened
from zephon_curriculum.estimation.estimates import DatasetEstimate, Estimates
from zephon_curriculum.estimation.measure import TokenEstimation
from zephon_curriculum.estimation.weighing import Pinned
from zephon_curriculum.quantity import Quantity


@dataclass(frozen=True)
class Pairs(Letters):
    """An encoder that makes one token of two letters `a`, so that texts differ in tokens per byte."""

    def tokens(self, text: str) -> list[int]:
        return super().tokens(text.replace("aa", "a"))


def write_parquet(folder: Path, texts: Sequence[str], group: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"text": list(texts), "n": range(len(texts))})
    pq.write_table(table, folder / "a.parquet", row_group_size=group, use_dictionary=False)
    return folder


def opened_of(folder: Path, texts: Sequence[str], group: int = 10, **fields: Any) -> Opened:
    """Returns one Parquet dataset `web`, in row groups of `group` documents, opened."""
    path = write_parquet(folder / "web", texts, group)
    made = Dataset.from_path("web", str(path), **fields)
    return open_small(make_recipe(datasets=(made,), base=folder), folder / "cache")


def clustered(number: int, chunks: int = 40, group: int = 30) -> list[str]:
    """Returns documents of which those of a chunk are like each other, in tokens per byte and in length."""
    random = np.random.default_rng(number)
    texts = []
    for _ in range(chunks):
        part, longer = random.uniform(0.2, 0.8), random.lognormal(0, 0.25)
        for length in np.ceil(np.exp(random.normal(4, 1, group)) * longer).astype(int).tolist():
            alike = int(length * np.clip(random.normal(part, 0.1), 0, 1)) // 2
            texts.append("aa" * alike + "b" * (length - 2 * alike))
    return texts


def tokens_of(texts: Sequence[str]) -> int:
    return sum(len(Pairs(eos=True).tokens(text)) for text in texts if text)


def by_size(folder: Path, **fields: Any) -> TokenEstimation:
    return TokenEstimation(cache=folder / "cache", **fields)


# What is counted --------------------------------------------------------------------------------------------


def test_a_small_dataset_is_counted_whole_as_a_run_draws_it(tmp_path: Path) -> None:
    texts = [*words("web", 40), "", "x"]
    opened = open_small(make_recipe({"web": texts, "code": ["y" * 9]}, bos="<s>"))
    found = by_size(tmp_path).measure(opened)
    assert list(found) == ["web", "code"]
    tokens = sum(len(text) + 2 for text in texts if text)
    assert found["web"].how == "census"
    assert found["web"].documents == 42
    assert found["web"].tokens == Quantity.exactly(tokens)
    assert found["web"].tokens_per_document == Quantity.exactly(tokens / 42)
    assert found["web"].bytes == Quantity.exactly(sum(map(len, texts)))
    assert found["web"].empty == 1
    assert found["code"].tokens == Quantity.exactly(11)


@pytest.mark.parametrize(
    "fields", [{}, {"where": "n >= 17"}, {"limit": 33}, {"where": "n < 90", "limit": 31}], ids=str
)
def test_the_total_is_what_the_run_reads_in_an_epoch(tmp_path: Path, fields: Mapping[str, Any]) -> None:
    opened = opened_of(tmp_path, words("web", 100), max_epochs=1, **fields)
    opened = replace(opened, recipe=replace(opened.recipe, when_exhausted="pad", lanes=1))
    found = by_size(tmp_path).measure(opened)["web"]
    assert found.documents == opened.readers[0].chunks().num_documents.sum()
    with loaders_of(open_small(opened.recipe, tmp_path / "cache")) as [loader]:
        drawn = sum(int(b.tokens_by_dataset["web"].sum()) for b in loader)
    assert found.tokens == Quantity.exactly(drawn)


def test_documents_held_out_are_left_out_of_one_part_and_are_the_other(tmp_path: Path) -> None:
    texts = sized(200, [10, 20, 30, 40])
    path = write_parquet(tmp_path / "web", texts, 10)
    parts = Dataset.from_path("web", str(path)).holdout(documents=60)
    found = []
    for part in parts:
        opened = open_small(make_recipe(datasets=(part,), base=tmp_path), tmp_path / "cache")
        found.append(by_size(tmp_path, sample_bytes=10**9).measure(opened)["web"])
        sampled = by_size(tmp_path, sample_bytes=500, chunks=20).measure(opened)["web"]
        assert sampled.how == "sampled"
        assert sampled.documents == found[-1].documents
        assert sampled.tokens is not None
        assert found[-1].tokens is not None
        assert sampled.tokens.value == pytest.approx(found[-1].tokens.value, rel=0.25)
    train, valid = found
    assert (train.documents, valid.documents) == (140, 60)
    assert train.tokens is not None
    assert valid.tokens is not None
    assert train.tokens.value + valid.tokens.value == sum(len(text) + 1 for text in texts)


@pytest.mark.parametrize(("overlong", "tokens"), [("truncate", 8 + 16), ("drop", 8), ("split", 8 + 31)])
def test_overlong_documents_count_as_the_packing_takes_them(
    tmp_path: Path, overlong: str, tokens: int
) -> None:
    recipe = make_recipe({"web": ["a" * 7, "b" * 30]}, kind="best_fit", options={"overlong": overlong})
    assert by_size(tmp_path).measure(open_small(recipe))["web"].tokens == Quantity.exactly(tokens)


def test_faulty_documents_are_counted_apart(tmp_path: Path) -> None:
    path = tmp_path / "web.jsonl"
    path.write_text('{"text": "abc"}\n{"text": 5}\n{"text": ""}\n')
    dataset = Dataset.from_path("web", str(path), on_error="skip")
    opened = open_small(make_recipe(datasets=(dataset,), base=tmp_path), tmp_path / "cache")
    found = by_size(tmp_path).measure(opened)["web"]
    assert (found.faulty, found.empty, found.documents) == (1, 2, 3)
    assert found.tokens == Quantity.exactly(4)


@pytest.mark.parametrize("write", [write_bin, write_megatron])
def test_files_of_token_ids_say_their_tokens_themselves(tmp_path: Path, write: Any) -> None:
    documents = ids_of(words("web", 50))
    fields = write(tmp_path / "web", documents)
    dataset = Dataset.from_path("web", str(tmp_path / "web"), **fields)
    opened = open_small(make_recipe(datasets=(dataset,), base=tmp_path), tmp_path / "cache")
    found = by_size(tmp_path, sample_bytes=1).measure(opened)["web"]
    assert found.how == "counted"
    assert found.tokens == Quantity.exactly(sum(map(len, documents)))
    assert found.sampled_documents == 0
    limited = replace(dataset, limit=20)
    opened = open_small(make_recipe(datasets=(limited,), base=tmp_path), tmp_path / "cache")
    found = by_size(tmp_path).measure(opened)["web"]
    assert found.how == "census"
    assert found.tokens == Quantity.exactly(sum(map(len, documents[:20])))


# Intervals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [6, 12])
def test_intervals_of_real_files_hold_the_truth(tmp_path: Path, chunks: int) -> None:
    held, corpora = np.zeros(2), 30
    for number in range(corpora):
        texts = clustered(number)
        opened = replace(opened_of(tmp_path / str(number), texts, 30), encoder=Pairs(eos=True))
        found = by_size(tmp_path, chunks=chunks, sample_bytes=3000).measure(opened)["web"]
        assert found.how == "sampled"
        assert found.sampled_chunks == chunks
        truth = tokens_of(texts), tokens_of(texts) / sum(map(len, texts))
        for i, quantity in enumerate((found.tokens, found.tokens_per_byte)):
            assert quantity is not None
            assert quantity.low is not None
            assert quantity.high is not None
            held[i] += quantity.low <= truth[i] <= quantity.high
    assert held.min() / corpora >= 0.83  # 25 of 30: of a true 95 % once in 1,000


def test_a_narrow_interval_is_no_exact_number() -> None:
    def told(half: float) -> str:
        tokens = Quantity(value=1e6, low=1e6 * (1 - half), high=1e6 * (1 + half))
        found = DatasetEstimate(
            name="web", how="sampled", documents=9, bytes=None, tokens_per_byte=None, num_chunks=9,
            tokens_per_document=None, tokens=tokens,
        )  # fmt: skip
        return str(Estimates(datasets=(found,))).splitlines()[3]

    assert ["1M +-12%" in told(0.12), "1M +-0.012%" in told(0.00012)] == [True, True]


def test_one_of_many_chunks_gives_a_value_and_no_interval(tmp_path: Path) -> None:
    opened = opened_of(tmp_path, words("web", 100), group=10)
    found = by_size(tmp_path, chunks=1, sample_bytes=50).measure(opened)["web"]
    assert found.tokens is not None
    assert found.tokens.value > 0
    assert (found.tokens.low, found.tokens.high, found.tokens.std_error) == (None, None, None)
    assert "1 of 10 chunks" in found.tokens.reason
    assert "`chunks`" in found.tokens.reason


def test_one_chunk_alone_is_sampled_by_documents(tmp_path: Path) -> None:
    texts = clustered(3, chunks=1, group=800)
    opened = replace(opened_of(tmp_path, texts, 800), encoder=Pairs(eos=True))
    found = by_size(tmp_path, sample_bytes=4000).measure(opened)["web"]
    assert (found.sampled_chunks, found.num_chunks) == (1, 1)
    assert found.tokens is not None
    assert found.tokens.low is not None
    assert found.tokens.high is not None
    assert found.tokens.low < tokens_of(texts) < found.tokens.high


def test_a_stream_has_lengths_but_no_total(tmp_path: Path) -> None:
    for number in range(3):
        lines = [json.dumps({"text": text}) for text in words("web", 30)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines))
    dataset = Dataset.from_path("web", str(tmp_path / "*.jsonl"), stream=True)
    opened = open_small(make_recipe(datasets=(dataset,), lanes=1, base=tmp_path), tmp_path / "cache")
    found = by_size(tmp_path).measure(opened)["web"]
    assert (found.tokens, found.documents) == (None, None)
    assert found.tokens_per_document is not None
    assert found.tokens_per_document.value == pytest.approx(sum(len(w) + 1 for w in words("web", 30)) / 30)
    assert "stream" in found.tokens_per_document.reason


def test_the_bootstrap_takes_the_place_of_student_where_it_serves(tmp_path: Path) -> None:
    opened = replace(opened_of(tmp_path, clustered(1), 30), encoder=Pairs(eos=True))
    plain, boot = (
        by_size(tmp_path, chunks=12, sample_bytes=3000, bootstrap=b).measure(opened)["web"] for b in (0, 1)
    )
    assert boot.tokens is not None
    assert plain.tokens is not None
    assert boot.tokens.value == plain.tokens.value
    assert boot.tokens.low != plain.tokens.low
    assert "bootstrap" in boot.note
    few = by_size(tmp_path, chunks=60, sample_bytes=3000, bootstrap=True).measure(opened)["web"]
    assert "Student" in few.note


# What is kept, said and written -----------------------------------------------------------------------------


class Refusing(Letters):
    def encode(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        raise AssertionError("asked to encode")


def test_a_second_time_nothing_is_tokenized_until_something_differs(tmp_path: Path) -> None:
    opened = opened_of(tmp_path, words("web", 100))
    asked = by_size(tmp_path, sample_bytes=300)
    first = asked.measure(opened)
    silent = replace(opened, encoder=Refusing())
    assert asked.measure(silent) == first
    for other in (replace(asked, seed=1), replace(asked, chunks=5), replace(asked, sample_bytes=301)):
        with pytest.raises(AssertionError, match="asked to encode"):
            other.measure(silent)
    changed = {**opened.lock, "tokenizer": {"file": "another", "probe": "another"}}
    with pytest.raises(AssertionError, match="asked to encode"):
        asked.measure(replace(silent, lock=changed))


@pytest.mark.parametrize("damage", [lambda text: text[:-40], lambda text: text.replace("value", "valu")])
def test_a_damaged_file_of_the_cache_is_measured_again(tmp_path: Path, damage: Any) -> None:
    opened = opened_of(tmp_path, words("web", 100))
    asked = by_size(tmp_path, sample_bytes=300)
    first = asked.measure(opened)
    [path] = sorted((tmp_path / "cache" / "estimates").rglob("*.json"))
    written = path.read_text()
    path.write_text(damage(written))
    assert asked.measure(opened) == first
    assert path.read_text() == written


def test_estimates_do_not_depend_on_the_order_of_datasets_or_their_neighbours(tmp_path: Path) -> None:
    def measure(*names: str) -> Estimates:
        made = {name: words(name, 3000) for name in names}
        return by_size(tmp_path / "-".join(names), sample_bytes=999).measure(open_small(make_recipe(made)))

    assert measure("web", "code")["code"] == measure("code")["code"]


def test_pinned_values_are_carried_as_said(tmp_path: Path) -> None:
    texts = sized(100, [10, 30, 7, 21, 50, 3])
    opened = opened_of(tmp_path, texts)

    def pinned(**says: float) -> Any:
        asked = by_size(tmp_path, chunks=4, sample_bytes=300, pinned={"web": Pinned(**says)})
        return asked.measure(replace(opened, encoder=Refusing()))["web"]

    by_total, by_document, by_byte = (
        pinned(tokens=500),
        pinned(tokens_per_document=6),
        pinned(tokens_per_byte=0.5),
    )
    assert {one.how for one in (by_total, by_document, by_byte)} == {"pinned"}
    assert by_total.tokens_per_document == Quantity.exactly(5)
    assert by_document.tokens == Quantity.exactly(600)
    assert by_byte.tokens.low < sum(map(len, texts)) / 2 < by_byte.tokens.high
    assert by_byte.tokens_per_byte == Quantity.exactly(0.5)
    with pytest.raises(ValueError, match="must have one of"):
        Pinned(tokens=1, tokens_per_byte=1)
    with pytest.raises(TypeError, match=r"`pinned` of 'web' must be such as Pinned\(tokens=1e9\), got 500"):
        by_size(tmp_path, pinned={"web": 500})
    with pytest.raises(ValueError, match="`pinned` names 'wbe'"):
        by_size(tmp_path, pinned={"wbe": Pinned(tokens=1)}).measure(opened)


def test_estimates_round_trip_through_a_file(tmp_path: Path) -> None:
    opened = opened_of(tmp_path, words("web", 100))
    found = by_size(tmp_path, sample_bytes=300).measure(opened)
    found.write(tmp_path / "estimates.json")
    assert Estimates.read(tmp_path / "estimates.json") == found
    (tmp_path / "estimates.json").write_text('{"format": 9}')
    with pytest.raises(ValueError, match=r"estimates\.json holds no estimates: .* format 1, got 9"):
        Estimates.read(tmp_path / "estimates.json")


def test_datasets_can_be_measured_without_a_recipe(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "letters")
    dataset = Dataset.from_documents("web", ["abc", "de"])
    found = TokenEstimation(tokenizer, cache=tmp_path).measure(dataset)
    assert found["web"].tokens == Quantity.exactly(5)
    with pytest.raises(ValueError, match="`tokenizer` must be given"):
        TokenEstimation(cache=tmp_path).measure([dataset])


def test_another_tokenizer_of_a_recipe_adds_what_the_recipe_adds(tmp_path: Path) -> None:
    """A path says nothing of tokens at the ends of documents."""
    write_tokenizer(tmp_path / "letters")
    recipe = make_recipe({"web": ["abc", "de"]}, base=tmp_path)
    elsewhere = write_tokenizer(tmp_path / "elsewhere")
    found = TokenEstimation(elsewhere, cache=tmp_path).measure(recipe)
    assert found == TokenEstimation(cache=tmp_path).measure(recipe)
    assert found["web"].tokens == Quantity.exactly(7)


# Shares -----------------------------------------------------------------------------------------------------


NO_DATA = {"bytes": None, "tokens_per_byte": None, "tokens_per_document": None, "tokens": None}
BLANK = {
    "format": 1,
    "confidence": 0.95,
    "tokenizer": "",
    "datasets": [{"name": "x", "how": "pinned", "documents": 1, "num_chunks": 1, **NO_DATA}],
}
