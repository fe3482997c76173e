"""Errors become exit codes and messages."""

from __future__ import annotations

import pytest

from zephon.cli.exits import Exit, exit_code, report_error
from zephon.errors import PluginError, StateError, WorkerError, ZephonError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StateError("x"), Exit.STATE),
        (WorkerError("x"), Exit.WORKER),
        (PluginError("x"), Exit.RECIPE),
        (OSError("x"), Exit.DATA),
        (ZephonError("x"), Exit.UNEXPECTED),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
    ],
)
def test_every_error_has_its_exit_code(error: BaseException, code: Exit) -> None:
    assert exit_code(error) is code


def test_an_error_that_a_library_makes_of_a_ctrl_c_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """As an extension does that is interrupted while it is imported."""
    error = ImportError("initialization failed")
    error.__cause__ = KeyboardInterrupt()
    assert report_error(error, as_json=False) is Exit.INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n  exit: 130, interrupted error\n"
