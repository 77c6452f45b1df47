"""`resilient-mw idempotency`: what operators do with a store of idempotency keys."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from resilient_mw.cli.idempotency_keeper import Keeper, NotThere, find_store
from resilient_mw.cli.idempotency_shown import page_as_json, page_as_text, record_as_json, record_as_text
from resilient_mw.cli.locate import Unusable
from resilient_mw.cli.words import span
from resilient_mw.idempotency.protocol import StoreUnavailable
from resilient_mw.idempotency.record import Record, State
from resilient_mw.runtime.configuration import KEYS_STORE
from resilient_mw.stores.urls import without_user

OK, REFUSED, USAGE, AWAY, INTERRUPTED = 0, 1, 2, 3, 130
SCANNED = 500
"""Records that are asked for at one time while only some of them are wanted."""

DESCRIPTION = """\
Look at a store of idempotency keys, and clear up in it.

STORE is a URL (sqlite:///keys.db, postgresql://..., redis://...), the path of a SQLite file, or module:attribute of a
store or an application of yours. A URL with a password is better given in the environment,
RESILIENT_MW_IDEMPOTENCY_STORE, where other users of the machine do not see it.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = argparse.ArgumentParser(
        prog="resilient-mw idempotency",
        description=DESCRIPTION,
        epilog="exit status: 0 done, 1 no such record, or not released, 2 bad usage, 3 the store is away",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--store", metavar="STORE", default=os.environ.get(KEYS_STORE) or None)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[Keeper, argparse.Namespace], int], text: str) -> Any:
        each = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        each.set_defaults(run=run)
        each.add_argument("--store", metavar="STORE", default=argparse.SUPPRESS)
        each.add_argument(
            "--timeout", metavar="SECONDS", type=_seconds, default=5.0, help="for each question (5)"
        )
        each.add_argument("--json", action="store_true", help="print JSON")
        return each

    listed = command("list", _list, "list live records, a page at a time")
    listed.add_argument("--state", choices=[each.value for each in State])
    listed.add_argument("--key", metavar="KEY", help="only those with this key, as the caller sent it")
    listed.add_argument("--route", metavar="TEMPLATE", help="only those of this route")
    listed.add_argument("--caller", metavar="CALLER", help="only those of this caller (show_caller=True)")
    listed.add_argument("--limit", metavar="N", type=_count, default=50, help="records of a page (50)")
    listed.add_argument("--after", metavar="RECORD", default="", help="the last record of the page before")

    shown = command("show", _show, "show one record")
    shown.add_argument("record", metavar="RECORD", help="its key, or the first digits of it")
    shown.add_argument(
        "--answer", action="store_true", help="show its answer as well, which may be confidential"
    )
    shown.add_argument("--bytes", metavar="N", type=_count, default=2_000, help="of the answer's body (2000)")

    released = command("release", _release, "remove one record, so that the next request with its key runs")
    released.add_argument("record", metavar="RECORD", help="its key, or the first digits of it")
    released.add_argument(
        "--running",
        action="store_true",
        help="also while an attempt is at work, which cannot record its answer then",
    )

    purged = command("purge", _purge, "remove all expired records")
    purged.add_argument(
        "--batch", metavar="N", type=_count, default=1_000, help="records of one transaction (1000)"
    )
    purged.add_argument("--limit", metavar="N", type=_count, help="at most so many in all")
    purged.add_argument("--progress", action="store_true", help="tell about each batch, as on a terminal")
    return made


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    arguments = parser()
    options = arguments.parse_args(argv)
    if options.store is None:
        arguments.error(f"which store? Say --store STORE, or set {KEYS_STORE}")
    try:
        with Keeper(find_store(options.store), options.timeout) as keeper:
            status: int = options.run(keeper, options)
            return status
    except Unusable as error:
        arguments.error(str(error))
    except NotThere as error:
        _complain(str(error))
        return REFUSED
    except StoreUnavailable as error:
        _complain(f"the store cannot be used: {error}")
        return AWAY
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except (
        BrokenPipeError
    ):  # The reader, such as `head`, has seen enough; nor may the flush at exit complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _list(keeper: Keeper, options: argparse.Namespace) -> int:
    found, after = _page(keeper, options)
    if options.json:
        _print(json.dumps(page_as_json(found, after), indent=1))
    else:
        _print("\n".join(page_as_text(found, after)))
    return OK


def _page(keeper: Keeper, options: argparse.Namespace) -> tuple[list[Record], str | None]:
    """Return records, and the last one that was looked at; None instead of that if all were."""
    wanted = {
        name: given for name in ("key", "route", "caller") if (given := getattr(options, name)) is not None
    }
    state = None if options.state is None else State(options.state)
    found: list[Record] = []
    after: str = options.after.lower()
    while True:
        size = SCANNED if wanted else options.limit
        records: Sequence[Record] = keeper.ask("records", state=state, after=after, limit=size)
        for record in records:
            after = record.record
            if all(getattr(record.about, name) == given for name, given in wanted.items()):
                found.append(record)
                if len(found) == options.limit:
                    return found, after
        if len(records) < size:
            return found, None


def _show(keeper: Keeper, options: argparse.Namespace) -> int:
    record = keeper.find(options.record)
    if options.json:
        content = record_as_json(record, answer=options.answer, most=options.bytes)
        _print(json.dumps(content, indent=1))
    else:
        _print("\n".join(record_as_text(record, answer=options.answer, most=options.bytes)))
    return OK


def _release(keeper: Keeper, options: argparse.Namespace) -> int:
    record = keeper.find(options.record)
    released: bool = keeper.ask("release", record.record, running=options.running)
    if options.json:
        _print(json.dumps({"format": 1, "record": record.record, "released": released}))
    elif released:
        _print(
            f"released {record.record}, which was {record.state.value}: the next request with its key runs"
        )
    if released:
        return OK
    record = keeper.find(record.record)  # as it is now
    _complain(
        f"{record.record} was not released: an attempt is at work, and its lease ends in {span(record.lease_left)} unless it "
        "is renewed. Another one would run beside it. Wait for its end, or say --running"
    )
    return REFUSED


def _purge(keeper: Keeper, options: argparse.Namespace) -> int:
    tell = options.progress or sys.stderr.isatty()
    removed = 0
    try:
        while options.limit is None or removed < options.limit:
            batch = options.batch if options.limit is None else min(options.batch, options.limit - removed)
            now: int = keeper.ask("purge", batch)
            removed += now
            if now < batch:
                break
            if tell:
                _complain(f"{removed:,} expired records removed so far")
    finally:  # also when it is interrupted, or the store goes away: what is removed stays removed
        if options.json:
            _print(json.dumps({"format": 1, "removed": removed}))
        else:
            _print(f"{removed:,} expired records removed")
    return OK


def _print(text: str) -> None:
    print(text, flush=True)


def _complain(text: str) -> None:
    print(f"resilient-mw idempotency: {without_user(text)}", file=sys.stderr, flush=True)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3_600:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0, and at most 3600")
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 1 to 1000000")
    return value
