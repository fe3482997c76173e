"""A learner with known losses that a controller is run against: what would it decide?

Upstream: a controller, power laws for the losses. Downstream: tests, the conformance kit, a look before a
run. No model, no data: the tokens of a step are its shares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from types import MappingProxyType

from zephon import PARTS
from zephon.cli.common import add_row, new_table
from zephon_curriculum.controllers.power_law import PowerLaw
from zephon_curriculum.controllers.protocol import Controller, ControllerContext, Observation, consult, is_due
from zephon_curriculum.figures import plural, short
from zephon_curriculum.results import Readable, Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """A loss for each dataset that falls by a power law, with noise if wanted; alpha = 0 is a fixed loss."""

    laws: Mapping[str, PowerLaw]
    noise: float = 0.0
    """The standard deviation of a loss."""
    seed: int = 0

    def losses(
        self, context: ControllerContext, step: int, num_tokens: Mapping[str, int]
    ) -> dict[str, float | None]:
        """Returns the losses when `step` steps are complete; None for a dataset without a token."""
        losses: dict[str, float | None] = {}
        for name in context.names:
            off = self.noise * _normal(f"{self.seed}/{name}/{step}") if self.noise else 0.0
            losses[name] = max(0.0, self.laws[name].loss(step) + off) if num_tokens[name] else None
        return losses


@dataclass(frozen=True, slots=True, repr=False)
class Simulated(Readable):
    """What came of a simulation."""

    history: tuple[Observation, ...]
    """What was observed."""
    decisions: dict[int, dict[str, int]]
    """Step at which each decision was taken -> its shares."""

    def shown(self) -> Shown:
        """Returns the shares of the first and the last decision and the last losses, by dataset."""
        head = f"{plural(len(self.decisions), 'decision')} on {plural(len(self.history), 'observation')}"
        if not self.history:
            return Shown(head=head)
        newest, steps = self.history[-1], sorted(self.decisions)
        taken = sorted({*steps[:1], *steps[-1:]})
        table = new_table(
            "dataset",
            *(f"#at {step}" for step in taken),
            f"#loss at {newest.step}",
            "#tokens",
            title="shares decided",
        )
        for name, tokens in newest.num_tokens.items():
            loss = newest.losses[name]
            shares = (f"{self.decisions[step][name] / PARTS:.2%}" for step in taken)
            add_row(table, name, *shares, "-" if loss is None else f"{loss:.4g}", short(tokens))
        return Shown(head=head, tables=[table])


def simulate(
    controller: Controller, context: ControllerContext, learner: Learner, num_steps: int, *,
    observe_every: int = 1, lead_steps: int = 2,
) -> Simulated:  # fmt: skip
    """Returns what `controller` decides in a run of `num_steps` steps against `learner`.

    As in a run, a decision taken when T steps are complete holds from step T + lead_steps + 1 on.
    """
    drawn = dict.fromkeys(context.names, 0)  # in parts of a token
    history: list[Observation] = []
    decisions: dict[int, dict[str, int]] = {}
    coming: dict[int, dict[str, int]] = {}
    decided: dict[str, int] | None = None
    for step in range(num_steps + 1):
        if step and step % observe_every == 0:
            tokens = {name: parts // PARTS for name, parts in drawn.items()}
            shares = coming.get(step, decided) or context.prior(step)
            losses = learner.losses(context, step, tokens)
            seen = Observation(
                step=step,
                losses=MappingProxyType(losses),  # who writes to the history is told at once
                num_tokens=MappingProxyType(tokens),
                shares=MappingProxyType(dict(shares)),
            )
            history.append(seen)
            if is_due(controller, step) and (weights := consult(controller, context, tuple(history)).weights):
                decisions[step] = coming[step + lead_steps + 1] = weights
        decided = coming.get(step, decided)
        for name, share in (decided or context.prior(step)).items():
            drawn[name] += share * context.tokens_per_step
    return Simulated(tuple(history), decisions)


def _normal(name: str) -> float:
    """Returns a standard normal number that depends on `name` only."""
    drawn = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
    return NormalDist().inv_cdf((drawn + 0.5) / (1 << 56))
