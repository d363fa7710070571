"""Django's settings. What an installation may choose comes from `environment`; the rest is decided here."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from csp.constants import NONE, SELF
from django.utils.translation import gettext_lazy as _

from qinglong import environment, single_sign_on

BASE_DIR = Path(__file__).resolve().parent.parent
ENV = environment.read(os.environ, BASE_DIR / "data")

HOME = ENV.home
NODE_DIR = HOME / "node"
RUN_DIR = HOME / "run"
LOG_ROOT = ENV.logs
KEYRING_PATH = ENV.keyring
SECRET_FILES = ENV.secret_files
SECRET_VARIABLES = ENV.secret_variables
BASE_URL = ENV.base_url
SCRIPT_PATH = ENV.path
SLOTS = ENV.slots
PROFILE = ENV.profile
NODE_LABELS = ENV.node_labels
RUN_AS = ENV.run_as
METRICS_TOKEN = ENV.metrics_token
ALERTS = ENV.alerts
RETENTION = ENV.retention
LOG_MINIMUM_FREE_BYTES = ENV.disk_reserve_bytes

SINGLE_SIGN_ON = single_sign_on.read(os.environ, BASE_URL)

DEBUG = ENV.debug
# What only asks for help leaves nothing behind; the key it gets signs nothing.
SECRET_KEY = "-" if environment.only_asks(sys.argv) else environment.secret_key(HOME)
ALLOWED_HOSTS = ENV.allowed_hosts
TRUSTED_PROXIES = ENV.trusted_proxies

_base = urlsplit(BASE_URL)
PREFIX = _base.path.rstrip("/")
SECURE = _base.scheme == "https"
if PREFIX:
    FORCE_SCRIPT_NAME = PREFIX
CSRF_TRUSTED_ORIGINS = [f"{_base.scheme}://{_base.netloc}"] if BASE_URL else []

INSTALLED_APPS = [
    "apps.core.apps.CoreConfig",
    "apps.audit.apps.AuditConfig",
    "apps.identity.apps.IdentityConfig",
    "apps.projects.apps.ProjectsConfig",
    "apps.access.apps.AccessConfig",
    "apps.vault.apps.VaultConfig",
    "apps.tasks.apps.TasksConfig",
    "apps.runs.apps.RunsConfig",
    "apps.artifacts.apps.ArtifactsConfig",
    "apps.dispatch.apps.DispatchConfig",
    "apps.triggers.apps.TriggersConfig",
    "apps.approvals.apps.ApprovalsConfig",
    "apps.panel.apps.PanelConfig",
    "unfold.apps.BasicAppConfig",
    "django.contrib.admin.apps.SimpleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_q",
    "axes",
    "django_otp",
    "django_otp_webauthn",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "apps.access.doorkeeper.Doorkeeper",
    "django.middleware.gzip.GZipMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "apps.access.middleware.SignedIn",
    "django.contrib.messages.middleware.MessageMiddleware",
]

ROOT_URLCONF = "qinglong.urls"
WSGI_APPLICATION = "qinglong.wsgi.application"
APPEND_SLASH = False

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES: dict[str, Any] = {"default": ENV.database}
# Usernames are unique whatever their case: a constraint over lower(username), which this check cannot see.
# What axes refuses has a page of ours, so its middleware is not used. Passkeys learn their origin per request.
SILENCED_SYSTEM_CHECKS = ["auth.W004", "axes.W002", "otp_webauthn.E030"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ATOMIC_REQUESTS = False

AUTH_USER_MODEL = "access.User"
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "apps.access.backends.LocalBackend"]
PASSWORD_HASHERS = ["apps.access.hashing.Argon2"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
# Failures count for the pair of name and address and live in the database, so every process knows them. axes sees
# a request of ours that holds nothing but that pair (`access.services.passwords`).
AXES_HANDLER = "apps.access.counting.PairCounter"
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_FAILURE_LIMIT = 5
AXES_COOLOFF_TIME = timedelta(minutes=5)
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_CLIENT_IP_CALLABLE = "apps.access.addresses.network_of"
AXES_USERNAME_CALLABLE = "apps.access.services.passwords.name_of"
AXES_DISABLE_ACCESS_LOG = True
AXES_ENABLE_ADMIN = False
AXES_VERBOSE = False
OTP_WEBAUTHN_RP_NAME = "QingLong"
OTP_WEBAUTHN_RP_ID_CALLABLE = "apps.access.addresses.host_of"
OTP_WEBAUTHN_HELPER_CLASS = "apps.access.factors.passkeys.Helper"
OTP_WEBAUTHN_EXCEPTION_LOGGER_NAME = ""

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "panel:index"
LOGOUT_REDIRECT_URL = "login"

SESSION_ENGINE = "apps.access.sessions"
SESSION_COOKIE_NAME = "ql_session"
SESSION_COOKIE_AGE = 14 * 24 * 3600
SESSION_COOKIE_PATH = CSRF_COOKIE_PATH = LANGUAGE_COOKIE_PATH = f"{PREFIX}/"
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = LANGUAGE_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_HTTPONLY = True
CSRF_COOKIE_NAME = "ql_csrf"
CSRF_FAILURE_VIEW = "apps.panel.trouble.csrf_failed"
LANGUAGE_COOKIE_NAME = "ql_language"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = LANGUAGE_COOKIE_SECURE = SECURE
# For this host name alone: other names of its domain are not ours to promise anything for.
SECURE_HSTS_SECONDS = ENV.hsts_days * 86_400
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * 1024 * 1024

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
        "manifest-src": [SELF],
    }
}

LANGUAGE_CODE = ENV.language
LANGUAGES = [("en", _("English")), ("zh-hans", _("Simplified Chinese"))]
LOCALE_PATHS = [BASE_DIR / "locale"]
USE_I18N = True
USE_TZ = True
TIME_ZONE = ENV.time_zone

STATIC_URL = f"{PREFIX}/static/"
# Files are served straight from where the apps keep them; nothing has to be collected.
STATIC_ROOT = None
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True
WHITENOISE_KEEP_ONLY_HASHED_FILES = False

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "apps.access.authentication.TokenAuthentication",
        "apps.access.authentication.SessionAuthentication",
    ],
    # Every view inherits from access.endpoints.Endpoint, which decides; nothing else may answer.
    "DEFAULT_PERMISSION_CLASSES": ["apps.access.authentication.Denied"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "apps.core.problems.handle",
    "UNAUTHENTICATED_USER": None,
    "UNAUTHENTICATED_TOKEN": None,
}

SPECTACULAR_SETTINGS = {
    "TITLE": "QingLong",
    "DESCRIPTION": "Tasks, runs and everything around them.",
    "VERSION": "v3",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "SCHEMA_PATH_PREFIX": "/api/v3",
    # Fields of one name with other values each need a name for their values.
    "ENUM_NAME_OVERRIDES": {
        "DeciderRole": "apps.projects.api.DECIDER_ROLES",
        "BreakGlassRole": "apps.projects.api.BREAK_GLASS_ROLES",
        "ApprovalState": "apps.approvals.queries.STATES",
        "ApprovalStatus": "apps.approvals.queries.STATUSES",
        "ApprovalDecision": "apps.approvals.values.VERDICTS",
        "ApprovedActionStatus": "apps.approvals.queries.EXECUTION_STATUSES",
        "RecoveryStatus": "apps.approvals.api.execution.CONTROL_STATUSES",
        "RecoveryDecision": "apps.approvals.action_records.DECISIONS",
        "RecoverySource": "apps.approvals.api.execution.SOURCES",
    },
}

# django-q2 is the doorbell and the broom (architecture.md §2). Each value is set on purpose: one message at a
# time, no retries of its own, no results kept, no schedules; a lock longer than the longest session, so that a
# message is not delivered again beside a session that still works.
_broker: dict[str, Any] = (
    {"redis": ENV.redis_url, "broker_class": "apps.core.redis_bell.RedisBell"}
    if ENV.redis_url
    else {"orm": "default", "broker_class": "apps.core.doorbell.Doorbell"}
)
_common = {
    "bulk": 1,
    "max_attempts": 1,
    "ack_failures": True,
    "save_limit": -1,
    "scheduler": False,
    "catch_up": False,
    "label": "Queue",
}
Q_CLUSTER = {
    **_broker,
    **_common,
    "name": "control",
    "workers": 1,
    "queue_limit": 2,
    "timeout": 30,
    "retry": 120,
    "poll": 2.0,  # the broker is rung awake; this is the net below
    "ALT_CLUSTERS": {
        "runs": {
            **_common,
            "workers": int(os.environ.get("Q_RUNS_WORKERS", "1")),
            "queue_limit": 1,
            "timeout": 900,
            "retry": 1200,
            "poll": 2.0,
        }
    },
}

CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"()": "apps.core.logs.PlainFormatter"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {
        "qinglong": {"level": "INFO"},
        "django-q": {"level": "WARNING"},
        "axes": {"level": "ERROR"},
        # A refusal is the caller's business: its address may hold what is none of the log's, and anybody's
        # requests could fill a disk.
        "django.request": {"level": "ERROR"},
    },
}
