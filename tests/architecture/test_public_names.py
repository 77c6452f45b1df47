"""The public face of `resilient_mw` changes only on purpose: here, in the same change."""

from __future__ import annotations

from types import ModuleType

import resilient_mw

MOST_NAMES = 25

PUBLIC_NAMES = {
    "Band",
    "BreakerPolicy",
    "CallRefused",
    "CancelReason",
    "Deadline",
    "DeadlineExceeded",
    "Dependency",
    "OverloadPolicy",
    "PriorityClass",
    "Reason",
    "RequestCancelled",
    "RequestContext",
    "ResilienceError",
    "ResilienceWarning",
    "RetryPolicy",
    "RouteRule",
    "ServerPolicy",
    "UnsupportedEventLoop",
    "__version__",
    "budget",
    "current",
    "deadline",
    "degradable",
    "exempt",
    "priority",
}


def faults(module: ModuleType, pinned: set[str]) -> list[str]:
    """Say what is wrong with the public names of a module, measured against the pinned set."""
    names: list[str] = list(module.__all__)
    visible = {
        name for name, value in vars(module).items() if not name.startswith("_") and not _incidental(value)
    }
    return [
        *(f"{name} is public and not pinned" for name in sorted(set(names) - pinned)),
        *(f"{name} is pinned and not public" for name in sorted(pinned - set(names))),
        *(f"{name} is in __all__ and does not exist" for name in names if not hasattr(module, name)),
        *(f"{name} can be seen and is not in __all__" for name in sorted(visible - set(names))),
        *(["__all__ is not sorted"] if names != sorted(names) else []),
        *(["a name stands twice in __all__"] if len(names) != len(set(names)) else []),
        *([f"{len(names)} names are more than {MOST_NAMES}"] if len(names) > MOST_NAMES else []),
    ]


def _incidental(value: object) -> bool:
    # Submodules appear on their package once somebody imports them, and `annotations` comes from __future__.
    return isinstance(value, ModuleType) or type(value).__module__ == "__future__"


def test_the_public_names_are_the_pinned_ones() -> None:
    assert faults(resilient_mw, PUBLIC_NAMES) == []


def test_each_fault_is_seen() -> None:
    module = ModuleType("planted")
    module.__dict__.update(__all__=["b", "a", "gone", "a"], a=1, b=2, leaked=3)
    assert faults(module, {"a", "missing"}) == [
        "b is public and not pinned",
        "gone is public and not pinned",
        "missing is pinned and not public",
        "gone is in __all__ and does not exist",
        "leaked can be seen and is not in __all__",
        "__all__ is not sorted",
        "a name stands twice in __all__",
    ]


def test_too_many_names_are_seen() -> None:
    module = ModuleType("planted")
    names = [f"name_{number:02}" for number in range(MOST_NAMES + 1)]
    module.__dict__.update(dict.fromkeys(names, 0), __all__=names)
    assert faults(module, set(names)) == ["26 names are more than 25"]
