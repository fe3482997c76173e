"""A loader gives its lanes' rows in equal batches, step by step, until it is closed."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import (
    INLINE,
    digests,
    loaders,
    make_recipe,
    open_small,
    read,
    sized,
    take_steps,
    words,
    write_tokenizer,
)
from zephon import Pipeline, digest, step_digest
from zephon.dataset import Dataset
from zephon.errors import StateError, ZephonError
from zephon.loader import Loader
from zephon.mixture import MixtureWorkSource
from zephon.options import LoaderOptions
from zephon.stages import Constant, Stages

pytestmark = pytest.mark.usefixtures("probed_once")


@pytest.mark.parametrize(("world", "rank"), [(1, 0), (2, 1), (4, 2)])
def test_a_rank_owns_a_run_of_lanes(world: int, rank: int) -> None:
    with loaders(open_small(make_recipe(lanes=4, global_batch_size=8)), world) as ranks:
        per_rank = 4 // world
        assert list(ranks[rank].lanes) == list(range(rank * per_rank, (rank + 1) * per_rank))
        batch = next(ranks[rank])
    assert batch.lanes.tolist() == list(ranks[rank].lanes) * 2
    assert batch.rows.tolist() == [0] * per_rank + [1] * per_rank


@pytest.mark.parametrize("micro_batch_size", [1, 2, 4, 8])
def test_batches_are_equal_parts_of_a_step(micro_batch_size: int) -> None:
    opened = open_small(make_recipe(lanes=4, global_batch_size=8))
    with loaders(opened, micro_batch_size=micro_batch_size) as (loader,):
        batches = list(islice(loader, 3 * 8 // micro_batch_size))
    assert [len(batch.inputs) for batch in batches] == [micro_batch_size] * len(batches)
    assert [batch.step for batch in batches] == [s for s in range(3) for _ in range(8 // micro_batch_size)]
    rows = [pair for b in batches for pair in zip(b.rows.tolist(), b.lanes.tolist(), strict=True)]
    assert rows == [(row, lane) for row in range(6) for lane in range(4)]


def test_a_batch_is_four_arrays_and_its_pieces() -> None:
    with loaders(open_small(make_recipe())) as (loader,):
        batch = next(loader)
    for array in (batch.inputs, batch.labels, batch.positions, batch.segment_ids):
        assert array.shape == (4, 16)
        assert array.dtype == np.int64
    assert batch.datasets == ("web", "code")
    assert sum(tokens.sum() for tokens in batch.tokens_by_dataset.values()) == 64
    assert batch.pieces.length.sum() == 64


def test_a_batch_is_the_callers_to_keep() -> None:
    """Batches do not share memory: a trainer may keep one while it takes the next."""
    with loaders(open_small(make_recipe())) as (loader,):
        first = next(loader)
        kept = first.inputs.copy()
        list(islice(loader, 5))
        assert (first.inputs == kept).all()


def test_a_loader_says_where_it_stands() -> None:
    opened = open_small(make_recipe(lanes=4, global_batch_size=8))
    with loaders(opened, 2) as (_, second):
        assert repr(second) == f"Loader of rank 1 of 2, after 0 steps: batches of 4 rows; {opened.recipe!r}"
        next(second)
        assert repr(second).startswith("Loader of rank 1 of 2, after 1 step: ")
    assert repr(second).startswith("Loader of rank 1 of 2, after 1 step, closed: ")


def test_it_is_its_own_iterator() -> None:
    with loaders(open_small(make_recipe())) as (loader,):
        assert iter(loader) is loader
        steps = [batch.step for batch, _ in zip(loader, range(3), strict=False)]
        steps.append(next(iter(loader)).step)
    assert steps[:3] == [0, 1, 2]


def test_every_step_has_its_own_rows() -> None:
    found = digests(open_small(make_recipe({"web": words("web", 500)})), 30)
    assert len(set(found)) == 30


def test_the_seed_and_the_names_of_datasets_make_the_order() -> None:
    documents = {"web": words("w", 100)}
    found = {digests(open_small(make_recipe(documents, seed=seed)), 1)[0] for seed in range(5)}
    renamed = make_recipe({"net": documents["web"]}, seed=0)
    assert len(found | set(digests(open_small(renamed), 1))) == 6


@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
def test_every_piece_of_a_row_was_drawn_with_the_weights_of_its_step(kind: str) -> None:
    """C3, C2: exactly with `wrap`; with a pool of 3 documents, at most 3 rows late."""
    documents = {"web": sized(50, (3, 90)), "code": sized(50, (11, 40), "n")}
    schedule = Stages({0: {"web": 1, "code": 0}, 4: {"web": 0, "code": 1}, 9: {"web": 1, "code": 0}})
    options = {"pool_documents": 3} if kind == "best_fit" else {}
    opened = open_small(make_recipe(documents, schedule, kind=kind, options=options, global_batch_size=8))
    late_steps = 0 if kind == "wrap" else 2  # 3 rows, of which a lane gives one or two a step
    with loaders(opened) as ranks:
        for step, batches in enumerate(take_steps(ranks, 16)):
            drawn = batches[0].tokens.sum(axis=1)
            stage = max(start for start in (0, 4, 9) if start <= step)
            if step >= stage + late_steps or stage == 0:
                assert drawn[0 if stage != 4 else 1] == drawn.sum()


def test_a_dataset_of_weight_zero_is_not_read(tmp_path: Path) -> None:
    """Its file may even go away: the first row with a share is the first that reads it."""
    lines = '{"text": "web "}\n' * 20
    (tmp_path / "web.jsonl").write_text(lines)
    (tmp_path / "code.jsonl").write_text(lines.replace("web", "code"))
    datasets = tuple(Dataset.from_path(name, tmp_path / f"{name}.jsonl") for name in ("web", "code"))
    schedule = Stages({0: {"web": 1, "code": 0}, 3: {"web": 0, "code": 1}})
    with loaders(open_small(make_recipe(datasets=datasets, schedule=schedule, base=tmp_path))) as ranks:
        texts = [read(batches[0].inputs.ravel()) for batches in take_steps(ranks, 6)]
    assert ["web" in text for text in texts] == [True] * 3 + [False] * 3
    assert ["code" in text for text in texts] == [False] * 3 + [True] * 3


def test_token_shares_are_of_tokens() -> None:
    """Documents of 40 and of 400 tokens, weights 1:1: half the tokens each, in every window of 50 steps."""
    documents = {"short": sized(200, (39,)), "long": sized(200, (399,))}
    opened = open_small(make_recipe(documents, seq_len=128))
    with loaders(opened) as ranks:
        drawn = np.array([batches[0].tokens.sum(axis=1) for batches in take_steps(ranks, 100)])
    windows = np.lib.stride_tricks.sliding_window_view(drawn[:, 0], 50).sum(axis=1) / (50 * 4 * 128)
    assert abs(windows - 0.5).max() < 0.02


def test_a_closed_loader_gives_no_batches() -> None:
    for options in (INLINE, LoaderOptions(workers=2), LoaderOptions(workers=2, prefetch=2)):
        loader = Loader(open_small(make_recipe()), options)
        next(loader)
        state = loader.state_dict()
        loader.close()
        loader.close()
        with pytest.raises(ZephonError, match="the loader is closed; make a new one to go on"):
            next(loader)
        assert loader.state_dict() == state


def test_a_loader_may_be_closed_before_its_first_batch() -> None:
    for options in (INLINE, LoaderOptions(workers=2, prefetch=2)):
        with Loader(open_small(make_recipe()), options) as loader:
            pass
        with pytest.raises(ZephonError, match="closed"):
            next(loader)


def test_many_loaders_of_one_opened_recipe() -> None:
    opened = open_small(make_recipe())
    expected = digests(opened, 3)
    with loaders(opened) as first, loaders(opened) as second:
        for step in range(3):
            found = [step_digest(digest(next(ranks[0]))) for ranks in (first, second)]
            assert found == [expected[step]] * 2


def test_a_loader_in_the_middle_can_be_dropped() -> None:
    """Nobody closes it; nothing is warned of, and its threads do not keep the interpreter."""
    loader = Loader(open_small(make_recipe()), LoaderOptions(workers=2))
    next(loader)
    del loader
    gc.collect()


def test_an_executor_that_is_none_is_refused() -> None:
    with pytest.raises(LookupError, match="no executors named 'thread'; did you mean 'threads'"):
        Loader(open_small(make_recipe()), LoaderOptions(executor="thread"))


def test_the_state_before_the_first_batch_names_the_lanes() -> None:
    """A template for checkpoints that load into what is there; and a state to start from."""
    opened = open_small(make_recipe())
    with loaders(opened, 2) as ranks:
        assert [k for k in ranks[1].state_dict() if k.startswith("lane")] == ["lane_00002", "lane_00003"]
        state = ranks[0].state_dict() | ranks[1].state_dict()
    with loaders(opened) as ranks:
        ranks[0].load_state_dict(state)
        assert [step_digest(digest(next(ranks[0]))) for _ in range(3)] == digests(opened, 3)


def test_an_error_in_a_restore_names_ranks_and_lanes() -> None:
    with loaders(open_small(make_recipe())) as (loader,), pytest.raises(StateError, match="'version' entry"):
        loader.load_state_dict({})


# Through the public door, with a real tokenizer ---------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("letters"))


def pipeline(tokenizer: Path, **tokenize: Any) -> Pipeline:
    web = Dataset.from_documents("web", ["<s>one</s>", "two <s> <|endoftext|> <pad>"])
    source = MixtureWorkSource([web], Constant({"web": 1}))
    return Pipeline(source, global_batch_size=2, seed=1).tokenize(tokenizer, **tokenize).pack(200)


@pytest.mark.parametrize("bos", [False, True, "<s>"])
@pytest.mark.parametrize("eos", [False, True, "</s>"])
def test_exactly_the_ends_that_were_asked_for(
    tokenizer: Path, tmp_path: Path, bos: bool | str, eos: bool | str
) -> None:
    """H1, H2: what spells a special token in a text is text."""
    made = pipeline(tokenizer, bos=bos, eos=eos)
    with made.loader(executor="inline", cache=tmp_path, backend="tokenizers") as loader:
        text = read(next(loader).inputs[0])
    begin, end = "<" * bool(bos), ">" * bool(eos)
    documents = [f"{begin}<s>one</s>{end}", f"{begin}two <s> <|endoftext|> <pad>{end}"]
    assert text[:22] in (documents[0] + documents[1])[:22] + (documents[1] + documents[0])[:22]
    assert text.count(documents[0]) + text.count(documents[1]) >= 7


def test_special_tokens_in_text_count_where_that_is_asked_for(tokenizer: Path, tmp_path: Path) -> None:
    made = pipeline(tokenizer, parse_special=True)
    with made.loader(executor="inline", cache=tmp_path, backend="tokenizers") as loader:
        tokens = next(loader).inputs.ravel().tolist()
    assert 256 in tokens
    assert 257 in tokens


def test_a_token_that_is_missing_is_an_error_at_the_start(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="<eos>"):
        pipeline(tokenizer, eos="<eos>").loader(cache=tmp_path)


def test_recipe_and_pipeline_give_the_same_loader(tokenizer: Path, tmp_path: Path) -> None:
    made = pipeline(tokenizer)
    found = []
    for described in (made, made.recipe()):
        with described.loader(executor="inline", cache=tmp_path, backend="tokenizers") as loader:
            found.append([step_digest(digest(next(loader))) for _ in range(3)])
    assert found[0] == found[1]


class Starts(tuple[int, ...]):
    """Steps that are looked up by halves, never one by one."""

    def __contains__(self, step: object) -> bool:
        raise AssertionError(f"step {step} is looked for among all {len(self)}")


def test_a_step_of_a_long_table_costs_what_one_of_a_short_does() -> None:
    opened = open_small(make_recipe(schedule=Stages({s: {"web": 1, "code": s % 2} for s in range(9)})))
    long = replace(opened, table=replace(opened.table, starts=Starts(opened.table.starts)))
    assert digests(long, 12) == digests(opened, 12)
