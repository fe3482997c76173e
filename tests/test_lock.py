"""The lock holds hashes of what a recipe names, and nothing of where it lies or when it was made."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import make_recipe, open_small
from zephon import lock as lock_module
from zephon import plugins
from zephon.dataset import Dataset
from zephon.lock import core_version, describe_difference, lock_hashes
from zephon.recipe import hash_json


def lines(documents: Sequence[str]) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in documents)


def lay_down(root: Path, **files: Sequence[str]) -> Path:
    (root / "data").mkdir(parents=True)
    for name, documents in files.items():
        (root / "data" / f"{name}.jsonl").write_text(lines(documents))
    return root


def lock_of(root: Path, path: Any = "data/*.jsonl", **fields: Any) -> dict[str, Any]:
    datasets = (Dataset.from_path("web", path),)
    recipe = make_recipe(datasets=datasets, base=root, **fields)
    opened = open_small(recipe, root / "cache")
    opened.close()
    return opened.lock


def test_a_lock_has_a_table_for_each_kind_of_thing() -> None:
    lock = open_small(make_recipe()).lock
    assert sorted(lock) == ["data", "plugins", "tokenizer", "version"]
    assert sorted(lock["data"]) == ["code", "web"]
    assert lock["plugins"] == {}  # the core's own parts go by its version
    assert json.loads(json.dumps(lock)) == lock


def test_the_same_files_in_another_place_have_the_same_lock(tmp_path: Path) -> None:
    documents = {"a": ["one", "two"], "b": ["three"]}
    here = lay_down(tmp_path / "here", **documents)
    there = lay_down(tmp_path / "deep" / "there", **dict(reversed(documents.items())))
    for path in (there / "data").iterdir():
        os.utime(path, (1, 1))
    assert lock_of(here) == lock_of(there)
    assert str(tmp_path) not in json.dumps(lock_of(here))


@pytest.mark.parametrize(
    "other",
    [
        {"a": ["one", "twO"], "b": ["three"]},
        {"a": ["one", "two"], "b": ["three", "four"]},
        {"a": ["one", "two"]},
        {"a": ["one", "two"], "c": ["three"]},
        {"a": ["two", "one"], "b": ["three"]},
    ],
)
def test_other_files_have_another_lock(tmp_path: Path, other: dict[str, list[str]]) -> None:
    one = lock_hashes(lock_of(lay_down(tmp_path / "one", a=["one", "two"], b=["three"])))
    two = lock_hashes(lock_of(lay_down(tmp_path / "two", **other)))
    assert [name for name in one if one[name] != two[name]] == ["data.web"]


def test_documents_in_memory_are_locked_by_their_text() -> None:
    def hash_of(*texts: str) -> str:
        return lock_hashes(open_small(make_recipe({"web": texts})).lock)["data.web"]

    texts = [("ab", "c"), ("a", "bc"), ("c", "ab"), ("abc",), ("ab", "c", "")]
    assert len({hash_of(*some) for some in texts}) == len(texts)
    assert hash_of("ab", "c") == hash_of("ab", "c")


def test_there_is_one_hash_for_each_thing() -> None:
    lock = {
        "version": 1,
        "data": {"web": {"kind": "memory"}},
        "tokenizer": {"file": "aa", "probe": "bb"},
        "plugins": {"packers.tetris": {"version": "1"}},
    }
    assert lock_hashes(lock) == {
        "data.web": hash_json({"kind": "memory"}),
        "tokenizer.file": "aa",
        "tokenizer.probe": "bb",
        "plugins.packers.tetris": hash_json({"version": "1"}),
    }


def test_a_hash_does_not_depend_on_the_order_of_keys() -> None:
    assert hash_json({"a": 1, "b": [1, 2]}) == hash_json({"b": [1, 2], "a": 1})
    assert hash_json({"a": [1, 2]}) != hash_json({"a": [2, 1]})
    assert hash_json({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def test_plugins_that_the_recipe_names_are_in_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(role: str, name: str) -> dict[str, str]:
        return {"distribution": "tide", "version": "1.2", "target": "t:T"} if name == "tides" else {}

    opened = open_small(make_recipe())
    monkeypatch.setattr(plugins, "lock_entry", entry)
    recipe = make_recipe(schedule={"kind": "tides"})
    lock = lock_module.make_lock(recipe, opened.readers, opened.tokenizer)
    assert lock["plugins"] == {"schedules.tides": {"distribution": "tide", "version": "1.2", "target": "t:T"}}


def test_a_difference_is_one_line() -> None:
    describe = describe_difference
    assert (
        describe("data.web", "a" * 64, "b" * 64)
        == f"dataset web: state has {'a' * 12}, this run has {'b' * 12}"
    )
    assert describe("tokenizer.file", None, "b") == "tokenizer file: not in the state"
    assert describe("plugins.packers.tetris", "a", None) == "plugin packers.tetris: only in the state"


def test_the_version_of_the_core_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert core_version() == "0.1.0"
    monkeypatch.setattr(plugins, "CORE", "zephon-not-installed")
    assert core_version() == "unknown"
