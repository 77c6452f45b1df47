"""Profiles of hypothesis for the state machine of the controller.

Without a profile it runs 2,000 examples. There is no profile named `ci`: hypothesis has one of that name, which it loads
by itself where the environment looks like CI, and 2,000 examples would then go for every property test.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

# One chunk of scripts/prove.py. Without a database, or each chunk would begin with what the last one found.
settings.register_profile(
    "long",
    max_examples=5_000,
    stateful_step_count=30,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
# For scripts/plant_faults.py: the same examples each time, and the first failure is enough.
settings.register_profile(
    "faults",
    max_examples=600,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
