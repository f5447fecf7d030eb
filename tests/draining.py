#!/usr/bin/env python3
"""draining.py A B STOP: works on files of a cluster from two mounts until the file STOP is there, and checks all that was answered.

A change that was under way when the metadata server was killed may end with EIO (S-176): it is made again.

Two workers, one on each mount, have files of their own: they write pieces that say where they are, append, cut and lengthen, and read back
what they know, through the other mount too. One file has no name any more, and is open. Ends with an error at the first byte that is wrong."""

import errno
import os
import random
import sys
import threading
import time

A, B, STOP = sys.argv[1:4]
FILES = 4
PIECE = 4096
UNIT = 4 << 20


def piece(worker, file, offset, turn):
    """Bytes that say whose and where they are."""
    line = f"{worker} {file} {offset:012d} {turn:08d}|".encode()
    return (line * (PIECE // len(line) + 1))[:PIECE]


class Worker(threading.Thread):
    def __init__(self, number, own, other):
        super().__init__()
        self.number, self.own, self.other = number, own, other
        self.random = random.Random(number)
        self.turns, self.errors, self.error = 0, 0, None

    def run(self):
        try:
            self.work()
        except BaseException as error:  # pylint: disable=broad-except
            self.error = error

    def name(self, file):
        return f"drain-{self.number}-{file}"

    def work(self):
        self.models = [bytearray() for _ in range(FILES)]
        self.fds = [os.open(f"{self.own}/{self.name(n)}", os.O_RDWR | os.O_CREAT) for n in range(FILES)]
        self.log, self.lines = os.open(f"{self.own}/{self.name('log')}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), []
        hidden = f"{self.own}/{self.name('hidden')}"
        self.hidden = os.open(hidden, os.O_RDWR | os.O_CREAT)
        os.pwrite(self.hidden, piece(self.number, "hidden", 0, 0) * 500, UNIT - 100_000)
        os.unlink(hidden)
        while not os.path.exists(STOP) or self.turns < 20:
            self.turn()
        for file in range(FILES):
            self.check(file, self.other)
            os.fsync(self.fds[file])
        self.check_log()
        want = bytes(UNIT - 100_000) + piece(self.number, "hidden", 0, 0) * 500
        assert self.all_of(self.hidden) == want, "the file without a name"

    def turn(self):
        self.turns += 1
        file = self.random.randrange(FILES)
        model, fd = self.models[file], self.fds[file]
        offset = self.random.randrange(3 * UNIT // PIECE) * PIECE + self.random.choice([0, 0, 1234])
        bytes_ = piece(self.number, file, offset, self.turns)
        assert os.pwrite(fd, bytes_, offset) == PIECE
        if len(model) < offset + PIECE:
            model.extend(bytes(offset + PIECE - len(model)))
        model[offset:offset + PIECE] = bytes_
        line = f"{self.number} {self.turns:08d}\n"
        # A range that was given and not written is a hole.
        assert self.again(lambda: os.write(self.log, line.encode())) == len(line)
        self.lines.append(line)
        if self.turns % 13 == 0:
            size = self.random.randrange(3 * UNIT)
            self.again(lambda: os.ftruncate(fd, size))
            del model[size:]
            model.extend(bytes(size - len(model)))
        if self.turns % 7 == 0:
            assert os.fstat(fd).st_size == len(model), f"{self.name(file)}: its size"
            assert os.pread(fd, PIECE, offset) == bytes(model[offset:offset + PIECE]), f"{self.name(file)} at {offset}"
        if self.turns % 50 == 0:
            self.check(file, self.other)

    def again(self, change):
        try:
            return change()
        except OSError as error:
            self.errors += 1
            if error.errno != errno.EIO or self.errors > 2:
                raise
            return change()

    def all_of(self, fd):
        out, size = b"", os.fstat(fd).st_size
        while len(out) < size:
            more = os.pread(fd, 1 << 20, len(out))
            assert more, f"it ends at {len(out)} of {size}"
            out += more
        return out

    def check(self, file, mount):
        fd = os.open(f"{mount}/{self.name(file)}", os.O_RDONLY)
        there, want = self.all_of(fd), bytes(self.models[file])
        os.close(fd)
        if there != want:
            at = next((n for n, (a, b) in enumerate(zip(there, want)) if a != b), min(len(there), len(want)))
            raise AssertionError(
                f"{self.name(file)}: {len(there)} for {len(want)} bytes, other at {at}: {there[at:at + 40]} for {want[at:at + 40]}")

    def check_log(self):
        with open(f"{self.other}/{self.name('log')}", encoding="ascii") as log:
            assert log.read().replace("\0", "") == "".join(self.lines), "the log"


began = time.monotonic()
workers = [Worker(1, A, B), Worker(2, B, A)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
for worker in workers:
    if worker.error:
        raise worker.error
print(f"{sum(worker.turns for worker in workers)} turns in {time.monotonic() - began:.1f} s")
# Again, when the test says so: the node is off.
for line in sys.stdin:
    for worker in workers:
        for number in range(FILES):
            worker.check(number, worker.own)
            worker.check(number, worker.other)
        worker.check_log()
        assert os.fstat(worker.hidden).st_size > 0 and worker.all_of(worker.hidden)
    print("all there", flush=True)
