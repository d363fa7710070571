"""Rows that never change: a database trigger on both engines behind the missing update path (architecture.md §4)."""

from __future__ import annotations

from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation


class Freeze(Operation):
    """Refuses every UPDATE of a table, and every DELETE too where `keep` is set.

    `only` limits the refusal to updates that change one of these columns, for rows of which one part is written
    later and once.
    """

    reversible = True

    def __init__(self, table: str, *, keep: bool = False, only: list[str] | None = None) -> None:
        self.table = table
        self.keep = keep
        self.only = only

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return (type(self).__name__, [self.table], {"keep": self.keep, "only": self.only})

    def state_forwards(self, app_label: str, state: Any) -> None:
        pass

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any
    ) -> None:
        self.database_backwards(app_label, schema_editor, to_state, from_state)
        for verb in ["update", "delete"] if self.keep else ["update"]:
            for statement in self._create(schema_editor.connection.vendor, verb):
                schema_editor.execute(statement, params=None)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any
    ) -> None:
        for verb in ("update", "delete"):
            name = f"{self.table}_no_{verb}"
            if schema_editor.connection.vendor == "postgresql":
                schema_editor.execute(f"DROP TRIGGER IF EXISTS {name} ON {self.table}", params=None)
                schema_editor.execute(f"DROP FUNCTION IF EXISTS {name}()", params=None)
            else:
                schema_editor.execute(f"DROP TRIGGER IF EXISTS {name}", params=None)

    def describe(self) -> str:
        return f"Freeze {self.table}"

    def _create(self, vendor: str, verb: str) -> list[str]:
        name = f"{self.table}_no_{verb}"
        columns = self.only if verb == "update" else None
        event = f"{verb.upper()} OF {', '.join(columns)}" if columns else verb.upper()
        if vendor == "postgresql":
            changed = (
                " OR ".join(f"OLD.{column} IS DISTINCT FROM NEW.{column}" for column in columns)
                if columns
                else "true"
            )
            return [
                f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF {changed} THEN RAISE EXCEPTION 'rows of {self.table} are immutable' "
                "USING ERRCODE = 'integrity_constraint_violation'; END IF; "
                f"RETURN {'OLD' if verb == 'delete' else 'NEW'}; END $$",
                f"CREATE TRIGGER {name} BEFORE {event} ON {self.table} FOR EACH ROW EXECUTE FUNCTION {name}()",
            ]
        changed = (
            "WHEN " + " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in columns)
            if columns
            else ""
        )
        return [
            f"CREATE TRIGGER {name} BEFORE {event} ON {self.table} FOR EACH ROW {changed} BEGIN "
            f"SELECT RAISE(ABORT, 'rows of {self.table} are immutable'); END"
        ]
