"""H1-H3, H5: exactly the tokens asked for, text is text, no surrogate and no fork breaks a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from tests.elastic.endings import run_leg
from tests.field.corpora import (
    FILES,
    counts_of,
    dataset_of,
    documents_of,
    open_fully,
    open_here,
    recipe_of,
)
from tests.helpers import BOS, words
from zephon.errors import DataError

ROOT = Path(__file__).parents[2]
SPELLED = ["<s>one</s>", "two <|endoftext|> <pad>", "</s><s>", "plain"]


def finite(folder: Path, documents: list[Any], form: str, adds_bos: bool = False, **fields: Any) -> Any:
    """Returns the opened recipe of one pass; its tokenizer may put in BOS by itself, as Llama's does."""
    web = dataset_of(folder, "web", documents, form, num_files=1, max_epochs=1)
    recipe = recipe_of(folder, web, when_exhausted="pad", lanes=2, global_batch_size=2, **fields)
    if adds_bos:
        path = folder / "letters" / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", BOS)]
        )
        tokenizer.save(str(path))
        assert tokenizer.encode("a").ids == [BOS, ord("a")]
    return open_fully(recipe)


@pytest.mark.usefixtures("probed_once")
@pytest.mark.parametrize(
    ("adds_bos", "bos", "eos"),
    [(True, False, False), (True, "<s>", "</s>"), (False, "<s>", False), (False, False, "</s>")],
)
def test_each_document_has_just_the_ends_asked_for(
    tmp_path: Path, adds_bos: bool, bos: Any, eos: Any
) -> None:
    """Texts that spell the tokens are text: they stay and are no ends."""
    opened = finite(tmp_path, SPELLED, "jsonl", adds_bos, bos=bos, eos=eos)
    leg = run_leg(opened, 2)
    expected = ["<" * bool(bos) + text + ">" * bool(eos) for text in SPELLED]
    assert documents_of(opened, leg.steps)["web"] == Counter(expected)
    tokens = [int(t) for step in leg.steps for b in step for t in b.inputs[b.segment_ids > 0]]
    assert (tokens.count(256), tokens.count(257)) == (4 * bool(bos), 4 * bool(eos))


@pytest.mark.usefixtures("probed_once")
@pytest.mark.parametrize("form", ["parquet"])
def test_text_that_spells_special_tokens_may_be_parsed(tmp_path: Path, form: str) -> None:
    for parse_special in (False, True):
        web = dataset_of(tmp_path, "web", SPELLED, form, max_epochs=1)
        recipe = recipe_of(tmp_path, web, when_exhausted="pad", eos=False)
        recipe = replace(recipe, tokenize=replace(recipe.tokenize, parse_special=parse_special))
        opened = open_fully(recipe)
        leg = run_leg(opened)
        came = documents_of(opened, leg.steps)["web"]
        expected = ["<one>", SPELLED[1], "><", "plain"] if parse_special else SPELLED
        assert came == Counter(expected)
        assert {len(step[0].inputs) for step in leg.steps} == {4}


@pytest.mark.usefixtures("probed_once")
@pytest.mark.parametrize("fields", [{"bos": "<none>"}, {"eos": "<none>"}], ids=str)
def test_a_token_that_the_tokenizer_lacks_is_an_error_at_the_start(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="<none>"):
        finite(tmp_path, ["text"], "jsonl", **fields)


# Surrogates -------------------------------------------------------------------------------------------------

LINES = [
    rb'{"text": "a\ud800b"}',
    rb'{"text": "\ud83d\ude00"}',
    rb'{"text": "\u0000nul"}',
    rb'{"text": "\udc00\ud83d"}',
]
TEXTS = ["a\ufffdb", "\U0001f600", "\0nul", "\ufffd\ufffd"]
IN_MEMORY = ["a\ud800b", "\U0001f600", "\0nul", "\udc00\ud83d"]


def as_tokens(text: str) -> str:
    """Returns a text as `read` gives its bytes."""
    return "".join(chr(byte) for byte in text.encode()) + ">"


@pytest.mark.usefixtures("probed_once")
@pytest.mark.parametrize("form", ["jsonl", "memory"])
def test_lone_surrogates_are_replaced_and_counted_on_every_worker(tmp_path: Path, form: str) -> None:
    """The first and the last of four documents, of which the last has two."""
    documents = list(LINES) if form == "jsonl" else IN_MEMORY
    opened = finite(tmp_path, documents, form)
    leg = run_leg(opened)
    assert documents_of(opened, leg.steps)["web"] == Counter(map(as_tokens, TEXTS))
    endless = open_here(recipe_of(tmp_path, dataset_of(tmp_path, "web", documents, form, num_files=1)))
    whole = run_leg(endless, num_steps=9)
    assert counts_of(whole.states[-1])["replaced"] > 8
    for world, executor in ((1, "threads"), (2, "threads"), (2, "inline")):
        leg = run_leg(endless, world, num_steps=9, executor=executor, workers=2, prefetch=2)
        assert leg.digests == whole.digests
        assert leg.states == whole.states


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_what_is_not_utf_8_is_an_error_with_file_and_record_or_counted(
    tmp_path: Path, form: str, on_error: str
) -> None:
    """A surrogate as bytes, and bytes of another encoding, at records 1 and 3 of five."""
    raw = [b"zero", b"a\xed\xa0\x80b", b"two", b"caf\xe9", b"four"]
    lines: list[Any] = [b'{"text": "' + text + b'"}' for text in raw] if form == "jsonl" else list(raw)
    web = dataset_of(
        tmp_path, "web", lines, form, num_files=1, order="identity", on_error=on_error, max_epochs=1
    )
    opened = open_here(recipe_of(tmp_path, web, lanes=1, global_batch_size=1, when_exhausted="pad"))
    if on_error == "raise":
        with pytest.raises(DataError, match=rf"dataset 'web', file 'a.{form}', record 1: .* \(not_utf8\)"):
            run_leg(opened)
    else:
        leg = run_leg(opened)
        assert documents_of(opened, leg.steps)["web"] == Counter(["zero>", "two>", "four>"])


# Forks ------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys
from pathlib import Path
from zephon import Constant, Dataset, Packing, Recipe, Tokenize, WorkerError, digest, step_digest

folder = Path(sys.argv[1])

def found(executor):
    web = Dataset.from_path("web", folder / "web")
    recipe = Recipe(
        seed=42, global_batch_size=4, datasets=(web,), schedule=Constant({"web": 1}), base=folder,
        tokenize=Tokenize(tokenizer="letters"), packing=Packing(seq_len=64),
    )
    with recipe.loader(
        executor=executor, workers=2, prefetch=2, cache=folder / "cache", backend=sys.argv[2],
        worker_timeout_s=30,
    ) as loader:
        return [step_digest(digest(next(loader))) for _ in range(20)]

def forked(executor, expected):
    child = os.fork()
    if not child:
        try:
            os._exit(0 if found(executor) == expected else 7)
        except WorkerError as error:
            os._exit(3 if f"used in process {os.getppid()} before the fork" in str(error) else 8)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == (3 if os.environ.get("TOKENIZERS_PARALLELISM") == "true" else 0), code

if __name__ == "__main__":
    before = dict(os.environ)
    expected = found("threads")
    for executor in ("threads", "inline") if sys.argv[3] == "fork" else ("processes",):
        if sys.argv[3] == "fork":
            forked(executor, expected)
        else:
            assert found(executor) == expected
    assert dict(os.environ) == before
    print(*expected)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "parallelism", "backend"),
    [
        ("spawn", "true", "auto"),
        ("fork", None, "tokenizers"),
        ("fork", "true", "tokenizers"),
        ("fork", "true", "auto"),
    ],
)
def test_workers_after_the_tokenizer_s_threads_were_used(
    tmp_path: Path, start: str, parallelism: str | None, backend: str
) -> None:
    """Worker processes, which are spawned, or a forked child with a loader of its own: the same ids.

    No warning, no hang, and the environment is as it was. Where the user asks for the tokenizer's threads in
    a forked child, which the library cannot give, it is an error at once.
    """
    recipe_of(tmp_path, dataset_of(tmp_path, "web", words("web", 200, (40, 90)), "jsonl"))
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    environment |= {"PYTHONPATH": str(ROOT)}
    environment |= {"TOKENIZERS_PARALLELISM": parallelism} if parallelism else {}
    running = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), backend, start],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, errors = running.communicate(timeout=90)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
    assert errors == ""
    assert running.returncode == 0
    assert len(set(out.split())) == 20
