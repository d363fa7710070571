"""How triggers look from outside (api.md, "Trigger")."""

from __future__ import annotations

from rest_framework import serializers

from apps.access.endpoints import ActorSerializer, MomentField, ReferenceSerializer, StrictSerializer
from apps.triggers.models import (
    MAX_CATCH_UP,
    MAX_EVERY_MS,
    MAX_GRACE_MS,
    MAX_JITTER_MS,
    MAX_SCHEDULE,
    MIN_EVERY_MS,
    Kind,
    Misfire,
    Parked,
)
from apps.triggers.schedules.preview import MAX_COUNT


class TriggerSerializer(StrictSerializer):
    """What starts a task by itself. In a PATCH null is the default of a field; `kind` and `signed` stay.

    `schedule` and `timezone` belong to `cron`, `every_ms` and `anchor_at` to `interval`, `at` to `once`, `signed` to
    `webhook`. `parked` says why nothing is to come although the trigger is enabled.
    """

    id = serializers.UUIDField(read_only=True)
    project = ReferenceSerializer(read_only=True)
    task = ReferenceSerializer(read_only=True)
    kind = serializers.ChoiceField(Kind.values)
    schedule = serializers.CharField(max_length=MAX_SCHEDULE, allow_null=True, required=False)
    timezone = serializers.CharField(max_length=64, required=False)
    every_ms = serializers.IntegerField(
        min_value=MIN_EVERY_MS, max_value=MAX_EVERY_MS, allow_null=True, required=False
    )
    anchor_at = MomentField(allow_null=True, required=False)
    at = MomentField(allow_null=True, required=False)
    enabled = serializers.BooleanField(required=False)
    misfire = serializers.ChoiceField(Misfire.values, required=False)
    catch_up_max = serializers.IntegerField(min_value=1, max_value=MAX_CATCH_UP, required=False)
    misfire_grace_ms = serializers.IntegerField(min_value=0, max_value=MAX_GRACE_MS, required=False)
    jitter_ms = serializers.IntegerField(min_value=0, max_value=MAX_JITTER_MS, required=False)
    input = serializers.DictField(required=False)
    signed = serializers.BooleanField(required=False)
    words = serializers.CharField(read_only=True)
    parked = serializers.ChoiceField(Parked.values, read_only=True, allow_null=True)
    next_fire_at = MomentField(read_only=True, allow_null=True)
    last_fire_at = MomentField(read_only=True, allow_null=True)
    last_run = serializers.UUIDField(read_only=True, allow_null=True)
    author = ActorSerializer(read_only=True)
    version = serializers.IntegerField(read_only=True)
    created_at = MomentField(read_only=True)
    updated_at = MomentField(read_only=True)


READ_ONLY = tuple(name for name, field in TriggerSerializer().fields.items() if field.read_only)


class MadeTriggerSerializer(TriggerSerializer):
    """A trigger that was made just now. `url` (the secret is its last part) and `signing_key` are shown this once."""

    url = serializers.CharField(read_only=True, allow_null=True)
    signing_key = serializers.CharField(read_only=True, allow_null=True)


class PreviewRequestSerializer(StrictSerializer):
    """A rule to be tried: of a cron trigger unless `kind` says otherwise."""

    kind = serializers.ChoiceField(Kind.values, required=False, default=Kind.CRON.value)
    schedule = serializers.CharField(allow_null=True, allow_blank=True, required=False, trim_whitespace=False)
    timezone = serializers.CharField(allow_null=True, required=False)
    every_ms = serializers.IntegerField(allow_null=True, required=False)
    anchor_at = MomentField(allow_null=True, required=False)
    at = MomentField(allow_null=True, required=False)
    count = serializers.IntegerField(min_value=0, max_value=MAX_COUNT, required=False, default=10)
    viewer_timezone = serializers.CharField(allow_null=True, required=False)


class FireSerializer(StrictSerializer):
    """One start to come. `change`: moved, first_of_two or second_of_two where clocks are set."""

    at = MomentField()
    local = serializers.CharField()
    viewer = serializers.CharField()
    change = serializers.CharField(allow_null=True)
    sentence = serializers.CharField(allow_null=True)


class ClockChangeSerializer(StrictSerializer):
    """A change of the zone's clocks. `rule`: moved, skipped, once, twice or unaffected."""

    at = MomentField()
    gap = serializers.BooleanField()
    first = serializers.CharField()
    behind = serializers.CharField()
    offset_before_ms = serializers.IntegerField()
    offset_after_ms = serializers.IntegerField()
    fires = serializers.IntegerField()
    rule = serializers.CharField()
    sentence = serializers.CharField()


class WarningSerializer(StrictSerializer):
    """Something to know about a rule; `level` is warning or info."""

    code = serializers.CharField()
    level = serializers.CharField()
    sentence = serializers.CharField()


class RefusalSerializer(StrictSerializer):
    """Why a rule is refused, and where: number of the field as typed, characters of the text."""

    reason = serializers.CharField()
    sentence = serializers.CharField()
    field = serializers.IntegerField(allow_null=True)
    offset = serializers.IntegerField()
    length = serializers.IntegerField()


class PreviewSerializer(StrictSerializer):
    """What a rule will do; where `valid` is false there is only `error`."""

    valid = serializers.BooleanField()
    error = RefusalSerializer(required=False)
    kind = serializers.ChoiceField(Kind.values, required=False)
    schedule = serializers.CharField(allow_null=True, required=False)
    timezone = serializers.CharField(required=False)
    words = serializers.CharField(required=False)
    runs_per_day = serializers.FloatField(allow_null=True, required=False)
    next = FireSerializer(many=True, required=False)
    clock_changes = ClockChangeSerializer(many=True, required=False)
    warnings = WarningSerializer(many=True, required=False)


class DueTriggerSerializer(StrictSerializer):
    """The trigger whose rule decided."""

    id = serializers.UUIDField()
    kind = serializers.ChoiceField(Kind.values)
    words = serializers.CharField()


class DueRunSerializer(StrictSerializer):
    """The run that a due time started."""

    id = serializers.UUIDField()
    status = serializers.CharField()


class DueSerializer(StrictSerializer):
    """A due time and what became of it.

    `status`: ran, waits, skipped, approval (the task needs one), missed, disabled, archived, left_out (a clock change),
    planned, pending or unknown.
    `action`: the code of what may be done about it.
    """

    due_at = MomentField()
    fire_at = MomentField()
    jitter_ms = serializers.IntegerField()
    trigger = DueTriggerSerializer()
    status = serializers.CharField()
    reason = serializers.CharField(allow_null=True)
    run = DueRunSerializer(allow_null=True)
    waiting_for = serializers.CharField(allow_null=True)
    skip = serializers.UUIDField(allow_null=True)
    approval = serializers.CharField(allow_null=True)
    by = ActorSerializer(allow_null=True)
    since = MomentField(allow_null=True)
    until = MomentField(allow_null=True)
    clock_change = serializers.CharField(allow_null=True)
    sentence = serializers.CharField()
    action = serializers.CharField()
