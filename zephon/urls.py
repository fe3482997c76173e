"""URLs as text: which parts there are, and which of them nobody may see.

Downstream: `paths.py`, `listing.py`, `remote.py`; `redact` is for whatever shows a text that may hold a URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from urllib.parse import quote, unquote, urlsplit

Hidden = Sequence[tuple[str, str]]
"""What stands in a URL for a variable's value, and how a text shows it."""

HTTP = ("http", "https")
LOCAL = ("file", "local")
VARIABLE = re.compile(r"\$\{([^}]*)\}")
_SHORTEST_HIDDEN = 4
_CONTAINER_AT_ACCOUNT = ("abfs", "abfss", "wasb", "wasbs")
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/\s'\"<>]*)@")
_HTTP_QUERY = re.compile(r"(https?://[^\s'\"<>?#]*)[?#][^\s'\"<>]*", re.IGNORECASE)
_QUERY = re.compile(r"\?[^\s'\"<>?]*=[^\s'\"<>]*")
_SECRET = re.compile(
    r"([\w-]*(?:sig|signature|token|secret|password|credential|account_?key|api_?key|access_?key(?:_?id)?))"
    r"=[^\s&'\",;)]+",
    re.IGNORECASE,
)
_SECRET_IN_QUERY = re.compile(r"(?:key|pwd|passwd|auth|jwt)=[^\s&'\",;)]+", re.IGNORECASE)
_NAMED_IN_QUERY = re.compile(f"(?<=[?#&;]){_SECRET_IN_QUERY.pattern}", re.IGNORECASE)


def is_url(path: str) -> bool:
    """Returns whether `path` is a URL of whatever scheme."""
    return "://" in path


def scheme(url: str) -> str:
    """Returns the scheme of a URL, in small letters."""
    return url.partition("://")[0].lower()


def redact(text: str) -> str:
    """Returns `text` without the users, passwords and queries of the URLs in it."""
    text = _USER.sub(_without_user, text)
    return _SECRET.sub(r"\1=...", _QUERY.sub("?...", _HTTP_QUERY.sub(r"\1?...", text)))


def refuse_secret(what: str, written: str) -> None:
    """Raises `ValueError` for a URL that spells out a secret in its user or its query; `${VAR}` does not.

    Folders such as `token=web` are none.
    """
    spelled = VARIABLE.sub("", written)
    user = _USER.search(spelled)
    has_password = user is not None and re.search(r":[^/@]+$", user[2]) is not None
    query = re.split("[?#&;]", spelled)[1:]
    has_secret = any(_SECRET.match(part) or _SECRET_IN_QUERY.match(part) for part in query)
    if is_url(written) and (has_password or has_secret):
        shown = _NAMED_IN_QUERY.sub("...", redact(written))
        raise ValueError(
            f"{what} must not spell out a secret, got {shown!r}; give fsspec its credentials by "
            "environment or configuration, or write ${VAR} in the URL"
        )


def redact_parts(text: str, url: str, hidden: Hidden) -> str:
    """Returns `text` redacted, and without `hidden` and the secret parts of `url` wherever they stand."""
    text = hide(text, hidden)
    for part in _secret_parts(url):
        text = text.replace(part, "...").replace(hide(part, hidden), "...")
    return redact(text)


def variables(written: str) -> Hidden:
    """Returns what the variables in an entry stand for at this moment, the longest first.

    A value counts as a whole and as file systems show it: quoted, and without scheme and user. Texts of up to
    three characters are left out: they would be found anywhere.
    """
    found: dict[str, str] = {}
    for match in VARIABLE.finditer(written):
        value = os.environ.get(match[1], "").strip("/")
        if written.startswith("://", match.end()) or (not match.start() and value.endswith(":")):
            continue  # a scheme, by which a URL is known
        bare = value.partition("://")[2].rpartition("@")[2]
        for form in (value, bare):
            found |= {form: match[0], quote(form): match[0], unquote(form): match[0]}
    long = [pair for pair in found.items() if len(pair[0]) >= _SHORTEST_HIDDEN]
    return tuple(sorted(long, key=lambda pair: -len(pair[0])))


def hide(text: str, hidden: Hidden) -> str:
    """Returns `text` with `${VAR}` wherever the value of a variable stands."""
    for value, variable in hidden:
        text = text.replace(value, variable)
    return text


def without_query(url: str) -> str:
    """Returns the URL up to its query; in other than HTTP URLs, `?` is a wildcard or part of a name."""
    return re.split("[?#]", url, maxsplit=1)[0] if scheme(url) in HTTP else url


def last_name(url: str) -> str:
    """Returns the last part of the URL's path, as a file of that name would be called."""
    part = without_query(url).rstrip("/").rpartition("/")[2]
    if scheme(url) in HTTP and "/" not in (decoded := unquote(part)):
        return decoded
    return part


def _without_user(match: re.Match[str]) -> str:
    if match[1].lower() in _CONTAINER_AT_ACCOUNT and ":" not in match[2]:
        return match[0]
    return f"{match[1]}://"


def _secret_parts(url: str) -> list[str]:
    if scheme(url) not in HTTP:
        return []
    split = urlsplit(url)
    user = split.netloc.rpartition("@")[0]
    parts = [split.query, user, user.partition(":")[2]]
    return [part for part in parts if len(part) > 2]
