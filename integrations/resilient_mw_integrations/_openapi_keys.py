"""The answers of idempotency keys as OpenAPI responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from resilient_mw.core.rejection import Reason
from resilient_mw.core.routes import RouteResolver
from resilient_mw.idempotency.policy import IdempotencyPolicy
from resilient_mw.idempotency.treatment import Treatment, Treatments
from resilient_mw_integrations._openapi import DocumentedAnswer, Operation, routes_of


def key_answers(policy: IdempotencyPolicy, resolver: RouteResolver) -> tuple[DocumentedAnswer, ...]:
    """Return what an operation may be answered because of its key: nothing where keys are not looked at.

    Args:
        policy: of the keys.
        resolver: knows the application's routes, whose marks count.
    """
    treatments = Treatments(policy)
    routes = routes_of(resolver)

    def where_keys_count(
        reasons: Callable[[Treatment], Iterable[Reason]],
    ) -> Callable[[Operation], Iterable[Reason]]:
        def of(operation: Operation) -> Iterable[Reason]:
            route = routes.get((operation.path, operation.method))
            mark = None if route is None or route.mark is None else route.mark.idempotency
            treatment = treatments.of(operation.method, operation.path, mark)
            return () if treatment is None else reasons(treatment)

        return of

    def wrong(treatment: Treatment) -> Iterable[Reason]:
        yield Reason.IDEMPOTENCY_KEY_INVALID
        if treatment.required:
            yield Reason.IDEMPOTENCY_KEY_MISSING
            if policy.caller is not None:
                yield Reason.IDEMPOTENCY_NO_CALLER

    def no_answer(_: Treatment) -> Iterable[Reason]:
        return Reason.IDEMPOTENCY_IN_PROGRESS, Reason.IDEMPOTENCY_BODY_NOT_KEPT, Reason.IDEMPOTENCY_UNKNOWN

    return (
        DocumentedAnswer(400, "The idempotency key is missing, or is none", where_keys_count(wrong)),
        DocumentedAnswer(
            409,
            "The work of this idempotency key has begun, and there is no answer to repeat",
            where_keys_count(no_answer),
        ),
        DocumentedAnswer(
            422,
            "The idempotency key was used for another request",
            where_keys_count(lambda _: (Reason.IDEMPOTENCY_KEY_REUSED,)),
        ),
    )
