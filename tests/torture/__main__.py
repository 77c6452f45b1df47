"""Run payments through two servers for each store, while everything around them breaks, and look into the ledger.

    python -m tests.torture                                   # 10,000 payments for each store and form
    python -m tests.torture --store sqlite --payments 300     # seconds

Clients retry with the same keys and hang up at random points, a server is killed with SIGKILL every few hundred payments,
and the store is stopped and started. Exit status 1: a payment was made twice or lost, or a client was told something wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.torture.places import PLACES
from tests.torture.report import Progress, table
from tests.torture.run import Plan, Result, run

FORMS: Final = {
    "sqlite": ("sqlalchemy", "ask", "refuse"),
    "postgres": ("sqlalchemy", "psycopg", "ask", "refuse"),
    "redis": ("ask", "refuse"),
}


def torture(store: str, plan: Plan) -> Result:
    """Run one store in one form."""
    progress = Progress()
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    good = False
    try:
        result = asyncio.run(run(PLACES[store](folder), plan, folder, progress))
        good = not result.violations
        return result
    except KeyboardInterrupt:
        good = True
        raise
    finally:
        progress.end()
        if good:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"What the servers wrote, and the ledger: {folder}", flush=True)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", action="append", choices=list(FORMS), help="may be repeated; default: all")
    parser.add_argument(
        "--form",
        action="append",
        choices=sorted({form for forms in FORMS.values() for form in forms}),
        help="sqlalchemy and psycopg: key and payment in one transaction; ask: the middleware keeps keys, and a status function "
        "settles what is unknown; refuse: nobody does; may be repeated; default: all",
    )
    parser.add_argument(
        "--payments", type=int, default=10_000, help="for each store and form (default 10,000)"
    )
    parser.add_argument("--within", type=float, default=600.0, help="seconds for each (default 600)")
    parser.add_argument("--seed", type=int, default=1, help="of all that happens by chance (default 1)")
    options = parser.parse_args()
    if options.payments < 20:
        parser.error("--payments is at least 20")
    payments, results = options.payments, []
    for store in options.store or FORMS:
        for form in FORMS[store]:
            if options.form and form not in options.form:
                continue
            plan = Plan(
                form=form,
                payments=payments,
                kill_every=min(300, payments // 4),
                stops=max(1, min(8, payments // 300)),
                seed=options.seed,
                within=options.within,
            )
            results.append(torture(store, plan))
    print(table(results))
    return 1 if any(result.violations for result in results) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
