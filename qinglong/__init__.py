"""The project: settings, routes and the `qinglong` command."""

__version__ = "3.0.0.dev0"
