"""I1, I4: a record that cannot be used is named, or counted and passed, and every restore agrees on it."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.elastic.endings import Leg, run_leg
from tests.field.corpora import (
    FILES,
    FORMATS,
    POLICIES,
    apart_from_attempt,
    counts_of,
    dataset_of,
    documents_of,
    open_here,
    passed_by,
    recipe_of,
)
from tests.helpers import loaders, read, words
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.opened import Opened
from zephon.recipe import Recipe

WORLDS = (1, 2, 4)
BAD_LINES: dict[str, bytes] = {
    "not_json": b'{"text": "cut in ha',
    "not_object": b'["text"]',
    "not_object number": b"7",
    "not_object text": b'"text"',
    "missing": b'{"body": "text"}',
    "null": b'{"text": null}',
    "not_text": b'{"text": 17}',
    "not_text list": b'{"text": ["a"]}',
    "not_utf8": b'{"text": "caf\xe9"}',
    "not_json two": b'{"text": "a"}{"text": "b"}',
}
TOKENLESS: dict[str, list[tuple[object, str]]] = {
    "jsonl": [*((line, "bad") for line in BAD_LINES.values()), ("", "empty"), (b'{"text": ""}', "empty")],
    "parquet": [(None, "bad"), (b"caf\xe9", "bad"), ("", "empty")],
    "memory": [(None, "bad"), (7, "bad"), (["a"], "bad"), ("", "empty")],
}
"""What gives no tokens, in each format, and what it is counted as."""
TEXT_OF_SPACES = ["   ", "\n", "\t \r\n"]


def line(text: str) -> bytes:
    return json.dumps({"text": text}).encode()


def one_file(folder: Path, content: bytes, **fields: Any) -> Dataset:
    """Returns the dataset of one JSONL file of these bytes, in file order."""
    folder.mkdir(exist_ok=True)
    (folder / "a.jsonl").write_bytes(content)
    return Dataset.from_path("web", folder / "a.jsonl", order="identity", **fields)


def one_pass(dataset: Dataset, folder: Path) -> tuple[Opened, Leg]:
    once = replace(dataset, max_epochs=1)
    opened = open_here(recipe_of(folder, once, lanes=1, global_batch_size=1, when_exhausted="pad"))
    return opened, run_leg(opened)


# One bad record ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "kind"), [*zip((0, 2, 4, 2, 2) * 2, BAD_LINES, strict=True)])
def test_a_bad_line_of_five_is_named_or_it_alone_is_left_out(tmp_path: Path, at: int, kind: str) -> None:
    lines = [line(word) for word in ("one", "two", "three", "four", "five")]
    good = [word + ">" for i, word in enumerate(("one", "two", "three", "four", "five")) if i != at]
    lines[at] = BAD_LINES[kind]
    content = b"\n".join(lines)  # the last line has no line end
    with pytest.raises(DataError) as caught:
        one_pass(one_file(tmp_path, content), tmp_path)
    said = str(caught.value).splitlines()
    assert said[0] == f"dataset 'web', file 'a.jsonl', record {at}: cannot be used ({kind.split()[0]})"
    assert [part.split(":")[0].strip() for part in said[1:]] == ["got", "rule", "cure"]
    opened, leg = one_pass(one_file(tmp_path, content, on_error="skip", max_bad=1), tmp_path)
    assert documents_of(opened, leg.steps)["web"] == Counter(good)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""], ids=["lf", "crlf", "no end"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_blank_lines_and_marks_are_no_records(tmp_path: Path, end: bytes, mark: bytes) -> None:
    between = end or b"\n"
    content = mark + between.join([b"", line("one"), b"", b"  \t", line("two"), line("three")]) + end
    opened, leg = one_pass(one_file(tmp_path, content), tmp_path)
    assert documents_of(opened, leg.steps)["web"] == Counter(["one>", "two>", "three>"])
    assert opened.lock["data"]["web"]["num_documents"] == 3


@pytest.mark.parametrize("form", FORMATS)
def test_a_null_after_a_good_beginning_is_named(tmp_path: Path, form: str) -> None:
    documents: list[object] = [*words("web", 40)]
    documents[17] = None
    web = dataset_of(tmp_path, "web", documents, form, order="identity")
    opened = open_here(recipe_of(tmp_path, web))
    where = "file 'web', record 17" if form == "memory" else f"file 'b.{form}', record 3"
    for world in WORLDS:
        with pytest.raises(DataError, match=rf"dataset 'web', {where}: cannot be used \(null\)"):
            run_leg(opened, world, num_steps=50)


@pytest.mark.parametrize("form", FORMATS)
def test_spaces_are_text_and_empty_text_is_none(tmp_path: Path, form: str) -> None:
    """By default, where a bad record stops the run: no segment is empty, no document is its end alone."""
    documents = ["one", "", *TEXT_OF_SPACES, "", "two", ""]
    web = dataset_of(tmp_path, "web", documents, form, max_epochs=2)
    for kind in ("wrap", "best_fit"):
        for bos in (False, "<s>"):
            recipe = recipe_of(tmp_path, web, kind=kind, bos=bos, seq_len=6, when_exhausted="pad")
            opened = open_here(recipe)
            leg = run_leg(opened, 2)
            expected = ["<" * bool(bos) + text + ">" for text in ("one", "two", *TEXT_OF_SPACES)]
            assert documents_of(opened, leg.steps)["web"] == Counter(expected * 2)
            assert min(int(b.pieces.length.min(initial=9)) for step in leg.steps for b in step) > 0


# Many, and restores -----------------------------------------------------------------------------------------


def spoilt(form: str) -> tuple[list[object], list[str]]:
    """Returns 48 documents, of which every third gives no tokens, and what each is counted as."""
    documents: list[object] = [*words("web", 48, (1, 2, 6))]
    kinds = [""] * 48
    for number, place in enumerate(range(1, 48, 3)):
        documents[place], kinds[place] = TOKENLESS[form][number % len(TOKENLESS[form])]
    return documents, kinds


def recipe_of_spoilt(folder: Path, form: str, kind: str, **fields: Any) -> Recipe:
    of_recipe = {"when_exhausted": fields.pop("when_exhausted", "stop")}
    web = dataset_of(folder, "web", spoilt(form)[0], form, on_error="skip", **fields)
    code = Dataset.from_documents("code", words("code", 12), max_epochs=fields.get("max_epochs"))
    options = {"pool_documents": 4} if kind == "best_fit" else {}
    return recipe_of(folder, web, code, kind=kind, options=options, **of_recipe)


@pytest.mark.parametrize(
    ("form", "kind"), [("jsonl", "wrap"), ("parquet", "best_fit"), ("jsonl", "best_fit")]
)
def test_from_every_step_the_same_is_skipped_and_counted(tmp_path: Path, form: str, kind: str) -> None:
    """On any ranks: rows and states, and the counts are what the cursors have passed."""
    opened = open_here(recipe_of_spoilt(tmp_path, form, kind))
    whole = run_leg(opened, num_steps=6)
    kinds = spoilt(form)[1]
    for step, state in enumerate(whole.states[:-1]):
        assert counts_of(state) == passed_by(opened, state, kinds)
        for world in WORLDS:
            leg = run_leg(opened, world, state, num_steps=1)
            assert leg.digests == whole.digests[step : step + 1]
            for ours, theirs in zip(leg.states, whole.states[step:], strict=False):
                assert apart_from_attempt(ours) == apart_from_attempt(theirs)
    assert counts_of(whole.states[-1])["bad"] > 2


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("form", FORMATS)
def test_a_pass_over_spoilt_data_gives_what_is_good_once(tmp_path: Path, form: str, policy: str) -> None:
    opened = open_here(recipe_of_spoilt(tmp_path, form, "wrap", max_epochs=1, when_exhausted=policy))
    documents, kinds = spoilt(form)
    good = Counter(f"{text}>" for text, kind in zip(documents, kinds, strict=True) if not kind)
    whole = run_leg(opened)
    assert whole.ended
    came = documents_of(opened, whole.steps)["web"]
    complete = Counter({text: n for text, n in came.items() if text.endswith(">")})
    assert complete <= good
    if policy == "pad":
        assert came == good
    for world in WORLDS:
        half = len(whole.steps) // 2
        first = run_leg(opened, world, num_steps=half)
        rest = run_leg(opened, 4 // world, first.states[-1])
        assert first.digests + rest.digests == whole.digests


@pytest.mark.parametrize("form", FORMATS)
def test_a_record_that_is_dropped_shifts_no_other_lane(tmp_path: Path, form: str) -> None:
    """Record 5 is of lane 1, in file order on four lanes: the rows of lanes 0, 2 and 3 are as they were."""
    rows = []
    for name, fifth in (("good", "w5 w5 "), ("spoilt", None)):
        documents: list[object] = [f"w{i} w{i} " for i in range(20)]
        documents[5] = fifth
        web = dataset_of(tmp_path / name, "web", documents, form, order="identity", on_error="skip")
        leg = run_leg(open_here(recipe_of(tmp_path / name, web)), 2, num_steps=6)
        rows.append(
            [[read(b.inputs[b.lanes == lane].ravel()) for s in leg.steps for b in s] for lane in range(4)]
        )
    assert [rows[0][lane] == rows[1][lane] for lane in range(4)] == [True, False, True, True]
    without = "".join(rows[0][1]).replace("w5 w5 >", "")
    assert without.startswith("".join(rows[1][1])[: len(without) - 16])


# The budget -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FILES)
def test_the_budget_is_used_up_at_one_step_whatever_the_restores(tmp_path: Path, form: str) -> None:
    """A restore at every step, and at none: the error comes at the same step and names dataset and budget."""
    opened = open_here(recipe_of_spoilt(tmp_path, form, "wrap", max_bad=2))
    states: list[dict[str, Any]] = [run_leg(opened, num_steps=0).states[0]]
    too_many = r"dataset 'web', lane \d: too many records that cannot be used\n.*\n.*max_bad = 2"
    with pytest.raises(DataError, match=too_many):  # noqa: PT012
        while len(states) < 100:
            states.append(run_leg(opened, WORLDS[len(states) % 3], states[-1], 1).states[-1])
    assert len(states) > 2
    for world in WORLDS:
        assert len(run_leg(opened, world, num_steps=len(states) - 1).steps) == len(states) - 1
        with pytest.raises(DataError, match=too_many):
            run_leg(opened, world, num_steps=len(states))


@pytest.mark.parametrize("form", FORMATS)
def test_a_budget_of_just_enough_lasts_for_a_pass(tmp_path: Path, form: str) -> None:
    """In file order on four lanes; one less is an error on every number of ranks."""
    kinds = spoilt(form)[1]
    needed = max(sum(kind == "bad" for kind in kinds[lane::4]) for lane in range(4))
    for max_bad in (needed, needed - 1):
        recipe = recipe_of_spoilt(
            tmp_path, form, "wrap", max_bad=max_bad, max_epochs=1, order="identity", when_exhausted="pad"
        )
        opened = open_here(recipe)
        for world in WORLDS:
            if max_bad == needed:
                assert run_leg(opened, world).ended
            else:
                with pytest.raises(DataError, match="too many records"):
                    run_leg(opened, world)


# What is said -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_what_is_skipped_is_said_in_the_log(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C11: skipped records are counted, logged and budgeted."""
    web = dataset_of(tmp_path, "web", [*words("web", 20), *[None] * 120], form, max_epochs=1, on_error="skip")
    opened = open_here(recipe_of(tmp_path, web, when_exhausted="pad"))
    with caplog.at_level(logging.INFO, logger="zephon"):
        run_leg(opened, executor="threads", workers=2)
    told = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    record = rf"dataset 'web', file '[abc]\.{form}', record \d+: skipped \(null\), got null; number (\d+)"
    numbers = [int(found[1]) for line in told if (found := re.match(record, line))]
    assert sorted(numbers) == [1, 2, 3, 4, 5, 10, 100]
    (end,) = [r.getMessage() for r in caplog.records if "the data end" in r.getMessage()]
    assert end.endswith("; records skipped: web 120")


PROGRAM = """
import sys
from pathlib import Path
from tests.field.corpora import open_here, recipe_of
from zephon import Dataset, Loader, LoaderOptions

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    web = Dataset.from_path("web", folder / "a.jsonl", on_error="skip")
    opened = open_here(recipe_of(folder, web, lanes=1, global_batch_size=1))
    with Loader(opened, LoaderOptions(executor="processes", workers=1)) as loader:
        next(loader)
"""


@pytest.mark.slow
def test_what_a_worker_process_skips_is_said_on_stderr(tmp_path: Path) -> None:
    """Where nobody set up logging in the worker, which is a fresh process."""
    (tmp_path / "a.jsonl").write_bytes(line("one and two and three") + b"\n" + BAD_LINES["null"] + b"\n")
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "ZEPHON_PLUGINS": "none"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "dataset 'web', file 'a.jsonl', record 1: skipped (null), got null; number 1 here\n" in run.stderr


@pytest.mark.parametrize(("form", "kind"), [("jsonl", "wrap"), ("parquet", "best_fit")])
def test_progress_at_the_end_of_a_pass_is_all_that_was_given(tmp_path: Path, form: str, kind: str) -> None:
    """The last rows, of what packers held, are part of it; after a restore among them, too."""
    web = dataset_of(tmp_path, "web", words("web", 48), form, max_epochs=1)
    opened, given, states = open_here(recipe_of(tmp_path, web, kind=kind, when_exhausted="pad")), 0, []
    with loaders(opened) as (loader,):
        for batch in loader:
            given += int(batch.tokens.sum())
            assert loader.progress().num_steps == batch.step + 1
            assert int(loader.progress().tokens[0]) >= given
            states.append(loader.state_dict())
        last = loader.progress()
    assert [last.tokens.tolist(), last.documents.tolist(), last.epochs.tolist()] == [[given], [48], [1.0]]
    with loaders(opened) as (loader,):
        loader.load_state_dict(states[-2])
        assert len(list(loader)) == 1
        again = loader.progress()
    assert [again.tokens.tolist(), again.documents.tolist(), again.epochs.tolist()] == [[given], [48], [1.0]]


@pytest.mark.parametrize(("form", "kind"), [("jsonl", "wrap"), ("parquet", "best_fit")])
def test_what_was_skipped_is_counted_to_the_end_of_a_pass(tmp_path: Path, form: str, kind: str) -> None:
    """The records behind the last document of a lane, too, by `progress()`; the state makes these again."""
    documents, kinds = spoilt(form)
    web = dataset_of(tmp_path, "web", documents, form, on_error="skip", order="identity", max_epochs=1)
    opened = open_here(recipe_of(tmp_path, web, kind=kind, when_exhausted="pad"))
    expected = dict(Counter(k for k in kinds if k))
    with loaders(opened, 2, any_rank=lambda says: says) as ranks:
        found: Counter[str] = Counter()
        for rank in ranks:
            for _ in rank:
                pass
            found.update(rank.progress().counts[0])
    assert dict(found) == expected
