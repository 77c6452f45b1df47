from __future__ import annotations

from dataclasses import fields

from resilient_mw import ServerPolicy
from resilient_mw.admission.overrides import PolicyOverrides


def test_the_keywords_of_a_middleware_are_the_fields_of_a_policy() -> None:
    assert list(PolicyOverrides.__annotations__) == [
        field.name for field in fields(ServerPolicy) if field.init
    ]
