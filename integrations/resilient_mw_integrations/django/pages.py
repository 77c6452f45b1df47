"""Refusals drawn by a template of the project."""

from __future__ import annotations

from django.template.loader import render_to_string

from resilient_mw.core.pages import PreparedPages, RefusalPage, RefusedRequest


def template_pages(template: str) -> PreparedPages:
    """Return what draws refusals by a template: for callers who want HTML, once for each reason.

        RESILIENT_MW = {"refusal_template": "503.html"}

    It knows `reason`, `status` and `title`, and no request: a refusal comes before sessions and users.

    Args:
        template: its name.

    Raises:
        ValueError: the name is no text.
    """
    if not isinstance(template, str):
        raise ValueError(f"refusal_template={template!r} is not allowed: it must be the name of a template")

    def page(refused: RefusedRequest) -> RefusalPage | None:
        if not refused.wants_html:
            return None
        known = {"reason": refused.reason.value, "status": refused.status, "title": refused.title}
        return RefusalPage(render_to_string(template, known))

    return PreparedPages(page)
