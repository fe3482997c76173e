"""Where one rank cannot go on in mid-run: it says why, and the others end with its exit code.

Upstream: what goes wrong with the data of a rank. Downstream: `trainer.py`. The others wait for it in some
collective call of the trainer's. It leaves word in the store of the job, where they look when that call
breaks: over Gloo as soon as it has ended, else by torch's own time-outs. No step pays for it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import NoReturn

from torch import distributed

from zephon import ZephonError
from zephon_torchtitan.launch import num_ranks, report

KEY = "zephon/ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What the first rank that cannot go on leaves to the others."""

    rank: int
    exit_code: int
    fault: str


def forget_word() -> None:
    """Takes away the word of an earlier try, which torchrun may have kept; a collective call must follow."""
    if num_ranks() > 1 and distributed.get_rank() == 0:
        with contextlib.suppress(RuntimeError):  # a store that cannot forget is no reason not to train
            _store().delete_key(KEY)


def end_rank(error: ZephonError, what: str) -> NoReturn:
    """Ends this rank with the exit code of the first that left word, which writes its error below `what`.

    Of many ranks that cannot go on at once, as where none gives what is replayed, each other one that has
    something else to say writes a line.
    """
    from zephon.cli.common import exit_code

    mine = Word(
        rank=distributed.get_rank() if num_ranks() > 1 else 0,
        exit_code=int(exit_code(error)),
        fault=str(error),
    )
    first = _leave(mine)
    if first.rank == mine.rank:
        found = [[mine.fault] if rank == mine.rank else [] for rank in range(num_ranks())]
        sys.stderr.write(report(found, what) + "\n")
    elif first.fault != mine.fault:
        sys.stderr.write(f"rank {mine.rank} cannot go on either: {mine.fault.partition(chr(10))[0]}\n")
    sys.stderr.flush()
    sys.exit(first.exit_code)


def _leave(mine: Word) -> Word:
    """Returns the first word that was left, which is `mine` where nobody was there before."""
    if num_ranks() > 1:
        with contextlib.suppress(RuntimeError):  # the store went with the rank that had it: nobody will look
            return Word(**json.loads(_store().compare_set(KEY, "", json.dumps(asdict(mine)))))
    return mine


@contextlib.contextmanager
def ends_with_others() -> Iterator[None]:
    """Ends this rank with the exit code of another that left word, where a call breaks that waited for it.

    Any other error goes on its way: it is this rank's own, and nobody else will say it.
    """
    try:
        yield
    except RuntimeError as error:
        with contextlib.suppress(RuntimeError):
            if _is_broken_call(error) and num_ranks() > 1 and _store().check([KEY]):
                sys.exit(Word(**json.loads(_store().get(KEY))).exit_code)
        raise


def _is_broken_call(error: RuntimeError) -> bool:
    """Returns whether a collective call broke; errors of Gloo have no class, only a place in its source."""
    return isinstance(error, distributed.DistError) or "/gloo/" in str(error)


def _store() -> distributed.Store:
    return distributed.group.WORLD.get_group_store()
