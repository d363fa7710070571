"""Starting scripts so that they outlive whoever asked for them (architecture §2).

`client` is for dispatch sessions. The other modules run inside the launcher and its shims, without Django,
site packages, threads or a database; what they import decides how much memory each running script costs.
"""
