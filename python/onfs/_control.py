"""The control socket: finding it, and one request after the other over a connection.

A frame is a length (4 bytes, little-endian) and that many bytes of JSON.
"""

import json
import os
import socket
import struct
import time

#: Version of the protocol; a daemon of another one refuses, and says which it has.
VERSION = 1
#: A daemon that works shows a sign of life at least every few seconds.
SILENCE_MAX = 60.0
#: No answer is longer.
ANSWER_BYTES_MAX = 64 << 20
#: As long as a path in `sockaddr_un` may be.
SOCKET_PATH_MAX = 107

_ATTRIBUTE = "user.onfs.control"


class OnfsError(OSError):
    """What goes wrong here. `errno` is set where the daemon gave an error number."""


class NotOnfs(OnfsError):
    """The path is on no ONFS mount, or its daemon does not run."""


class TimedOut(OnfsError):
    """The deadline passed, or the daemon was silent for too long."""


class Refused(OnfsError):
    """The daemon's own answer; `code` is one of its words, such as `not-allowed`, `busy` or `bad-request`."""

    def __init__(self, error):
        super().__init__(error.get("errno") or 0, error.get("message", "refused"))
        self.code = error.get("code", "failed")


def control_socket(path):
    """The path of the control socket of the daemon that serves `path`."""
    real = os.path.realpath(path)
    at, device = real, os.stat(real).st_dev
    while True:
        try:
            value = os.getxattr(at, _ATTRIBUTE)
        except OSError:
            # A file that may not be read, or has no attributes: the directory above it has the same answer.
            value = b""
        if value:
            if not _is_fuse(real):
                # Anybody can give a file such an attribute.
                break
            return os.fsdecode(value)
        above = os.path.dirname(at)
        if above == at or os.stat(above).st_dev != device:
            break
        at = above
    raise NotOnfs(0, f"{path}: not on an ONFS mount")


def _is_fuse(real):
    best, kind = "", ""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            before, _, behind = line.partition(" - ")
            point = _unescape(before.split(" ")[4])
            if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
                best, kind = point, behind.split(" ")[0]
    return kind.startswith("fuse")


def _unescape(text):
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


class Connection:
    """A connection to the daemon of `path`; also a context manager."""

    def __init__(self, path):
        self.socket_path = control_socket(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect()
        except PermissionError:
            self._socket.close()
            raise
        except OSError as error:
            self._socket.close()
            raise NotOnfs(error.errno or 0, f"{self.socket_path}: the daemon does not run: {error}") from error

    def _connect(self):
        path = os.fsencode(self.socket_path)
        if len(path) <= SOCKET_PATH_MAX:
            return self._socket.connect(path)
        directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return self._socket.connect(f"/proc/self/fd/{directory}/{os.fsdecode(os.path.basename(path))}")
        finally:
            os.close(directory)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._socket.close()

    def call(self, do, deadline=None, progress=None, **arguments):
        """Sends the request `do` and returns the report of its result (None for a bare "done").

        `deadline` is in seconds; `progress` is called with each progress report, a dict.
        """
        end = None if deadline is None else time.monotonic() + deadline
        envelope = {"version": VERSION, "request": {"do": do, **arguments}}
        if deadline is not None:
            envelope["deadline_ms"] = max(0, int(deadline * 1000))
        body = json.dumps(envelope).encode()
        try:
            self._socket.settimeout(self._left(end))
            self._socket.sendall(struct.pack("<I", len(body)) + body)
            while True:
                answer = self._read(end)
                if "error" in answer:
                    raise self._refusal(answer["error"])
                if "progress" in answer:
                    if progress is not None:
                        progress(answer["progress"])
                    continue
                if answer.get("version") != VERSION:
                    raise OnfsError(0, f"the daemon speaks version {answer.get('version')}, this package {VERSION}")
                return answer["result"].get("report")
        except socket.timeout as error:
            self.close()
            raise TimedOut(0, "the daemon did not answer in time") from error

    @staticmethod
    def _refusal(error):
        if error.get("code") == "timed-out":
            return TimedOut(error.get("errno") or 0, error.get("message", "timed out"))
        return Refused(error)

    @staticmethod
    def _left(end):
        if end is None:
            return SILENCE_MAX
        # The daemon answers at the deadline; a little later it is lost.
        return max(0.001, min(SILENCE_MAX, end + 5 - time.monotonic()))

    def _read(self, end):
        (length,) = struct.unpack("<I", self._exactly(4, end))
        if length > ANSWER_BYTES_MAX:
            self.close()
            raise OnfsError(0, f"an answer of {length} bytes makes no sense")
        try:
            answer = json.loads(self._exactly(length, end))
        except ValueError as error:
            self.close()
            raise OnfsError(0, f"the daemon's answer makes no sense: {error}") from error
        if not isinstance(answer, dict) or not {"error", "progress", "result"} & answer.keys():
            self.close()
            raise OnfsError(0, "the daemon's answer makes no sense")
        return answer

    def _exactly(self, count, end):
        parts = []
        while count:
            self._socket.settimeout(self._left(end))
            part = self._socket.recv(min(count, 1 << 20))
            if not part:
                raise NotOnfs(0, "the daemon ended while it worked on the request")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def file_ref(path):
    """A file as requests name it. The number says which; the path is for messages."""
    return {"ino": os.stat(path).st_ino, "path": os.fsencode(path).decode(errors="replace")}
