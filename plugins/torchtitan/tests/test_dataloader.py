"""The loader as TorchTitan builds it, in one process: shapes, types, and the stock loader's conventions."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from plugins.torchtitan.tests.corpus import Corpus, words, write_jsonl

IGNORED = -100
TEXTS = words("once", 24, (1, 3, 9))
Rows = list[tuple[list[int], list[int], list[int]]]


def build(corpus: Corpus, rank: int = 0, ranks: int = 1, rows: int = 2, **fields: Any) -> Any:
    """Returns a loader as TorchTitan builds it."""
    from torchtitan.components.tokenizer import HuggingFaceTokenizer

    from zephon_torchtitan.dataloader import Placed, ZephonDataLoader

    chosen: dict[str, Any] = {
        "recipe": str(corpus.recipe),
        "executor": "inline",
        "placed": Placed(global_batch_size=8),
    }
    return ZephonDataLoader.Config(**(chosen | fields)).build(
        dp_world_size=ranks,
        dp_rank=rank,
        tokenizer=HuggingFaceTokenizer(tokenizer_path=str(corpus.tokenizer)),
        seq_len=64,
        local_batch_size=rows,
        snapshot_every_n_steps=4,
    )


def take(loader: Any, count: int) -> list[Any]:
    """Returns the next batches."""
    batches = iter(loader)
    return [next(batches) for _ in range(count)]


def rows_of(batches: list[Any]) -> Rows:
    """Returns (input, positions, labels) of each row."""
    found: Rows = []
    for inputs, labels in batches:
        columns = (inputs["input"].tolist(), inputs["positions"].tolist(), labels.tolist())
        found.extend(zip(*columns, strict=True))
    return found


def test_a_batch_has_the_contracts_keys_shapes_and_types(corpus: Corpus) -> None:
    inputs, labels = take(build(corpus), 1)[0]
    assert sorted(inputs) == ["input", "positions"]
    for tensor in (*inputs.values(), labels):
        assert tensor.shape == (2, 64)
        assert tensor.dtype == torch.int64
        assert tensor.is_contiguous()
    assert int(inputs["positions"].max()) < 64
    assert int(inputs["input"].min()) >= 0


def test_ranks_share_a_step_out(corpus: Corpus) -> None:
    whole = rows_of(take(build(corpus, rows=8), 2))
    shared = [rows_of(take(build(corpus, rank, 2, rows=2), 4)) for rank in range(2)]
    steps = [row for step in range(2) for rows in shared for row in rows[step * 4 : step * 4 + 4]]
    assert sorted(steps[:8]) == sorted(whole[:8])
    assert sorted(steps[8:]) == sorted(whole[8:])


def test_a_state_of_any_ranks_is_read_by_any_others(corpus: Corpus) -> None:
    whole = rows_of(take(build(corpus, rows=8), 5))
    state: dict[str, Any] = {}
    for rank in range(4):
        loader = build(corpus, rank, 4, rows=2)
        take(loader, 3)
        state |= loader.state_dict()
        loader.close()
    rest = []
    for rank in range(2):
        loader = build(corpus, rank, 2, rows=4)
        loader.load_state_dict(state)
        rest.append(rows_of(take(loader, 2)))
    assert sorted(rest[0][:4] + rest[1][:4]) == sorted(whole[24:32])
    assert sorted(rest[0][4:] + rest[1][4:]) == sorted(whole[32:])


@pytest.mark.filterwarnings("ignore:'set_vital'")
def test_labels_and_positions_follow_the_stock_loaders_conventions(corpus: Corpus, tmp_path: Path) -> None:
    """From each document the stock loader makes pairs of a token and the next, with positions from 0."""
    from torchtitan.components.tokenizer import HuggingFaceTokenizer
    from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader

    (tmp_path / "c4").mkdir()
    (tmp_path / "c4" / "data.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    stock = HuggingFaceTextDataLoader.Config(dataset_path=str(tmp_path / "c4"), infinite=False).build(
        dp_world_size=1,
        dp_rank=0,
        tokenizer=HuggingFaceTokenizer(tokenizer_path=str(corpus.tokenizer)),
        seq_len=64,
        local_batch_size=1,
    )
    recipe = corpus.write(
        tmp_path / "recipe.toml",
        lanes=1,
        tokenize='bos = "<s>"',  # the stock loader begins documents so
        weights={0: {"once": 1}},
        paths={"once": str(write_jsonl(tmp_path / "once.jsonl", TEXTS))},
    )
    rows = rows_of(list(build(corpus, rows=1, recipe=str(recipe), infinite=False)))
    theirs, found = _pairs(rows_of(list(stock))), _pairs(rows)
    # Theirs lacks what does not fill the last row, ours the pair across the end of each row.
    assert 0 < found.total() - (found & theirs).total() < 64
    assert 0 < theirs.total() - (found & theirs).total() <= len(rows)
    inputs, positions, labels = rows[0]
    first = [256, *TEXTS[0].encode(), 257]
    assert inputs[: len(first)] == first
    assert positions[: len(first)] == list(range(len(first)))
    assert labels[: len(first)] == [*first[1:], IGNORED]
    assert inputs[len(first)] == 256
    assert positions[len(first)] == 0


def _pairs(rows: Rows) -> Counter[tuple[int, int]]:
    """Returns how often each (token, next token) is trained on."""
    return Counter(
        (token, label)
        for inputs, _, labels in rows
        for token, label in zip(inputs, labels, strict=True)
        if label != IGNORED
    )


def test_without_infinite_every_document_comes_once_in_file_order(corpus: Corpus, tmp_path: Path) -> None:
    recipe = corpus.write(
        tmp_path / "recipe.toml",
        lanes=1,
        weights={0: {"once": 1}},
        paths={"once": str(write_jsonl(tmp_path / "once.jsonl", TEXTS))},
    )
    for fields in ({"infinite": False}, {"repeat": False}):
        rows = rows_of(list(build(corpus, rows=1, recipe=str(recipe), **fields)))
        text = bytes(token for inputs, _, _ in rows for token in inputs if token < 256).rstrip(b"\0").decode()
        assert text == "".join(TEXTS)
        padding = rows[-1][2]
        assert padding[-1] == IGNORED


def test_a_loader_that_ended_leaves_no_threads(corpus: Corpus, tmp_path: Path) -> None:
    """TorchTitan's validator builds one for each validation and closes none."""
    recipe = corpus.write(
        tmp_path / "recipe.toml",
        weights={0: {"once": 1}},
        paths={"once": str(write_jsonl(tmp_path / "once.jsonl", TEXTS))},
    )
    there = threads()
    loader = build(corpus, recipe=str(recipe), infinite=False, executor="threads", workers=2, prefetch=2)
    batches = iter(loader)
    next(batches)
    assert threads() > there  # while it reads
    assert list(batches)
    for thread in threads() - there:
        thread.join(10)
    assert threads() == there


def threads() -> set[threading.Thread]:
    """Returns the loaders' threads that run."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("zephon")}


def test_a_dataset_field_of_the_stock_loader_is_refused(
    corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        build(corpus, dataset="c4")
    assert "takes no `dataset`" in capsys.readouterr().err
