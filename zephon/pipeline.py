"""The recipe in Python: a frozen description that each method extends.

Upstream: the user. Downstream: `recipe.py`; nothing is opened before `loader`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from zephon.dataset import STOP
from zephon.mixture import MixtureWorkSource
from zephon.packing import Packing
from zephon.recipe import Recipe
from zephon.tokenizer import Tokenize

if TYPE_CHECKING:
    from zephon.loader import Loader
    from zephon.options import LoaderKeywords


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Datasets and mixture -> tokenize -> pack; every method returns a new description."""

    work_source: MixtureWorkSource
    _: KW_ONLY
    global_batch_size: int
    """Rows of one optimizer step."""
    seed: int = 0
    lanes: int = 0
    """Logical streams; 0: as many as global_batch_size."""
    total_steps: int | None = None
    when_exhausted: str = STOP
    """What happens when a dataset with `max_epochs` ends: `stop`, `redistribute` or `pad`."""
    tokenizing: Tokenize | None = None
    packing: Packing | None = None
    continues: tuple[Mapping[str, Any] | str | os.PathLike[str], tuple[str, ...]] | None = None
    """The state to continue from, and what is accepted although it differs."""

    def tokenize(
        self,
        tokenizer: str | os.PathLike[str],
        *,
        bos: bool | str = False,
        eos: bool | str = False,
        parse_special: bool = False,
    ) -> Pipeline:
        """Returns the pipeline with a tokenizer: a tokenizer.json or its folder."""
        return replace(
            self,
            tokenizing=Tokenize(
                tokenizer=os.fspath(tokenizer), bos=bos, eos=eos, parse_special=parse_special
            ),
        )

    def pack(
        self,
        seq_len: int,
        *,
        kind: str = "wrap",
        mask_document_ends: bool = True,
        pad_id: int = 0,
        options: dict[str, Any] | None = None,
    ) -> Pipeline:
        """Returns the pipeline with a packing; `options` is what else its kind takes."""
        return replace(
            self,
            packing=Packing(
                seq_len=seq_len,
                kind=kind,
                mask_document_ends=mask_document_ends,
                pad_id=pad_id,
                options=options or {},
            ),
        )

    def continue_from(
        self, state: Mapping[str, Any] | str | os.PathLike[str], *, allow: Collection[str] = ()
    ) -> Pipeline:
        """Returns the pipeline as a new phase on the same data; see `Recipe.continue_from`."""
        return replace(self, continues=(state, tuple(allow)))

    def recipe(self) -> Recipe:
        """Returns the recipe; refuses a pipeline without `tokenize` or `pack`."""
        if self.tokenizing is None or self.packing is None:
            missing = "tokenize" if self.tokenizing is None else "pack"
            raise ValueError(f"the pipeline has no `{missing}` step; call .{missing}(...) on it")
        if not isinstance(self.work_source, MixtureWorkSource):
            raise TypeError(
                f"`work_source` must be a MixtureWorkSource, got {type(self.work_source).__name__}; "
                "register another as a plugin (zephon.work_sources) and name its kind in a Recipe"
            )
        recipe = Recipe(
            seed=self.seed,
            lanes=self.lanes,
            global_batch_size=self.global_batch_size,
            datasets=self.work_source.datasets,
            schedule=self.work_source.schedule,
            tokenize=self.tokenizing,
            packing=self.packing,
            total_steps=self.total_steps,
            when_exhausted=self.when_exhausted,
            base=Path.cwd(),
        )
        if self.continues is None:
            return recipe
        state, allow = self.continues
        return recipe.continue_from(state, allow=allow)

    def loader(self, **options: Unpack[LoaderKeywords]) -> Loader:
        """Returns the loader of one rank; the keywords are the fields of `LoaderOptions`."""
        return self.recipe().loader(**options)
