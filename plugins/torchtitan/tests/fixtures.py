"""What the plugin's tests share: the corpus, the fork server, a seed checkpoint and the unbroken run.

Each job is of real processes. A job whose result several tests look at runs once a session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plugins.torchtitan.tests.corpus import Corpus, make_corpus
from plugins.torchtitan.tests.rank_process import remember_probes
from plugins.torchtitan.tests.ranks import Job, run_job, start_server
from zephon import tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Titan:
    """Starts jobs on the corpus."""

    corpus: Corpus
    folder: Path

    def run(self, world_size: int, dump: Path | str, *arguments: str, **how: Any) -> Job:
        """Returns how a job with the tiny model on the recipe ended; later arguments win."""
        common = ["--module", "plugins.torchtitan.tests.tiny", "--config", "tiny"]
        common += ["--dataloader.recipe", str(self.corpus.recipe)]
        return self.run_plain(world_size, dump, *common, *arguments, **how)

    def run_plain(self, world_size: int, dump: Path | str, *arguments: str, **how: Any) -> Job:
        """Returns how a job of any config ended."""
        common = ["--hf-assets-path", str(self.corpus.tokenizer)]
        return run_job(world_size, [*common, *arguments], self.folder / dump, **how)

    def call(self, world_size: int, dump: Path | str, function: Callable[[], None]) -> Job:
        """Returns how so many processes ended that call a function, each with the environment of a rank."""
        return run_job(world_size, (), self.folder / dump, call=function)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps indexes and expanded chunks out of the user's cache; a tokenizer is probed once a session."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "_build_reference", remember_probes(tokenizer._build_reference, folder))
        patch.setenv("ZEPHON_CACHE", str(folder))
        patch.setenv("ZEPHON_PLUGINS", "none")
        yield


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Returns the data that most tests train on."""
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def titan(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory, _cache: None) -> Titan:
    """Returns what starts jobs."""
    start_server()
    return Titan(corpus=corpus, folder=tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="session")
def seeded(titan: Titan) -> list[str]:
    """Returns the arguments with which any number of ranks begins with the same weights."""
    arguments = ["--checkpoint.enable", "--checkpoint.create-seed-checkpoint"]
    job = titan.run(1, "seed", *arguments).ok()
    path = job.dump / "checkpoint" / "step-0"
    assert path.is_dir()
    return ["--checkpoint.enable", "--checkpoint.initial-load-path", str(path)]


@pytest.fixture(scope="session")
def unbroken(titan: Titan, seeded: list[str]) -> Job:
    """Returns the run of one rank to the last step, to which the others are compared."""
    return titan.run(1, "unbroken", *seeded).ok()
