"""The conformance kit of controllers: a plain function that raises `AssertionError` with what is wrong.

Upstream: the tests of a plugin. Downstream: nothing; no run imports this.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from zephon import Constant, ScheduleContext, ScheduleTable, compile_schedule
from zephon.testing import check_fresh
from zephon_curriculum.controllers.power_law import PowerLaw
from zephon_curriculum.controllers.protocol import Controller, ControllerContext, Observation, consult
from zephon_curriculum.controllers.simulate import Learner, simulate

Factory = Callable[[Mapping[str, Any], ControllerContext], Controller]

NUM_LOOKED_AT = 4
"""Histories, of those that the controller decided on, that are looked at closely."""


def check_controller(
    factory: Factory | str, config: Mapping[str, Any], context: ControllerContext | None = None, *,
    num_decisions: int = 24,
) -> int:  # fmt: skip
    """Returns how many decisions of `num_decisions` due ones changed something; raises `AssertionError` where
    the controller is not pure, changes its history, or gives weights that cannot be used.

    It is run against a simulated learner with noisy losses. A factory given by import path, `module:name`, is
    also asked in a fresh process under another hash seed. Without `context` there are three datasets.
    """
    context = context or _made_up_context()
    controller = _load(factory)(config, context)
    who = f"controller {type(controller).__name__}"
    every = controller.every
    is_whole = type(every) is int and every >= 1
    assert is_whole, f"{who}: `every` must be a whole number >= 1, got {every!r}"
    learner = _made_up_learner(context)
    try:
        simulated = simulate(
            controller, context, learner, num_decisions * every, observe_every=max(1, every // 4)
        )
    except (TypeError, ValueError) as error:  # of a history that cannot be written to, of weights
        raise AssertionError(f"{who}: in a simulated run: {error}") from error
    history = list(simulated.history)
    due = [i for i, seen in enumerate(history) if seen.step in simulated.decisions] or [len(history) - 1]
    histories = [history[: i + 1] for i in due[:: -(-len(due) // NUM_LOOKED_AT)]]
    answers = [_answer(controller, context, part, who) for part in histories]
    for part, answer in zip(histories, answers, strict=True):
        _check_pure(_load(factory)(config, context), context, part, answer, who)
        _check_faults(controller, context, part, who)
    if isinstance(factory, str):
        question = {
            "factory": factory,
            "config": dict(config),
            "base": context.base.to_json(),
            "rest": {name: getattr(context, name) for name in ("total_steps", "tokens_per_step", "seed")},
            "histories": [[seen.to_json() for seen in history] for history in histories],
        }
        check_fresh(f"controller {factory}", f"{__name__}:_answers_of", question, answers)
    return len(simulated.decisions)


def _answer(
    controller: Controller, context: ControllerContext, history: Sequence[Observation], who: str
) -> dict[str, int] | None:
    """Returns the shares decided on `history`."""
    try:
        return consult(controller, context, history).weights
    except ValueError as error:
        raise AssertionError(f"{who}: at step {history[-1].step}: {error}") from error


def _check_pure(
    other: Controller, context: ControllerContext, history: list[Observation], answer: object, who: str
) -> None:
    """Asks `other`, a controller built alike, with equal histories in other clothes."""
    before = json.dumps([seen.to_json() for seen in history])
    read = [Observation.from_json(data) for data in json.loads(before)]
    turned = [_reversed(seen) for seen in history]
    for what, copy in (
        ("when asked again", history),
        ("for the history read back from JSON", read),
        ("with the datasets of the history in another order", turned),
    ):
        again = _answer(other, context, copy, who)
        assert again == answer, f"{who}: step {history[-1].step} gave {answer}, then {again} {what}"
    assert json.dumps([seen.to_json() for seen in read]) == before, f"{who}: changed its history"


def _reversed(seen: Observation) -> Observation:
    losses, num_tokens, shares = (
        dict(reversed([*column.items()])) for column in (seen.losses, seen.num_tokens, seen.shares)
    )
    return Observation(step=seen.step, losses=losses, num_tokens=num_tokens, shares=shares)


def _check_faults(
    controller: Controller, context: ControllerContext, history: list[Observation], who: str
) -> None:
    """Puts losses that are no numbers into the middle of the history: the weights stay finite."""
    middle = len(history) // 2
    for loss in (float("nan"), float("inf"), None):
        losses = {**history[middle].losses, context.names[0]: loss}
        faulty = replace(history[middle], losses=losses)
        _answer(controller, context, [*history[:middle], faulty, *history[middle + 1 :]], who)


def _load(factory: Factory | str) -> Factory:
    return cast(Factory, pkgutil.resolve_name(factory)) if isinstance(factory, str) else factory


def _answers_of(question: Mapping[str, Any]) -> list[dict[str, int] | None]:
    """Returns the decisions on histories of a controller given by path; what the fresh process does."""
    base = ScheduleTable.from_json(question["base"])
    context = ControllerContext(names=base.names, base=base, **question["rest"])
    controller = _load(question["factory"])(question["config"], context)
    histories = [[Observation.from_json(seen) for seen in history] for history in question["histories"]]
    return [consult(controller, context, history).weights for history in histories]


def _made_up_context() -> ControllerContext:
    weights = {"web": 6, "code": 3, "math": 1}
    names = tuple(weights)
    told = ScheduleContext(names=names, total_steps=10_000, tokens_per_step=4096)
    base = compile_schedule(Constant(weights), told)
    return ControllerContext(names=names, base=base, total_steps=10_000, tokens_per_step=4096)


def _made_up_learner(context: ControllerContext) -> Learner:
    laws = {
        name: PowerLaw(alpha=0.2 + 0.1 * (i % 4), log_beta=1.5 + 0.2 * (i % 3), log_eps=0.6 + 0.1 * (i % 2))
        for i, name in enumerate(context.names)
    }
    return Learner(laws=laws, noise=0.05)
