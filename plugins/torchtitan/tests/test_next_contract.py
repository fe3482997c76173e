"""The adapter of the contract after 0.3.0, against a stand-in: no release has that contract yet.

Each test runs in a process of its own, whose `torchtitan.components` has one package more; all are forked
from one, which has imported it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

import pytest

pytest.importorskip("torchtitan")
STAND_IN = Path(__file__).parent / "stand_in"
HEAD = """
import json, sys, torch
import torchtitan.components
torchtitan.components.__path__.append(sys.argv[1])
from pathlib import Path
import zephon as z
from zephon_torchtitan import ZephonDataLoader
from torchtitan.components.data.loader import BaseDataLoader

def build(rank=0, size=1, rows=2, **fields):
    config = ZephonDataLoader.Config(recipe=sys.argv[2], executor="inline", **fields)
    return config.build(dp_world_size=size, dp_rank=rank, tokenizer=None, max_context_length=16,
                        num_tokens_per_batch=16 * rows)

import os, traceback
for code in sys.stdin:
    child = os.fork()
    if not child:
        try:
            exec(json.loads(code))
        except BaseException:
            print(traceback.format_exc())
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    print("END", flush=True)
"""
Run = Callable[[str], str]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a recipe of 64 documents, four lanes, four rows a step."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("next_contract")
    vocabulary = {letter: i for i, letter in enumerate("0123456789 [unk]")}
    tokenizer = Tokenizer(models.BPE(vocab={k: v for k, v in vocabulary.items() if len(k) == 1}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    lines = [json.dumps({"text": f"{i:02d} " * (1 + i % 5)}) for i in range(64)]
    (folder / "numbers.jsonl").write_text("\n".join(lines))
    path = folder / "recipe.toml"
    path.write_text(
        "seed = 3\nglobal_batch_size = 4\n"
        '[tokenize]\ntokenizer = "tokenizer.json"\n[packing]\nkind = "wrap"\n'
        '[schedule]\nkind = "constant"\nweights = { numbers = 1 }\n'
        '[[datasets]]\nname = "numbers"\npath = "numbers.jsonl"\n'
    )
    return path


@pytest.fixture(scope="module")
def run(recipe: Path) -> Iterator[Run]:
    """Returns what gives what `code` prints in a process with the stand-in."""
    command = [sys.executable, "-c", HEAD, str(STAND_IN), str(recipe)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, printed = process.stdin, process.stdout

        def run(code: str) -> str:
            print(json.dumps(code), file=asked, flush=True)
            return "".join(takewhile("END\n".__ne__, printed))

        yield run


def test_it_is_chosen_by_where_the_loaders_lie(run: Run) -> None:
    found = run("print(ZephonDataLoader.__module__, issubclass(ZephonDataLoader, BaseDataLoader))")
    assert found.split() == ["zephon_torchtitan.next_contract", "True"]


def test_rows_are_folded_and_are_those_of_the_core(run: Run) -> None:
    code = """
loader = build()
inputs, labels = next(iter(loader))
assert inputs["input"].shape == inputs["positions"].shape == labels.shape == (32,)
assert inputs["input"].dtype == labels.dtype == torch.int64
assert inputs["num_valid_tokens"] == int((labels != -100).sum()) > 0
core = z.Recipe.from_toml(sys.argv[2], settings={"packing.seq_len": 16})
with core.loader(micro_batch_size=2, executor="inline") as plain:
    batch = next(plain)
assert inputs["input"].tolist() == batch.inputs.reshape(-1).tolist()
assert labels.tolist() == batch.labels.reshape(-1).tolist()
assert inputs["positions"].tolist() == batch.positions.reshape(-1).tolist()
loader.close()
try:
    next(iter(loader))
except z.ZephonError:
    print("closed")
"""
    assert run(code).split() == ["closed"]


def test_one_dict_where_that_is_what_a_batch_is(run: Run) -> None:
    code = """
import torchtitan.components.data.types as types
types.TrainingMicrobatch = object
batch = next(iter(build()))
print(*sorted(batch))
"""
    assert run(code).split() == ["input", "labels", "num_valid_tokens", "positions"]


def test_two_ranks_go_on_from_the_state_of_one(run: Run) -> None:
    code = """
def rows(loader, count):
    return [tuple(batch[0]["input"].tolist()) for batch, _ in zip(iter(loader), range(count))]

one = build(rows=4)
rows(one, 3)
state = one.state_dict()
expected = rows(one, 2)
parts = []
for rank in range(2):
    loader = build(rank, 2)
    loader.load_state_dict(state)
    parts.append(rows(loader, 2))
merged = [a + b for a, b in zip(*parts)]
print(merged == expected, len(set(expected)) == 2)
"""
    assert run(code).split() == ["True", "True"]


def test_a_batch_of_broken_rows_is_refused(run: Run) -> None:
    code = """
config = ZephonDataLoader.Config(recipe=sys.argv[2])
try:
    config.build(dp_world_size=1, dp_rank=0, tokenizer=None, max_context_length=16, num_tokens_per_batch=40)
except SystemExit as end:
    print(end.code)
"""
    assert run(code).split() == ["3"]


def test_a_pass_ends_and_padding_is_refused_in_training(run: Run) -> None:
    code = """
padded = ("when_exhausted=pad", "datasets.numbers.max_epochs=1")
one_pass = build(repeat=False)
batches = iter(one_pass)
print(sum(1 for _ in batches) > 1)
print(next(iter(one_pass), None))
try:
    build(set=padded)
except SystemExit as end:
    print(end.code)
"""
    assert run(code).split() == ["True", "None", "3"]


def test_its_length() -> None:
    """The promise of a thin adapter."""
    import zephon_torchtitan

    path = Path(zephon_torchtitan.__file__).parent / "next_contract.py"
    assert len(path.read_text().splitlines()) <= 100
