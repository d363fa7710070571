"""What can go wrong with logs; messages tell no paths (secrets-and-artifacts.md §9)."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from apps.core.errors import Conflict, Corrupt, DomainError, Gone, NotFound, Unavailable


class CapacityUnavailable(Unavailable):
    """Too little free space for another log, or no way to tell."""

    code = "local_artifact_capacity_unavailable"
    message = _("There is too little free space for another log.")


class UnsafeReadTarget(Corrupt):
    """A symlink, a special file or a shrinking file stands where a log belongs."""

    code = "artifact_unsafe_read_target"
    message = _("The log cannot be read safely.")


class MetadataCorrupt(Corrupt):
    code = "artifact_metadata_corrupt"
    message = _("What is stored about this log contradicts itself.")


class EvidenceConflict(Corrupt):
    """File and database tell different stories about one log."""

    code = "artifact_evidence_conflict"
    message = _("What is stored about this log contradicts itself.")


class LogRetained(Gone):
    code = "log_retained"
    message = _("The log was removed by the retention rule.")


class LogMissing(NotFound):
    """The log is lost without a rule that removed it."""

    code = "artifact_missing"
    message = _("The log is not on the disk any more.")


class RangeNotSatisfiable(DomainError):
    code = "range_not_satisfiable"
    status = 416
    message = _("There are no such bytes.")


class FileRetained(Gone):
    """A file went with the log of its attempt."""

    code = "artifact_retained"
    message = _("The file was removed by the retention rule.")


class FileMissing(NotFound):
    """A file is lost without a rule that removed it."""

    code = "artifact_missing"
    message = _("The file is not on the disk any more.")


class RetentionPageInvalid(Corrupt):
    """A page of logs to be removed breaks its own rules; nothing of it is touched."""

    code = "retention_page_invalid"
    message = _("What is stored about the logs to be removed contradicts itself.")


class RetentionConflict(Conflict):
    """Another record tells something else about the same attempt's files."""

    code = "retention_record_conflict"
    message = _("The record of this removal conflicts with what is recorded.")


class RetentionCursorInvalid(Corrupt):
    code = "retention_cursor_invalid"
    message = _("How far retention has come is not stored as it should be.")
