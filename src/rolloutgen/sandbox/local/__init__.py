"""BACKEND=local: a private world per attempt out of plain Linux namespaces; no daemon, no binary, no image registry.

Who runs where: the driver (``backend``, ``sandbox``) talks to one light process of its own (``zygote``), which forks an
init per sandbox (``init``: pid 1 of that world, built by ``world`` and ``mounts``). Execs and copies go straight from
the driver to that init. The files that the zygote loads import the standard library only, and nothing heavy: every
sandbox is a fork of it.
"""
