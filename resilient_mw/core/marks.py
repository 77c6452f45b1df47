"""Marks: what an endpoint or a router says of itself, by decorator.

A mark is an attribute of the object it was put on, so the order of decorators does not matter. It takes effect when
a route source finds the marked object behind a route; marks that no route leads to are named in a warning at start.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from resilient_mw.core.checks import require_cost, require_name, require_number
from resilient_mw.core.deadline import DeadlineRule
from resilient_mw.core.head import RequestHead
from resilient_mw.core.idempotent import IdempotencyRule
from resilient_mw.core.priority import EXEMPT
from resilient_mw.core.streams import StreamRule, stream_rule

Target = TypeVar("Target")

Cost = int | Callable[[RequestHead], int]
"""Slots that a request takes, or what finds them from its head."""

ATTRIBUTE = "__resilient_mw_mark__"


@dataclass(frozen=True, slots=True)
class Mark:
    """What was said of one endpoint or router; None where nothing was said.

    Attributes:
        priority: class name, `exempt` included.
        cost: slots that one request takes, or a function of its head.
        deadline: the route's own deadline rule.
        max_body: bytes of the largest request body.
        stream: for how long the slot is held, and what the deadline covers.
        needs: name of the dependency that it cannot do without.
        degradable: whether a cheaper variant of it can answer.
        idempotency: how it treats idempotency keys.
    """

    priority: str | None = None
    cost: Cost | None = None
    deadline: DeadlineRule | None = None
    max_body: int | None = None
    stream: StreamRule | None = None
    needs: str | None = None
    degradable: bool | None = None
    idempotency: IdempotencyRule | None = None

    def over(self, base: Mark | None) -> Mark:
        """Return this mark with its gaps filled from `base` (the mark of a surrounding router)."""
        if base is None:
            return self
        deadline = self.deadline
        if base.deadline is not None:
            deadline = base.deadline if deadline is None else deadline.over(base.deadline)
        idempotency = self.idempotency
        if base.idempotency is not None:
            idempotency = base.idempotency if idempotency is None else idempotency.over(base.idempotency)
        return Mark(
            base.priority if self.priority is None else self.priority,
            base.cost if self.cost is None else self.cost,
            deadline,
            base.max_body if self.max_body is None else self.max_body,
            base.stream if self.stream is None else self.stream.over(base.stream),
            base.needs if self.needs is None else self.needs,
            base.degradable if self.degradable is None else self.degradable,
            idempotency,
        )


_marked: list[weakref.ref[object]] = []


def priority(
    name: str, *, cost: Cost | None = None, slot: str | None = None, needs: str | None = None
) -> Callable[[Target], Target]:
    """Put an endpoint or a router into a priority class.

    Args:
        name: the class: `critical`, `normal`, `sheddable`, or one that the policy defines. An unmarked route is
            `normal`.
        cost: slots that one request takes; 1 by default. Give an expensive route more. Or a function of the
            request's head (`resilient_mw.core.head.RequestHead`) that returns them: at least 1, and at most what the
            class can have, is taken; while it fails, 1.
        slot: `"head"`: the slot is given back when the head of the response has been sent, for streams; `"body"`, the
            default: when the work has stopped.
        needs: name of the `Dependency` that it cannot do without: while the circuit of that one is open, requests are
            refused on arrival, or answered by the cheaper variant if the endpoint is `degradable`.

    Raises:
        ValueError: the name is no valid class name, the cost is below 1, or there is no such slot. Whether the class exists is checked when
            the application starts.
    """
    require_name("priority", name)
    if cost is not None:
        require_cost("cost", cost)
    if needs is not None:
        require_name("needs", needs)
    stream = stream_rule(slot=("priority.slot", slot))
    return marker(Mark(priority=name, cost=cost, stream=stream, needs=needs))


def mark_degradable(target: Target) -> Target:
    """Note that a cheaper variant of an endpoint can answer. Nobody is warned if no route leads to it: it works without."""
    own = getattr(target, "__dict__", {}).get(ATTRIBUTE)
    setattr(target, ATTRIBUTE, Mark(degradable=True).over(own if isinstance(own, Mark) else None))
    return target


def exempt(target: Target) -> Target:
    """Exempt an endpoint or a router: never queued, never refused for load, within its own hard bound."""
    return marker(Mark(priority=EXEMPT))(target)


def deadline(
    *,
    default: float | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    covers: str | None = None,
    idle: float | None = None,
) -> Callable[[Target], Target]:
    """Give an endpoint or a router its own deadline rule.

    Args:
        default: seconds for callers who send no budget, and the most that an untrusted one can ask for.
        minimum: seconds; a smaller wish of an untrusted caller is raised to it.
        maximum: seconds; the most that anybody gets. What is left out comes from the policy.
        covers: `"body"`, the default: everything up to the end of the response; `"head"`: only until its head has been
            sent; `"gaps"`: until then, and from then on each gap between two chunks.
        idle: seconds that such a gap may last; 30 by default.

    Raises:
        ValueError: a number is negative, no number, or the minimum exceeds the maximum; there is no such cover, or it has
            no gaps.
    """
    stream = stream_rule(covers=("deadline.covers", covers), idle=("deadline.idle", idle))
    return marker(Mark(deadline=deadline_rule("deadline.", default, minimum, maximum), stream=stream))


def deadline_rule(
    prefix: str, default: float | None, minimum: float | None, maximum: float | None
) -> DeadlineRule:
    """Return a checked deadline rule; `prefix` goes before the names of its fields in errors."""
    rule = DeadlineRule(
        None if default is None else require_number(f"{prefix}default", default, low=0.001, high=86_400),
        None if minimum is None else require_number(f"{prefix}minimum", minimum, low=0, high=86_400),
        None if maximum is None else require_number(f"{prefix}maximum", maximum, low=0.001, high=86_400),
    )
    if rule.minimum is not None and rule.maximum is not None and rule.minimum > rule.maximum:
        raise ValueError(
            f"{prefix}minimum={rule.minimum!r} is not allowed: it must be at most the maximum, {rule.maximum!r}"
        )
    return rule


def mark_of(target: object) -> Mark | None:
    """Return the mark of an endpoint, looking through functions that wrap it; None if it has none.

    Marks on several layers (a decorator above and below another one) are merged, the outermost first.
    """
    found: Mark | None = None
    for layer in layers(target):
        mark = getattr(layer, "__dict__", {}).get(ATTRIBUTE)
        if isinstance(mark, Mark):
            found = mark if found is None else found.over(mark)
    return found


def layers(target: object) -> Iterator[object]:
    """Yield an endpoint and what it wraps: `functools.wraps`, `partial`, bound methods, view classes."""
    seen: set[int] = set()
    while target is not None and id(target) not in seen:
        seen.add(id(target))
        yield target
        following: Any = None
        for attribute in ("__wrapped__", "func", "__func__", "view_class"):
            following = getattr(target, "__dict__", {}).get(attribute)
            if following is None:
                following = _slot(target, attribute)
            if following is not None:
                break
        target = following


def unreached_marks(reached: list[object], *, keys: bool = False) -> list[str]:
    """Return the names of marked objects that no application has led to, `reached` included from now on.

    What was reached once is forgotten: it is never complained about, also when its application is gone.

    Args:
        reached: the marked objects that an application leads to.
        keys: name only those that say something of idempotency keys.
    """
    known: set[int] = set()
    for target in reached:
        for layer in layers(target):
            known |= {id(layer), id(getattr(layer, "__dict__", {}).get(ATTRIBUTE))}
    alive = [
        (mark, target)
        for mark in _marked
        if (target := mark()) is not None and known.isdisjoint({id(target), id(vars(target).get(ATTRIBUTE))})
    ]
    _marked[:] = [mark for mark, _ in alive]
    named = [target for _, target in alive if not keys or vars(target)[ATTRIBUTE].idempotency is not None]
    return sorted({_name(target) for target in named})


def _remember(target: object) -> None:
    """Note that an object was marked. Frameworks may mark one for each request (Django's `method_decorator` does)."""
    if len(_marked) & 0xFF == 0xFF:
        _marked[:] = [mark for mark in _marked if mark() is not None]
    _marked.append(weakref.ref(target))


def _slot(target: object, attribute: str) -> object:
    # Bound methods and partials keep these outside __dict__; anything else that answers to them by __getattr__ lies.
    if attribute in {"func", "__func__"} and hasattr(type(target), attribute):
        return getattr(target, attribute, None)
    return None


def marker(mark: Mark) -> Callable[[Target], Target]:
    """Return a decorator that puts a mark on an endpoint or a router, over the one that it has.

    Raises:
        TypeError: from the decorator: the object cannot carry a mark.
    """

    def apply(target: Target) -> Target:
        own = getattr(target, "__dict__", {}).get(ATTRIBUTE)
        try:
            # A value of its own for each target: a copy of the target, which frameworks make, is known by it.
            setattr(target, ATTRIBUTE, replace(mark.over(own)))
            _remember(target)
        except (AttributeError, TypeError) as error:
            raise TypeError(
                f"{target!r} cannot carry a mark: put it on the endpoint function or the router"
            ) from error
        return target

    return apply


def _name(target: object) -> str:
    target = getattr(target, "fn", target)  # handlers of Litestar
    module = getattr(target, "__module__", None)
    name = getattr(target, "__qualname__", None) or getattr(target, "name", None) or type(target).__qualname__
    return f"{module}.{name}" if module else str(name)
