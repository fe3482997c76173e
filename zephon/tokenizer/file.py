"""A tokenizer.json rewritten in memory so that it puts in exactly the BOS/EOS asked for.

Upstream: the file a recipe names, and the configuration files beside it. Downstream: `tokenizer`, which gives
the blueprint to a library. The library itself then adds the tokens, at no cost per document.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zephon.errors import DataError
from zephon.paths import expand

FILE_NAME = "tokenizer.json"
CONFIG_NAMES = ("tokenizer_config.json", "special_tokens_map.json")
KNOWN_NAMES: Mapping[str, tuple[str, ...]] = {
    "bos": ("<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>"),
    "eos": ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>"),
}
"""Per role: the names looked for when no file beside the tokenizer.json says which token it is."""
LESSER_NAMES: Mapping[str, tuple[str, ...]] = {"bos": (), "eos": ("<|im_end|>", "<|eot_id|>", "<|end|>")}
"""Names that end a turn of a chat; they count only where none of the above is found."""
NUM_NAMES_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """All that an encoder is made of; small enough to send to a worker process once."""

    json: bytes
    """The tokenizer.json without truncation and padding, its post-processor exactly `[BOS?] text [EOS?]`."""
    bos_id: int | None
    eos_id: int | None
    vocab_size: int
    """The largest id plus one."""
    parse_special: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFile:
    """What was read from a tokenizer.json and the files beside it."""

    path: Path
    file_hash: str
    """SHA-256 of the file's bytes."""
    bos_token: str | None
    eos_token: str | None
    added_tokens: tuple[str, ...]
    """The spellings of the added tokens, in the order of the file."""
    blueprint: Blueprint


def read_tokenizer_file(
    path: Path, *, bos: bool | str, eos: bool | str, parse_special: bool
) -> TokenizerFile:
    """Returns the tokenizer.json at `path` with the BOS/EOS asked for: true for its own, or a token.

    `ValueError` for a token that cannot be found, `DataError` for a file that cannot be used.
    """
    data = path.read_bytes()
    table = _parse(path, data)
    bos_token = _find_token("bos", bos, table, path)
    eos_token = _find_token("eos", eos, table, path)
    try:
        blueprint = _rewrite(table, bos_token, eos_token, parse_special)
    except UnicodeEncodeError as error:
        got = f"a lone surrogate, {error.object[error.start]!r}, which is no text"
        raise explain_file(path, got) from error
    return TokenizerFile(
        path=path,
        file_hash=hashlib.sha256(data).hexdigest(),
        bos_token=bos_token,
        eos_token=eos_token,
        added_tokens=tuple(entry["content"] for entry in _added(table)),
        blueprint=blueprint,
    )


def find_tokenizer_file(written: str, base: Path) -> Path:
    """Returns the absolute path of the tokenizer.json that `written` means, `${VAR}` and `~` expanded.

    A relative path starts at `base`. Nothing is looked up outside the file system.
    """
    path = Path(os.path.abspath(base / expand(written, "tokenizer")))
    if path.is_dir():
        path = path / FILE_NAME
    if path.is_file():
        return path
    folder = next(parent for parent in path.parents if parent.is_dir())
    raise DataError.explained(
        f"tokenizer {written!r}",
        got=f"no file {path}; {folder} holds {_list(sorted(os.listdir(folder)))}",
        rule=f"`tokenizer` is a local {FILE_NAME} or its folder, relative to the recipe's folder",
        cure=f"write the path of the {FILE_NAME}; names of hub repositories are not looked up",
    )


def explain_file(path: Path, got: str, *, cure: str = "") -> DataError:
    """Returns the error of a tokenizer.json that cannot be used."""
    rule = f"the file is a {FILE_NAME} as Hugging Face `tokenizers` saves it, without randomness"
    cure = cure or f"write the path of a whole {FILE_NAME}, or fetch it again"
    return DataError.explained(f"tokenizer file {path}", got=got, rule=rule, cure=cure)


def _list(names: list[str]) -> str:
    more = ", ..." if len(names) > NUM_NAMES_SHOWN else ""
    return ", ".join(names[:NUM_NAMES_SHOWN]) + more if names else "nothing"


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    """Returns the table of a tokenizer.json, checked as far as this module reads it."""
    try:
        table: Any = json.loads(data)
    except ValueError as error:
        raise explain_file(path, f"not JSON, or cut short: {error}") from error
    if not isinstance(table, dict):
        raise explain_file(path, f"a JSON {type(table).__name__}, not a table")
    model = table.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict | list):
        raise explain_file(path, f"a table without `model.vocab`; it holds {_list(sorted(table))}")
    ids = model["vocab"].values() if isinstance(model["vocab"], dict) else ()
    if not all(type(i) is int for i in ids):
        raise explain_file(path, "`model.vocab` with ids that are not whole numbers")
    if model.get("dropout"):
        got = f"`model.dropout` is {model['dropout']}, which encodes a text in a new way each time"
        raise explain_file(path, got, cure="set `model.dropout` to null in a copy of the file")
    added = table.get("added_tokens") or []
    if not isinstance(added, list) or not all(map(_is_added_token, added)):
        raise explain_file(path, "`added_tokens` that is not a list of tables with `id` and `content`")
    return table


def _is_added_token(entry: Any) -> bool:
    return isinstance(entry, dict) and type(entry.get("id")) is int and type(entry.get("content")) is str


def _added(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    return table.get("added_tokens") or []


def _special_tokens(table: Mapping[str, Any]) -> list[str]:
    return [entry["content"] for entry in _added(table) if entry.get("special")]


def _find_token(role: str, want: bool | str, table: Mapping[str, Any], path: Path) -> str | None:
    """Returns the token of a role, or None where none is asked for."""
    if want is False:
        return None
    token, origin = (want, "the recipe") if isinstance(want, str) else _declared_token(role, path)
    if token is None:
        return _known_token(role, table, path)
    if token not in {entry["content"] for entry in _added(table)}:
        raise ValueError(
            f"`{role}` token {token!r} of {origin} is not among the added tokens of {path}; "
            f'write {role} = "..." with one of them (special ones: {_list(_special_tokens(table))})'
        )
    return token


def _declared_token(role: str, path: Path) -> tuple[str | None, str]:
    """Returns the token that a file beside the tokenizer.json gives to the role, and that file's name."""
    for name in CONFIG_NAMES:
        beside = path.with_name(name)
        if not beside.is_file():
            continue
        try:
            value = json.loads(beside.read_bytes()).get(f"{role}_token")
        except (ValueError, AttributeError) as error:
            raise DataError.explained(
                f"tokenizer configuration {beside}",
                got=f"not a JSON table: {error}",
                rule=f"`{role} = true` takes the `{role}_token` of this file",
                cure=f'repair or remove the file, or write {role} = "..." with the token',
            ) from error
        token = value.get("content") if isinstance(value, dict) else value
        if isinstance(token, str):
            return token, name
    return None, ""


def _known_token(role: str, table: Mapping[str, Any], path: Path) -> str:
    """Returns the one added token with a well-known name, those marked special first."""
    special = _special_tokens(table)
    every = [entry["content"] for entry in _added(table)]
    found: list[str] = []
    for tokens, names in (
        (special, KNOWN_NAMES[role]),
        (every, KNOWN_NAMES[role]),
        (special, LESSER_NAMES[role]),
    ):
        found = found or [name for name in names if name in tokens]
    if len(found) == 1:
        return found[0]
    what = f"several ({_list(found)})" if found else f"none (its special tokens: {_list(special)})"
    raise ValueError(
        f"`{role} = true`, but of the well-known {role.upper()} tokens {path} has {what}, and no "
        f'{" or ".join(CONFIG_NAMES)} beside it names one; write {role} = "..." with the token'
    )


def _rewrite(
    table: dict[str, Any], bos_token: str | None, eos_token: str | None, parse_special: bool
) -> Blueprint:
    """Returns the blueprint; `table` is changed, since a copy of it costs as much as reading it."""
    ids = {entry["content"]: entry["id"] for entry in _added(table)}
    vocab = table["model"]["vocab"]
    vocab_end = max(vocab.values(), default=-1) + 1 if isinstance(vocab, dict) else len(vocab)
    used = {token: ids[token] for token in (bos_token, eos_token) if token is not None}
    table["truncation"] = table["padding"] = None
    table["post_processor"] = _template(bos_token, eos_token, used) if used else None
    for entry in _added(table):
        # A BOS or EOS counts as special even where the file does not say so, or text could spell it.
        entry["special"] = bool(entry.get("special")) or entry["content"] in used
    return Blueprint(
        json=json.dumps(table, ensure_ascii=False).encode(),
        bos_id=None if bos_token is None else ids[bos_token],
        eos_id=None if eos_token is None else ids[eos_token],
        vocab_size=max([vocab_end, *(i + 1 for i in ids.values())]),
        parse_special=parse_special,
    )


def _template(bos_token: str | None, eos_token: str | None, ids: Mapping[str, int]) -> dict[str, Any]:
    def piece(kind: str, name: str, type_id: int = 0) -> dict[str, Any]:
        return {kind: {"id": name, "type_id": type_id}}

    bos = [] if bos_token is None else [piece("SpecialToken", bos_token)]
    eos = [] if eos_token is None else [piece("SpecialToken", eos_token)]
    single = [*bos, piece("Sequence", "A"), *eos]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, piece("Sequence", "B", 1)],
        "special_tokens": {token: {"id": token, "ids": [i], "tokens": [token]} for token, i in ids.items()},
    }
