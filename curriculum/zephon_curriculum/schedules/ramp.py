"""Blends between two mixtures: `Ramp` (kinds linear, cosine, smoothstep and exponential) and `Wsd`.

Upstream: the `[schedule]` table of a recipe, or Python. Downstream: `zephon.compile_schedule`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from zephon import ScheduleContext, check_weights
from zephon_curriculum.schedules.cycles import CrossFade
from zephon_curriculum.schedules.easing import LINEAR, Easing
from zephon_curriculum.schedules.fields import Config, Weights, check_fields, mixture, written
from zephon_curriculum.schedules.nested import Described
from zephon_curriculum.schedules.units import check_steps, or_end, to_length, to_steps


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Blend(Described):
    """Two mixtures, and the fade from the one to the other."""

    from_: Weights
    to: Weights
    easing: Easing = LINEAR
    every: int = 1
    """The weights change at every so many steps only, which keeps the table of a long ramp small."""
    _fade: CrossFade = field(init=False, repr=False, compare=False)

    def weights(self, step: int) -> Weights:
        """Returns the weights of `step`, in whole numbers."""
        return self._fade.weights(step)

    def changes(self) -> Sequence[int]:
        """Returns 0 and the steps at which the blend changes."""
        return self._fade.changes()

    def _set_fade(self, where: str, end: int, length: int) -> None:
        """Sets the fade, which takes `length` steps and ends at step `end`."""
        check_weights(self.from_, where)
        check_weights(self.to, where)
        knots: tuple[tuple[int, Weights], ...] = ((0, self.from_), (end, self.to))
        if not end:  # at once, from step 0 on
            knots = ((0, dict.fromkeys(self.from_, 0) | dict(self.to)),)
        fade = CrossFade(knots=knots, fade=length, easing=self.easing, every=self.every)
        object.__setattr__(self, "_fade", fade)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Ramp(_Blend):
    """From one mixture to another: `from_` in full up to step `begin`, `to` in full from step `end` on."""

    begin: int = 0
    end: int

    def __post_init__(self) -> None:
        check_steps("schedule ramp: `begin`", self.begin, 0)
        check_steps("schedule ramp: `end`", self.end, 1)
        check_steps("schedule ramp: `every`", self.every, 1)
        if self.begin >= self.end:
            raise ValueError(f"schedule ramp: `begin` must be before `end`, got {self.begin} and {self.end}")
        self._set_fade("schedule ramp", self.end, self.end - self.begin)

    def to_config(self) -> dict[str, Any]:
        """Returns the table of a recipe that this schedule is made of."""
        easing = self.easing.to_config()
        config: dict[str, Any] = dict(easing) if isinstance(easing, dict) else {"kind": easing}
        config |= {"from": written(self.from_), "to": written(self.to), "begin": self.begin, "end": self.end}
        return config if self.every == 1 else config | {"every": self.every}


def _ramp(kind: str, config: Config, context: ScheduleContext) -> Ramp:
    """Returns the ramp of a table; without `end` it ends in the last step of the run."""
    where = f"schedule {kind}"
    rate = ("rate",) if kind == "exponential" else ()
    check_fields(where, config, ("from", "to"), ("begin", "end", "every", *rate))
    begin = to_steps(config.get("begin", 0), context, f"{where}: `begin`")
    end = or_end(config.get("end"), context, f"{where}: `end`") - (config.get("end") is None)
    if begin >= end:
        raise ValueError(
            f"{where}: `begin` must be before `end`, got {config.get('begin', 0)!r} (step {begin}) and "
            f"{config.get('end', 'the end of the run')!r} (step {end})"
        )
    return Ramp(
        from_=mixture(f"{where}, `from`", config["from"], context),
        to=mixture(f"{where}, `to`", config["to"], context),
        begin=begin,
        end=end,
        easing=Easing.of({"kind": kind} | {name: config[name] for name in rate if name in config}, where),
        every=to_length(config.get("every", 1), context, f"{where}: `every`"),
    )


linear = functools.partial(_ramp, "linear")
"""The ramp that goes the same way in every step."""
cosine = functools.partial(_ramp, "cosine")
"""The ramp that begins and ends slowly, by half a wave of the cosine."""
smoothstep = functools.partial(_ramp, "smoothstep")
"""The ramp that begins and ends slowly, by 3 t^2 - 2 t^3."""
exponential = functools.partial(_ramp, "exponential")
"""The ramp on which what is left of the way falls by exp(-rate t); `rate` is 5 if left out."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Wsd(_Blend):
    """Holds `from_`, then blends to `to` in the `last` steps before `end`: the mixture of a WSD run."""

    last: int
    """Steps of the decay, the last of which is `end` - 1."""
    end: int
    blend: int | None = None
    """Steps of the decay until `to` is reached; 0: at once; None: in its last step."""

    def __post_init__(self) -> None:
        check_steps("schedule wsd: `end`", self.end, 1)
        check_steps("schedule wsd: `last`", self.last, 1)
        blend = self.last - 1 if self.blend is None else self.blend
        check_steps("schedule wsd: `blend`", blend, 0)
        if self.last > self.end or blend > self.last:
            raise ValueError(
                f"schedule wsd: `last` must be at most `end`, and `blend` at most `last`, got {self.last} of "
                f"{self.end} steps and a blend of {blend}"
            )
        self._set_fade("schedule wsd", self.end - self.last + blend, blend)

    @classmethod
    def from_config(cls, config: Config, context: ScheduleContext) -> Wsd:
        """Returns the schedule of `from`, `to`, `last` and, optionally, `end`, `blend`, `easing` and `every`.

        `end` is the recipe's `total_steps` where it is left out.
        """
        where = "schedule wsd"
        check_fields(where, config, ("from", "to", "last"), ("end", "blend", "easing", "every"))
        blend = config.get("blend")
        return cls(
            from_=mixture(f"{where}, `from`", config["from"], context),
            to=mixture(f"{where}, `to`", config["to"], context),
            last=to_length(config["last"], context, f"{where}: `last`"),
            end=or_end(config.get("end"), context, f"{where}: `end`"),
            blend=None if blend is None else to_steps(blend, context, f"{where}: `blend`"),
            easing=Easing.of(config.get("easing", LINEAR), where),
            every=to_length(config.get("every", 1), context, f"{where}: `every`"),
        )

    def to_config(self) -> dict[str, Any]:
        """Returns the table of a recipe that this schedule is made of."""
        config: dict[str, Any] = {"kind": "wsd", "from": written(self.from_), "to": written(self.to)}
        config |= {"last": self.last, "end": self.end}
        config |= {} if self.blend is None else {"blend": self.blend}
        config |= {} if self.easing == LINEAR else {"easing": self.easing.to_config()}
        return config if self.every == 1 else config | {"every": self.every}
