"""No core dumps: what the system keeps of a process that crashes holds its keys.

>>> switch_off()
>>> import resource
>>> max(resource.getrlimit(resource.RLIMIT_CORE)) <= LEAST
True
"""

from contextlib import suppress

# Bytes. No dump is so short; and where Linux hands dumps to a program, it ignores a limit of 0, but not this one
# (fs/coredump.c: "we use cprm.limit of 1 here as a special value").
LEAST = 1


def switch_off() -> None:
    """For this process and all that it starts, for good, where the system has such a limit."""
    with suppress(ImportError, ValueError, OSError):  # no such limit, or a lower one, which nobody may raise
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (LEAST, LEAST))
