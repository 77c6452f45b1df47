"""A process that pays inside a block and then waits to be killed: `python -m tests.transactions.killed NAME URL`."""

from __future__ import annotations

import sys
import threading

from tests.transactions.ledgers import BLOCKING


def main(name: str, url: str) -> None:
    ledger = BLOCKING[name](url)
    with (
        ledger.open() as connection,
        ledger.idempotent(connection, key="k-1", caller="ann", operation="POST /payments") as op,
    ):
        ledger.pay(connection)
        op.complete(201)
        print("inside", flush=True)
        threading.Event().wait(600)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
