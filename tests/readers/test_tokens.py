"""Documents that are token ids: the same rows as of text, in every format and place, with any faults."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.helpers import (
    EOS,
    INLINE,
    digest_of,
    digests,
    faulty,
    loaders,
    make_recipe,
    open_small,
    take_steps,
    union,
    words,
)
from tests.token_data import (
    FORMATS,
    ids_of,
    write_bin,
    write_jsonl,
    write_megatron,
    write_npy,
    write_parquet,
)
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.opened import Opened
from zephon.readers import open_reader
from zephon.spool import Spool

TEXTS = ["", "a", "bc d", "long " * 40, "", "caf\u00e9 \U0001f600", "x" * 15, "y" * 16, *words("w", 22), ""]
STEPS = 12
NAMES = tuple(FORMATS)


def dataset_of(path: str | Path, fields: dict[str, Any], **changes: Any) -> Dataset:
    return Dataset.from_path("web", str(path), **{"order": "identity"} | fields | changes)


def opened(dataset: Dataset, folder: Path, **fields: Any) -> Opened:
    return open_small(make_recipe(datasets=(dataset,), **fields), folder / "cache")


def text_opened(texts: list[Any], **fields: Any) -> Opened:
    dataset = replace(faulty("web", texts), order="identity")
    return open_small(make_recipe(datasets=(dataset,), **fields))


@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_those_of_the_text(name: str, kind: str, tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path / "data", FORMATS[name](tmp_path / "data", ids_of(TEXTS)))
    found = opened(dataset, tmp_path, kind=kind)
    expected = digests(text_opened(TEXTS, kind=kind), STEPS)
    assert digests(found, STEPS) == expected
    assert digests(found, STEPS, world=2) == expected


@pytest.mark.parametrize("overlong", ["split", "truncate", "drop"])
def test_documents_over_a_row_follow_the_same_rule(overlong: str, tmp_path: Path) -> None:
    fields = {"kind": "best_fit", "options": {"overlong": overlong}}
    dataset = dataset_of(tmp_path / "data", write_bin(tmp_path / "data", ids_of(TEXTS)))
    with (
        loaders(opened(dataset, tmp_path, **fields)) as ranks,
        loaders(text_opened(TEXTS, **fields)) as texts,
    ):
        ours, theirs = take_steps(ranks, STEPS), take_steps(texts, STEPS)
        # Where a text is cut, its EOS goes, as that of token ids does.
        assert list(map(digest_of, ours)) == list(map(digest_of, theirs))
        assert ranks[0].state_dict().keys() == texts[0].state_dict().keys()


def test_a_document_over_a_row_can_be_refused(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path / "data", write_bin(tmp_path / "data", ids_of(["a" * 40])))
    found = opened(dataset, tmp_path, kind="best_fit", options={"overlong": "refuse"})
    with pytest.raises(DataError, match=r"file 'a.bin', record 0: cannot be used \(too_long\)"):
        digests(found, 1)


@pytest.mark.parametrize("name", ["bin of uint16", "megatron, backwards", "list of int32", "jsonl"])
def test_worker_processes_make_the_same_rows(name: str, tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path / "data", FORMATS[name](tmp_path / "data", ids_of(TEXTS)))
    found = opened(dataset, tmp_path)
    assert digests(found, 4, executor="processes", workers=1) == digests(found, 4)


@pytest.mark.parametrize("name", ["bin of uint16", "npy of int64", "megatron", "megatron, backwards"])
def test_a_remote_file_gives_what_a_local_one_does(name: str, tmp_path: Path) -> None:
    import fsspec

    fields = FORMATS[name](tmp_path / "data", ids_of(TEXTS))
    memory, root = fsspec.filesystem("memory"), f"/{tmp_path.name}"
    for file in sorted((tmp_path / "data").iterdir()):
        memory.pipe_file(f"{root}/{file.name}", file.read_bytes())
    local = opened(dataset_of(tmp_path / "data", fields), tmp_path)
    remote = opened(dataset_of(f"memory:/{root}", fields), tmp_path)
    assert isinstance(remote.readers[0], Spool)
    assert remote.readers[0].identity() == local.readers[0].identity()
    assert digests(remote, 6) == digests(local, 6)


def test_resume_from_every_step_is_the_unbroken_run(tmp_path: Path) -> None:
    """In shuffled order, in place and spooled, beside a dataset of texts."""
    folder = tmp_path / "data"
    datasets = (
        dataset_of(folder / "bin", write_bin(folder / "bin", ids_of(TEXTS)), order="shuffled"),
        replace(
            dataset_of(folder / "jsonl", write_jsonl(folder / "jsonl", ids_of(TEXTS)), order="shuffled"),
            name="chat",
        ),
        Dataset.from_documents("code", words("c", 30)),
    )
    found = open_small(make_recipe(datasets=datasets, kind="best_fit"), tmp_path / "cache")
    whole = digests(found, 10)
    for step in range(1, 10):
        with loaders(found, 1 + step % 2) as ranks:
            take_steps(ranks, step)
            state = union(ranks)
        with loaders(found, 2 - step % 2) as ranks:
            for loader in ranks:
                loader.load_state_dict(state)
            assert [digest_of(batches) for batches in take_steps(ranks, 10 - step)] == whole[step:]


def test_flat_files_have_one_order_whatever_type_and_format(tmp_path: Path) -> None:
    documents = ids_of(words("w", 400, (1, 30, 2)))
    found = set()
    for name in ("bin of uint16", "bin of uint32", "npy of int64", "megatron", "megatron, backwards"):
        folder = tmp_path / name
        dataset = dataset_of(folder, FORMATS[name](folder, documents), order="shuffled")
        found.add(tuple(digests(opened(dataset, tmp_path), 5)))
    assert len(found) == 1


WRONG = [[1, EOS], [2, 258, EOS], [EOS], [3, 4, EOS], [70000], [5, EOS]]
"""258 and 70,000 are beyond the vocabulary."""


@pytest.mark.parametrize("name", ["bin of uint32", "npy of int64", "megatron", "list of int32", "jsonl"])
def test_ids_beyond_the_vocabulary_are_faults(name: str, tmp_path: Path) -> None:
    fields = FORMATS[name](tmp_path / "data", WRONG)
    with pytest.raises(DataError) as caught:
        digests(opened(dataset_of(tmp_path / "data", fields), tmp_path, lanes=1), 1)
    message = str(caught.value)
    assert "record 1: cannot be used (not_tokens)" in message
    assert "the id 258" in message
    assert "token ids are in [0, 258)" in message
    skipping = dataset_of(tmp_path / "data", fields, on_error="skip")
    with loaders(opened(skipping, tmp_path, lanes=1, global_batch_size=1)) as [loader]:
        batch = next(loader)
    kept = [i for ids in WRONG if max(ids) < 258 for i in ids]
    assert batch.inputs[0].tolist() == (kept * 4)[:16]


@pytest.mark.parametrize("name", ["npy of int64", "megatron", "list of int32", "large list"])
def test_negative_ids_are_faults(name: str, tmp_path: Path) -> None:
    documents = [[1, EOS], [2, -1, EOS], [3, EOS]]
    fields = FORMATS[name](tmp_path / "data", documents)
    with pytest.raises(DataError, match="record 1: cannot be used"):
        digests(opened(dataset_of(tmp_path / "data", fields), tmp_path), 1)
    skipping = dataset_of(tmp_path / "data", fields, on_error="skip")
    with loaders(opened(skipping, tmp_path, lanes=1, global_batch_size=1)) as [loader]:
        assert next(loader).inputs[0].tolist() == ([1, EOS, 3, EOS] * 4)[:16]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.int32(), 2)], ids=str
)
def test_nulls_in_lists_are_faults(kind: Any, tmp_path: Path) -> None:
    documents = [[1, EOS], None, [2, None], [3, EOS]]
    dataset = dataset_of(
        tmp_path / "data", write_parquet(tmp_path / "data", documents, kind), on_error="skip"
    )
    reader = opened(dataset, tmp_path).readers[0]
    found: Any = reader.tokens(np.zeros(4, np.int64), np.arange(4), 1 << 30)  # type: ignore[attr-defined]
    assert found.tokens.tolist() == [1, EOS, 3, EOS]
    assert found.lengths.tolist() == [2, 0, 0, 2]
    assert [(i, fault.kind) for i, fault in found.faults] == [(1, "null"), (2, "not_tokens")]


@pytest.mark.parametrize("value", ["text", [1, "2"], [1.0], [True], [1 << 32], [-1], None, 7, {"a": 1}])
def test_what_is_no_list_of_ids_in_jsonl_is_a_fault(value: Any, tmp_path: Path) -> None:
    fields = write_jsonl(tmp_path / "data", [[1, EOS], value, [3, EOS]])
    with pytest.raises(DataError, match=r"file 'a.jsonl', record 1: cannot be used \((null|not_tokens)\)"):
        digests(opened(dataset_of(tmp_path / "data", fields), tmp_path), 1)


def test_bos_and_eos_of_the_recipe_are_not_added(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path / "data", write_bin(tmp_path / "data", [[1, 2], [3]]))
    with loaders(opened(dataset, tmp_path, lanes=1, global_batch_size=1, bos="<s>")) as [loader]:
        assert next(loader).inputs[0].tolist() == ([1, 2, 3] * 6)[:16]


def test_a_column_named_for_a_reader_of_flat_files_is_refused(tmp_path: Path) -> None:
    for write in (write_bin, write_npy, write_megatron):
        folder = tmp_path / write.__name__
        dataset = dataset_of(folder, write(folder, [[1]]) | {"tokens": "ids"})
        with pytest.raises(DataError, match="leave `tokens` out"):
            opened(dataset, tmp_path)


def test_a_dtype_is_for_flat_files_only(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path / "data", write_jsonl(tmp_path / "data", [[1]]), dtype="uint16")
    with pytest.raises(DataError, match="`dtype` is for flat files"):
        opened(dataset, tmp_path)


@pytest.mark.parametrize("name", ["bin of uint16", "megatron", "megatron, backwards"])
def test_a_reader_is_pickled_without_what_is_open(name: str, tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path / "data", FORMATS[name](tmp_path / "data", ids_of(TEXTS)))
    reader: Any = open_reader(dataset, base=tmp_path, cache=tmp_path / "cache", spool_bytes=1 << 30)
    chunk, record = np.zeros(6, np.int64), np.arange(6)
    expected = reader.tokens(chunk, record, 1 << 30)
    found = pickle.loads(pickle.dumps(reader)).tokens(chunk, record, 1 << 30)
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert reader.where(0, 3) == ("a.bin", 3)


def test_read_bytes_are_counted_as_four_a_token(tmp_path: Path) -> None:
    """So that a block of any type takes no more memory than one of text."""
    for name in ("bin of uint16", "npy of int64", "list of uint16"):
        folder = tmp_path / name
        dataset = dataset_of(folder, FORMATS[name](folder, [[1] * 10] * 7))
        reader: Any = opened(dataset, tmp_path).readers[0]
        found = reader.tokens(np.zeros(7, np.int64), np.arange(7), 81)
        assert found.lengths.tolist() == [10, 10, 10]


def test_options_of_the_loader_are_those_of_text(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path / "data", write_bin(tmp_path / "data", ids_of(TEXTS)), order="shuffled")
    found = opened(dataset, tmp_path)
    expected = digests(found, 6)
    assert digests(found, 6, world=4, options=replace(INLINE, executor="threads", prefetch=2)) == expected
    assert digests(found, 6, micro_batch_size=1) == expected
