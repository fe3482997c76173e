"""One run at a time: each attempt that follows a log says so there, and of two that live one ends.

Upstream: `leader.py`, at a start, whenever it looks for proposals, and ahead of what it writes. Downstream:
the log's folder. There is no clock and no lease: who was killed answers nobody, so a restart goes on; who
lives comes to its next step. Who comes to it too late finds that the newer one has settled, and ends itself.
"""

from __future__ import annotations

import os
import socket

from zephon import StateError
from zephon_curriculum.log.folder import read_until
from zephon_curriculum.log.store import open_store

FOLDER = ".attempts"
ANSWER = ".answered"
MAX_LOOKS = 50
"""After so many looks without an answer an attempt settles."""


class Attempt:
    """The claim of one attempt: a file of the next number, beside the log and not in its chain.

    Its answer is one more file, by who creates it first: an older attempt, or the attempt itself, settled.
    """

    def __init__(self, url: str) -> None:
        """Claims a number in the log at `url`."""
        self._store = open_store(f"{url.rstrip('/')}/{FOLDER}")
        number = 1 + max((int(name) for name in self._store.names() if name.isdecimal()), default=0)
        while not self._store.create(_claim(number), _word(number)):
            number += 1
        self._number = self._newest = number
        self._word = _word(number)
        self._num_looks, self._is_settled = 0, False

    def meet(self) -> None:
        """Answers the attempts that began since the last call; StateError where this one has to end.

        Where there is none it costs two attempts to read a file, and one once this is settled.
        """
        if not self._is_settled:
            self._check(self._store.read(_answer(self._number)))
        while self._store.read(_claim(self._newest + 1)) is not None:
            if not self._store.create(_answer(self._newest + 1), self._word):
                self._check_older_than(self._newest + 1)
            self._newest += 1
        self._num_looks += 1
        if self._num_looks >= MAX_LOOKS:
            self.settle()

    def settle(self) -> None:
        """Makes this the attempt that goes on: from here on an older one ends, as this does if answered."""
        if not self._is_settled:
            if not self._store.create(_answer(self._number), self._word):
                self._check(self._store.read(_answer(self._number)))
            self._is_settled = True

    def _check(self, answer: bytes | None) -> None:
        if answer is not None and answer != self._word:
            raise StateError.explained(
                "another run follows this curriculum log",
                got=f"an answer by {_shown(answer)}, which began earlier and lives",
                rule="one run at a time follows a log",
                cure="end the other run; if it has ended since, start this one again; or fork: "
                "`zephon fork RUN --at-step N --into NEW`",
            )

    def _check_older_than(self, number: int) -> None:
        claim, answer = (read_until(self._store, name, b"\n") for name in (_claim(number), _answer(number)))
        if claim is not None and answer == claim:
            raise StateError.explained(
                "a newer run follows this curriculum log",
                got=f"{_shown(claim)}, which began later and got no answer until it wrote there or had "
                f"looked {MAX_LOOKS} times",
                rule="one run at a time follows a log",
                cure="leave it to the newer run; or end that, and start this one again",
            )


def _claim(number: int) -> str:
    return f"{number:06d}"


def _answer(number: int) -> str:
    return f"{_claim(number)}{ANSWER}"


def _word(number: int) -> bytes:
    """Returns what attempt `number` writes, which no other does."""
    return f"process {os.getpid()} of {socket.gethostname()}, attempt {number}\n".encode()


def _shown(word: bytes) -> str:
    return word.decode(errors="replace").strip()
