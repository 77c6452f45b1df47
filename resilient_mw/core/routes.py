"""Routes: the policy's own rules, and an index that finds candidates in time independent of their number.

A path is matched segment by segment and exactly: no case folding, no unescaping, no merging of slashes, so nobody
reaches a rule by a path trick. `{name}` stands for one segment that is not empty, a trailing `/*` for everything below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from resilient_mw.core.checks import is_token, require_cost, require_integer, require_name
from resilient_mw.core.deadline import DeadlineRule
from resilient_mw.core.marks import Cost, Mark, deadline_rule
from resilient_mw.core.streams import stream_rule

UNMATCHED = "unmatched"
"""The route label of a path that no route serves: one value, however many paths scanners try."""

WEBSOCKET = frozenset({"websocket"})
"""The methods of a route that takes websockets."""

Value = TypeVar("Value")


class RouteRule:
    """Says how requests to some paths are treated, for those who cannot mark the endpoint.

    Rules are tried in the order of the policy, the first one that matches decides, and what it says goes before a
    mark of the endpoint.

    Args:
        path: `/reports`, `/reports/{id}` or `/reports/*` (everything below, and `/reports` itself).
        methods: HTTP methods; none given: all.
        priority: class name, or `exempt`.
        cost: slots that one request takes, or a function of its head, as in `@priority`.
        deadline_default, deadline_minimum, deadline_maximum: seconds, as in `ServerPolicy`.
        max_body: bytes of the largest request body, as in `ServerPolicy`; may be more or less than there.
        slot, deadline_covers, deadline_idle: for requests that last, as `slot` of `priority()`, and `covers` and `idle` of
            `deadline()`.
        needs: name of the `Dependency` that such a request cannot do without; see `priority`.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    __slots__ = ("mark", "methods", "path")

    def __init__(
        self,
        path: str,
        *,
        methods: Sequence[str] = (),
        priority: str | None = None,
        cost: Cost | None = None,
        deadline_default: float | None = None,
        deadline_minimum: float | None = None,
        deadline_maximum: float | None = None,
        max_body: int | None = None,
        slot: str | None = None,
        deadline_covers: str | None = None,
        deadline_idle: float | None = None,
        needs: str | None = None,
    ) -> None:
        check_path(path)
        _check_methods(methods)
        if priority is not None:
            require_name("RouteRule.priority", priority)
        if cost is not None:
            require_cost("RouteRule.cost", cost)
        if max_body is not None:
            require_integer("RouteRule.max_body", max_body, low=0)
        if needs is not None:
            require_name("RouteRule.needs", needs)
        given = (deadline_default, deadline_minimum, deadline_maximum)
        deadline: DeadlineRule | None = None
        if any(number is not None for number in given):
            deadline = deadline_rule("RouteRule.deadline_", *given)
        self.path = path
        self.methods = frozenset(method.upper() for method in methods)
        stream = stream_rule(
            ("RouteRule.slot", slot),
            ("RouteRule.deadline_covers", deadline_covers),
            ("RouteRule.deadline_idle", deadline_idle),
        )
        self.mark = Mark(priority, cost, deadline, max_body, stream, needs)

    def __repr__(self) -> str:
        methods = f", methods={sorted(self.methods)}" if self.methods else ""
        return f"RouteRule({self.path!r}{methods})"


class Route:
    """One route of an application, as a route source found it. Compared by identity.

    Attributes:
        template: the path as the framework writes it, mount prefixes included: `/a/items/{id}`.
        mark: what the endpoint and the routers around it say.
        targets: the marked objects that lead here, for the warning about marks that nothing leads to. The first one
            is the endpoint.
        methods: the HTTP methods that it serves, or `WEBSOCKET`. None: any, or unknown; empty: it only answers 405.
    """

    __slots__ = ("mark", "methods", "targets", "template")

    def __init__(
        self,
        template: str,
        mark: Mark | None = None,
        targets: Sequence[object] = (),
        methods: frozenset[str] | None = None,
    ) -> None:
        self.template = template
        self.mark = mark
        self.targets = tuple(targets)
        self.methods = methods


class RouteResolver(Protocol):
    """Tells which route of one application a request will take, before the framework routes it."""

    def resolve(self, path: str, scope: Mapping[str, Any]) -> Route | None:
        """Return the route that the framework's own router would pick; None if it would answer 404.

        Args:
            path: the path below the root path.
            scope: the ASGI scope or the WSGI environ.
        """
        ...

    def routes(self) -> Iterable[Route]:
        """Return all routes, for checks at start."""
        ...


class RouteSource(Protocol):
    """Knows the routes of one framework's applications."""

    def resolver(self, app: object) -> RouteResolver | None:
        """Return a resolver for `app`; None if it is not an application of this framework."""
        ...


@runtime_checkable
class CorsAware(Protocol):
    """A route source may also know the CORS layer of its framework."""

    def adds_cors(self, layer: object) -> bool:
        """Return whether `layer` is a CORS layer, or an application that is made with one."""
        ...


class PathIndex(Generic[Value]):
    """Finds the values whose path patterns may match a path, in the order they were added.

    A segment that contains `{` stands for any one segment; a pattern added with `below=True` matches everything under
    it as well. The caller does the exact match where a pattern's segments say more than that.
    """

    __slots__ = ("_items", "_root")

    def __init__(self) -> None:
        self._root = _Node()
        self._items: list[Value] = []

    def add(self, pattern: str, value: Value, *, below: bool = False) -> None:
        """Add a value under a path pattern such as `/items/{id}`."""
        node = self._root
        for segment in pattern.split("/")[1:]:
            if "{" in segment:
                if node.any is None:
                    node.any = _Node()
                node = node.any
            else:
                node = node.literal.setdefault(segment, _Node())
        (node.below if below else node.here).append(len(self._items))
        self._items.append(value)

    def candidates(self, path: str) -> Sequence[Value]:
        """Return the values that may match, first added first."""
        found: list[int] = []
        nodes = [self._root]
        before, *segments = path.split("/")
        if before:
            return ()  # no path of ours: what stands before the first slash must not be overlooked
        for segment in segments:
            following: list[_Node] = []
            for node in nodes:
                found += node.below
                literal = node.literal.get(segment)
                if literal is not None:
                    following.append(literal)
                if node.any is not None and segment:
                    following.append(node.any)
            nodes = following
            if not nodes:
                break
        for node in nodes:
            found += node.below
            found += node.here
        if len(found) > 1:
            found.sort()
        items = self._items
        return [items[index] for index in found]


class _Node:
    __slots__ = ("any", "below", "here", "literal")

    def __init__(self) -> None:
        self.literal: dict[str, _Node] = {}
        self.any: _Node | None = None
        self.here: list[int] = []
        self.below: list[int] = []


def rule_index(rules: Iterable[RouteRule]) -> PathIndex[RouteRule]:
    """Return an index of a policy's rules."""
    index: PathIndex[RouteRule] = PathIndex()
    for rule in rules:
        index.add(rule.path.removesuffix("/*"), rule, below=rule.path.endswith("/*"))
    return index


def may_overlap(rule: RouteRule, template: str) -> bool:
    """Return whether some path could match both a rule and a framework's route template."""
    below = rule.path.endswith("/*")
    ours = rule.path.removesuffix("/*").split("/")[1:]
    theirs = template.split("/")[1:]
    for mine, other in zip(ours, theirs, strict=False):
        if ":path" in other or other.startswith("<path:"):
            return True
        if mine != other and not _is_parameter(mine) and not _is_parameter(other):
            return False
    if len(ours) == len(theirs):
        return True
    if len(ours) < len(theirs):
        return below
    return any(":path" in other or other.startswith("<path:") for other in theirs)


def below_root(path: str, root_path: str) -> str:
    """Return the path below a root path, whether the server includes the root in the path (ASGI) or not.

    The root is taken off at a segment boundary only: below `/product`, `/products` stays whole.
    """
    if root_path and path.startswith(root_path):
        rest = path[len(root_path) :]
        if rest.startswith("/"):
            return rest
        if not rest:
            return "/"
    return path


def _is_parameter(segment: str) -> bool:
    return "{" in segment or "<" in segment


def check_path(path: object, field: str = "RouteRule.path") -> None:
    """Check a path pattern.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """
    if not isinstance(path, str) or not path.startswith("/") or "*" in path.removesuffix("/*"):
        raise ValueError(
            f"{field}={path!r} is not allowed: it must be text that starts with '/', and '*' may only end it"
        )
    for segment in path.split("/"):
        # Anything that the index would take for any segment, or for text that no path ever contains.
        if not set("{}<>").isdisjoint(segment) and not (
            segment[0] == "{" and segment[-1] == "}" and segment[1:-1].isidentifier()
        ):
            raise ValueError(
                f"{field}={path!r} is not allowed: {segment!r} must be '{{name}}', which stands for one whole "
                "segment; '/*' at the end stands for everything below"
            )


def _check_methods(methods: object) -> None:
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        raise ValueError(
            f"RouteRule.methods={methods!r} is not allowed: it must be a sequence such as ['GET']"
        )
    for method in methods:
        if not isinstance(method, str) or not is_token(method):
            raise ValueError(f"RouteRule.methods={method!r} is not allowed: it must be text such as 'GET'")
