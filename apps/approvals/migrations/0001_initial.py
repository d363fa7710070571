import apps.core.clock
import apps.core.fields
import apps.core.ids
import datetime
import django.db.models.deletion
import django.db.models.functions.text
import django.db.models.lookups
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("projects", "0002_rules"),
        ("runs", "0002_rules"),
    ]

    operations = [
        migrations.CreateModel(
            name="ApprovalRequest",
            fields=[
                ("id", models.CharField(editable=False, max_length=64, primary_key=True, serialize=False)),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="projects.project",
                    ),
                ),
                ("version", models.IntegerField(default=1)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("pending", "Waiting"),
                            ("approved", "Approved"),
                            ("rejected", "Rejected"),
                            ("consumed", "Handed over"),
                        ],
                        default="pending",
                        max_length=16,
                    ),
                ),
                ("permission", models.CharField(max_length=255)),
                ("action_type", models.CharField(max_length=64)),
                ("action_ref", models.CharField(max_length=255)),
                ("action_digest", models.CharField(max_length=64)),
                ("preview_digest", models.CharField(max_length=64)),
                (
                    "risk",
                    models.CharField(
                        choices=[
                            ("low", "Low"),
                            ("medium", "Medium"),
                            ("high", "High"),
                            ("critical", "Critical"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "requested_by_type",
                    models.CharField(
                        choices=[
                            ("user", "User"),
                            ("api_app", "Api App"),
                            ("mcp_client", "Mcp Client"),
                            ("agent", "Agent"),
                            ("system", "System"),
                            ("worker", "Worker"),
                        ],
                        max_length=32,
                    ),
                ),
                ("requested_by_id", models.CharField(max_length=255)),
                ("requested_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                ("longest_life_ms", models.BigIntegerField(default=86400000)),
                ("quorum", models.PositiveSmallIntegerField(default=1)),
                ("decision_id", models.CharField(max_length=64, null=True)),
                (
                    "decision",
                    models.CharField(
                        choices=[("approved", "Approved"), ("rejected", "Rejected")], max_length=16, null=True
                    ),
                ),
                ("decision_reason_code", models.CharField(max_length=64, null=True)),
                (
                    "decided_by_type",
                    models.CharField(
                        choices=[
                            ("user", "User"),
                            ("api_app", "Api App"),
                            ("mcp_client", "Mcp Client"),
                            ("agent", "Agent"),
                            ("system", "System"),
                            ("worker", "Worker"),
                        ],
                        max_length=32,
                        null=True,
                    ),
                ),
                ("decided_by_id", models.CharField(max_length=255, null=True)),
                ("decided_at", models.DateTimeField(null=True)),
                ("consumption_id", models.CharField(max_length=64, null=True)),
                ("dispatch_id", models.CharField(max_length=64, null=True)),
                (
                    "consumed_by_type",
                    models.CharField(
                        choices=[
                            ("user", "User"),
                            ("api_app", "Api App"),
                            ("mcp_client", "Mcp Client"),
                            ("agent", "Agent"),
                            ("system", "System"),
                            ("worker", "Worker"),
                        ],
                        max_length=32,
                        null=True,
                    ),
                ),
                ("consumed_by_id", models.CharField(max_length=255, null=True)),
                ("consumed_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "approval_requests",
                "indexes": [
                    models.Index(
                        fields=["project", "state", "expires_at", "id"], name="approval_request_queue"
                    ),
                    models.Index(
                        models.F("project"),
                        models.F("requested_by_type"),
                        models.F("requested_by_id"),
                        models.OrderBy(models.F("requested_at"), descending=True),
                        models.F("id"),
                        name="approval_request_requester",
                    ),
                    models.Index(
                        models.F("project"),
                        models.OrderBy(models.F("requested_at"), descending=True),
                        models.OrderBy(models.F("id"), descending=True),
                        name="approval_request_newest",
                    ),
                    models.Index(
                        condition=models.Q(("state__in", ["pending", "approved"])),
                        fields=["expires_at", "id"],
                        name="approval_request_open",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("decision_id",), name="approval_request_decision_uidx"),
                    models.UniqueConstraint(
                        fields=("consumption_id",), name="approval_request_consumption_uidx"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("version__gte", 1), ("version__lte", 3)),
                        name="approval_request_version_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["pending", "approved", "rejected", "consumed"])),
                        name="approval_request_state_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("risk__in", ["low", "medium", "high", "critical"])),
                        name="approval_request_risk_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "requested_by_type__in",
                                ["user", "api_app", "mcp_client", "agent", "system", "worker"],
                            )
                        ),
                        name="approval_request_requester_type_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "decided_by_type__in",
                                ["user", "api_app", "mcp_client", "agent", "system", "worker"],
                            )
                        ),
                        name="approval_request_decided_by_type_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "consumed_by_type__in",
                                ["user", "api_app", "mcp_client", "agent", "system", "worker"],
                            )
                        ),
                        name="approval_request_consumed_by_type_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("expires_at__gt", models.F("requested_at")),
                            ("requested_at__gte", datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC)),
                        ),
                        name="approval_request_lifetime_check",
                    ),
                    models.CheckConstraint(
                        condition=django.db.models.lookups.LessThanOrEqual(
                            apps.core.fields.Elapsed(models.F("expires_at"), models.F("requested_at")),
                            models.F("longest_life_ms"),
                        ),
                        name="approval_request_longest_life_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("longest_life_ms__gte", 1),
                            models.Q(
                                models.Q(("action_type", "run.create"), _negated=True),
                                ("longest_life_ms", 86400000),
                                _connector="OR",
                            ),
                        ),
                        name="approval_request_life_of_type_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("quorum__gte", 1), ("quorum__lte", 5)),
                        name="approval_request_quorum_check",
                    ),
                    models.CheckConstraint(
                        condition=django.db.models.lookups.Exact(
                            django.db.models.functions.text.Length("action_digest"), 64
                        ),
                        name="approval_request_action_digest_check",
                    ),
                    models.CheckConstraint(
                        condition=django.db.models.lookups.Exact(
                            django.db.models.functions.text.Length("preview_digest"), 64
                        ),
                        name="approval_request_preview_digest_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("decided_at__isnull", True),
                                ("decided_by_id__isnull", True),
                                ("decided_by_type__isnull", True),
                                ("decision__isnull", True),
                                ("decision_id__isnull", True),
                                ("decision_reason_code__isnull", True),
                            ),
                            models.Q(
                                ("decided_at__isnull", False),
                                ("decided_by_id__isnull", False),
                                ("decided_by_type__isnull", False),
                                ("decision__isnull", False),
                                ("decision_id__isnull", False),
                                ("decision_reason_code__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="approval_request_decision_tuple_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("decision__in", ["approved", "rejected"])),
                        name="approval_request_decision_value_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("decided_at__isnull", True),
                            models.Q(
                                ("decided_at__gte", models.F("requested_at")),
                                ("decided_at__lt", models.F("expires_at")),
                            ),
                            _connector="OR",
                        ),
                        name="approval_request_decision_time_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("consumed_at__isnull", True),
                                ("consumed_by_id__isnull", True),
                                ("consumed_by_type__isnull", True),
                                ("consumption_id__isnull", True),
                                ("dispatch_id__isnull", True),
                            ),
                            models.Q(
                                ("consumed_at__isnull", False),
                                ("consumed_by_id__isnull", False),
                                ("consumed_by_type__isnull", False),
                                ("consumption_id__isnull", False),
                                ("dispatch_id__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="approval_request_consumption_tuple_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("consumed_at__isnull", True),
                            models.Q(
                                ("consumed_at__gte", models.F("decided_at")),
                                ("consumed_at__lt", models.F("expires_at")),
                            ),
                            _connector="OR",
                        ),
                        name="approval_request_consumption_time_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("state", "pending"),
                                ("version", 1),
                                ("decided_at__isnull", True),
                                ("decided_by_id__isnull", True),
                                ("decided_by_type__isnull", True),
                                ("decision__isnull", True),
                                ("decision_id__isnull", True),
                                ("decision_reason_code__isnull", True),
                                ("consumed_at__isnull", True),
                                ("consumed_by_id__isnull", True),
                                ("consumed_by_type__isnull", True),
                                ("consumption_id__isnull", True),
                                ("dispatch_id__isnull", True),
                            ),
                            models.Q(
                                ("decision", "approved"),
                                ("state", "approved"),
                                ("version", 2),
                                ("decided_at__isnull", False),
                                ("decided_by_id__isnull", False),
                                ("decided_by_type__isnull", False),
                                ("decision__isnull", False),
                                ("decision_id__isnull", False),
                                ("decision_reason_code__isnull", False),
                                ("consumed_at__isnull", True),
                                ("consumed_by_id__isnull", True),
                                ("consumed_by_type__isnull", True),
                                ("consumption_id__isnull", True),
                                ("dispatch_id__isnull", True),
                            ),
                            models.Q(
                                ("decision", "rejected"),
                                ("state", "rejected"),
                                ("version", 2),
                                ("decided_at__isnull", False),
                                ("decided_by_id__isnull", False),
                                ("decided_by_type__isnull", False),
                                ("decision__isnull", False),
                                ("decision_id__isnull", False),
                                ("decision_reason_code__isnull", False),
                                ("consumed_at__isnull", True),
                                ("consumed_by_id__isnull", True),
                                ("consumed_by_type__isnull", True),
                                ("consumption_id__isnull", True),
                                ("dispatch_id__isnull", True),
                            ),
                            models.Q(
                                ("decision", "approved"),
                                ("state", "consumed"),
                                ("version", 3),
                                ("decided_at__isnull", False),
                                ("decided_by_id__isnull", False),
                                ("decided_by_type__isnull", False),
                                ("decision__isnull", False),
                                ("decision_id__isnull", False),
                                ("decision_reason_code__isnull", False),
                                ("consumed_at__isnull", False),
                                ("consumed_by_id__isnull", False),
                                ("consumed_by_type__isnull", False),
                                ("consumption_id__isnull", False),
                                ("dispatch_id__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="approval_request_state_tuple_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("decided_by_id__isnull", True),
                            models.Q(
                                ("decided_by_type", "user"),
                                models.Q(
                                    ("requested_by_id", models.F("decided_by_id")),
                                    ("requested_by_type", models.F("decided_by_type")),
                                    _negated=True,
                                ),
                            ),
                            _connector="OR",
                        ),
                        name="approval_request_decider_check",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApprovalLapse",
            fields=[
                (
                    "request",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="lapse",
                        serialize=False,
                        to="approvals.approvalrequest",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="projects.project",
                    ),
                ),
                ("code", models.CharField(max_length=64)),
                ("lapsed_at", models.DateTimeField()),
            ],
            options={
                "db_table": "approval_lapses",
                "indexes": [
                    models.Index(
                        models.F("project"),
                        models.OrderBy(models.F("lapsed_at"), descending=True),
                        models.F("request"),
                        name="approval_lapse_project",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ApprovedActionPlan",
            fields=[
                (
                    "action_ref",
                    models.CharField(editable=False, max_length=255, primary_key=True, serialize=False),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="projects.project",
                    ),
                ),
                ("schema_version", models.PositiveSmallIntegerField(default=1)),
                ("action_type", models.CharField(max_length=64)),
                ("task_id", models.CharField(max_length=255)),
                ("task_revision", models.CharField(max_length=128)),
                ("executor_type", models.CharField(max_length=32)),
                ("priority", models.IntegerField()),
                ("task_name", models.CharField(max_length=255, null=True)),
                ("task_snapshot_ref", models.CharField(max_length=512, null=True)),
                ("input_ref", models.CharField(max_length=512, null=True)),
                ("action_digest", models.CharField(max_length=64)),
                ("request_id", models.CharField(max_length=64)),
                ("input_payload_id", models.UUIDField()),
                ("wish_digest", models.CharField(max_length=64)),
                ("snapshot", models.TextField()),
                ("preview", models.TextField()),
                ("preview_digest", models.CharField(max_length=64)),
                (
                    "requested_by_type",
                    models.CharField(
                        choices=[
                            ("user", "User"),
                            ("api_app", "Api App"),
                            ("mcp_client", "Mcp Client"),
                            ("agent", "Agent"),
                            ("system", "System"),
                            ("worker", "Worker"),
                        ],
                        max_length=32,
                    ),
                ),
                ("requested_by_id", models.CharField(max_length=255)),
                ("requester_binding_version", models.IntegerField()),
                ("created_at", models.DateTimeField(default=apps.core.clock.now, editable=False)),
            ],
            options={
                "db_table": "approved_action_plans",
                "indexes": [
                    models.Index(fields=["task_id", "created_at", "action_ref"], name="approved_plan_task")
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("request_id",), name="approved_plan_request_uidx"),
                    models.CheckConstraint(
                        condition=models.Q(("schema_version", 1)), name="approved_plan_schema_check"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("executor_type__in", ["local_process", "docker", "kubernetes", "remote_worker"])
                        ),
                        name="approved_plan_executor_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "requested_by_type__in",
                                ["user", "api_app", "mcp_client", "agent", "system", "worker"],
                            )
                        ),
                        name="approved_plan_requester_type_check",
                    ),
                    models.CheckConstraint(
                        condition=django.db.models.lookups.Exact(
                            django.db.models.functions.text.Length("action_digest"), 64
                        ),
                        name="approved_plan_digest_check",
                    ),
                    models.CheckConstraint(
                        condition=django.db.models.lookups.Exact(
                            django.db.models.functions.text.Length("preview_digest"), 64
                        ),
                        name="approved_plan_preview_digest_check",
                    ),
                    models.CheckConstraint(
                        condition=django.db.models.lookups.Exact(
                            django.db.models.functions.text.Length("wish_digest"), 64
                        ),
                        name="approved_plan_wish_digest_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("requester_binding_version__gte", 1)),
                        name="approved_plan_binding_check",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApprovedActionDispatch",
            fields=[
                ("id", models.CharField(editable=False, max_length=64, primary_key=True, serialize=False)),
                (
                    "approval_request",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="dispatch",
                        to="approvals.approvalrequest",
                    ),
                ),
                ("approval_request_version", models.IntegerField()),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="projects.project",
                    ),
                ),
                ("state", models.CharField(default="pending", max_length=16)),
                ("permission", models.CharField(max_length=255)),
                ("action_type", models.CharField(max_length=64)),
                ("action_ref", models.CharField(max_length=255)),
                ("action_digest", models.CharField(max_length=64)),
                ("preview_digest", models.CharField(max_length=64)),
                (
                    "requested_by_type",
                    models.CharField(
                        choices=[
                            ("user", "User"),
                            ("api_app", "Api App"),
                            ("mcp_client", "Mcp Client"),
                            ("agent", "Agent"),
                            ("system", "System"),
                            ("worker", "Worker"),
                        ],
                        max_length=32,
                    ),
                ),
                ("requested_by_id", models.CharField(max_length=255)),
                (
                    "consumed_by_type",
                    models.CharField(
                        choices=[
                            ("user", "User"),
                            ("api_app", "Api App"),
                            ("mcp_client", "Mcp Client"),
                            ("agent", "Agent"),
                            ("system", "System"),
                            ("worker", "Worker"),
                        ],
                        max_length=32,
                    ),
                ),
                ("consumed_by_id", models.CharField(max_length=255)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "db_table": "approved_action_dispatches",
                "indexes": [
                    models.Index(
                        fields=["project", "state", "created_at", "id"], name="approved_dispatch_project"
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("approval_request_version", 3)),
                        name="approved_action_dispatch_version_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("state", "pending")), name="approved_action_dispatch_state_check"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "requested_by_type__in",
                                ["user", "api_app", "mcp_client", "agent", "system", "worker"],
                            )
                        ),
                        name="approved_action_dispatch_requester_type_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("consumed_by_type__in", ["system", "worker"])),
                        name="approved_action_dispatch_consumer_type_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("created_at__gte", datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC))
                        ),
                        name="approved_action_dispatch_created_check",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApprovedActionExecution",
            fields=[
                (
                    "dispatch",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="execution",
                        serialize=False,
                        to="approvals.approvedactiondispatch",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="projects.project",
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("leased", "Leased"),
                            ("executing", "Executing"),
                            ("retry_wait", "Retry Wait"),
                            ("succeeded", "Succeeded"),
                            ("failed", "Failed"),
                            ("blocked", "Blocked"),
                        ],
                        default="pending",
                        max_length=16,
                    ),
                ),
                ("version", models.IntegerField(default=0)),
                ("attempt_count", models.IntegerField(default=0)),
                ("max_attempts", models.IntegerField(default=5)),
                ("eligible_at", models.DateTimeField(null=True)),
                ("next_attempt_at", models.DateTimeField(null=True)),
                ("lease_owner", models.CharField(max_length=128, null=True)),
                ("lease_token", models.CharField(editable=False, max_length=128, null=True)),
                ("lease_expires_at", models.DateTimeField(null=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("result_mutation_id", models.CharField(max_length=64, null=True)),
                ("last_result_code", models.CharField(max_length=64, null=True)),
                ("completed_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField()),
                ("updated_at", models.DateTimeField()),
            ],
            options={
                "db_table": "approved_action_executions",
                "indexes": [
                    models.Index(fields=["eligible_at", "dispatch"], name="approved_execution_due"),
                    models.Index(
                        fields=["project", "status", "created_at", "dispatch"], name="approved_execution_list"
                    ),
                    models.Index(
                        fields=["status", "lease_expires_at", "dispatch"], name="approved_execution_lease"
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                [
                                    "pending",
                                    "leased",
                                    "executing",
                                    "retry_wait",
                                    "succeeded",
                                    "failed",
                                    "blocked",
                                ],
                            )
                        ),
                        name="approved_action_execution_status_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("version__gte", 0), ("version__lte", 2147483647)),
                        name="approved_action_execution_version_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("attempt_count__gte", 0), ("attempt_count__lte", 16)),
                        name="approved_action_execution_attempt_count_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("max_attempts__gte", 1), ("max_attempts__lte", 16)),
                        name="approved_action_execution_max_attempts_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("attempt_count__lte", models.F("max_attempts"))),
                        name="approved_action_execution_attempts_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("lease_expires_at__isnull", True),
                                ("lease_owner__isnull", True),
                                ("lease_token__isnull", True),
                            ),
                            models.Q(
                                ("lease_expires_at__isnull", False),
                                ("lease_owner__isnull", False),
                                ("lease_token__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="approved_action_execution_lease_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("lease_expires_at__isnull", True),
                            ("lease_expires_at__gt", models.F("updated_at")),
                            _connector="OR",
                        ),
                        name="approved_action_execution_lease_time_check",
                    ),
                    models.CheckConstraint(
                        condition=django.db.models.lookups.LessThanOrEqual(
                            apps.core.fields.Elapsed(models.F("lease_expires_at"), models.F("updated_at")),
                            600000,
                        ),
                        name="approved_action_execution_lease_length_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("created_at__gte", datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC))
                        ),
                        name="approved_action_execution_created_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("updated_at__gte", models.F("created_at"))),
                        name="approved_action_execution_updated_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("started_at__isnull", True),
                            models.Q(
                                ("started_at__gte", models.F("created_at")),
                                ("started_at__lte", models.F("updated_at")),
                            ),
                            _connector="OR",
                        ),
                        name="approved_action_execution_started_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("completed_at__isnull", True),
                            ("completed_at", models.F("updated_at")),
                            _connector="OR",
                        ),
                        name="approved_action_execution_completed_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("attempt_count", 0),
                                ("status", "pending"),
                                ("version", 0),
                                ("eligible_at__isnull", False),
                                ("completed_at__isnull", True),
                                ("last_result_code__isnull", True),
                                ("lease_expires_at__isnull", True),
                                ("lease_owner__isnull", True),
                                ("lease_token__isnull", True),
                                ("next_attempt_at__isnull", True),
                                ("result_mutation_id__isnull", True),
                                ("started_at__isnull", True),
                            ),
                            models.Q(
                                ("attempt_count__gte", 1),
                                ("eligible_at", models.F("lease_expires_at")),
                                ("status", "leased"),
                                ("eligible_at__isnull", False),
                                ("lease_expires_at__isnull", False),
                                ("lease_owner__isnull", False),
                                ("lease_token__isnull", False),
                                ("completed_at__isnull", True),
                                ("last_result_code__isnull", True),
                                ("next_attempt_at__isnull", True),
                                ("result_mutation_id__isnull", True),
                                ("started_at__isnull", True),
                            ),
                            models.Q(
                                ("attempt_count__gte", 1),
                                ("status", "executing"),
                                ("lease_expires_at__isnull", False),
                                ("lease_owner__isnull", False),
                                ("lease_token__isnull", False),
                                ("started_at__isnull", False),
                                ("completed_at__isnull", True),
                                ("eligible_at__isnull", True),
                                ("last_result_code__isnull", True),
                                ("next_attempt_at__isnull", True),
                                ("result_mutation_id__isnull", True),
                            ),
                            models.Q(
                                ("attempt_count__gte", 1),
                                ("attempt_count__lt", models.F("max_attempts")),
                                ("eligible_at", models.F("next_attempt_at")),
                                ("status", "retry_wait"),
                                ("eligible_at__isnull", False),
                                ("last_result_code__isnull", False),
                                ("next_attempt_at__isnull", False),
                                ("result_mutation_id__isnull", False),
                                ("completed_at__isnull", True),
                                ("lease_expires_at__isnull", True),
                                ("lease_owner__isnull", True),
                                ("lease_token__isnull", True),
                                ("started_at__isnull", True),
                            ),
                            models.Q(
                                models.Q(
                                    models.Q(
                                        ("status__in", ["succeeded", "failed"]), ("started_at__isnull", False)
                                    ),
                                    ("status", "blocked"),
                                    _connector="OR",
                                ),
                                ("completed_at__isnull", False),
                                ("last_result_code__isnull", False),
                                ("result_mutation_id__isnull", False),
                                ("eligible_at__isnull", True),
                                ("lease_expires_at__isnull", True),
                                ("lease_owner__isnull", True),
                                ("lease_token__isnull", True),
                                ("next_attempt_at__isnull", True),
                            ),
                            _connector="OR",
                        ),
                        name="approved_action_execution_state_tuple_check",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApprovedActionRecoveryControl",
            fields=[
                (
                    "dispatch",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="control",
                        serialize=False,
                        to="approvals.approvedactionexecution",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="projects.project",
                    ),
                ),
                ("execution_version", models.IntegerField()),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("armed", "Armed"),
                            ("leased", "Leased"),
                            ("manual_required", "Manual Required"),
                            ("resolved", "Resolved"),
                        ],
                        max_length=24,
                    ),
                ),
                ("version", models.IntegerField(default=0)),
                ("next_scan_at", models.DateTimeField(null=True)),
                ("lease_owner", models.CharField(max_length=128, null=True)),
                ("lease_token", models.CharField(editable=False, max_length=128, null=True)),
                ("lease_expires_at", models.DateTimeField(null=True)),
                ("finding_count", models.IntegerField(default=0)),
                ("last_finding_mutation_id", models.CharField(max_length=64, null=True)),
                (
                    "last_finding",
                    models.CharField(
                        choices=[
                            ("verified_succeeded", "Verified Succeeded"),
                            ("verified_failed", "Verified Failed"),
                            ("still_running", "Still Running"),
                            ("missing", "Missing"),
                            ("conflict", "Conflict"),
                            ("unsupported", "Unsupported"),
                            ("unavailable", "Unavailable"),
                        ],
                        max_length=24,
                        null=True,
                    ),
                ),
                ("last_result_code", models.CharField(max_length=64, null=True)),
                ("last_evidence_digest", models.CharField(max_length=64, null=True)),
                ("resolution_mutation_id", models.CharField(max_length=64, null=True)),
                ("created_at", models.DateTimeField()),
                ("updated_at", models.DateTimeField()),
            ],
            options={
                "db_table": "approved_action_recovery_controls",
                "indexes": [
                    models.Index(fields=["status", "next_scan_at", "dispatch"], name="approved_recovery_due"),
                    models.Index(
                        fields=["project", "status", "created_at", "dispatch"], name="approved_recovery_list"
                    ),
                    models.Index(
                        fields=["status", "lease_expires_at", "dispatch"], name="approved_recovery_lease"
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("status__in", ["armed", "leased", "manual_required", "resolved"])
                        ),
                        name="approved_action_recovery_status_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("execution_version__gte", 1), ("execution_version__lte", 2147483647)
                        ),
                        name="approved_action_recovery_execution_version_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("version__gte", 0), ("version__lte", 2147483647)),
                        name="approved_action_recovery_version_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("finding_count__gte", 0), ("finding_count__lte", 2147483647)),
                        name="approved_action_recovery_finding_count_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("lease_expires_at__isnull", True),
                                ("lease_owner__isnull", True),
                                ("lease_token__isnull", True),
                            ),
                            models.Q(
                                ("lease_expires_at__isnull", False),
                                ("lease_owner__isnull", False),
                                ("lease_token__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="approved_action_recovery_lease_check",
                    ),
                    models.CheckConstraint(
                        condition=django.db.models.lookups.LessThanOrEqual(
                            apps.core.fields.Elapsed(models.F("lease_expires_at"), models.F("updated_at")),
                            600000,
                        ),
                        name="approved_action_recovery_lease_length_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("finding_count", 0),
                                ("last_finding__isnull", True),
                                ("last_finding_mutation_id__isnull", True),
                                ("last_result_code__isnull", True),
                            ),
                            models.Q(
                                ("finding_count__gte", 1),
                                ("last_finding__isnull", False),
                                ("last_finding_mutation_id__isnull", False),
                                ("last_result_code__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="approved_action_recovery_finding_tuple_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "last_finding__in",
                                [
                                    "verified_succeeded",
                                    "verified_failed",
                                    "still_running",
                                    "missing",
                                    "conflict",
                                    "unsupported",
                                    "unavailable",
                                ],
                            )
                        ),
                        name="approved_action_recovery_finding_check",
                    ),
                    models.CheckConstraint(
                        condition=django.db.models.lookups.Exact(
                            django.db.models.functions.text.Length("last_evidence_digest"), 64
                        ),
                        name="approved_action_recovery_evidence_digest_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("status", "armed"),
                                ("next_scan_at__isnull", False),
                                ("lease_expires_at__isnull", True),
                                ("lease_owner__isnull", True),
                                ("lease_token__isnull", True),
                                ("resolution_mutation_id__isnull", True),
                            ),
                            models.Q(
                                ("next_scan_at", models.F("lease_expires_at")),
                                ("status", "leased"),
                                ("lease_expires_at__isnull", False),
                                ("lease_owner__isnull", False),
                                ("lease_token__isnull", False),
                                ("next_scan_at__isnull", False),
                                ("resolution_mutation_id__isnull", True),
                            ),
                            models.Q(
                                ("finding_count__gte", 1),
                                ("status", "manual_required"),
                                ("lease_expires_at__isnull", True),
                                ("lease_owner__isnull", True),
                                ("lease_token__isnull", True),
                                ("next_scan_at__isnull", True),
                                ("resolution_mutation_id__isnull", True),
                            ),
                            models.Q(
                                ("status", "resolved"),
                                ("resolution_mutation_id__isnull", False),
                                ("lease_expires_at__isnull", True),
                                ("lease_owner__isnull", True),
                                ("lease_token__isnull", True),
                                ("next_scan_at__isnull", True),
                            ),
                            _connector="OR",
                        ),
                        name="approved_action_recovery_resolution_tuple_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("created_at__gte", datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC)),
                            ("updated_at__gte", models.F("created_at")),
                            models.Q(
                                ("next_scan_at__isnull", True),
                                ("next_scan_at__gt", models.F("updated_at")),
                                _connector="OR",
                            ),
                        ),
                        name="approved_action_recovery_timestamps_check",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApprovedActionRecoveryResolution",
            fields=[
                (
                    "dispatch",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="resolution",
                        serialize=False,
                        to="approvals.approvedactionrecoverycontrol",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="projects.project",
                    ),
                ),
                ("execution_version", models.IntegerField()),
                ("mutation_id", models.CharField(max_length=64)),
                (
                    "source",
                    models.CharField(
                        choices=[("automatic_evidence", "Automatic Evidence"), ("human", "Human")],
                        max_length=24,
                    ),
                ),
                (
                    "decision",
                    models.CharField(
                        choices=[
                            ("confirm_succeeded", "Confirm Succeeded"),
                            ("confirm_failed", "Confirm Failed"),
                            ("abandon_unknown", "Abandon Unknown"),
                        ],
                        max_length=24,
                    ),
                ),
                ("evidence_digest", models.CharField(max_length=64, null=True)),
                ("reason_code", models.CharField(max_length=64)),
                ("resolved_by_type", models.CharField(max_length=32, null=True)),
                ("resolved_by_id", models.CharField(max_length=255, null=True)),
                ("resolved_at", models.DateTimeField()),
            ],
            options={
                "db_table": "approved_action_recovery_resolutions",
                "indexes": [
                    models.Index(
                        fields=["project", "resolved_at", "dispatch"], name="approved_resolution_project"
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("mutation_id",), name="approved_action_recovery_resolution_mutation"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("execution_version__gte", 1), ("execution_version__lte", 2147483647)
                        ),
                        name="approved_action_recovery_resolution_execution_version_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("source__in", ["automatic_evidence", "human"])),
                        name="approved_action_recovery_resolution_source_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("decision__in", ["confirm_succeeded", "confirm_failed", "abandon_unknown"])
                        ),
                        name="approved_action_recovery_resolution_decision_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("resolved_by_id__isnull", True), ("resolved_by_type__isnull", True)),
                            models.Q(
                                ("resolved_by_type", "user"),
                                ("resolved_by_id__isnull", False),
                                ("resolved_by_type__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="approved_action_recovery_resolution_actor_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("decision__in", ["confirm_succeeded", "confirm_failed"]),
                                ("source", "automatic_evidence"),
                                ("evidence_digest__isnull", False),
                                ("resolved_by_type__isnull", True),
                            ),
                            models.Q(
                                ("resolved_by_type", "user"),
                                ("source", "human"),
                                ("resolved_by_id__isnull", False),
                                ("resolved_by_type__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="approved_action_recovery_resolution_source_tuple_check",
                    ),
                    models.CheckConstraint(
                        condition=django.db.models.lookups.Exact(
                            django.db.models.functions.text.Length("evidence_digest"), 64
                        ),
                        name="approved_action_recovery_resolution_evidence_digest_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("resolved_at__gte", datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC))
                        ),
                        name="approved_action_recovery_resolution_resolved_check",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApprovedActionRecoveryAuthorization",
            fields=[
                (
                    "dispatch",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="authorization",
                        serialize=False,
                        to="approvals.approvedactionrecoveryresolution",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="projects.project",
                    ),
                ),
                ("mutation_id", models.CharField(max_length=64)),
                ("resolved_by_id", models.CharField(max_length=255)),
                ("authentication_id", models.CharField(editable=False, max_length=128)),
                (
                    "assurance",
                    models.CharField(
                        choices=[
                            ("multi_factor", "Multi Factor"),
                            ("hardware", "Hardware"),
                            ("local_console", "Local Console"),
                        ],
                        max_length=32,
                    ),
                ),
                ("authenticated_at", models.DateTimeField()),
                ("project_version", models.IntegerField()),
                ("binding_version", models.IntegerField()),
                ("authorized_at", models.DateTimeField()),
                ("fact_digest", models.CharField(max_length=64)),
            ],
            options={
                "db_table": "approved_action_recovery_authorizations",
                "indexes": [
                    models.Index(
                        fields=["project", "authorized_at", "dispatch"], name="approved_authorization_list"
                    ),
                    models.Index(
                        fields=["authentication_id", "authorized_at", "dispatch"],
                        name="approved_authorization_login",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("mutation_id",), name="approved_action_recovery_authorization_mutation"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("assurance__in", ["multi_factor", "hardware", "local_console"])),
                        name="approved_action_recovery_authorization_assurance_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("project_version__gte", 1), ("project_version__lte", 2147483647)),
                        name="approved_action_recovery_authorization_project_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("binding_version__gte", 1), ("binding_version__lte", 2147483647)),
                        name="approved_action_recovery_authorization_binding_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "authenticated_at__gte",
                                datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC),
                            ),
                            ("authorized_at__gte", models.F("authenticated_at")),
                        ),
                        name="approved_action_recovery_authorization_order_check",
                    ),
                    models.CheckConstraint(
                        condition=django.db.models.lookups.LessThanOrEqual(
                            apps.core.fields.Elapsed(models.F("authorized_at"), models.F("authenticated_at")),
                            300000,
                        ),
                        name="approved_action_recovery_authorization_recency_check",
                    ),
                    models.CheckConstraint(
                        condition=django.db.models.lookups.Exact(
                            django.db.models.functions.text.Length("fact_digest"), 64
                        ),
                        name="approved_action_recovery_authorization_digest_check",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApprovedRunReceipt",
            fields=[
                (
                    "dispatch",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="receipt",
                        serialize=False,
                        to="approvals.approvedactiondispatch",
                    ),
                ),
                (
                    "approval_request",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="approvals.approvalrequest",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="projects.project",
                    ),
                ),
                ("schema_version", models.IntegerField(default=1)),
                ("action_type", models.CharField(default="run.create", max_length=64)),
                ("action_digest", models.CharField(max_length=64)),
                ("execution_attempt", models.IntegerField()),
                ("execution_version", models.IntegerField()),
                ("started_at", models.DateTimeField()),
                ("idempotency_key", models.CharField(max_length=64)),
                ("outcome", models.CharField(default="succeeded", max_length=16)),
                ("result_code", models.CharField(default="approved_run_created", max_length=64)),
                ("resource_type", models.CharField(default="run", max_length=16)),
                (
                    "resource",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="runs.run",
                    ),
                ),
                ("finished_at", models.DateTimeField()),
                ("evidence_digest", models.CharField(max_length=64)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "db_table": "approved_run_receipts",
                "indexes": [
                    models.Index(
                        fields=["project", "created_at", "dispatch"], name="approved_run_receipt_list"
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("resource_type", "resource"), name="approved_run_receipt_resource_uidx"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("schema_version", 1)),
                        name="approved_run_receipt_schema_version_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("action_type", "run.create")),
                        name="approved_run_receipt_action_type_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("outcome", "succeeded")),
                        name="approved_run_receipt_outcome_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("result_code", "approved_run_created")),
                        name="approved_run_receipt_result_code_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("resource_type", "run")),
                        name="approved_run_receipt_resource_type_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("execution_attempt__gte", 1), ("execution_attempt__lte", 16)),
                        name="approved_run_receipt_execution_attempt_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("execution_version__gte", 1), ("execution_version__lte", 2147483647)
                        ),
                        name="approved_run_receipt_execution_version_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("idempotency_key", models.F("dispatch"))),
                        name="approved_run_receipt_idempotency_key_check",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("created_at", models.F("finished_at")),
                            ("finished_at__gte", models.F("started_at")),
                            ("started_at__gte", datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC)),
                        ),
                        name="approved_run_receipt_timestamps_check",
                    ),
                    models.CheckConstraint(
                        condition=django.db.models.lookups.Exact(
                            django.db.models.functions.text.Length("evidence_digest"), 64
                        ),
                        name="approved_run_receipt_evidence_digest_check",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApprovalVote",
            fields=[
                (
                    "id",
                    apps.core.fields.IdField(
                        default=apps.core.ids.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("voter_type", models.CharField(default="user", max_length=32)),
                ("voter_id", models.CharField(max_length=255)),
                (
                    "decision",
                    models.CharField(
                        choices=[("approved", "Approved"), ("rejected", "Rejected")], max_length=16
                    ),
                ),
                ("reason_code", models.CharField(max_length=64)),
                ("decision_id", models.CharField(max_length=64)),
                ("voted_at", models.DateTimeField()),
                (
                    "request",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="votes",
                        to="approvals.approvalrequest",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="projects.project",
                    ),
                ),
            ],
            options={
                "db_table": "approval_votes",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("request", "voter_type", "voter_id"), name="approval_vote_voter_uidx"
                    ),
                    models.UniqueConstraint(fields=("decision_id",), name="approval_vote_decision_uidx"),
                    models.CheckConstraint(
                        condition=models.Q(("voter_type__in", ["user"])), name="approval_vote_voter_check"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("decision__in", ["approved", "rejected"])),
                        name="approval_vote_value_check",
                    ),
                ],
            },
        ),
    ]
