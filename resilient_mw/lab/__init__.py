"""Break a real service on purpose, on loopback, and show what the protections change.

`resilient-mw lab` is the way in. A step is data (`steps`); `runner` starts the processes of one step
(`prices`, an application, `load`) and collects its figures; `console` and `report` show them. Only the two
applications and their checks know a framework.
"""

from __future__ import annotations
