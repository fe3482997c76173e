"""The encoders put in exactly the tokens asked for, both libraries give the same ids, and faults are told."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from zephon.errors import CheckError, DataError
from zephon.tokenizer import Encoder, Tokenize, load_tokenizer, tokenizer_lock
from zephon.tokenizer.file import read_tokenizer_file
from zephon.tokenizer.probe import Columns, encode_batches, find_difference, hash_columns, probe_batches

BACKENDS = [
    "tokenizers",
    pytest.param(
        "fastokens",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("fastokens") is None, reason="fastokens is not installed"
        ),
    ),
]
BOS, EOS, EXTRA = 258, 259, 260
WORDS = ["", "hello world", "<s>hello</s>", " ", "a <tool> b", "\u00e9\u4f60\U0001f600\x00"]


def letters() -> dict[str, int]:
    """Returns the byte-level alphabet, so that a letter of plain ASCII is a token of its own."""
    return {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def build(
    special: tuple[str, ...] = ("<s>", "</s>"), plain: tuple[str, ...] = ("<tool>",), own_bos: bool = True
) -> Tokenizer:
    """Returns a byte-level BPE of 256 letters and two merges, that truncates, pads and adds BOS by itself."""
    vocab = {**letters(), "he": 256, "ll": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("h", "e"), ("l", "l")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    if own_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{special[0]} $A", special_tokens=[(special[0], BOS)]
        )
        tokenizer.enable_truncation(4)
        tokenizer.enable_padding(length=16)
    return tokenizer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the tiny tokenizer.json; tests that change it copy it."""
    path = tmp_path_factory.mktemp("tiny")
    build().save(str(path / "tokenizer.json"))
    return path


def encoder(
    folder: Path,
    backend: str,
    *,
    bos: bool | str = False,
    eos: bool | str = False,
    parse_special: bool = False,
) -> Encoder:
    """Returns an encoder without the probe, which costs more than all that these tests do."""
    path = folder / "tokenizer.json"
    return Encoder(
        read_tokenizer_file(path, bos=bos, eos=eos, parse_special=parse_special).blueprint, backend
    )


@cache
def cached_encoder(folder: Path, backend: str, bos: bool, eos: bool, parse_special: bool) -> Encoder:
    return encoder(folder, backend, bos=bos, eos=eos, parse_special=parse_special)


def documents(encoder: Encoder, texts: list[str]) -> list[list[int]]:
    ids, offsets = encoder.encode(texts)
    assert ids.dtype == np.uint32
    assert offsets.dtype == np.int64
    assert offsets[0] == 0
    assert offsets[-1] == len(ids)
    return [ids[a:b].tolist() for a, b in pairwise(offsets.tolist())]


def spell(text: str) -> list[int]:
    """Returns the ids of plain ASCII text by the letters and merges of the tiny tokenizer."""
    table, ids = letters(), []
    for part in text.replace("he", "\n").replace("ll", "\t").replace(" ", "\u0120"):
        ids.append({"\n": 256, "\t": 257}.get(part, table.get(part, -1)))
    return ids


def rewrite(folder: Path, to: Path, **changes: Any) -> Path:
    """Writes the tiny tokenizer.json with top-level keys replaced, and returns its folder."""
    table = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")) | changes
    to.mkdir(exist_ok=True)
    (to / "tokenizer.json").write_text(json.dumps(table), encoding="utf-8")
    return to


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("parse_special", [False, True])
@pytest.mark.parametrize("eos", [False, True, "</s>"])
@pytest.mark.parametrize("bos", [False, True, "<s>"])
def test_every_document_gets_exactly_the_tokens_asked_for(
    folder: Path, backend: str, bos: bool | str, eos: bool | str, parse_special: bool
) -> None:
    tiny = encoder(folder, backend, bos=bos, eos=eos, parse_special=parse_special)
    head, tail = [BOS] if bos else [], [EOS] if eos else []
    spelled = [BOS, *spell("hello"), EOS] if parse_special else spell("<s>hello</s>")
    assert (tiny.bos_id, tiny.eos_id) == (BOS if bos else None, EOS if eos else None)
    assert tiny.num_special == len(head) + len(tail)
    assert documents(tiny, ["hello world", "<s>hello</s>", ""]) == [
        [*head, *spell("hello world"), *tail],
        [*head, *spelled, *tail],
        [*head, *tail],
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_ids_are_these(folder: Path, backend: str) -> None:
    # Golden: edit only when you mean to break resume.
    assert documents(encoder(folder, backend, bos=True, eos=True), ["hello <tool>", "</s>", "\u00e9"]) == [
        [258, 256, 257, 78, 220, 260, 259],
        [258, 27, 14, 82, 29, 259],
        [258, 127, 102, 259],
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_long_documents_are_neither_cut_nor_padded(folder: Path, backend: str) -> None:
    tiny = encoder(folder, backend, eos=True)
    ids, offsets = tiny.encode(["x" * 100_000, "y"])
    assert offsets.tolist() == [0, 100_001, 100_003]
    assert int(ids.max()) < tiny.vocab_size == EXTRA + 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_texts_give_no_tokens(folder: Path, backend: str) -> None:
    assert documents(encoder(folder, backend, bos=True), []) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_decode_shows_special_tokens(folder: Path, backend: str) -> None:
    tiny = encoder(folder, backend, bos=True, eos=True)
    ids, _ = tiny.encode(["hello <tool>"])
    assert tiny.decode(ids) == "<s>hello <tool></s>"
    assert tiny.decode(ids[1:3].tolist()) == "hell"
    assert tiny.decode([EXTRA + 1000]) == ""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pickled_encoder_encodes_the_same(folder: Path, backend: str) -> None:
    tiny = encoder(folder, backend, bos=True, eos=True)
    copy = pickle.loads(pickle.dumps(tiny))
    assert (copy.backend, copy.num_special, copy.vocab_size) == (backend, 2, EXTRA + 1)
    assert documents(copy, WORDS) == documents(tiny, WORDS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_may_share_an_encoder(folder: Path, backend: str) -> None:
    tiny = encoder(folder, backend, eos=True)
    batches = [[f"hello {i} world {j}" * (j % 7) for j in range(40)] for i in range(40)]
    alone = [documents(tiny, batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda batch: documents(tiny, batch), batches)) == alone


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        (["fine", "a\ud800b"], DataError, r"text 1 of 2 .*\n  got:  'a\\ud800b' at character 1"),
        (["fine", None], TypeError, "list of strings, got None at index 1"),
        ([b"fine"], TypeError, "list of strings, got b'fine' at index 0"),
        ("fine", TypeError, "list of strings, got 'fine'"),
    ],
)
def test_texts_that_cannot_be_encoded_are_told(
    folder: Path, backend: str, texts: Any, error: type[Exception], message: str
) -> None:
    tiny = encoder(folder, backend)
    with pytest.raises(error, match=message):
        tiny.encode(texts)
    assert documents(tiny, ["he"]) == [[256]]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text() | st.sampled_from(WORDS), max_size=6), st.booleans(), st.booleans(), st.booleans())
def test_both_libraries_give_the_same_ids(
    folder: Path, texts: list[str], bos: bool, eos: bool, parse_special: bool
) -> None:
    pytest.importorskip("fastokens")
    fast = cached_encoder(folder, "fastokens", bos, eos, parse_special)
    reference = cached_encoder(folder, "tokenizers", bos, eos, parse_special)
    assert documents(fast, texts) == documents(reference, texts)
    ids, _ = reference.encode(texts)
    assert fast.decode(ids) == reference.decode(ids)


@given(st.text())
@settings(max_examples=100, deadline=None)
def test_text_comes_back_whole(folder: Path, text: str) -> None:
    tiny = cached_encoder(folder, "tokenizers", False, False, False)
    assert tiny.decode(tiny.encode([text])[0]) == text


# The choice of the back end, and the lock.


def test_auto_takes_fastokens_where_it_agrees(folder: Path) -> None:
    pytest.importorskip("fastokens")
    tokenize = Tokenize(tokenizer=".", eos=True)
    fast, report = load_tokenizer(tokenize, base=folder, samples=["hello", "\u4f60\u597d"])
    assert (fast.backend, report.backend) == ("fastokens", "fastokens")
    assert "gives the ids of `tokenizers` on" in report.note
    slow, other = load_tokenizer(tokenize, base=folder, backend="tokenizers")
    assert (slow.backend, other.backend) == ("tokenizers", "tokenizers")
    assert tokenizer_lock(report) == tokenizer_lock(other)
    assert (report.path, report.bos_token, report.eos_token) == (folder / "tokenizer.json", None, "</s>")


def test_the_lock_follows_file_and_added_tokens(folder: Path, tmp_path: Path) -> None:
    def lock(tokenize: Tokenize) -> dict[str, str]:
        return tokenizer_lock(load_tokenizer(tokenize, base=folder, backend="tokenizers")[1])

    first = lock(Tokenize(tokenizer="tokenizer.json", eos=True))
    assert lock(Tokenize(tokenizer=str(folder), eos="</s>")) == first
    assert lock(Tokenize(tokenizer="tokenizer.json"))["file"] == first["file"]
    assert lock(Tokenize(tokenizer="tokenizer.json"))["probe"] != first["probe"]
    build(special=("<s>", "</s>", "<pad>")).save(str(tmp_path / "tokenizer.json"))
    assert lock(Tokenize(tokenizer=str(tmp_path), eos=True))["file"] != first["file"]


def test_a_tokenizer_that_fastokens_refuses_is_served_by_the_reference(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastokens")
    refused = rewrite(folder, tmp_path / "nfkc", normalizer={"type": "NFKC"})
    reference, report = load_tokenizer(Tokenize(tokenizer=str(refused)), base=tmp_path)
    assert reference.backend == "tokenizers"
    assert "because `fastokens` refuses this tokenizer" in report.note
    with pytest.raises(CheckError, match="asked for by name\n  got:  `fastokens` refuses"):
        load_tokenizer(Tokenize(tokenizer=str(refused)), base=tmp_path, backend="fastokens")


def test_other_ids_in_a_sample_are_found(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastokens")
    # The libraries disagree on whether U+180E is a space; here that shows only behind "he".
    pattern = {"Regex": r"he(?!\s)|[\s\S]"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    odd = {"type": "Sequence", "pretokenizers": [split, level]}
    tokenize = Tokenize(tokenizer=str(rewrite(folder, tmp_path / "odd", pre_tokenizer=odd)))
    reference, report = load_tokenizer(tokenize, base=tmp_path, samples=["he", "he\u180e"])
    assert reference.backend == "tokenizers"
    assert report.note.endswith(r"`fastokens` gives other ids for the probe text 'he\u180e'")
    _, without = load_tokenizer(tokenize, base=tmp_path, backend="tokenizers")
    assert tokenizer_lock(report) == tokenizer_lock(without)


def test_without_fastokens_the_reference_serves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastokens", None)
    reference, report = load_tokenizer(Tokenize(tokenizer="."), base=folder)
    assert reference.backend == "tokenizers"
    assert "cannot be imported" in report.note
    with pytest.raises(CheckError, match="cannot be imported"):
        load_tokenizer(Tokenize(tokenizer="."), base=folder, backend="fastokens")


def test_an_unknown_back_end_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"`backend` must be one of .* got 'rust'"):
        load_tokenizer(Tokenize(tokenizer="."), base=folder, backend="rust")


def test_the_probe_finds_an_encoder_that_remembers(folder: Path) -> None:
    """An encoder that keeps the matches of the text before, past a run of spaces, must not pass."""
    reference = encoder(folder, "tokenizers")
    before = [""]

    def remembering(texts: list[str]) -> Columns:
        text, head = texts[0], before[0][: len(texts[0]) - 1]
        before[0] = text
        stale = len(texts) == 1 and len(text) > 4096 and text == f"{head} "
        return reference.encode([f"{text}?"] if stale else texts)

    batches = probe_batches(["<s>", "</s>"])
    expected = encode_batches(reference.encode, batches)
    assert find_difference(batches, encode_batches(reference.encode, batches), expected) is None
    assert find_difference(batches, encode_batches(remembering, batches), expected) == batches[3][0]
    assert hash_columns(expected) != hash_columns(encode_batches(remembering, batches))


# Which token is BOS or EOS.


@pytest.mark.parametrize(
    ("special", "plain", "beside", "eos"),
    [
        (("<a>", "</s>"), (), {}, "</s>"),
        (("<a>", "<|im_end|>"), (), {}, "<|im_end|>"),
        (("<|endoftext|>", "<|im_end|>"), (), {}, "<|endoftext|>"),
        (("<a>",), ("<|endoftext|>",), {}, "<|endoftext|>"),
        (("<|endoftext|>",), ("</s>",), {}, "<|endoftext|>"),
        (("<a>", "</s>"), (), {"tokenizer_config.json": {"eos_token": "<a>"}}, "<a>"),
        (("<a>", "</s>"), (), {"tokenizer_config.json": {"eos_token": {"content": "<a>"}}}, "<a>"),
        (("<a>", "</s>"), (), {"special_tokens_map.json": {"eos_token": "<a>"}}, "<a>"),
        (("<a>", "</s>"), (), {"tokenizer_config.json": {"eos_token": None}}, "</s>"),
        (
            ("<a>", "<b>"),
            (),
            {"tokenizer_config.json": {"eos_token": "<a>"}, "special_tokens_map.json": {"eos_token": "<b>"}},
            "<a>",
        ),
    ],
)
def test_the_tokenizers_own_eos_is_found(
    tmp_path: Path,
    special: tuple[str, ...],
    plain: tuple[str, ...],
    beside: Mapping[str, object],
    eos: str,
) -> None:
    build(special, plain, own_bos=False).save(str(tmp_path / "tokenizer.json"))
    for name, table in beside.items():
        (tmp_path / name).write_text(json.dumps(table), encoding="utf-8")
    file = read_tokenizer_file(tmp_path / "tokenizer.json", bos=False, eos=True, parse_special=False)
    assert file.eos_token == eos
    assert file.blueprint.eos_id == BOS + [*special, *plain].index(eos)


@pytest.mark.parametrize(
    ("special", "eos", "message"),
    [
        (("</s>", "<|endoftext|>"), True, r"several \(<\|endoftext\|>, </s>\)"),
        (("<a>", "<b>"), True, r"has none \(its special tokens: <a>, <b>\)"),
        (("<a>", "<b>"), "</s>", r"token '</s>' of the recipe .*special ones: <a>, <b>"),
        (("<a>", "<b>"), "he", "token 'he' of the recipe is not among the added tokens"),
    ],
)
def test_a_token_that_cannot_be_found_is_refused_with_the_candidates(
    tmp_path: Path, special: tuple[str, ...], eos: bool | str, message: str
) -> None:
    build(special, own_bos=False).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=message) as caught:
        load_tokenizer(Tokenize(tokenizer=".", eos=eos), base=tmp_path)
    assert 'write eos = "..."' in str(caught.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_eos_that_is_not_marked_special_cannot_be_spelled(tmp_path: Path, backend: str) -> None:
    build(("<s>",), ("</s>",), own_bos=False).save(str(tmp_path / "tokenizer.json"))
    assert documents(encoder(tmp_path, backend, eos=True), ["</s>"]) == [[*spell("</s>"), EOS]]
    assert documents(encoder(tmp_path, backend, eos=False), ["</s>"]) == [[EOS]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_token_may_be_both_bos_and_eos(tmp_path: Path, backend: str) -> None:
    build(("<|endoftext|>",), (), own_bos=False).save(str(tmp_path / "tokenizer.json"))
    tiny = encoder(tmp_path, backend, bos="<|endoftext|>", eos=True)
    assert documents(tiny, ["he", ""]) == [[BOS, 256, BOS], [BOS, BOS]]


def test_a_broken_configuration_beside_the_file_is_told(tmp_path: Path) -> None:
    build().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(DataError, match=r"tokenizer configuration .*tokenizer_config\.json"):
        load_tokenizer(Tokenize(tokenizer=".", bos=True), base=tmp_path)
    read_tokenizer_file(tmp_path / "tokenizer.json", bos="<s>", eos=False, parse_special=False)


# The file.


def test_a_wrong_path_is_refused_with_what_lies_there(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "vocab.json").touch()
    for written, found in (
        ("models", f"no file {tmp_path}/models/tokenizer.json; {tmp_path}/models holds vocab.json"),
        ("org/name", f"no file {tmp_path}/org/name; {tmp_path} holds models"),
        (
            "models/vocab.json/x",
            f"no file {tmp_path}/models/vocab.json/x; {tmp_path}/models holds vocab.json",
        ),
    ):
        with pytest.raises(DataError) as caught:
            load_tokenizer(Tokenize(tokenizer=written), base=tmp_path)
        assert f"tokenizer {written!r}\n  got:  {found}\n" in str(caught.value)
        assert "hub repositories are not looked up" in str(caught.value)


def test_variables_in_the_path_are_expanded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY", str(folder))
    tokenize = Tokenize(tokenizer="${TINY}/tokenizer.json")
    _, report = load_tokenizer(tokenize, base=Path("/nowhere"), backend="tokenizers")
    assert report.path == folder / "tokenizer.json"
    monkeypatch.delenv("TINY")
    with pytest.raises(DataError, match=r"uses \$\{TINY\}\n  got:  the environment variable is not set"):
        load_tokenizer(tokenize, base=folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON, or cut short"),
        (b'{"version": "1.0", "model": {"type": "BPE", "voc', "not JSON, or cut short"),
        (b"\xff\xfe\x00", "not JSON, or cut short"),
        (b"[1, 2]", "a JSON list, not a table"),
        (b'{"hello": 1, "a": 2}', "without `model.vocab`; it holds a, hello"),
        (b'{"model": {"vocab": {"a": "0"}}}', "ids that are not whole numbers"),
        (b'{"model": {"vocab": {}}, "added_tokens": [{"id": 1}]}', "`added_tokens` that is not a list"),
        (b'{"model": {"vocab": {}}, "added_tokens": 5}', "`added_tokens` that is not a list"),
        (b'{"model": {"vocab": {"\\ud800": 0}}}', "a lone surrogate"),
        (b'{"model": {"vocab": {}, "dropout": 0.1}}', "`model.dropout` is 0.1"),
        (b'{"model": {"type": "Strange", "vocab": {}}}', "`tokenizers` cannot use it"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_told(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load_tokenizer(Tokenize(tokenizer="."), base=tmp_path)
    assert str(tmp_path / "tokenizer.json") in str(caught.value)


def test_a_token_with_another_id_than_written_is_refused(folder: Path, tmp_path: Path) -> None:
    table = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    table["model"]["vocab"]["</s>"] = 999
    wrong = rewrite(folder, tmp_path / "wrong", model=table["model"])
    with pytest.raises(DataError, match=r"token '</s>' has id 259, but `tokenizers` reads 999"):
        load_tokenizer(Tokenize(tokenizer=str(wrong), eos=True), base=tmp_path)


# The recipe's table, and good manners.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": ""}, "`tokenizer` must be the path"),
        ({"tokenizer": 3}, "`tokenizer` must be the path"),
        ({"bos": ""}, "`bos` must be true, false or a token, got ''"),
        ({"eos": 1}, "`eos` must be true, false or a token, got 1"),
        ({"parse_special": "no"}, "`parse_special` must be true or false, got 'no'"),
    ],
)
def test_wrong_values_of_the_table_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Tokenize(**({"tokenizer": "tokenizer.json"} | changes))


def test_the_environment_is_left_alone(folder: Path) -> None:
    code = (
        "import os, sys; before = dict(os.environ); import zephon.tokenizer as t; from pathlib import Path\n"
        "assert not {'tokenizers', 'fastokens', 'torch'} & set(sys.modules)\n"
        "t.load_tokenizer(t.Tokenize(tokenizer=sys.argv[1]), base=Path())[0].encode(['a', 'b'])\n"
        "assert dict(os.environ) == before and 'torch' not in sys.modules\n"
    )
    root = Path(__file__).resolve().parent.parent
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=60, cwd=root)


FORKED = """
import os, sys
from pathlib import Path
from zephon.errors import WorkerError
from zephon.tokenizer import Tokenize, load_tokenizer

encoder, _ = load_tokenizer(Tokenize(tokenizer="tokenizer.json"), base=Path(sys.argv[1]), backend=sys.argv[2])
texts = ["hello world"] * 300
expected = encoder.encode(texts)[0].tolist()
child = os.fork()
if not child:
    try:
        same = encoder.encode(texts)[0].tolist() == expected
    except WorkerError as error:
        print(error, flush=True)
        os._exit(3)
    os._exit(0 if same else 7)
print("code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("asked", [None, "true", "off"])
def test_a_forked_process_is_refused_where_it_would_wait_for_threads_for_ever(
    tmp_path: Path, backend: str, asked: str | None
) -> None:
    """`fastokens` goes on, and so does `tokenizers` where the user did not ask for its threads."""
    build().save(str(tmp_path / "tokenizer.json"))
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    run = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path), backend],
        env=environment if asked is None else environment | {"TOKENIZERS_PARALLELISM": asked},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    if (backend, asked) != ("tokenizers", "true"):
        assert run.stdout == "code 0\n"
        return
    *said, code = run.stdout.splitlines()
    assert code == "code 3"
    assert re.fullmatch(r"`tokenizers` cannot encode in process \d+, which was forked", said[0])
    assert re.search(r"used in process \d+ before the fork, and TOKENIZERS_PARALLELISM=true", said[1])
    assert "spawn, or unset TOKENIZERS_PARALLELISM" in said[3]
