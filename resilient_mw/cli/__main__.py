"""Run the command with `python -m resilient_mw.cli`."""

from __future__ import annotations

import sys

from resilient_mw.cli.main import main

sys.exit(main())
