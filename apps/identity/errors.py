"""What the directory refuses (projects-and-identity.md §9)."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from apps.core.errors import Unavailable


class DirectoryUnavailable(Unavailable):
    """The directory is unreachable or a row of it breaks its own rules; nobody is let in on a guess."""

    code = "identity_directory_unavailable"
    message = _("The directory of people cannot be read just now.")
