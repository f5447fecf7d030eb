"""Calls to the ONFS daemon that serves a path: bring files up before they are read, make them safe, ask where they are.

Nothing but the standard library is needed. What the messages are is in docs/control.md of the project; what a user may do is
decided by the daemon, which asks the kernel who is at the other end.
"""

from ._calls import Run, cancel, file, flush, prefetch, runs, status
from ._control import VERSION, Connection, OnfsError, NotOnfs, Refused, TimedOut, control_socket
from ._stream import Prefetcher, stream

__all__ = [
    "VERSION",
    "Connection",
    "NotOnfs",
    "OnfsError",
    "Prefetcher",
    "Refused",
    "Run",
    "TimedOut",
    "cancel",
    "control_socket",
    "file",
    "flush",
    "prefetch",
    "runs",
    "status",
    "stream",
]
