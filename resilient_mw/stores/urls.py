"""Opens a store of idempotency keys by its URL, for those who have no code of the application at hand.

SQLite is known here: `sqlite:///keys.db` is a file in this folder, `sqlite:////var/lib/keys.db` an absolute path. Other stores
register their schemes as entry points of the group `resilient_mw.stores`: the name is the scheme, the object takes the URL and
returns an `IdempotencyStore` or an `AsyncIdempotencyStore`.
"""

from __future__ import annotations

import difflib
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from resilient_mw.stores.sqlite import TABLE, SQLiteIdempotencyStore

if TYPE_CHECKING:
    from resilient_mw.idempotency.protocol import AsyncIdempotencyStore, IdempotencyStore

GROUP: Final = "resilient_mw.stores"
_USER: Final = re.compile(r"(?<=://)[^/\s]*@")
_SQLITE: Final = "sqlite"


def open_store(url: str) -> IdempotencyStore | AsyncIdempotencyStore:
    """Return the store that a URL names. Nothing is made: a file or a table that is not there is an error.

    Args:
        url: `sqlite:///keys.db`, `postgresql://...`, `redis://...`, or the path of a SQLite file.

    Raises:
        ValueError: it names no store; the text says what to change.
    """
    scheme, found, _ = url.partition("://")
    if not found:
        return open_file(Path(url))
    if scheme == _SQLITE:
        path = unquote(urlsplit(url).path)
        if urlsplit(url).netloc or len(path) < 2:
            raise ValueError(
                f"{url!r} is not allowed: write sqlite:///keys.db for a file in this folder, sqlite:////var/lib/keys.db for "
                "an absolute path"
            )
        return open_file(Path(path[1:]))
    return _registered(scheme, url)


def open_file(path: Path) -> SQLiteIdempotencyStore:
    """Return the store in a SQLite file.

    Raises:
        ValueError: there is no such file, or no store in it.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (TABLE,)).fetchone()
    except sqlite3.Error as error:
        raise ValueError(f"{str(path)!r} cannot be read as a SQLite file: {error}") from error
    if known is None:
        raise ValueError(
            f"{str(path)!r} has no table {TABLE!r}: it is not the file of a store of idempotency keys"
        )
    return SQLiteIdempotencyStore(path)


def without_user(url: str) -> str:
    """Return a text without the user and password of the URLs in it, to be shown."""
    return _USER.sub("", url)


def _registered(scheme: str, url: str) -> IdempotencyStore | AsyncIdempotencyStore:
    from importlib.metadata import entry_points

    points = {point.name: point for point in entry_points(group=GROUP)}
    if scheme not in points:
        known = sorted({_SQLITE, *points})
        close = difflib.get_close_matches(scheme, known, n=1)
        hint = f"did you mean {close[0]}://?" if close else f"known here: {', '.join(known)}"
        raise ValueError(f"no store is registered for {scheme}://: {hint}")
    try:
        make: Callable[[str], Any] = points[scheme].load()
    except ImportError as error:
        raise ValueError(
            f"the store of {scheme}:// cannot be loaded ({error}): install what {points[scheme].value!r} needs"
        ) from error
    try:
        made: IdempotencyStore | AsyncIdempotencyStore = make(url)
    except Exception as error:  # whatever a package says of a URL that it cannot read
        raise ValueError(f"the URL cannot be used: {error}") from error
    return made
