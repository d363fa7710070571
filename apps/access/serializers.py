"""Serializer bases of the API: nothing unknown is ignored, and lists look alike everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _
from rest_framework import serializers

from apps.core import clock
from apps.core.errors import InvalidInput


class StrictSerializer(serializers.Serializer[Any]):
    """A serializer that refuses fields it does not know."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            known = {name for name, field in self.fields.items() if not field.read_only}
            unknown = {str(name): [_("Unknown field.")] for name in data if name not in known}
            if unknown:
                raise serializers.ValidationError(unknown)
        return super().to_internal_value(data)


class MomentField(serializers.DateTimeField):
    """A time: RFC 3339 with milliseconds and `Z` in answers, with any offset in requests."""

    def to_representation(self, value: Any) -> str:
        return clock.rfc3339(value)


class ReferenceSerializer(StrictSerializer):
    """How an object names another one."""

    id = serializers.CharField()
    slug = serializers.CharField()


class ActorSerializer(StrictSerializer):
    """Who did something."""

    type = serializers.CharField()
    id = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    """A refusal, RFC 9457. `code` is stable; `errors` maps fields to sentences, `_` is the whole body."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    code = serializers.CharField()
    detail = serializers.CharField()
    # `errors` is a property of serializers, so the field goes in by name.

    def get_fields(self) -> dict[str, Any]:
        sentences = serializers.ListField(child=serializers.CharField())
        return {**super().get_fields(), "errors": serializers.DictField(child=sentences)}


_pages: dict[type[serializers.BaseSerializer[Any]], type[serializers.Serializer[Any]]] = {}


def paged(item: type[serializers.BaseSerializer[Any]]) -> type[serializers.Serializer[Any]]:
    """The serializer of a page of `item`, for the schema."""
    if item not in _pages:
        name = item.__name__.removesuffix("Serializer") + "Page"
        members = {
            "__doc__": "One page of a list.",
            "items": item(many=True),
            "next_cursor": serializers.CharField(allow_null=True),
        }
        _pages[item] = type(name, (serializers.Serializer,), members)
    return _pages[item]


def read_body(serializer: type[StrictSerializer], data: Any) -> dict[str, Any]:
    """The checked values of a request body; raises ValidationError (400 `invalid`)."""
    bound = serializer(data=data)
    bound.is_valid(raise_exception=True)
    return dict(bound.validated_data)


def read_changes(serializer: type[StrictSerializer], data: Any, current: Mapping[str, Any]) -> dict[str, Any]:
    """The top-level changes of a PATCH body; None stands for "back to default".

    `current` is the object as the API shows it: a read-only field that equals it is ignored, any other value
    for one is refused, as is an unknown field. Raises InvalidInput and ValidationError.
    """
    if not isinstance(data, Mapping):
        raise InvalidInput(_("The body must be an object."))
    writable = {name for name, field in serializer().fields.items() if not field.read_only}
    refused = [
        str(name)
        for name, value in data.items()
        if name in current and name not in writable and value != current[name]
    ]
    if refused:
        raise InvalidInput(fields={name: [_("This field cannot be changed.")] for name in refused})
    offered = {name: value for name, value in data.items() if name in writable or name not in current}
    reset = {name: None for name, value in offered.items() if value is None and name in writable}
    given = {name: value for name, value in offered.items() if name not in reset}
    bound = serializer(data=given, partial=True)
    bound.is_valid(raise_exception=True)
    return {**reset, **bound.validated_data}
