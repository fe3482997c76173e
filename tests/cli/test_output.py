"""What is shown moves no terminal, fits, and is progress only where somebody sees it."""

from __future__ import annotations

import pytest

from zephon.cli.output import LateProgress, cut, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202eabc", "\\u202eabc"),
        ("h\xe9 \u4e16", "h\xe9 \u4e16"),
    ],
)
def test_what_does_not_print_is_made_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_long_texts_are_cut() -> None:
    assert cut("abcdefgh", 8) == "abcdefgh"
    assert cut("abcdefghi", 8) == "abcde..."
    assert cut("\n\n\n\n\n", 8) == "\\n\\n\\..."


def test_progress_comes_late_and_not_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for delay_s in (60.0, 0.0):
        with LateProgress(delay_s=delay_s) as progress:
            for done in range(3):
                progress("steps", done, 3)
    assert capsys.readouterr() == ("", "")
