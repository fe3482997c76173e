"""One run at a time: each attempt that follows a log says so there, and an older one that lives answers it.

Upstream: `leader.py`, at a start and whenever it looks for proposals. Downstream: `store.py`. There is no
clock and no lease: who was killed answers nobody, so a restart goes on; who lives comes to its next step.
"""

from __future__ import annotations

import os
import socket

from zephon import StateError
from zephon_curriculum.log.store import open_store

FOLDER = ".attempts"
ANSWER = ".answered"


class Attempt:
    """The claim of one attempt: a file of the next number, beside the log and not in its chain."""

    def __init__(self, url: str) -> None:
        """Claims a number in the log at `url`."""
        self._store = open_store(f"{url.rstrip('/')}/{FOLDER}")
        self._who = f"process {os.getpid()} of {socket.gethostname()}\n".encode()
        number = 1 + max((int(name) for name in self._store.names() if name.isdecimal()), default=0)
        while not self._store.create(f"{number:06d}", self._who):
            number += 1
        self._number = self._newest = number

    def meet(self) -> None:
        """Answers the attempts that began since the last call; StateError where an older one answered this.

        Where there is none it costs two attempts to read a file.
        """
        if (who := self._store.read(f"{self._number:06d}{ANSWER}")) is not None:
            raise StateError.explained(
                "another run follows this curriculum log",
                got=f"an answer by {who.decode(errors='replace').strip()}, which began earlier and lives",
                rule="one run at a time follows a log",
                cure="end the other run; if it has ended since, start this one again; or fork: "
                "`zephon fork RUN --at-step N --into NEW`",
            )
        while self._store.read(f"{self._newest + 1:06d}") is not None:
            self._newest += 1
            self._store.create(f"{self._newest:06d}{ANSWER}", self._who)
