"""Refusals of a job: what would stop or spoil it is said once, and every rank ends, before any training.

Upstream: whatever a rank finds wrong by itself. Downstream: `dataloader.py`, `validate.py` and `trainer.py`.
Knows torch.distributed and no TorchTitan.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import distributed

from zephon import CheckError, CheckReport, Opened, Recipe, ZephonError, check_recipe

REFUSED, STATE = 3, 5
"""Exit codes, as the command line's: a recipe is refused, a state is."""
REFUSAL = "the run is refused"
"""The first line of a report."""
REFUSALS = (ZephonError, ValueError, TypeError, LookupError, OSError)
"""Errors whose message says all; of others the report has the traceback."""
PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n    return x ** 2  # na\u00efve\n",
    "  \t 1234567890 \u20ac \u4f60\u597d \U0001f600",
)
"""Texts on which two tokenizers are compared."""

Made = TypeVar("Made")


def num_ranks() -> int:
    """Returns the processes that can be asked; 1 without torch.distributed, or with its fake backend."""
    if not distributed.is_initialized() or distributed.get_backend() == "fake":
        return 1
    return distributed.get_world_size()


def gather(mine: Any) -> list[Any]:
    """Returns what every rank gives, by rank. Collective."""
    if num_ranks() == 1:
        return [mine]
    found: list[Any] = [None] * num_ranks()
    distributed.all_gather_object(found, mine)
    return found


def broadcast(mine: Any, source: int) -> Any:
    """Returns what the rank `source` gives. Collective."""
    found = [mine]
    if num_ranks() > 1:
        distributed.broadcast_object_list(found, src=source)
    return found[0]


def together(make: Callable[[], Made]) -> Made:
    """Returns what `make` returns, on every rank; where one refuses, all end with one report. Collective.

    `make` itself makes no collective call: a rank that fails would leave the others in it.
    """
    made: list[Made] = []
    faults: list[str] = []
    try:
        made.append(make())
    except Exception as error:  # a boundary: whatever it is, the other ranks wait to hear of it
        is_known = isinstance(error, REFUSALS) and str(error)
        faults.append(str(error) if is_known else "".join(traceback.format_exception(error)).rstrip())
    refuse_together(faults)
    return made[0]


def compare_ranks(what: Mapping[str, str]) -> None:
    """Refuses ranks that differ in `what`, texts by name, from rank 0. Collective."""
    first = gather(dict(what))[0]
    refuse_together(
        [
            f"{name} is not the same on every rank\n"
            f"  got:  {_short(first.get(name))} on rank 0, {_short(what.get(name))} here\n"
            "  rule: all ranks read one recipe, and the same files under it\n"
            "  cure: give every node the same recipe, data, tokenizer and packages"
            for name in sorted({*first, *what})
            if first.get(name) != what.get(name)
        ]
    )


def _short(text: str | None) -> str:
    return "nothing" if text is None else text if len(text) <= 64 else f"{text[:61]}..."


def refuse_together(faults: Sequence[str], code: int = REFUSED, what: str = REFUSAL) -> None:
    """Ends every rank with `code` where any has faults, after rank 0 wrote them below `what`. Collective."""
    found = gather(list(faults))
    if not any(found):
        return
    if num_ranks() == 1 or distributed.get_rank() == 0:
        sys.stderr.write(report(found, what) + "\n")
        sys.stderr.flush()
    gather(None)  # nobody ends, and has the launcher end the others, before that is written
    sys.exit(code)


def report(found: Sequence[Sequence[str]], what: str = REFUSAL) -> str:
    """Returns the faults of all ranks as one text; a fault that several ranks have is there once."""
    ranks: dict[str, list[int]] = {}
    for rank, faults in enumerate(found):
        for fault in faults:
            ranks.setdefault(fault, []).append(rank)
    lines = [what]
    for fault, having in ranks.items():
        where = "all ranks" if len(having) == len(found) else f"ranks {', '.join(map(str, having))}"
        lines.append(f"{fault}\n  on:   {where}" if len(found) > 1 else fault)
    return "\n".join(lines)


def check_rank(recipe: Recipe, dp_world_size: int, micro_batch_size: int, **keywords: Any) -> CheckReport:
    """Returns what `zephon.check_recipe` finds for this job; raises `CheckError` with every error of it."""
    found = check_recipe(
        recipe, dp_world_sizes=(dp_world_size,), micro_batch_size=micro_batch_size, **keywords
    )
    faults = [
        f"{finding.subject}: {finding.message}" + f"\n  cure: {finding.cure}" * bool(finding.cure)
        for finding in found.findings
        if finding.severity == "error"
    ]
    if faults:
        raise CheckError("\n".join(faults))
    return found


def check_vocabulary(vocab_size: int | None, model: Any) -> None:
    """Refuses a tokenizer with more ids than the model has, where its config says how many."""
    size = getattr(model, "vocab_size", None)
    if vocab_size is not None and size is not None and vocab_size > size > 0:
        raise ValueError(
            f"the tokenizer has {vocab_size:,} ids and the model's vocabulary {size:,}; "
            "take the model's own tokenizer, or a model with a larger vocabulary"
        )


def check_tokenizer(opened: Opened, tokenizer: Any) -> None:
    """Refuses a recipe whose tokenizer gives other ids than the trainer's, where that can be asked."""
    underlying = getattr(tokenizer, "tokenizer", None)
    if underlying is None or not hasattr(underlying, "encode"):
        return
    encoder = opened.encoder
    before = int(encoder.bos_id is not None)
    after = encoder.num_special - before
    for text in PROBES:
        ids = encoder.encode([text])[0].tolist()
        ours = ids[before : len(ids) - after]
        theirs = list(underlying.encode(text, add_special_tokens=False).ids)
        if ours != theirs:
            raise ValueError(
                f"the recipe's tokenizer {opened.tokenizer.path} is not the trainer's in "
                f"{getattr(tokenizer, 'tokenizer_path', '?')}: "
                f"{text[:12]!r}... is {ours[:4]} and {theirs[:4]}; name the same in both, "
                "or leave `tokenizer` out of the recipe to take the trainer's"
            )
