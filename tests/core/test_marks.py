"""Marks on endpoints: decorators in any order, through layers, merged, and those that nothing leads to."""

from __future__ import annotations

import functools
import gc
import math
from collections.abc import Callable
from typing import Any

import pytest

from resilient_mw.core import marks
from resilient_mw.core.deadline import DeadlineRule
from resilient_mw.core.marks import Mark, deadline, exempt, layers, mark_of, priority, unreached_marks
from resilient_mw.core.streams import StreamRule


@pytest.fixture(autouse=True)
def _nothing_marked_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "_marked", [])


def _endpoint() -> Callable[[], str]:
    def endpoint() -> str:
        return "answer"

    return endpoint


def _wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def _hiding(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


# -- one mark


def test_a_mark_is_put_on_the_object_itself_which_stays_what_it_was() -> None:
    endpoint = _endpoint()
    assert priority("critical", cost=2)(endpoint) is endpoint
    assert mark_of(endpoint) == Mark("critical", 2)
    assert endpoint() == "answer"


def test_no_mark() -> None:
    assert mark_of(_endpoint()) is None
    assert mark_of(None) is None
    assert mark_of(7) is None


def test_exempt_is_a_class_like_the_others() -> None:
    assert mark_of(exempt(_endpoint())) == mark_of(priority("exempt")(_endpoint())) == Mark("exempt")


def test_a_deadline_mark() -> None:
    marked = deadline(maximum=5)(_endpoint())
    assert mark_of(marked) == Mark(deadline=DeadlineRule(maximum=5.0))


def test_marks_add_up_in_any_order() -> None:
    decorators = [priority("sheddable", cost=3), deadline(maximum=5.0), deadline(default=1.0)]
    expected = Mark("sheddable", 3, DeadlineRule(default=1.0, maximum=5.0))
    for order in (decorators, decorators[::-1]):
        endpoint = _endpoint()
        for decorator in order:
            endpoint = decorator(endpoint)
        assert mark_of(endpoint) == expected


def test_of_two_that_say_the_same_the_outer_one_counts() -> None:
    endpoint = priority("critical")(priority("sheddable", cost=4)(_endpoint()))
    assert mark_of(endpoint) == Mark("critical", 4)


def test_a_stream_mark() -> None:
    marked = priority("normal", slot="head")(deadline(idle=5)(_endpoint()))
    found = mark_of(marked)
    assert found is not None
    assert found.stream == StreamRule("head", "gaps", 5.0)
    assert mark_of(deadline(covers="head")(_endpoint())).stream == StreamRule(covers="head")  # type: ignore[union-attr]
    assert mark_of(deadline(default=1)(_endpoint())).stream is None  # type: ignore[union-attr]


@pytest.mark.parametrize("value", ["tail", "", 1, True, ["head"], b"head"])
def test_wrong_stream_marks(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^priority.slot=.* must be one of \['head', 'body'\]"):
        priority("normal", slot=value)
    with pytest.raises(ValueError, match=r"^deadline.covers=.* must be one of \['head', 'body', 'gaps'\]"):
        deadline(covers=value)


@pytest.mark.parametrize("value", [0, 0.09, -1, 86_401, math.nan, math.inf, True, "1"])
def test_wrong_gaps(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^deadline.idle=.* must be a number from 0.1 to 86400"):
        deadline(idle=value)


@pytest.mark.parametrize("covers", ["head", "body"])
def test_gaps_of_what_has_none(covers: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^deadline.idle=5.0 is not allowed with deadline.covers='{covers}'"
    ):
        deadline(covers=covers, idle=5)


# -- filling gaps


def test_a_stream_rule_fills_its_gaps() -> None:
    outer = StreamRule("head", "gaps", 5.0)
    assert StreamRule().over(outer) == outer
    assert outer.over(None) == outer
    assert StreamRule("body").over(outer) == StreamRule("body", "gaps", 5.0)
    assert StreamRule(covers="head").over(outer) == StreamRule("head", "head"), (
        "the gaps go with what covers them"
    )
    assert Mark("critical").over(Mark(stream=outer)) == Mark("critical", stream=outer)
    assert Mark(stream=StreamRule(covers="body")).over(Mark(stream=outer)).stream == StreamRule(
        "head", "body"
    )


def test_what_holds_for_every_request_is_no_stream() -> None:
    assert StreamRule("body", "body").effective(exempt=False) is None
    assert StreamRule("head").effective(exempt=True) is None, "an exempt request takes no slot"
    assert StreamRule("head").effective(exempt=False) == StreamRule("head", "body")
    assert StreamRule(covers="gaps").effective(exempt=True) == StreamRule("body", "gaps", 30.0)
    assert StreamRule(covers="gaps", idle=2.0).effective(exempt=False) == StreamRule("body", "gaps", 2.0)


def test_a_mark_fills_its_gaps_from_the_router_around_it() -> None:
    outer = Mark("critical", 2, DeadlineRule(10.0, 1.0, None))
    assert Mark().over(outer) == outer
    assert Mark("sheddable").over(outer) == Mark("sheddable", 2, outer.deadline)
    assert Mark(cost=1).over(outer) == Mark("critical", 1, outer.deadline)
    inner = Mark(deadline=DeadlineRule(default=3.0, maximum=4.0))
    assert inner.over(outer) == Mark("critical", 2, DeadlineRule(3.0, 1.0, 4.0))
    assert inner.over(Mark("critical")) == Mark("critical", None, inner.deadline)
    assert outer.over(None) == outer


# -- layers


class _View:
    def get(self) -> str:
        return "answer"

    @classmethod
    def as_view(cls) -> Callable[[], Any]:
        def view() -> Any:
            return cls().get()

        view.view_class = cls  # type: ignore[attr-defined]
        return view


@pytest.mark.parametrize("wrap", [_wrapping, functools.partial, lambda inner: _wrapping(_wrapping(inner))])
def test_a_mark_is_found_above_and_below_other_decorators(wrap: Callable[[Any], Any]) -> None:
    above = priority("critical")(wrap(_endpoint()))
    below = wrap(priority("critical")(_endpoint()))
    both = deadline(maximum=5.0)(wrap(priority("critical")(_endpoint())))
    assert mark_of(above) == mark_of(below) == Mark("critical")
    assert mark_of(both) == Mark("critical", None, DeadlineRule(maximum=5.0))


def test_a_mark_that_was_put_on_after_the_wrapper_is_found() -> None:
    """The wrapper has no copy of it."""
    inner = _endpoint()
    wrapper = _wrapping(inner)
    priority("critical")(inner)
    assert mark_of(wrapper) == Mark("critical")
    assert unreached_marks([wrapper]) == []


def test_the_outermost_layer_says_more() -> None:
    inner = priority("sheddable", cost=4)(_endpoint())
    assert mark_of(priority("critical")(_wrapping(inner))) == Mark("critical", 4)
    assert mark_of(inner) == Mark("sheddable", 4), "the inner one is as it was"


def test_a_mark_on_a_method_is_found_through_its_bound_form() -> None:
    class Handlers:
        @priority("critical")
        def show(self) -> str:
            return "answer"

    assert mark_of(Handlers().show) == Mark("critical")


def test_a_mark_on_a_view_class_is_found_through_its_function() -> None:
    class Marked(_View):
        pass

    priority("critical")(Marked)
    assert mark_of(Marked.as_view()) == Mark("critical")
    assert mark_of(_View.as_view()) is None


def test_a_mark_is_found_on_an_object_that_can_be_called() -> None:
    class Handler:
        def __call__(self) -> str:
            return "answer"

    assert mark_of(exempt(Handler())) == Mark("exempt")


def test_a_layer_that_looks_empty_is_a_layer() -> None:
    """B47: what is wrapped is compared with None and not tested for truth."""

    class Empty:
        def __len__(self) -> int:
            return 0

        def __call__(self) -> str:
            return "answer"

    handler = priority("critical")(Empty())

    def wrapper() -> str:
        return handler()

    wrapper.__wrapped__ = handler  # type: ignore[attr-defined]
    assert mark_of(wrapper) == Mark("critical")


def test_a_circle_of_wrappers_ends() -> None:
    def first() -> None: ...
    def second() -> None: ...

    first.__wrapped__ = second  # type: ignore[attr-defined]
    second.__wrapped__ = first  # type: ignore[attr-defined]
    assert list(layers(first)) == [first, second]
    assert mark_of(first) is None


def test_an_object_that_answers_to_every_name_is_no_layer() -> None:
    class Anything:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was asked for")

    assert len(list(layers(Anything()))) == 1


# -- marks that nothing leads to


def test_a_mark_is_reached_through_what_wraps_it() -> None:
    endpoint = priority("critical")(_endpoint())
    assert unreached_marks([endpoint]) == []
    assert unreached_marks([_wrapping(endpoint)]) == []
    assert unreached_marks([functools.partial(endpoint)]) == []


def test_a_mark_behind_a_decorator_that_hides_it_is_named() -> None:
    endpoint = priority("critical")(_endpoint())
    (name,) = unreached_marks([_hiding(endpoint)])
    assert name == f"{__name__}._endpoint.<locals>.endpoint"


def test_a_mark_above_what_was_registered_is_named() -> None:
    """The route was made with the inner function; the mark was put on the wrapper afterwards."""
    inner = _endpoint()
    marked = priority("critical")(_hiding(inner))
    assert len(unreached_marks([inner])) == 1
    assert unreached_marks([marked]) == []


def test_marked_objects_that_are_gone_are_not_named() -> None:
    endpoint = priority("critical")(_endpoint())
    del endpoint
    gc.collect()
    assert unreached_marks([]) == []


def test_an_object_without_a_name_is_named_by_its_type() -> None:
    class Router:
        pass

    router = exempt(Router())
    (name,) = unreached_marks([])
    assert "Router" in name
    del router


# -- wrong marks


@pytest.mark.parametrize("target", [7, "text", len, object()])
def test_what_cannot_carry_a_mark_says_so(target: Any) -> None:
    with pytest.raises(TypeError, match="cannot carry a mark: put it on the endpoint function or the router"):
        priority("critical")(target)


def test_a_bound_method_cannot_carry_a_mark() -> None:
    with pytest.raises(TypeError, match="cannot carry a mark"):
        priority("critical")(_View().get)


@pytest.mark.parametrize("name", ["", "a b", None, 7])
def test_a_priority_needs_the_name_of_a_class(name: Any) -> None:
    with pytest.raises(ValueError, match="^priority=.* is not allowed"):
        priority(name)


@pytest.mark.parametrize("cost", [0, -1, 1.0, True, "1"])
def test_a_cost_is_a_whole_number_of_slots(cost: Any) -> None:
    with pytest.raises(ValueError, match="^cost=.* is not allowed: it must be a whole number of at least 1"):
        priority("normal", cost=cost)


@pytest.mark.parametrize("field", ["default", "minimum", "maximum"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "5", True, 86_401])
def test_a_deadline_is_made_of_seconds(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match="is not allowed: it must be a number from ") as caught:
        deadline(**{field: value})
    assert str(caught.value).startswith(f"deadline.{field}={value!r} ")


def test_a_minimum_above_the_maximum_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"^deadline\.minimum=3\.0 is not allowed: it must be at most .* 2\.0$"
    ):
        deadline(minimum=3, maximum=2)
