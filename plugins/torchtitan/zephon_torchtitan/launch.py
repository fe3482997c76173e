"""The launch check of a job: what would stop or spoil it is said once, and every rank ends, before any training.

Upstream: recipe and shape of the job. Downstream: `dataloader.py` and `trainer.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import distributed

from zephon import Opened, Recipe, ZephonError, check_recipe

REFUSED, STATE = 3, 5
"""Exit codes, as the command line's: a recipe is refused, a state is."""
PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n    return x ** 2  # na\u00efve\n",
    "  \t 1234567890 \u20ac \u4f60\u597d \U0001f600",
)
REFUSALS = (ZephonError, ValueError, TypeError, LookupError, OSError)


def check_tokenizer(opened: Opened, tokenizer: Any) -> None:
    """Refuses a recipe whose tokenizer gives other ids than the trainer's."""
    underlying = getattr(tokenizer, "tokenizer", None)
    if underlying is None:
        return
    for text in PROBES:
        ours = opened.encoder.encode([text])[0].tolist()
        theirs = underlying.encode(text, add_special_tokens=False).ids
        special = opened.encoder.num_special
        bos = int(opened.encoder.bos_id is not None)
        ours = ours[bos : len(ours) - (special - bos)]
        if ours != theirs:
            raise ValueError(
                f"the recipe's tokenizer {opened.tokenizer.path} is not the trainer's "
                f"{getattr(tokenizer, 'tokenizer_path', '?')}: {text!r} is {ours[:6]} and {theirs[:6]}; "
                "name the same in both, or leave `tokenizer` out of the recipe to take the trainer's"
            )


def check_launch(check: Callable[[], Sequence[str]]) -> None:
    """Runs `check` on every rank; where one finds a fault, rank 0 says all, and every rank exits with 3.

    `check` returns faults or raises a refusal. A collective call.
    """
    try:
        faults = list(check())
    except REFUSALS as error:
        faults = [str(error)]
    refuse_together(faults)


def refuse_together(faults: Sequence[str], code: int = REFUSED) -> None:
    """Ends every rank with `code` where any has faults, after rank 0 wrote them; a collective call."""
    alone = not distributed.is_initialized()
    found: list[list[str]] = [list(faults)]
    if not alone:
        found = [[] for _ in range(distributed.get_world_size())]
        distributed.all_gather_object(found, list(faults))
    if not any(found):
        return
    if alone or distributed.get_rank() == 0:
        sys.stderr.write(report(found) + "\n")
        sys.stderr.flush()
    if not alone:
        distributed.barrier()  # nobody ends, and has the launcher end the others, before that is written
    sys.exit(code)


def report(found: Sequence[Sequence[str]]) -> str:
    """Returns the faults of all ranks as one text; a fault that several ranks have is there once."""
    ranks: dict[str, list[int]] = {}
    for rank, faults in enumerate(found):
        for fault in faults:
            ranks.setdefault(fault, []).append(rank)
    lines = ["the run is refused; nothing was trained"]
    for fault, having in ranks.items():
        where = "on all ranks" if len(having) == len(found) else f"on ranks {', '.join(map(str, having))}"
        lines.append(f"{fault}\n  ({where})" if len(found) > 1 else fault)
    return "\n".join(lines)


def faults_of(recipe: Recipe, dp_world_size: int, micro_batch_size: int, **keywords: Any) -> list[str]:
    """Returns the errors that `zephon.check_recipe` finds, one text for each."""
    found = check_recipe(
        recipe, dp_world_sizes=(dp_world_size,), micro_batch_size=micro_batch_size, **keywords
    )
    return [
        f"{finding.subject}: {finding.message}" + (f"\n  cure: {finding.cure}" if finding.cure else "")
        for finding in found.findings
        if finding.severity == "error"
    ]
