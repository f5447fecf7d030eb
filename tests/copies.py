#!/usr/bin/env python3
"""One file, two mounts, blocks that say which write they are of.

  copies.py FILE SAME-FILE-ELSEWHERE STOP-FILE

Writers on both mounts, each with blocks of its own; readers on both. Each word that is read was begun, and is not older than what was answered or read
before. Until STOP-FILE is there; then all is read once more on both, and the longest write and read are said. Any error ends it with 1."""

import contextlib, os, struct, sys, threading, time

BLOCK, BLOCKS, STRIDE = 4096, 32, 300_000
STARTED = time.monotonic()


@contextlib.contextmanager
def said(what):
    """What failed, since when, seconds after the start."""
    since = time.monotonic()
    try:
        yield
    except BaseException as error:
        now = time.monotonic()
        error.during = f"{what}, from {since - STARTED:.3f} s to {now - STARTED:.3f} s after the start ({time.strftime('%H:%M:%S', time.gmtime())} UTC)"
        raise


class Blocks:
    def __init__(self):
        self.begun, self.known = [0] * BLOCKS, [0] * BLOCKS
        self.lock = threading.Lock()
        self.longest = {"write": 0.0, "read": 0.0}
        self.counts = {"write": 0, "read": 0}

    def took(self, what, since):
        took = time.monotonic() - since
        with self.lock:
            self.longest[what] = max(self.longest[what], took)
            self.counts[what] += 1

    def heard(self, block, count):
        with self.lock:
            self.known[block] = max(self.known[block], count)

    def write(self, fd, block):
        self.begun[block] += 1
        count = self.begun[block]
        since = time.monotonic()
        with said(f"pwrite {count} of block {block} at {block * STRIDE}, fd {fd}"):
            written = os.pwrite(fd, struct.pack("<Q", block << 40 | count) * (BLOCK // 8), block * STRIDE)
        assert written == BLOCK, f"{written} bytes were written"
        self.took("write", since)
        self.heard(block, count)

    def read(self, fd, block):
        known, since = self.known[block], time.monotonic()
        with said(f"pread of block {block} at {block * STRIDE}, fd {fd}"):
            words = set(struct.iter_unpack("<Q", os.pread(fd, BLOCK, block * STRIDE)))
        begun = self.begun[block]
        self.took("read", since)
        if not words:
            assert known == 0, f"block {block} is behind the end, after {known} writes"
            return
        for (word,) in words:
            assert word == 0 or word >> 40 == block, f"block {block} has {word:x}"
            count = word & (1 << 40) - 1
            assert known <= count <= begun, f"block {block} reads {count}, not {known} to {begun}"
        # Of a write at the same time some may be seen (S-170), and nothing is known by that.
        if len(words) == 1:
            self.heard(block, count)


def main(first, other, stop):
    fds = [os.open(first, os.O_RDWR | os.O_CREAT), os.open(other, os.O_RDWR)]
    blocks, failed = Blocks(), []

    def until_stopped(act):
        try:
            n = 0
            while not os.path.exists(stop) and not failed:
                act(n)
                n += 1
        except BaseException as error:
            failed.append(error)

    def writer(which):
        mine = range(which, BLOCKS, 2)

        def act(n):
            blocks.write(fds[which], mine[n % len(mine)])
            if n % 50 == 0:
                with said(f"fsync of fd {fds[which]}"):
                    os.fsync(fds[which])

        return act

    acts = [writer(0), writer(1), *(lambda n, fd=fd: blocks.read(fd, n * 7 % BLOCKS) for fd in fds)]
    threads = [threading.Thread(target=until_stopped, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in failed:
        during = getattr(error, "during", f"at {time.monotonic() - STARTED:.3f} s")
        print(f"copies: {type(error).__name__}: {error}: {during}", flush=True)
    if failed:
        sys.exit(1)
    for fd in fds:
        for block in range(BLOCKS):
            blocks.read(fd, block)
    for what in ("write", "read"):
        print(f"{blocks.counts[what]} {what}s, the longest {blocks.longest[what]:.2f} s", flush=True)


main(*sys.argv[1:])
