"""Adapters between `resilient_mw` and third-party packages, one module per package.

Nothing is imported here: importing `resilient_mw_integrations.flask` needs Flask and nothing else. Each
module has an extra of the same name (`pip install "resilient-mw[flask]"`).
"""
