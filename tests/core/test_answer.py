from __future__ import annotations

import pytest

from resilient_mw.core.answer import PreparedAnswer, prepare
from resilient_mw.core.cors import Cors
from resilient_mw.core.rejection import Reason

TRACEPARENT = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
Lines = PreparedAnswer[tuple[str, str]]


@pytest.fixture
def answer() -> Lines:
    return prepare(Cors(["https://a"]), lambda name, value: (name, value))[Reason.QUEUE_FULL]


@pytest.mark.parametrize(
    "fields",
    [
        [("accept", "*/*"), ("origin", "https://a"), ("x-request-id", "no id")],
        [("accept", "text/plain"), TRACEPARENT],
        [("traceparent", "00-0-0-0")],
    ],
)
def test_what_stands_in_every_such_answer_is_not_formatted_again(
    answer: Lines, fields: list[tuple[str, str]]
) -> None:
    headers, body = answer.fitting(fields, None)
    again, same = answer.fitting(fields, None)
    assert body is same
    assert (again, again is headers) == (headers, False)
    assert dict(headers)["Content-Length"] == str(len(body))


def test_the_usual_answer_is_prepared_and_its_headers_are_the_callers_own(answer: Lines) -> None:
    headers, body = answer.usual()
    headers.append(("X-Outer", "1"))
    again, same = answer.usual()
    assert body is same
    assert ("X-Outer", "1") not in again
    assert answer.fitting([], None) == (again, body)


def test_a_header_that_an_outer_layer_adds_stays_in_no_other_answer(answer: Lines) -> None:
    for fields in ([("accept", "text/plain")], [("accept", "*/*")], [("origin", "https://a")]):
        headers, _ = answer.fitting(fields, None)
        before = headers.copy()
        headers.append(("X-Outer", "1"))
        assert answer.fitting(fields, None)[0] == before


def test_every_reason_has_an_answer() -> None:
    assert set(prepare(Cors(), lambda name, value: (name, value))) == set(Reason)
