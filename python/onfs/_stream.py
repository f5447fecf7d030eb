"""Paths in the order of a loop, with what follows coming up meanwhile."""

import itertools
import os
import warnings

from ._calls import _as_groups, _paths, prefetch
from ._control import OnfsError


class Prefetcher:
    """Iterates over paths while the daemon brings the following group up.

    `groups` is an iterable of groups of paths, or of paths, which are put together to groups of `group_size`. Each iteration over
    it is one run (an epoch, say). Reading goes on without the daemon's help if it cannot give any, with a warning, unless
    `strict` is set.
    """

    def __init__(self, groups, group_size=16, strict=False):
        self.groups = [_paths(group) for group in _as_groups(_cut(groups, group_size))]
        self.strict = strict
        #: The run of the last iteration; None where there is none.
        self.run = None

    def __len__(self):
        return sum(map(len, self.groups))

    def __iter__(self):
        self.run = run = self._begin()
        try:
            for group in self.groups:
                yield from group
        finally:
            if run is not None:
                self._end(run)

    def _begin(self):
        if not len(self):
            return None
        try:
            return prefetch(self.groups, on_error="raise" if self.strict else "skip")
        except OSError as error:
            if self.strict:
                raise
            warnings.warn(f"files are read without being brought up before: {error}", stacklevel=3)
            return None

    @staticmethod
    def _end(run):
        # Also when the loop was left early: nothing more is wanted.
        try:
            run.cancel()
        except OnfsError:
            pass


def _cut(groups, size):
    groups = list(groups)
    if not groups or not all(isinstance(path, (str, bytes, os.PathLike)) for path in groups):
        return groups
    paths = iter(groups)
    return list(iter(lambda: list(itertools.islice(paths, size)), []))


def stream(groups, group_size=16, strict=False):
    """`for path in onfs.stream(groups): ...`; see `Prefetcher`."""
    return iter(Prefetcher(groups, group_size, strict))
