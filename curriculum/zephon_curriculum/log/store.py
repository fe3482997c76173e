"""Where a log lies: files that are created whole, exclusively, and never changed, on any fsspec path.

Upstream: `folder.py`, which chains entries. Downstream: the local file system, or fsspec. Exclusive create is
what makes one of several writers the first; `probe` refuses a place that does not honour it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from zephon import StateError
from zephon_curriculum.log.held import Held, hold

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EACCES)
"""What a file system says that has no hard links."""
PROBE = ".probe-"


class LocalStore:
    """A folder of this machine, or mounted on it. A reader sees all of a file or none."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def hold(self) -> Held | None:
        """Returns the lock on the folder, where there is such; StateError where another process has it."""
        return hold(self._folder)

    def read(self, name: str) -> bytes | None:
        """Returns what a file holds, or None where there is none."""
        try:
            return (self._folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, name: str, data: bytes) -> bool:
        """Creates a file, on disk before its name is; False where there is one of the name."""
        path = self._folder / name
        if path.exists():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())
            return self._link(temporary, path, data)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def _link(self, temporary: str, path: Path, data: bytes) -> bool:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            return self._create_exclusively(path, data)
        _sync_folder(path.parent)
        return True

    def _create_exclusively(self, path: Path, data: bytes) -> bool:
        """Creates a file where there are no hard links; a reader may see a part of it for a moment."""
        try:
            file = path.open("xb")
        except FileExistsError:
            return False
        with _no_half(self, os.path.relpath(path, self._folder), data), file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(path.parent)
        return True

    def names(self) -> list[str]:
        """Returns the names in the folder, sorted."""
        return sorted(os.listdir(self._folder)) if self._folder.is_dir() else []

    def remove(self, name: str) -> None:
        """Removes a file, where it is there."""
        (self._folder / name).unlink(missing_ok=True)


@contextlib.contextmanager
def explaining(what: str, *, rule: str, cure: str) -> Iterator[None]:
    """Gives a part of the program in which an error of the storage is a StateError that people understand."""
    try:
        yield
    except OSError as error:
        raise StateError.explained(what, got=str(error), rule=rule, cure=cure) from error


@contextlib.contextmanager
def _no_half(store: Store, name: str, data: bytes) -> Iterator[None]:
    """Gives the part that writes a file created here; where it fails, removes what is not the whole."""
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError):
            found = store.read(name)
            if found is not None and found != data and data.startswith(found):
                store.remove(name)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network file systems have no such call
        if error.errno not in (*NO_LINKS, errno.EINVAL):
            raise
    finally:
        os.close(descriptor)


class RemoteStore:
    """A folder behind fsspec; what is listed or read is never taken from a cache."""

    def __init__(self, system: Any, folder: str) -> None:
        self._system, self._folder = system, folder.rstrip("/")

    def hold(self) -> Held | None:
        """Returns None: such storage has no locks."""
        return None

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def read(self, name: str) -> bytes | None:
        """Returns what a file holds, or None where there is none."""
        try:
            return bytes(self._system.cat_file(self._path(name)))
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> bool:
        """Creates a file; False where there is one of the name."""
        path = self._path(name)
        parent = path.rpartition("/")[0]
        self._system.makedirs(parent, exist_ok=True)
        try:
            file = self._system.open(path, "xb")
            with _no_half(self, name, data), file:
                file.write(data)
        except FileExistsError:  # when it is opened, or on object storage when it is closed
            return False
        return True

    def names(self) -> list[str]:
        """Returns the names in the folder, sorted."""
        self._system.invalidate_cache()
        try:
            found = self._system.ls(self._folder, detail=False)
        except FileNotFoundError:
            return []
        return sorted({str(path).rstrip("/").rpartition("/")[2] for path in found} - {""})

    def remove(self, name: str) -> None:
        """Removes a file, where it is there and that is allowed."""
        with contextlib.suppress(OSError):
            self._system.rm_file(self._path(name))


Store = LocalStore | RemoteStore
"""Files below one folder, by their names."""


def open_store(url: str) -> Store:
    """Returns the files at a path or fsspec URL; a path is taken as it is, `::` or `~` in it too."""
    if "://" not in url:
        return LocalStore(os.path.abspath(url))
    system, path = fsspec.core.url_to_fs(url)
    return LocalStore(path) if isinstance(system, LocalFileSystem) else RemoteStore(system, path)


def probe(store: Store, url: str) -> None:
    """Refuses a place where a name can be created twice, or the second puts other bytes in its place."""
    name = f"{PROBE}{uuid.uuid4().hex}"
    try:
        outcome = store.create(name, b"first\n"), store.create(name, b"second\n"), store.read(name)
        got = f"creating twice gave {outcome[0]}, {outcome[1]}; the file holds {outcome[2]!r}"
    except (ValueError, NotImplementedError, TypeError) as error:
        raise _not_exclusive(url, f"{type(error).__name__}: {error}") from None
    store.remove(name)
    if outcome != (True, False, b"first\n"):
        raise _not_exclusive(url, got)


def _not_exclusive(url: str, got: str) -> StateError:
    return StateError.explained(
        f"curriculum log {url!r}: its storage cannot create a file exclusively",
        got=got,
        rule="of several writers of an entry exactly one is the first",
        cure="put the log on a local or shared POSIX folder, or on storage whose fsspec file system honours "
        'mode "xb"',
    )
