from __future__ import annotations

from django.db import connection, models


class Item(models.Model):  # type: ignore[misc]  # Django ships no types
    name = models.CharField(max_length=40)


def create_table() -> None:
    """Make the table of the items, if it is not there."""
    if Item._meta.db_table not in connection.introspection.table_names():
        with connection.schema_editor() as editor:
            editor.create_model(Item)
