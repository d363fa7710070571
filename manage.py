#!/usr/bin/env python3
"""The one entry point: `manage.py COMMAND`, installed as `qinglong COMMAND`."""

from qinglong.__main__ import main

if __name__ == "__main__":
    main()
