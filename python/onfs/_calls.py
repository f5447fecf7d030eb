"""What can be asked."""

import os

from ._control import Connection, file_ref

#: Files and bytes of paths of one request.
FILES_MAX = 512
PATH_BYTES_MAX = 256 << 10


class Run:
    """A list that the daemon follows: group k+1 comes up while group k is read."""

    def __init__(self, mount, report):
        self._mount = mount
        self.number = report["run"]
        #: What could not be in the list: dicts with `path`, `errno` and `message`.
        self.failed = list(report["failed"])

    def report(self):
        """How it stands: a dict with `state` ("running", "done", "wrong", ...), `groups_begun`, `files_up`, ..."""
        with Connection(self._mount) as connection:
            return connection.call("run-show", run=self.number)

    def wait(self, deadline=None, progress=None):
        """Returns the report when the run has ended: all of the list is up, or it was given up."""
        with Connection(self._mount) as connection:
            return connection.call("run-wait", deadline=deadline, progress=progress, run=self.number)

    def cancel(self):
        """Nothing more of it comes up."""
        with Connection(self._mount) as connection:
            return connection.call("run-cancel", run=self.number)


def prefetch(groups, on_error="raise"):
    """Has the daemon bring up `groups`, an iterable of iterables of paths, in their order; returns a `Run` at once.

    A plain list of paths is one group. All paths must be on one mount. Paths that do not exist, and files that the user may not
    read, raise an error, or are left out with `on_error="skip"`.
    """
    groups = [_paths(group) for group in _as_groups(groups)]
    failed = []
    run = None
    with _Sender(groups) as sender:
        for group in groups:
            sender.begin_group()
            for path in group:
                try:
                    reference = file_ref(path)
                except OSError as error:
                    failed.append({"path": os.fspath(path), "errno": error.errno, "message": str(error)})
                    continue
                sender.add(reference)
        report = sender.send(more=False)
        run = Run(sender.mount, report)
        run.failed = failed + sender.failed
    if run.failed and on_error == "raise":
        run.cancel()
        first = run.failed[0]
        raise OSError(first["errno"], first["message"], first["path"])
    return run


def _as_groups(groups):
    groups = list(groups)
    if groups and all(isinstance(path, (str, bytes, os.PathLike)) for path in groups):
        return [groups]
    return groups


def _paths(group):
    return [group] if isinstance(group, (str, bytes, os.PathLike)) else list(group)


class _Sender:
    def __init__(self, groups):
        self.mount = next((path for group in groups for path in group), None)
        if self.mount is None:
            raise ValueError("no paths")
        # The first path may be the one that is missing.
        if not os.path.lexists(self.mount):
            self.mount = os.path.dirname(os.path.abspath(self.mount))
        self.connection = Connection(self.mount)
        self.run, self.failed = None, []
        self._clear()
        self.begins = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def _clear(self):
        self.files, self.sizes, self.bytes, self.joined = [], [], 0, False

    def begin_group(self):
        self.begins = True

    def add(self, reference):
        if self.files and (len(self.files) >= FILES_MAX or self.bytes >= PATH_BYTES_MAX):
            self.send(more=True)
        if not self.sizes:
            self.joined = not self.begins
        if self.begins or not self.sizes:
            self.sizes.append(0)
        self.begins = False
        self.sizes[-1] += 1
        self.files.append(reference)
        self.bytes += len(reference["path"])

    def send(self, more):
        request = {"files": self.files, "groups": self.sizes, "joined": self.joined, "more": more}
        if self.run is not None:
            request["run"] = self.run
        report = self.connection.call("run", **request)
        self.run = report["run"]
        self.failed += report["failed"]
        self._clear()
        return report


def flush(paths, wait=True, deadline=None):
    """Makes the data of files safe: copies what is only in memory to a persistent tier. `paths` is one path or several.

    With `wait` it returns when it is done, and raises an error for the first file that could not be made safe; without, the
    daemon does it by itself. Returns a dict with `files_done`, `bytes`, `at_risk_bytes`, ...
    """
    paths = _paths(paths)
    total = {"files_done": 0, "files_queued": 0, "bytes": 0, "at_risk_bytes": 0}
    if not paths:
        return total
    with Connection(paths[0]) as connection:
        for first in range(0, len(paths), FILES_MAX):
            files = [file_ref(path) for path in paths[first : first + FILES_MAX]]
            report = connection.call("flush", deadline=deadline, files=files, wait=wait)
            if report["failed"]:
                failed = report["failed"][0]
                raise OSError(failed["errno"], failed["message"], failed["path"])
            for key in total:
                total[key] += report[key]
    return total


def status(path):
    """Of the mount that `path` is on: tiers, movements, what is only in memory. As `onfs status --json`."""
    with Connection(path) as connection:
        return connection.call("status", deadline=30)


def file(path):
    """Where the data of a file are, and what would be lost now. As `onfs file --json`."""
    with Connection(path) as connection:
        return connection.call("file", deadline=30, file=file_ref(path))


def runs(path):
    """The runs of the mount that `path` is on, in the order in which they began."""
    with Connection(path) as connection:
        return connection.call("run-list", deadline=30)


def cancel(path, run):
    """Ends the run of this number on the mount that `path` is on."""
    with Connection(path) as connection:
        return connection.call("run-cancel", deadline=30, run=run)
