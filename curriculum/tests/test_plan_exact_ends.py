"""When datasets end: exact against the loader, estimated against the exact."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import (
    Letters,
    digest_of,
    loaders,
    make_recipe,
    open_small,
    take_steps,
    words,
    write_tokenizer,
)
from tests.token_data import ids_of, write_bin
from zephon import DataError, Dataset, Drop, Opened, Recipe, Stages
from zephon_curriculum.estimation.estimates import SAMPLED, DatasetEstimate, Estimates
from zephon_curriculum.estimation.measure import TokenEstimation
from zephon_curriculum.opening import Opening
from zephon_curriculum.plan import Plan, plan
from zephon_curriculum.plan.exact_ends import census, exact_ends
from zephon_curriculum.quantity import Quantity


def texts(seed: int, count: int, mean: float = 40) -> list[str]:
    """Returns documents whose lengths are geometric: most are short, some long."""
    generator = np.random.Generator(np.random.Philox(key=seed))
    return ["x" * int(n) for n in generator.geometric(1 / mean, count)]


def finite(
    seed: int, when_exhausted: str = "stop", *, lanes: int = 8, rows: int = 16, **fields: int
) -> Recipe:
    """Returns a run of 8 lanes that reads `code` twice and `web` once; the shares change at step 20."""
    web = Dataset.from_documents("web", texts(seed, 3000), max_epochs=fields.get("web_epochs", 1))
    code = Dataset.from_documents("code", texts(seed + 100, 300), max_epochs=fields.get("code_epochs", 2))
    more = Dataset.from_documents("more", texts(seed + 200, 3000))
    stages = Stages({0: {"web": 4, "code": 1, "more": 1}, 20: {"web": 3, "code": 2, "more": 1}})
    return make_recipe(
        datasets=(web, code, more),
        schedule=stages,
        seq_len=64,
        lanes=lanes,
        global_batch_size=rows,
        seed=seed,
        when_exhausted=when_exhausted,
    )


def measured(opened: Opened, seed: int, part: float = 0.2) -> Estimates:
    """Returns what a sample of documents says, with intervals of 2 standard errors."""
    found = []
    for index, lengths in enumerate(census(opened)):
        generator = np.random.Generator(np.random.Philox(key=seed * 10 + index))
        count = int(part * len(lengths))
        sample = generator.choice(lengths, count, replace=False)
        error = float(sample.std(ddof=1)) * ((1 - part) / count) ** 0.5
        mean = float(sample.mean())
        one, total = (
            Quantity(
                value=n * mean,
                low=n * (mean - 2 * error),
                high=n * (mean + 2 * error),
                std_error=n * error,
            )
            for n in (1, len(lengths))
        )
        found.append(
            DatasetEstimate(
                name=opened.recipe.names[index],
                how=SAMPLED,
                documents=len(lengths),
                bytes=None,
                tokens_per_byte=None,
                tokens_per_document=one,
                tokens=total,
                num_chunks=1,
                sampled_documents=count,
            )
        )
    return Estimates(datasets=tuple(found))


def test_census_counts_what_the_encoder_gives() -> None:
    recipe = make_recipe({"web": ["abc", "", "xy"], "code": ["hello"]}, eos="</s>")
    opened = open_small(recipe)
    assert [lengths.tolist() for lengths in census(opened)] == [[4, 0, 3], [6]]
    assert isinstance(opened.encoder, Letters)


def mixed_kinds(folder: Path) -> Recipe:
    """Returns a run over texts of which some are empty or faulty, and token ids that some lack."""
    folder.mkdir(parents=True)
    lines = [json.dumps({"text": text}) for text in [*words("web", 30), "", "x" * 50]]
    (folder / "web.jsonl").write_text("\n".join([*lines, '{"text": 5}', '{"text": "end"}']))
    ids = ids_of(words("ids", 40))
    ids[7][1] = ids[30][0] = 60_000  # the tokenizer has 258
    datasets = (
        Dataset.from_path("web", str(folder / "web.jsonl"), on_error="skip", max_epochs=1),
        Dataset.from_path(
            "ids", str(folder / "ids"), on_error="skip", max_epochs=1, **write_bin(folder / "ids", ids)
        ),
    )
    return make_recipe(datasets=datasets, base=folder, when_exhausted="pad", seq_len=16)


def test_a_census_and_a_sample_of_everything_count_alike_and_as_the_loader(tmp_path: Path) -> None:
    opened = open_small(mixed_kinds(tmp_path / "data"), tmp_path / "cache")
    sums = [int(lengths.sum()) for lengths in census(opened)]
    found = TokenEstimation(cache=tmp_path / "cache").measure(opened)
    exact = exact_ends(opened)
    with loaders(opened) as [loader]:
        drawn = sum(batch.tokens.sum(axis=1) for batch in loader)
    assert drawn.tolist() == sums == [end.drawn_tokens for end in exact.datasets]
    assert found["web"].tokens == Quantity.exactly(sums[0])
    assert found["web"].faulty == 1
    assert [end.unread_tokens for end in exact.datasets] == [0, 0]


def test_a_census_names_the_document_that_cannot_be_used(tmp_path: Path) -> None:
    recipe = mixed_kinds(tmp_path / "data")
    for index, where in ((0, "file 'web.jsonl', record 32"), (1, "file 'a.bin', record 7")):
        datasets = list(recipe.datasets)
        datasets[index] = replace(datasets[index], on_error="raise")
        opened = open_small(replace(recipe, datasets=tuple(datasets)), tmp_path / "cache")
        with pytest.raises(DataError, match=where):
            census(opened)


@pytest.mark.parametrize("when_exhausted", ["stop", "redistribute", "pad"])
@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
def test_a_run_on_lengths_is_the_run(when_exhausted: str, kind: str) -> None:
    recipe = finite(1, when_exhausted, code_epochs=1)
    recipe = replace(
        recipe,
        packing=replace(recipe.packing, kind=kind),
        datasets=recipe.datasets[:2],
        schedule=Stages({0: {"web": 4, "code": 1}}),
    )
    opened = open_small(recipe)
    exact = exact_ends(opened)
    drawn, last_read, steps = np.zeros(2, np.int64), np.full((2, 8), -1), 0
    with loaders(opened) as ranks:
        for batch in ranks[0]:
            drawn += batch.tokens.sum(axis=1)
            steps = batch.step + 1
            for index in range(2):
                last_read[index, batch.lanes[batch.tokens[index] > 0]] = batch.step
    assert (exact.num_steps, exact.is_over) == (steps, True)
    for index, (end, lengths) in enumerate(zip(exact.datasets, census(opened), strict=True)):
        assert end.drawn_tokens == drawn[index]
        assert end.unread_tokens == int(lengths.sum()) - drawn[index]
        if end.last is not None:
            assert end.unread_tokens == 0
            assert (end.first, end.last) == (last_read[index].min(), last_read[index].max())
    assert when_exhausted == "stop" or any(end.first is not None for end in exact.datasets)


@pytest.mark.parametrize("when_exhausted", ["stop", "redistribute", "pad"])
@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
@pytest.mark.parametrize("skips", [((0, 2), (5, 9)), ((11, 30),)], ids=str)
def test_what_is_skipped_is_read_too(
    when_exhausted: str, kind: str, skips: tuple[tuple[int, int], ...]
) -> None:
    recipe = finite(1, when_exhausted, code_epochs=1)
    recipe = replace(
        recipe,
        packing=replace(recipe.packing, kind=kind),
        datasets=recipe.datasets[:2],
        schedule=Stages({0: {"web": 4, "code": 1}}),
    )
    opened = open_small(recipe)
    opened = replace(opened, table=replace(opened.table, skips=skips))
    given, last_read, seen, steps = np.zeros((2, 8), np.int64), np.full((2, 8), -1), np.zeros((2, 8)), 0
    with loaders(opened) as [loader]:
        for batch in loader:
            for index in range(2):
                np.add.at(given[index], batch.lanes, batch.tokens[index])
            state = loader.state_dict()
            lanes = [json.loads(state[f"lane_{lane:05}"]) for lane in range(8)]
            drawn = given + np.array([lane.get("skipped", [0, 0]) for lane in lanes]).T
            last_read[drawn > seen] = batch.step
            seen, steps = drawn, batch.step + 1
    exact = exact_ends(opened)
    assert (exact.num_steps, exact.is_over) == (steps, True)
    for index, (end, lengths) in enumerate(zip(exact.datasets, census(opened), strict=True)):
        assert end.drawn_tokens == drawn[index].sum()
        assert end.unread_tokens == int(lengths.sum()) - end.drawn_tokens
        if end.last is not None:
            assert (end.first, end.last) == (last_read[index].min(), last_read[index].max())
    assert drawn.sum() > given.sum()
    planned = plan(opened, steps, exact=exact)
    assert [d.skipped_tokens for d in planned.datasets] == (drawn - given).sum(axis=1).tolist()
    by_phase = np.array([phase.drawn_tokens for phase in planned.phases])
    assert by_phase.sum(axis=0).tolist() == drawn.sum(axis=1).tolist()


def really(opened: Opened) -> tuple[list[int], list[tuple[int, int]], int]:
    """Returns the tokens drawn of each dataset by the loader, the steps of their last rows, and all steps."""
    num_lanes, names = opened.recipe.lanes, opened.recipe.names
    drawn, last, steps = np.zeros(len(names), np.int64), np.full((len(names), num_lanes), -1), 0
    with loaders(opened) as [loader]:
        for batch in loader:
            drawn += batch.tokens.sum(axis=1)
            steps = batch.step + 1
            for index in range(len(names)):
                last[index, batch.lanes[batch.tokens[index] > 0]] = batch.step
    return drawn.tolist(), [(lanes.min(), lanes.max()) for lanes in last], steps


@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
def test_documents_that_are_dropped_are_not_to_be_read(kind: str) -> None:
    recipe = finite(1, "pad", lanes=4)
    recipe = replace(
        recipe,
        packing=replace(recipe.packing, kind=kind),
        datasets=recipe.datasets[:2],
        schedule=Stages({0: {"web": 4, "code": 1}}),
    )
    opened = open_small(recipe)

    def some(name: str, *documents: int) -> tuple[tuple[str, str, int], ...]:
        reader = opened.readers[recipe.names.index(name)]
        return tuple((name, *reader.where(0, document)) for document in documents)

    drops = (
        Drop(0, some("code", *range(5))),
        Drop(7, some("web", *range(0, 900, 2))),
        Drop(31, some("code", *range(100)) + some("web", *range(1, 1000, 3))),
    )
    opened = replace(opened, table=replace(opened.table, drops=drops))
    exact, whole = exact_ends(opened), [int(n.sum()) * e for n, e in zip(census(opened), (1, 2), strict=True)]
    drawn, last, steps = really(opened)
    assert exact.num_steps == steps
    assert [(end.first, end.last) for end in exact.datasets] == last
    assert [(end.drawn_tokens, end.unread_tokens) for end in exact.datasets] == [(n, 0) for n in drawn]
    assert all(0.5 * all_of < n < all_of for n, all_of in zip(drawn, whole, strict=True))


@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.parametrize("skips", [(), ((2, 6),)], ids=str)
def test_documents_dropped_in_steps_that_are_skipped(
    kind: str, step: int, skips: tuple[tuple[int, int], ...]
) -> None:
    """At step 4 of a skip of [2, 6) lanes pass over some, and draw them no more after it."""
    web = Dataset.from_documents("web", texts(5, 90, mean=8), max_epochs=1)
    options = {"pool_documents": 6} if kind == "best_fit" else {}
    recipe = make_recipe(
        datasets=(web,), seq_len=32, lanes=2, kind=kind, options=options, when_exhausted="pad"
    )
    opened = open_small(recipe)
    drops = (Drop(step, tuple(("web", "web", record) for record in range(0, 90, 3))),)
    opened = replace(opened, table=replace(opened.table, drops=drops, skips=skips))
    (end,) = exact_ends(opened).datasets
    (drawn,), ((first, last),), _ = really(opened)
    assert end.unread_tokens == 0
    assert (end.first, end.last) == (first, last)
    assert end.drawn_tokens == drawn if not skips else end.drawn_tokens > drawn


def test_documents_dropped_after_a_padded_lane_has_read_them() -> None:
    web = Dataset.from_documents("web", ["x", "y" * 90, "z", "z"], order="identity", max_epochs=1)
    opened = open_small(make_recipe(datasets=(web,), seq_len=16, lanes=2, when_exhausted="pad", eos=False))
    drops = (Drop(1, (("web", "web", 0), ("web", "web", 2))),)
    (end,) = exact_ends(replace(opened, table=replace(opened.table, drops=drops))).datasets
    assert (end.drawn_tokens, end.unread_tokens, end.first) == (93, 0, 0)


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_padded_lane_may_end_ahead_of_steps_that_are_skipped_or_in_them(lanes: int) -> None:
    """Four lanes of unlike lengths: the shortest has ended by step 4, and others end within [4, 30)."""
    web = Dataset.from_documents("web", ["x" * n for n in (20, 90, 90, 300)], order="identity", max_epochs=1)
    recipe = make_recipe(datasets=(web,), seq_len=16, lanes=lanes, when_exhausted="pad", eos=False)
    opened = open_small(recipe)
    opened = replace(opened, table=replace(opened.table, skips=((4, 30),)))
    (end,) = exact_ends(opened).datasets
    assert (end.drawn_tokens, end.unread_tokens) == (500, 0)
    assert (end.first, end.last) == ((1, 4) if lanes == 4 else (4, 4))


def test_a_run_that_does_not_end_is_refused_without_a_bound() -> None:
    web = Dataset.from_documents("web", words("web", 20), max_epochs=1)
    code = Dataset.from_documents("code", words("code", 20))
    recipe = make_recipe(datasets=(web, code), when_exhausted="pad")
    with pytest.raises(ValueError, match=r"the data never end: dataset 'code', .* step 0 on; give `max_"):
        exact_ends(open_small(recipe))
    stages = Stages({0: {"web": 1, "code": 1}, 3: {"web": 0, "code": 1}})
    with pytest.raises(ValueError, match="has a share for ever from step 3 on"):
        exact_ends(open_small(replace(recipe, schedule=stages, when_exhausted="stop")))
    assert exact_ends(open_small(replace(recipe, when_exhausted="stop"))).is_over
    late = Stages({0: {"web": 1, "code": 0}, 300: {"web": 1, "code": 1}})
    assert exact_ends(open_small(replace(recipe, schedule=late))).is_over
    recipe = make_recipe(  # step 1 gives what the pools of lanes held that ended in step 0
        datasets=(Dataset.from_documents("web", ["x" * 9] * 16, max_epochs=1), code),
        schedule=Stages({0: {"web": 1, "code": 0}, 1: {"web": 1, "code": 1}}),
        kind="best_fit",
        options={"pool_documents": 8},
        when_exhausted="pad",
    )
    assert exact_ends(open_small(recipe)).num_steps > 1


def test_skips_and_drops_of_a_packer_that_is_flushed_are_refused() -> None:
    web = Dataset.from_documents("web", words("web", 20), max_epochs=1)
    opened = open_small(make_recipe(datasets=(web,), flush_every=3, when_exhausted="pad"))
    (end,) = exact_ends(opened).datasets
    assert (really(opened)[0], end.unread_tokens) == ([end.drawn_tokens], 0)
    with pytest.raises(ValueError, match="the packing is flushed every 3 rows"):
        exact_ends(replace(opened, table=replace(opened.table, skips=((1, 2),))))


def test_of_the_documents_that_a_condition_leaves_some_may_be_dropped(tmp_path: Path) -> None:
    lines = [json.dumps({"text": text, "n": i}) for i, text in enumerate(words("web", 60))]
    (tmp_path / "web.jsonl").write_text("\n".join(lines))
    path = str(tmp_path / "web.jsonl")
    web = Dataset.from_path("web", path, columns=("n",), where="n >= 20", max_epochs=1)
    opened = open_small(make_recipe(datasets=(web,), seq_len=16, when_exhausted="pad"), tmp_path / "cache")
    drops = (Drop(1, tuple(("web", "web.jsonl", record) for record in range(21, 60, 3))),)
    opened = replace(opened, table=replace(opened.table, drops=drops))
    (end,) = exact_ends(opened).datasets
    assert ([end.drawn_tokens], 0) == (really(opened)[0], end.unread_tokens)
    assert end.drawn_tokens < int(census(opened)[0].sum())


@pytest.mark.parametrize("kinds", [("wrap", "wrap"), ("best_fit", "best_fit"), ("best_fit", "wrap")])
def test_a_phase_reads_what_the_earlier_one_left(kinds: tuple[str, str]) -> None:
    recipe = finite(3, "pad", lanes=4)
    recipe = replace(recipe, datasets=recipe.datasets[:2], schedule=Stages({0: {"web": 4, "code": 1}}))
    first, second = (replace(recipe, packing=replace(recipe.packing, kind=kind)) for kind in kinds)
    with loaders(open_small(first)) as [loader]:
        take_steps([loader], 9)
        state = loader.state_dict()
    opened = open_small(second.continue_from(state))
    exact = exact_ends(opened)
    drawn, last, steps = really(opened)
    assert exact.num_steps == steps
    assert [(end.first, end.last) for end in exact.datasets] == last
    assert [(end.drawn_tokens, end.unread_tokens) for end in exact.datasets] == [(n, 0) for n in drawn]


def test_a_recipe_and_a_run_may_be_named(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "letters")
    recipe = mixed_kinds(tmp_path / "data")
    recipe = replace(recipe, tokenize=replace(recipe.tokenize, tokenizer=str(tmp_path / "letters")))
    how = Opening(cache=tmp_path / "cache")
    opened = open_small(recipe, tmp_path / "cache")
    assert [n.tolist() for n in census(recipe, how=how)] == [n.tolist() for n in census(opened)]
    table = replace(opened.table, drops=(Drop(1, (("ids", "a.bin", 3),)),))
    with loaders(replace(opened, table=table), run_folder=tmp_path / "run") as ranks:
        take_steps(ranks, 2)
    of_run, of_recipe = exact_ends(tmp_path / "run", how=how), exact_ends(recipe, how=how)
    assert of_recipe.datasets == exact_ends(opened).datasets
    assert of_run["ids"].drawn_tokens < of_recipe["ids"].drawn_tokens


def test_held_out_documents_are_not_to_be_read() -> None:
    whole = Dataset.from_documents("web", texts(3, 200), max_epochs=1)
    train, _ = whole.holdout(documents=60)
    opened = open_small(make_recipe(datasets=(train,), seq_len=16, when_exhausted="pad"))
    end = exact_ends(opened)["web"]
    assert end.unread_tokens == 0
    assert 0 < end.drawn_tokens < int(census(opened)[0].sum())


@pytest.mark.parametrize("when_exhausted", ["stop", "redistribute", "pad"])
@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
@pytest.mark.parametrize("masks", [True, False])
def test_an_exact_plan_says_what_the_loader_gives(when_exhausted: str, kind: str, masks: bool) -> None:
    recipe = finite(4, when_exhausted, code_epochs=1)
    packing = replace(recipe.packing, kind=kind, mask_document_ends=masks)
    opened = open_small(replace(recipe, packing=packing))
    exact = exact_ends(opened, max_steps=60)
    found = plan(opened, 60, exact=exact)
    drawn, trained = np.zeros((61, 3), np.int64), np.zeros(3, np.int64)
    with loaders(opened) as [loader]:
        for batch in loader:
            drawn[batch.step + 1] = drawn[batch.step] + batch.tokens.sum(axis=1)
            pieces, begin, last = batch.pieces, 0, -1
            for row, index, length in zip(pieces.row, pieces.dataset, pieces.length, strict=True):
                begin, last = 0 if row != last else begin, row
                trained[index] += (batch.labels[row, begin : begin + length] >= 0).sum()
                begin += length
            if batch.step == 59:
                break
    steps = batch.step + 1
    assert (found.num_steps, found.ends_after is not None) == (steps, exact.is_over)
    assert [d.drawn_tokens for d in found.datasets] == drawn[steps].tolist()
    assert [d.trained_tokens for d in found.datasets] == [Quantity.exactly(int(n)) for n in trained]
    for phase in found.phases:
        assert phase.drawn_tokens == tuple((drawn[phase.stop] - drawn[phase.start]).tolist())
    for index, dataset in enumerate(found.datasets):
        size = int(census(opened)[index].sum())
        above = np.flatnonzero(drawn[1 : steps + 1, index] > size)
        assert dataset.size_tokens == Quantity.exactly(size)
        assert dataset.first_repeat == (Quantity.exactly(int(above[0])) if len(above) else None)
        assert dataset.epochs == Quantity.exactly(int(drawn[steps, index]) / size)
    assert not any("about" in warning or "unknown" in warning for warning in found.warnings)


def test_an_exact_plan_is_of_the_steps_and_datasets_that_were_run() -> None:
    opened = open_small(finite(4))
    exact = exact_ends(opened, max_steps=3)
    with pytest.raises(ValueError, match=r"of the 9 steps .* got one of 3; make it with max_steps=9"):
        plan(opened, 9, exact=exact)
    with pytest.raises(ValueError, match="of the 2 steps"):
        plan(opened, 2, exact=exact)
    with pytest.raises(ValueError, match="`exact` must be of the datasets"):
        plan(make_recipe({"web": ["abc"]}), 3, exact=exact)
    short = Dataset.from_documents("web", ["abc"], max_epochs=1)
    nothing = open_small(make_recipe(datasets=(short,), seq_len=64))
    found = plan(nothing, 5, exact=exact_ends(nothing, max_steps=5))
    assert (found.num_steps, found.phases, found["web"].drawn_tokens) == (0, (), 0)
    assert "the data end after 0 steps, of 5 asked for" in str(found)


def test_a_phase_counts_the_epochs_of_the_earlier_ones_exactly() -> None:
    recipe = replace(finite(3, "pad", lanes=4), datasets=finite(3).datasets[:2])
    recipe = replace(recipe, schedule=Stages({0: {"web": 4, "code": 1}}))
    recipe = replace(recipe, packing=replace(recipe.packing, kind="best_fit"))
    with loaders(open_small(recipe)) as [loader]:
        given = sum(batch.tokens.sum(axis=1) for [batch] in take_steps([loader], 9))
        state = loader.state_dict()
    opened = open_small(recipe.continue_from(state))
    exact = exact_ends(opened, max_steps=200)
    sizes = [int(lengths.sum()) for lengths in census(opened)]
    for index, dataset in enumerate(plan(opened, 200, exact=exact).datasets):
        epochs = (int(given[index]) + exact[dataset.name].drawn_tokens) / sizes[index]
        assert dataset.epochs == Quantity.exactly(epochs) == Quantity.exactly(index + 1)


def test_what_has_no_end_needs_a_bound_and_streams_are_refused() -> None:
    opened = open_small(make_recipe({"web": ["abc"]}))
    with pytest.raises(ValueError, match="no dataset has `max_epochs`"):
        exact_ends(opened)
    assert not exact_ends(opened, max_steps=3).is_over
    with pytest.raises(ValueError, match="dataset 'web' is a stream"):
        census(replace(opened, recipe=_streaming(opened.recipe)))


def _streaming(recipe: Recipe) -> Recipe:
    return replace(recipe, datasets=(Dataset.from_path("web", "web.jsonl", stream=True),))


def outcomes(seed: int, when_exhausted: str, **shape: int) -> list[tuple[Quantity, int]]:
    """Returns planned intervals and what really came: the run's end, or the first and the last lane's."""
    opened = open_small(finite(seed, when_exhausted, **shape))
    exact = exact_ends(opened, max_steps=200)
    found = plan(opened, 200, measured(opened, seed))
    if when_exhausted == "stop":
        assert exact.is_over
        pairs = [(found.ends_after, exact.num_steps)]
    else:
        end = found["code"].end
        assert end is not None
        pairs = [(end.first, exact["code"].first), (end.last, exact["code"].last)]
    assert all(planned is not None and real is not None for planned, real in pairs)
    return [(planned, real) for planned, real in pairs if planned is not None and real is not None]


@pytest.mark.parametrize("when_exhausted", ["stop", "redistribute"])
def test_planned_ends_hold_the_real_ones(when_exhausted: str) -> None:
    found = [pair for seed in range(15) for pair in outcomes(seed, when_exhausted)]
    hits = sum((end.low or 0) <= real <= (end.high or 0) for end, real in found)
    assert hits >= 0.88 * len(found), (hits, len(found))  # of 60 seeds: 93 to 98 %
    widths = [((end.high or 0) - (end.low or 0)) / end.value for end, _ in found]
    assert np.mean(widths) < 0.8  # narrow enough to be of use: a sample of 60 documents
    assert abs(np.mean([end.value / real for end, real in found]) - 1) < 0.08


def test_known_lengths_make_the_planned_end_narrow() -> None:
    opened = open_small(finite(5))
    sums = [int(lengths.sum()) for lengths in census(opened)]
    counts = [len(lengths) for lengths in census(opened)]
    exactly = Estimates(
        datasets=tuple(
            DatasetEstimate(
                name=name,
                how="census",
                documents=n,
                bytes=None,
                tokens_per_byte=None,
                num_chunks=1,
                tokens_per_document=Quantity.exactly(t / n),
                tokens=Quantity.exactly(t),
            )
            for name, t, n in zip(opened.recipe.names, sums, counts, strict=True)
        )
    )
    found = plan(opened, 200, exactly)
    exact = exact_ends(opened)
    after = found.ends_after
    assert after is not None
    assert (after.low or 0) <= exact.num_steps <= (after.high or 0)
    unread = found["code"].unread_tokens
    assert unread is not None
    assert unread.value == pytest.approx(exact["code"].unread_tokens, abs=0.1 * sums[1])
    text = "\n".join(found.warnings)
    assert "the data end after about" in text
    assert "code: max_epochs = 2 cannot be met: the schedule asks for" in text


def test_redistribute_gives_the_share_to_the_others() -> None:
    opened = open_small(finite(7, "redistribute"))
    found: Plan = plan(opened, 100, measured(opened, 7))
    exact = exact_ends(opened, max_steps=100)
    end = found["code"].end
    assert end is not None
    assert end.last is not None
    total = census(opened)[1].sum() * 2
    assert found["code"].drawn_tokens == pytest.approx(total, rel=0.1)
    assert exact["code"].last is not None
    assert sum(d.drawn_tokens for d in found.datasets) == pytest.approx(100 * 1024, abs=5)


def test_the_ends_do_not_move_the_rows() -> None:
    opened = open_small(finite(2))
    with loaders(opened) as ranks:
        digests = [digest_of(step) for step in take_steps(ranks, 3)]
    exact_ends(opened, max_steps=5)
    with loaders(opened) as ranks:
        assert [digest_of(step) for step in take_steps(ranks, 3)] == digests
