"""Secrets over the API: values go in and never come out (api.md, secrets-and-artifacts.md §3.6)."""

from __future__ import annotations

from typing import Any

from django.urls import path
from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.endpoints import (
    PAGE_PARAMETERS,
    MomentField,
    ProjectEndpoint,
    StrictSerializer,
    page_of,
    page_response,
    paged,
    read_body,
)
from apps.access.parsers import StrictJSONParser
from apps.core.errors import InvalidInput
from apps.core.fields import MAX_VERSION
from apps.tasks import queries as tasks
from apps.vault import providers, queries, services


class SecretSerializer(StrictSerializer):
    """Everything about a secret but its value. `provider` null: the value lies here, sealed."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    version = serializers.IntegerField(help_text="What `expected_version` of the next PUT has to be.")
    provider = serializers.CharField(allow_null=True)
    enabled = serializers.BooleanField()
    disabled_at = MomentField(allow_null=True)
    used_by = serializers.IntegerField(help_text="How many tasks name it.")
    created_at = MomentField()
    updated_at = MomentField(help_text="When the newest version was set.")


class SecretWriteSerializer(StrictSerializer):
    """A new version. Either `value`, of at most 65,536 bytes, or `provider` and `key`: where it lies elsewhere.

    `expected_version` 0: there is no such secret yet. A `mutation_id` sent again with the same value gets the first
    answer again.
    """

    value = serializers.CharField(required=False, trim_whitespace=False, allow_blank=True, write_only=True)
    provider = serializers.ChoiceField(sorted(providers.PROVIDERS), required=False)
    key = serializers.CharField(required=False)
    expected_version = serializers.IntegerField(min_value=0, max_value=MAX_VERSION - 1)
    mutation_id = serializers.CharField(max_length=64, trim_whitespace=False)


class SecretWrittenSerializer(StrictSerializer):
    """What a PUT came to; `secret_ref` is pinned to the version."""

    status = serializers.ChoiceField(["inserted", "existing"])
    name = serializers.CharField()
    version = serializers.IntegerField()
    secret_ref = serializers.CharField()
    created_at = MomentField()


class SwitchSerializer(StrictSerializer):
    mutation_id = serializers.CharField(max_length=64, trim_whitespace=False)


class SwitchedSerializer(StrictSerializer):
    """What disabling or enabling came to; sent again it gets the first answer again."""

    name = serializers.CharField()
    enabled = serializers.BooleanField()
    created_at = MomentField()


class SecretParser(StrictJSONParser):
    """A value's own rules name it where it cannot be stored."""

    checks_text = False


class Secrets(ProjectEndpoint):
    """The secrets of a project, by name."""

    permissions = {"GET": "secret.manage"}

    @extend_schema(summary="List secrets", parameters=PAGE_PARAMETERS, responses=paged(SecretSerializer))
    def get(self, request: Request, p: str) -> Response:
        page = queries.page(self.project_id, **page_of(request))
        used = tasks.secret_users(self.project_id, [row.name for row in page.items])
        return page_response(page, lambda row: represent(row, used.get(row.name, 0)))


class OneSecret(ProjectEndpoint):
    """A secret's value, to be set only."""

    permissions = {"PUT": "secret.manage"}
    parser_classes = (SecretParser,)

    @extend_schema(
        summary="Set a secret",
        request=SecretWriteSerializer,
        responses={200: SecretWrittenSerializer, 201: SecretWrittenSerializer},
    )
    def put(self, request: Request, p: str, name: str) -> Response:
        values = _read(request.data)
        same = {"mutation_id": values["mutation_id"], "expected_version": values["expected_version"]}
        if "value" in values:
            done = services.put(self.grant, name, values["value"], **same)
        else:
            done = services.put_external(self.grant, name, values["provider"], values["key"], **same)
        document = SecretWrittenSerializer(
            {
                "status": done.status,
                "name": name,
                "version": done.version,
                "secret_ref": done.secret_ref,
                "created_at": done.created_at,
            }
        ).data
        return Response(document, status=201 if done.status == "inserted" else 200)


class SwitchSecret(ProjectEndpoint):
    """Whether a secret may be used."""

    permissions = {"POST": "secret.manage"}
    enabled = False

    def post(self, request: Request, p: str, name: str) -> Response:
        values = read_body(SwitchSerializer, request.data)
        change = services.enable if self.enabled else services.disable
        done = change(self.grant, name, mutation_id=values["mutation_id"])
        document = {"name": name, "enabled": done.enabled, "created_at": done.created_at}
        return Response(SwitchedSerializer(document).data)


@extend_schema(request=SwitchSerializer, responses=SwitchedSerializer)
class DisableSecret(SwitchSecret):
    """Starts that need it are refused from now on, and runs that come to start fail."""

    @extend_schema(summary="Disable a secret")
    def post(self, request: Request, p: str, name: str) -> Response:
        return super().post(request, p, name)


@extend_schema(request=SwitchSerializer, responses=SwitchedSerializer)
class EnableSecret(SwitchSecret):
    """It may be used again."""

    enabled = True

    @extend_schema(summary="Enable a secret")
    def post(self, request: Request, p: str, name: str) -> Response:
        return super().post(request, p, name)


def represent(row: Any, used_by: int) -> Any:
    """A secret as the API shows it."""
    document = {
        "id": row.pk,
        "name": row.name,
        "version": row.current,
        "provider": row.provider or None,
        "enabled": row.disabled_at is None,
        "disabled_at": row.disabled_at,
        "used_by": used_by,
        "created_at": row.created_at,
        "updated_at": row.changed_at,
    }
    return SecretSerializer(document).data


def _read(data: Any) -> dict[str, Any]:
    """The body, its value untouched: how a value may look is said by the rules of values alone."""
    plain = dict(data) if isinstance(data, dict) else data
    value = plain.pop("value", ...) if isinstance(plain, dict) else ...
    found = dict(read_body(SecretWriteSerializer, plain))
    outside = "provider" in found and "key" in found
    if (value is ...) != outside or (value is not ... and found.keys() & {"provider", "key"}):
        raise InvalidInput.field("value", _("Give either value, or provider and key."))
    return found if value is ... else {**found, "value": value}


urlpatterns = [
    path("projects/<str:p>/secrets", Secrets.as_view()),
    path("projects/<str:p>/secrets/<str:name>", OneSecret.as_view()),
    path("projects/<str:p>/secrets/<str:name>/disable", DisableSecret.as_view()),
    path("projects/<str:p>/secrets/<str:name>/enable", EnableSecret.as_view()),
]
