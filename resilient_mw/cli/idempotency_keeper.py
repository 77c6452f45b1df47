"""Finds the store of idempotency keys that an operator means, and asks it, whether it blocks or is async."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from resilient_mw.cli.locate import Unusable, idempotency_layers, load
from resilient_mw.idempotency.record import Record
from resilient_mw.stores.urls import open_store, without_user

MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
PREFIX = re.compile(r"[0-9a-f]{6,64}")
WHOLE = 64
"""Digits of a record's key."""


class NotThere(Exception):
    """There is no such record."""


class Keeper:
    """A store as a command asks it: every call waits for its answer.

    Args:
        store: of either kind.
        timeout: seconds that one question may take.
    """

    def __init__(self, store: Any, timeout: float) -> None:
        self._store = store
        self._timeout = timeout
        self._runner: asyncio.Runner | None = None

    def ask(self, method: str, *args: Any, **facts: Any) -> Any:
        """Return what a method of the store answers. It raises what the store raises."""
        return self._waited(getattr(self._store, method)(*args, timeout=self._timeout, **facts))

    def find(self, given: str) -> Record:
        """Return a record with its answer.

        Args:
            given: its key, or the first digits of it.

        Raises:
            NotThere: there is none, or it has expired.
            Unusable: this is no key, or the first digits of several.
        """
        text = given.lower()
        if PREFIX.fullmatch(text) is None:
            raise Unusable(
                f"{given!r} is not the key of a record: give 6 to 64 of its hexadecimal digits, as `list` shows them. A key "
                "that a caller has sent is found with: list --key"
            )
        if len(text) < WHOLE:
            # Keys that begin so are the first ones after it.
            found = [
                each for each in self.ask("records", after=text, limit=2) if each.record.startswith(text)
            ]
            if len(found) > 1:
                raise Unusable(f"several records begin with {given}: give more digits")
            if not found:
                raise NotThere(f"no record begins with {given}, or it has expired")
            text = found[0].record
        record: Record | None = self.ask("look", text)
        if record is None:
            raise NotThere(f"there is no record {given}, or it has expired")
        return record

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let the store go."""
        try:
            self._waited(self._store.close())
        finally:
            if self._runner is not None:
                self._runner.close()

    def _waited(self, answer: Any) -> Any:
        if not inspect.iscoroutine(answer):
            return answer
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(answer)


def find_store(text: str) -> Any:
    """Return the store that is meant.

    Args:
        text: a URL, the path of a SQLite file, or `module:attribute` of a store or of an application that has one.

    Raises:
        Unusable: there is none; the text says what to change.
    """
    if "://" in text or Path(text).exists() or MODULE.fullmatch(text) is None:
        try:
            return open_store(text)
        except ValueError as error:
            raise Unusable(without_user(str(error))) from error
    with redirect_stdout(sys.stderr):  # what the application prints is no part of the answer
        found = _of(load(text, factory=False), text)
    if getattr(found, "shared", "process") == "process":
        raise Unusable(
            f"{text!r} keeps its records in the memory of each process: another one, such as this command, cannot see them"
        )
    return found


def _of(found: object, text: str) -> Any:
    if all(callable(getattr(found, name, None)) for name in ("begin", "look", "records", "purge", "release")):
        return found
    stores = {id(layer.store): layer.store for layer in idempotency_layers(found)}
    if len(stores) == 1:
        return next(iter(stores.values()))
    if stores:
        raise Unusable(
            f"{text!r} has {len(stores)} stores of idempotency keys: name one of them, module:attribute"
        )
    raise Unusable(
        f"{text!r} is a {type(found).__name__}, neither a store of idempotency keys nor an application with an "
        "IdempotencyMiddleware in sight: name the store itself, module:attribute"
    )
