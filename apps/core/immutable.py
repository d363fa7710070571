"""Rows that never change: a database trigger on both engines behind the missing update path (architecture.md §4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation


class Freeze(Operation):
    """Refuses every UPDATE of a table, and every DELETE too where `keep` is set.

    `only` limits the refusal to updates that change one of these columns, for rows of which one part is written
    later; `once` names columns of that part which may be written once, from null; `closed` is one that, once
    filled, ends every change of its row.
    """

    reversible = True

    def __init__(
        self,
        table: str,
        *,
        keep: bool = False,
        only: list[str] | None = None,
        once: Sequence[str] = (),
        closed: str | None = None,
    ) -> None:
        self.table = table
        self.keep = keep
        self.only = only
        self.once = list(once)
        self.closed = closed

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        options = {"keep": self.keep, "only": self.only, "once": self.once, "closed": self.closed}
        return (type(self).__name__, [self.table], options)

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
        postgresql = vendor == "postgresql"
        refused = self._refused("IS DISTINCT FROM" if postgresql else "IS NOT") if verb == "update" else None
        event = verb.upper()
        if verb == "update" and self.only and not self.once and not self.closed:
            event = f"UPDATE OF {', '.join(self.only)}"
        if postgresql:
            return [
                f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF {refused or 'true'} THEN RAISE EXCEPTION 'rows of {self.table} are immutable' "
                "USING ERRCODE = 'integrity_constraint_violation'; END IF; "
                f"RETURN {'OLD' if verb == 'delete' else 'NEW'}; END $$",
                f"CREATE TRIGGER {name} BEFORE {event} ON {self.table} FOR EACH ROW EXECUTE FUNCTION {name}()",
            ]
        when = f"WHEN {refused}" if refused else ""
        return [
            f"CREATE TRIGGER {name} BEFORE {event} ON {self.table} FOR EACH ROW {when} BEGIN "
            f"SELECT RAISE(ABORT, 'rows of {self.table} are immutable'); END"
        ]

    def _refused(self, differs: str) -> str | None:
        """Which updates are refused; None for all."""
        parts = [f"OLD.{column} {differs} NEW.{column}" for column in self.only or ()]
        parts += [
            f"(OLD.{column} IS NOT NULL AND OLD.{column} {differs} NEW.{column})" for column in self.once
        ]
        if self.closed:
            parts.append(f"OLD.{self.closed} IS NOT NULL")
        return " OR ".join(parts) or None


class Guard(Operation):
    """Refuses one verb on a table except for rows of which a condition holds: the narrow way past a frozen row.

    `condition` is SQL over OLD (a delete), NEW (an insert) or both (an update) that both engines read alike. It is
    drawn from rows, never from a setting of the session: who wants to remove something must first have left what
    stands for it. `name` is that of the trigger, where the table has another one for the verb.
    """

    reversible = True

    def __init__(self, table: str, verb: str, condition: str, *, name: str | None = None) -> None:
        self.table = table
        self.verb = verb
        self.condition = condition
        self.name = name or f"{table}_no_{verb}"

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return (type(self).__name__, [self.table, self.verb, self.condition], {"name": self.name})

    def state_forwards(self, app_label: str, state: Any) -> None:
        pass

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any
    ) -> None:
        self.database_backwards(app_label, schema_editor, to_state, from_state)
        name, event = self.name, self.verb.upper()
        refusal = f"this {self.verb} of {self.table} is not allowed"
        if schema_editor.connection.vendor == "postgresql":
            schema_editor.execute(
                f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF NOT ({self.condition}) THEN RAISE EXCEPTION '{refusal}' "
                "USING ERRCODE = 'integrity_constraint_violation'; END IF; "
                f"RETURN {'OLD' if self.verb == 'delete' else 'NEW'}; END $$",
                params=None,
            )
            schema_editor.execute(
                f"CREATE TRIGGER {name} BEFORE {event} ON {self.table} FOR EACH ROW EXECUTE FUNCTION {name}()",
                params=None,
            )
        else:
            schema_editor.execute(
                f"CREATE TRIGGER {name} BEFORE {event} ON {self.table} FOR EACH ROW WHEN NOT ({self.condition}) "
                f"BEGIN SELECT RAISE(ABORT, '{refusal}'); END",
                params=None,
            )

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any
    ) -> None:
        name = self.name
        if schema_editor.connection.vendor == "postgresql":
            schema_editor.execute(f"DROP TRIGGER IF EXISTS {name} ON {self.table}", params=None)
            schema_editor.execute(f"DROP FUNCTION IF EXISTS {name}()", params=None)
        else:
            schema_editor.execute(f"DROP TRIGGER IF EXISTS {name}", params=None)

    def describe(self) -> str:
        return f"Guard {self.verb} of {self.table}"
