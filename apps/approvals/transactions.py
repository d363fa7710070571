"""One transaction per try, five tries in all, and one refusal for storage that does not answer (approvals.md §4.3)."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from django.db import DatabaseError, IntegrityError

from apps.approvals.errors import ApprovalUnavailable
from apps.core import db
from apps.core.errors import Busy, DomainError

P = ParamSpec("P")
R = TypeVar("R")


def tried(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function one write transaction that is tried again on a busy database, and on a key that was taken.

    The second try finds the row of whoever was first, and answers with it or with a conflict. Named refusals pass;
    anything else of the database, and the fifth failure, is ApprovalUnavailable.
    """
    once = db.write_transaction(function)

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        for attempt in range(db.TRIES):
            try:
                return once(*args, **kwargs)
            except IntegrityError as error:
                if not db.is_unique_violation(error) or attempt == db.TRIES - 1:
                    raise ApprovalUnavailable from error
                time.sleep(0.001 * 2**attempt)
            except (Busy, DatabaseError) as error:
                raise ApprovalUnavailable from error
        raise AssertionError("unreachable")

    return run


def kept(refusal: type[DomainError]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a function one write transaction that is tried again on a busy database only (approvals.md §5).

    Named refusals pass; anything else of the database is `refusal`.
    """

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        once = db.write_transaction(function)

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return once(*args, **kwargs)
            except (Busy, DatabaseError) as error:
                raise refusal from error

        return run

    return wrap
