"""The interval holds what it says, on corpora made to break intervals; the design is the one it rests on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from zephon_curriculum.estimation.intervals import (
    Sample,
    bootstrap,
    half_width,
    rate_spread,
    spread,
)
from zephon_curriculum.estimation.sampling import (
    LOOKED_AT,
    choose,
    draw,
    draw_documents,
    inclusions,
    systematic,
)

CORPORA = 500
Floats = NDArray[np.float64]
Lengths = Callable[[np.random.Generator, int], Floats]


def test_chunks_are_sampled_in_proportion_to_size_and_spread_over_the_dataset() -> None:
    sizes = np.array([1, 2, 3, 4, 10, 5, 5, 10])
    assert inclusions(sizes, 4) == pytest.approx([0.1, 0.2, 0.3, 0.4, 1, 0.5, 0.5, 1])
    counts = np.zeros(len(sizes))
    for seed in range(2000):
        chosen = systematic(sizes, inclusions(sizes, 4), str(seed))
        assert len(chosen) == 4
        assert len(set(chosen.tolist()) & {0, 1, 2, 3}) == 1  # one of each half: they are 10 bytes of 20
        counts[chosen] += 1
    assert np.abs(counts / 2000 - inclusions(sizes, 4)).max() < 0.05


def test_a_sample_is_a_function_of_its_name() -> None:
    """Edit only when you mean to measure anew what is kept in caches."""
    assert choose(64, 5, "web").tolist() == [10, 17, 18, 57, 63]
    sizes = np.arange(1, 65)
    assert systematic(sizes, inclusions(sizes, 5), "web").tolist() == [26, 39, 48, 56, 63]


@settings(max_examples=100)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=60), st.integers(1, 70), st.integers(0, 9))
def test_every_design_has_the_chances_that_it_claims(sizes: list[int], chunks: int, seed: int) -> None:
    bytes_ = np.array(sizes) + 1
    chances = inclusions(bytes_, chunks)
    assert ((chances > 0) & (chances <= 1)).all()
    number = chances.sum()
    assert abs(number - round(number)) < 1e-6
    assert min(chunks, len(sizes)) <= round(number) <= min(chunks + 2, len(sizes))
    chosen = systematic(bytes_, chances, str(seed))
    assert len(chosen) == round(number)
    assert (np.diff(chosen) > 0).all()
    assert set(np.flatnonzero(chances == 1)) <= set(chosen.tolist())


def test_one_chunk_gives_no_spread_and_two_do() -> None:
    def sample(chunks: int) -> Sample:
        return Sample(
            inclusion=np.full(chunks, chunks / 10),
            population=np.full(chunks, 3),
            looked_at=np.full(chunks, 3),
            looked_bytes=np.full(chunks, 12.0),
            looked_variance=np.zeros(chunks),
            counted=np.full(chunks, 3),
            chance=np.ones(3 * chunks),
            bytes=np.full(3 * chunks, 4.0),
        )

    assert spread(sample(1), np.arange(3.0)) is None
    found = spread(sample(2), np.arange(6.0))
    assert found is not None
    assert found.freedom == 1
    # Cochran: K^2 (1 - k/K) s^2 / k, of the chunk totals 3 and 12, by hand
    assert found.variance == pytest.approx(100 * (1 - 0.2) * 40.5 / 2)


def test_a_census_is_exact() -> None:
    counts, sizes = np.array([3, 2]), np.array([30, 20])
    design = draw(counts, sizes, chunks=16, max_bytes=50, stream="x")
    assert design.chunks.tolist() == [0, 1]
    sample = taken(design.chunks, counts, [np.ones(3), np.ones(2)], design, "x")[0]
    assert sample.is_census
    found = spread(sample, np.array([1.0, 5, 2, 7, 3]))
    assert found is not None
    assert found.variance == 0
    assert half_width(found) == 0


# Coverage ---------------------------------------------------------------------------------------------------


def lognormal(sigma: float) -> Lengths:
    return lambda random, count: np.ceil(np.exp(random.normal(6, sigma, count)))


def pareto(random: np.random.Generator, count: int) -> Floats:
    return np.asarray(np.ceil(200 * (1 + random.pareto(2.2, count))))


def taken(chunks, counts, lengths, design, name):  # type: ignore[no-untyped-def]
    """Returns the sample of a design, and which documents it counts, as `counting.py` takes them."""
    columns, chances, looked = [], [], []
    for chunk, many, wanted in zip(design.chunks, design.looked_at, design.counted_bytes, strict=True):
        records = choose(int(counts[chunk]), int(many), f"{name} {chunk}")
        sizes = lengths[chunk][records]
        which, chance = draw_documents(sizes.astype(np.int64), int(wanted), f"{name} {chunk} counted")
        looked.append(sizes)
        columns.append(records[which])
        chances.append(chance)
    sample = Sample(
        inclusion=design.inclusion,
        population=counts[design.chunks],
        looked_at=design.looked_at,
        looked_bytes=np.array([sizes.sum() for sizes in looked]),
        looked_variance=np.array([sizes.var(ddof=1) if len(sizes) > 1 else 0.0 for sizes in looked]),
        counted=np.array([len(which) for which in columns]),
        chance=np.concatenate(chances),
        bytes=np.concatenate([lengths[c][which] for c, which in zip(design.chunks, columns, strict=True)]),
    )
    return sample, columns


def coverage(
    *, total: int, sampled: int, documents: int = 60, lengths: Lengths, uneven: bool = False, spread_of: str,
    fraction: float = 0.05, by_bootstrap: bool = False, corpora: int = CORPORA,
) -> tuple[float, float]:  # fmt: skip
    """Returns how often the intervals of tokens in all, and per byte, hold the truth.

    Chunks differ with a coefficient of variation of .25, in tokens per byte or in the lengths of documents,
    of which the sizes of chunks then say nothing; documents of a chunk differ by .2 in tokens per byte.
    """
    held = np.zeros(2)
    for number in range(corpora):
        random = np.random.default_rng(number)
        counts = (
            random.integers(documents // 4, documents * 3, total) if uneven else np.full(total, documents)
        )
        factor = random.lognormal(0, np.sqrt(np.log(1 + 0.25**2)), total)
        sizes = [lengths(random, count) for count in counts]
        if spread_of == "lengths":
            sizes = [np.ceil(size * f) for size, f in zip(sizes, factor, strict=True)]
            factor = np.ones(total)
        tokens = [
            np.ceil(size / 4.2 * f * random.lognormal(0, 0.2, len(size))) + 1
            for size, f in zip(sizes, factor, strict=True)
        ]
        weights = np.array([size.sum() for size in sizes]).astype(np.int64)
        if spread_of == "lengths":
            weights = np.full(total, int(weights.mean()))
        most = int(fraction * sum(size.sum() for size in sizes))
        design = draw(counts, weights, chunks=sampled, max_bytes=most, stream=str(number))
        sample, which = taken(design.chunks, counts, sizes, design, str(number))
        column = np.concatenate([tokens[c][w] for c, w in zip(design.chunks, which, strict=True)])
        slope = sample.expanded(column).sum() / sample.expanded(sample.bytes).sum()
        expanded, found = sample.expanded(column, slope), spread(sample, column, slope)
        rate, rate_found = rate_spread(sample, column, slope)
        assert found is not None
        assert rate_found is not None
        value = float(expanded.sum())
        ends = value - half_width(found), value + half_width(found)
        rate_ends = rate - half_width(rate_found), rate + half_width(rate_found)
        if by_bootstrap:
            ends = bootstrap(sample, expanded, None, stream=str(number)) or ends
            bottom = sample.expanded(sample.bytes, 1.0)
            rate_ends = bootstrap(sample, expanded, bottom, stream=str(number)) or rate_ends
        truth = sum(token.sum() for token in tokens)
        held += (
            ends[0] <= truth <= ends[1],
            rate_ends[0] <= truth / sum(s.sum() for s in sizes) <= rate_ends[1],
        )
    return float(held[0] / corpora), float(held[1] / corpora)


CASES = {
    "4 chunks": {"total": 60, "sampled": 4, "lengths": lognormal(1), "spread_of": "tokens"},
    "8 chunks": {"total": 60, "sampled": 8, "lengths": lognormal(1), "spread_of": "tokens"},
    "16 chunks": {"total": 60, "sampled": 16, "lengths": lognormal(1), "spread_of": "tokens"},
    "lengths": {"total": 60, "sampled": 8, "lengths": lognormal(1), "spread_of": "lengths"},
    "uneven": {"total": 60, "sampled": 8, "lengths": lognormal(1), "spread_of": "tokens", "uneven": True},
    "heavy": {"total": 60, "sampled": 16, "lengths": pareto, "spread_of": "tokens", "uneven": True},
    "heavier": {"total": 60, "sampled": 8, "lengths": lognormal(1.5), "spread_of": "tokens", "uneven": True},
    "most": {"total": 12, "sampled": 9, "lengths": lognormal(1), "spread_of": "tokens", "uneven": True},
    "all": {"total": 8, "sampled": 8, "documents": 200, "lengths": lognormal(1), "spread_of": "tokens",
            "fraction": 0.2},
    "one chunk": {"total": 1, "sampled": 8, "documents": 3000, "lengths": lognormal(1), "spread_of": "tokens",
                  "fraction": 0.02},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_interval_holds_the_truth_as_often_as_it_says(case: str) -> None:
    in_all, per_byte = coverage(**CASES[case])  # type: ignore[arg-type]
    assert 0.90 <= in_all <= 0.985
    assert 0.90 <= per_byte <= 0.985


def test_the_bootstrap_holds_the_truth_nearly_as_often() -> None:
    found = coverage(**CASES["16 chunks"], by_bootstrap=True, corpora=60)  # type: ignore[arg-type]
    assert min(found) >= 0.83


@pytest.mark.parametrize("chunks", [2, 3, 9])
def test_chunks_that_are_alike_have_a_bootstrap_of_no_width(chunks: int) -> None:
    sizes = np.random.default_rng(chunks).integers(10, 999, chunks).astype(float)
    sample = Sample(
        inclusion=np.full(chunks, 0.1),
        population=np.full(chunks, 1),
        looked_at=np.full(chunks, 1),
        looked_bytes=sizes,
        looked_variance=np.zeros(chunks),
        counted=np.full(chunks, 1),
        chance=np.ones(chunks),
        bytes=sizes,
    )
    assert bootstrap(sample, 0.3 * sizes, sizes, stream="x") == pytest.approx((0.3, 0.3), rel=1e-12)
    assert bootstrap(sample, np.full(chunks, 0.1), None, stream="x") == pytest.approx((0.1 * chunks,) * 2)
    assert bootstrap(sample, np.zeros(chunks), sizes, stream="x") == (0, 0)
    low, high = bootstrap(sample, sizes, None, stream="x") or (0.0, 0.0)
    assert low < sizes.sum() < high


def test_documents_as_units_would_be_wrong() -> None:
    """The reason for chunks as units: with documents as units the interval seldom holds the truth."""
    held = 0
    for number in range(200):
        random = np.random.default_rng(number)
        means = random.lognormal(0, 0.25, 100)
        chosen = random.choice(100, 8, replace=False)
        values = np.concatenate([random.normal(means[c], 0.25, 60) for c in chosen])
        half = 1.96 * values.std(ddof=1) / np.sqrt(len(values))
        held += abs(values.mean() - means.mean()) <= half
    assert held / 200 < 0.5


def test_a_rate_goes_by_its_residuals() -> None:
    sample = Sample(
        inclusion=np.full(3, 0.5),
        population=np.full(3, 2),
        looked_at=np.full(3, 2),
        looked_bytes=np.array([3.0, 7, 11]),
        looked_variance=np.full(3, 0.5),
        counted=np.full(3, 2),
        chance=np.ones(6),
        bytes=np.arange(1.0, 7),
    )
    rate, found = rate_spread(sample, 3 * np.arange(1.0, 7), 3.0)
    assert rate == 3
    assert found is not None
    assert found.variance == 0
    assert LOOKED_AT > 1
