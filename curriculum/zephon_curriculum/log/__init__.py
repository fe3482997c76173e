"""The curriculum log: proposals by anyone, verdicts by the run, one chain of files; and runs that follow it.

Reading order: `ops.py` and `entries.py` (what is said), `held.py`, `store.py` and `folder.py` (where),
`steps.py`, `amend.py`, `history.py` and `judge.py` (what it comes to), `added.py`, `launch.py`,
`leader.py` and `follow.py` (a run), `documents.py`, `propose.py` and `fork.py` (people).
"""

from __future__ import annotations

from zephon_curriculum.log.added import recipe_of_run, with_added
from zephon_curriculum.log.folder import CurriculumLog, log_of
from zephon_curriculum.log.follow import Updates, open_updates
from zephon_curriculum.log.fork import Forked, fork_run
from zephon_curriculum.log.history import History
from zephon_curriculum.log.propose import Draft, Request, make_draft, write_proposal
from zephon_curriculum.log.steps import AmendError

__all__ = [
    "AmendError",
    "CurriculumLog",
    "Draft",
    "Forked",
    "History",
    "Request",
    "Updates",
    "fork_run",
    "log_of",
    "make_draft",
    "open_updates",
    "recipe_of_run",
    "with_added",
    "write_proposal",
]
