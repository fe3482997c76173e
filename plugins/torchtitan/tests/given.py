"""Recipes for `--dataloader.recipe plugins.torchtitan.tests.given:NAME`: what a rank's environment says."""

from __future__ import annotations

import os

from zephon import Recipe


def of_rank() -> Recipe:
    """Returns the recipe that $RECIPE_OF_RANK names."""
    return Recipe.from_toml(os.environ["RECIPE_OF_RANK"])


def without_a_package() -> Recipe:
    """Returns `of_rank`, which on rank 1 needs a package that is not there."""
    if os.environ["RANK"] == "1":
        import package_of_one_node  # noqa: F401
    return of_rank()


def without_words() -> Recipe:
    """Returns `of_rank`, which on rank 1 fails."""
    if os.environ["RANK"] == "1":
        raise RuntimeError("no node is left")
    return of_rank()
