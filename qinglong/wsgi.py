"""The WSGI application that a web server imports."""

from __future__ import annotations

import os

from django.conf import settings
from django.core.wsgi import get_wsgi_application

from qinglong.proxy import Proxied

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "qinglong.settings")

application = Proxied(get_wsgi_application(), settings.PREFIX, settings.TRUSTED_PROXIES)
