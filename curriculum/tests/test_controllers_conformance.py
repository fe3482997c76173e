"""The kit for controllers: the built-in ones pass, each kind of fault is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from zephon_curriculum import (
    Ado,
    Controller,
    ControllerContext,
    Exp3,
    Observation,
    Threshold,
    check_controller,
)

HOME = "zephon_curriculum.controllers"


@pytest.mark.parametrize(
    ("path", "config"),
    [
        (f"{HOME}.exp3:Exp3.from_config", {}),
        (
            f"{HOME}.exp3:Exp3.from_config",
            {"eta": "decay", "gamma": "decay", "memory": 1.0},
        ),
        (f"{HOME}.ado:Ado.from_config", {"every": 20, "warmup": 60, "skip": 10, "refit": 100}),
        (
            f"{HOME}.threshold:Threshold.from_config",
            {"dataset": "web", "below": 5.0, "weights": {"web": 1, "code": 1, "math": 2}},
        ),
    ],
)
def test_the_controllers_built_in_conform(path: str, config: dict[str, Any]) -> None:
    assert check_controller(path, config, num_decisions=8) >= 3


def test_a_factory_may_be_given_as_it_is() -> None:
    assert check_controller(Exp3.from_config, {"warmup": 0}, num_decisions=4) == 4
    assert all(callable(cls.from_config) for cls in (Ado, Threshold))


Decide = Callable[[Sequence[Observation]], Mapping[str, float] | None]


class Made:
    every = 4

    def __init__(self, decide: Decide) -> None:
        self.decide = decide


def factory(decide: Decide) -> Callable[[Mapping[str, Any], ControllerContext], Controller]:
    return lambda config, context: Made(decide)


EVEN = {"web": 1.0, "code": 1.0, "math": 1.0}


def counts_its_calls() -> Decide:
    calls: list[int] = []

    def decide(history: Sequence[Observation]) -> Mapping[str, float]:
        calls.append(1)
        return {**EVEN, "web": float(len(calls))}

    return decide


def changes_its_history(history: Sequence[Observation]) -> Mapping[str, float]:
    history[-1].losses["web"] = 0.0  # type: ignore[index]
    return EVEN


def writes_behind_our_back(history: Sequence[Observation]) -> Mapping[str, float]:
    losses = history[-1].losses
    if isinstance(losses, dict):
        losses["code"] = 0.5
    return EVEN


def looks_at_the_order(history: Sequence[Observation]) -> Mapping[str, float]:
    return {**EVEN, next(iter(history[-1].losses)): 2.0}


def spreads_a_nan(history: Sequence[Observation]) -> Mapping[str, float]:
    mean = sum(seen.losses["web"] or 0.0 for seen in history)
    return {**EVEN, "web": mean}


FAULTS = [
    (counts_its_calls(), "when asked again"),
    (changes_its_history, "does not support item assignment"),
    (writes_behind_our_back, "changed its history"),
    (looks_at_the_order, "with the datasets of the history in another order"),
    (spreads_a_nan, "must be finite"),
    (lambda history: {"web": 1.0}, "no weight for dataset 'code'"),
    (lambda history: {**EVEN, "books": 1.0}, "no dataset is named 'books'"),
    (lambda history: {**EVEN, "web": -1.0}, "must be finite and >= 0"),
    (lambda history: {**EVEN, "web": float("nan")}, "must be finite"),
]


@pytest.mark.parametrize(("decide", "message"), FAULTS)
def test_a_fault_is_found(decide: Decide, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_controller(factory(decide), {}, num_decisions=6)


def test_every_must_be_a_whole_number() -> None:
    made = Made(lambda history: EVEN)
    made.every = 0
    with pytest.raises(AssertionError, match="`every` must be a whole number >= 1, got 0"):
        check_controller(lambda config, context: made, {})


def test_what_depends_on_the_process_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "class Made:\n    every = 20\n\n    def decide(self, history):\n"
    text += "        return {'web': 1 + hash('web') % 2**40, 'code': 2**40, 'math': 2**40}\n\n\n"
    (tmp_path / "hashed_controller.py").write_text(text + "def make(config, context):\n    return Made()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(AssertionError, match="gives other answers in a fresh process"):
        check_controller("hashed_controller:make", {}, num_decisions=2)
