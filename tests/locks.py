#!/usr/bin/env python3
"""Locks between two mounts of one cluster, as programs take them: locks.py CASE A B, with a directory on each mount.

Each holder is a process of its own that is told what to do, so that who waits, is woken, signalled or killed is one of them. A case
ends with an exception if something is not so. Waiting is bounded by the suite that runs this."""

import errno
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import time

F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
FLOCK = "hhqqi4x"
KINDS = {"r": fcntl.F_RDLCK, "w": fcntl.F_WRLCK, "u": fcntl.F_UNLCK}


def flock_struct(kind, start, length):
    return struct.pack(FLOCK, KINDS[kind], os.SEEK_SET, start, length, 0)


def take(fd, how, kind, wait, start, length):
    """One lock, in the way of one of the three calls."""
    if how == "flock":
        flags = {"r": fcntl.LOCK_SH, "w": fcntl.LOCK_EX, "u": fcntl.LOCK_UN}[kind]
        fcntl.flock(fd, flags | (0 if wait else fcntl.LOCK_NB))
    else:
        calls = (fcntl.F_SETLK, fcntl.F_SETLKW) if how == "fcntl" else (F_OFD_SETLK, F_OFD_SETLKW)
        fcntl.fcntl(fd, calls[wait], flock_struct(kind, start, length))


class Interrupted(Exception):
    pass


def interrupted(*_):
    # Without an exception Python would make the call again.
    raise Interrupted


def hold(path):
    """Reads lines "HOW KIND WAIT START LENGTH", "open", "open PATH", "close N", "find KIND", "alarm S", "fork", and says what came of each."""
    fds = [os.open(path, os.O_RDWR | os.O_CREAT, 0o644)]
    for number in (signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, interrupted)
    for line in sys.stdin:
        words = line.split()
        try:
            if words[0] == "open":
                fds.append(os.open(words[1] if len(words) > 1 else path, os.O_RDWR))
            elif words[0] == "close":
                os.close(fds[int(words[1])])
            elif words[0] == "alarm":
                signal.alarm(int(words[1]))
            elif words[0] == "fork":
                if os.fork() == 0:
                    time.sleep(3600)
            elif words[0] == "find":
                found = fcntl.fcntl(fds[0], fcntl.F_GETLK, flock_struct(words[1], 0, 0))
                kind, _, start, length, pid = struct.unpack(FLOCK, found)
                print("found", "rwu"[kind], start, length, pid, flush=True)
                continue
            else:
                how, kind, wait, start, length = words
                take(fds[-1], how, kind, wait == "wait", int(start), int(length))
            print("ok", flush=True)
        except Interrupted:
            print("EINTR", flush=True)
        except OSError as error:
            name = errno.errorcode[error.errno]
            print({"EDEADLOCK": "EDEADLK"}.get(name, name), flush=True)


class Holder:
    def __init__(self, path):
        command = [sys.executable, __file__, "hold", path]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        Holder.all.append(self)

    all = []

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().strip()

    def ask(self, line):
        self.say(line)
        return self.answer()

    def end(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        self.process.wait()


def expect(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: {got!r}, and not {wanted!r}")


def until(what, ask, wanted):
    while (got := ask()) != wanted:
        print(f"{what}: {got}", file=sys.stderr)
        time.sleep(0.1)


def now(how, kind, start=0, length=0):
    return f"{how} {kind} now {start} {length}"


def wait(how, kind, start=0, length=0):
    return f"{how} {kind} wait {start} {length}"


def exclusion(a, b):
    for how in ("fcntl", "ofd", "flock"):
        one, two = Holder(f"{a}/{how}"), Holder(f"{b}/{how}")
        expect("shared", (one.ask(now(how, "r")), two.ask(now(how, "r"))), ("ok", "ok"))
        expect("exclusive beside shared", one.ask(now(how, "w")), "EAGAIN")
        if how == "flock":
            # It changes its kind by giving up first.
            expect("the only one left", two.ask(now(how, "w")), "ok")
        else:
            expect("given up", two.ask(now(how, "u")), "ok")
            expect("alone", one.ask(now(how, "w")), "ok")
            expect("looked for", two.ask("find w").split()[:4], ["found", "w", "0", "0"])
            expect("shared beside exclusive", two.ask(now(how, "r")), "EAGAIN")
            expect("a part", one.ask(now(how, "u", 10, 10)), "ok")
            expect("that part", two.ask(now(how, "w", 10, 10)), "ok")
            expect("more than that", two.ask(now(how, "w", 10, 11)), "EAGAIN")
        one.end()
        until("the first one's locks are gone", lambda: two.ask(now(how, "w")), "ok")
        two.end()
    # Flock and fcntl do not see each other.
    one, two = Holder(f"{a}/both"), Holder(f"{b}/both")
    expect("both", (one.ask(now("fcntl", "w")), two.ask(now("flock", "w"))), ("ok", "ok"))


def waiting(a, b):
    for how in ("fcntl", "ofd", "flock"):
        one, two, three = Holder(f"{a}/w{how}"), Holder(f"{b}/w{how}"), Holder(f"{a}/w{how}")
        expect("the first", one.ask(now(how, "w")), "ok")
        two.say(wait(how, "w"))
        # Whoever comes first is served first.
        time.sleep(0.5)
        three.say(wait(how, "r"))
        time.sleep(0.5)
        expect("given up", one.ask(now(how, "u")), "ok")
        expect("woken", two.answer(), "ok")
        expect("still there", one.ask(now(how, "r")), "EAGAIN")
        two.end()
        expect("woken by an end", three.answer(), "ok")
        one.end()
        three.end()


def counter(a, b):
    """Many processes on both mounts count in one file under a lock: no number is lost."""
    rounds, path = 25, [f"{a}/count", f"{b}/count"]
    with open(path[0], "w") as count:
        count.write("0")
    for how in ("fcntl", "flock"):
        children = []
        for n in range(4):
            if (pid := os.fork()) == 0:
                for _ in range(rounds):
                    fd = os.open(path[n % 2], os.O_RDWR)
                    take(fd, how, "w", True, 0, 0)
                    value = int(os.pread(fd, 20, 0)) + 1
                    os.pwrite(fd, str(value).encode(), 0)
                    if n < 2:
                        take(fd, how, "u", True, 0, 0)
                    # Of the others their close gives it up.
                    os.close(fd)
                os._exit(0)
            children.append(pid)
        for pid in children:
            expect("a child", os.waitpid(pid, 0)[1], 0)
    expect("all are counted", open(path[1]).read(), str(8 * rounds))


def interruption(a, b):
    for how in ("fcntl", "ofd", "flock"):
        one, two = Holder(f"{a}/i{how}"), Holder(f"{b}/i{how}")
        expect("the first", one.ask(now(how, "w")), "ok")
        expect("set", two.ask("alarm 1"), "ok")
        expect("an alarm", two.ask(wait(how, "w")), "EINTR")
        two.say(wait(how, "w"))
        time.sleep(0.3)
        two.process.send_signal(signal.SIGUSR1)
        expect("a signal", two.answer(), "EINTR")
        # What was interrupted does not get it later.
        expect("given up", one.ask(now(how, "u")), "ok")
        expect("again", one.ask(now(how, "w")), "ok")
        # And who is killed while he waits goes at once.
        two.say(wait(how, "w"))
        time.sleep(0.3)
        two.end()
        expect("given up", one.ask(now(how, "u")), "ok")
        third = Holder(f"{b}/i{how}")
        until("nobody is left", lambda: third.ask(now(how, "w")), "ok")
        one.end()
        third.end()


def deadlock(a, b):
    one, two = Holder(f"{a}/dead"), Holder(f"{b}/dead")
    expect("both", (one.ask(now("fcntl", "w", 0, 1)), two.ask(now("fcntl", "w", 1, 1))), ("ok", "ok"))
    one.say(wait("fcntl", "w", 1, 1))
    # The circle is closed by whoever comes last, so it is seen whether the first one waits already or not.
    two.say(wait("fcntl", "w", 0, 1))
    time.sleep(0.5)
    ready = select.select([one.process.stdout, two.process.stdout], [], [], 20)[0]
    expect("one of them", len(ready), 1)
    told, other = (one, two) if ready[0] is one.process.stdout else (two, one)
    expect("is told", told.answer(), "EDEADLK")
    told.end()
    expect("and the other goes on", other.answer(), "ok")


def over_servers(a, b):
    """The directories d1 and d2 are of different metadata servers."""
    first, second = [f"{a}/over", f"{b}/over"], [f"{a}/../d2/over", f"{b}/../d2/over"]
    one, two = Holder(first[0]), Holder(second[1])
    expect("both", (one.ask(now("fcntl", "w")), two.ask(now("fcntl", "w"))), ("ok", "ok"))
    expect("opened", (one.ask(f"open {second[0]}"), two.ask(f"open {first[1]}")), ("ok", "ok"))
    one.say(wait("fcntl", "w"))
    two.say(wait("fcntl", "w"))
    ready = select.select([one.process.stdout, two.process.stdout], [], [])[0]
    expect("one of them", len(ready), 1)
    told, other = (one, two) if ready[0] is one.process.stdout else (two, one)
    expect("is told", told.answer(), "EDEADLK")
    told.end()
    expect("and the other goes on", other.answer(), "ok")


def closing(a, b):
    # A process's locks go with any of its descriptors.
    one, two = Holder(f"{a}/close"), Holder(f"{b}/close")
    expect("opened", one.ask("open"), "ok")
    expect("locked", one.ask(now("fcntl", "w")), "ok")
    expect("the other one closed", one.ask("close 0"), "ok")
    expect("it is free at once", two.ask(now("fcntl", "w")), "ok")
    expect("given up", two.ask(now("fcntl", "u")), "ok")
    one.end()
    for how in ("ofd", "flock"):
        # A description's go with its last descriptor, and a child has one.
        one = Holder(f"{a}/close")
        expect("locked", one.ask(now(how, "w")), "ok")
        expect("forked", one.ask("fork"), "ok")
        children = open(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read().split()
        one.end()
        expect("the child has it", two.ask(now(how, "w")), "EAGAIN")
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        until("it is free", lambda: two.ask(now(how, "w")), "ok")
        expect("given up", two.ask(now(how, "u")), "ok")


def keep(a, b):
    """Has locks on A until it is told to go on (a line on standard input); then nobody got them on B meanwhile, and all works on."""
    one, other = Holder(f"{a}/kept"), Holder(f"{a}/kept")
    two, three = Holder(f"{b}/kept"), Holder(f"{b}/kept")
    expect("locked", (one.ask(now("fcntl", "w", 0, 10)), other.ask(now("ofd", "w", 20, 10))), ("ok", "ok"))
    expect("flocked", one.ask(now("flock", "r")), "ok")
    three.say(wait("fcntl", "w", 0, 5))
    print("has", flush=True)
    sys.stdin.readline()
    expect("still", (two.ask(now("fcntl", "r", 5, 1)), two.ask(now("ofd", "w", 29, 1))), ("EAGAIN", "EAGAIN"))
    expect("flock", (two.ask(now("flock", "w")), two.ask(now("flock", "r"))), ("EAGAIN", "ok"))
    expect("beside them", two.ask(now("fcntl", "w", 10, 10)), "ok")
    expect("given up", one.ask(now("fcntl", "u")), "ok")
    expect("who waited gets it", three.answer(), "ok")


def until_free(a, b):
    """Locks on B what somebody on A has, and waits for it."""
    two = Holder(f"{b}/killed")
    expect("locked", two.ask(wait("fcntl", "w")), "ok")
    expect("flocked", two.ask(wait("flock", "w")), "ok")


def has(a, b):
    one = Holder(f"{a}/killed")
    expect("locked", (one.ask(now("fcntl", "w")), one.ask(now("flock", "w"))), ("ok", "ok"))
    print("has", flush=True)
    sys.stdin.readline()


def away(a, b):
    """The server is away: a lock is an error in time, and a program that waits can be interrupted."""
    one = Holder(f"{a}/away")
    two = Holder(f"{a}/away")
    print("has", flush=True)
    expect("locked", one.ask(now("fcntl", "w")), "ok")
    two.say(wait("fcntl", "w"))
    time.sleep(0.5)
    print("waits", flush=True)
    sys.stdin.readline()
    two.process.send_signal(signal.SIGUSR1)
    expect("a signal", two.answer(), "EINTR")
    expect("an error in time", two.ask(now("fcntl", "w", 3, 1)), "EIO")
    print("told", flush=True)
    sys.stdin.readline()
    until("all goes on", lambda: one.ask(now("fcntl", "w", 1, 1)), "ok")
    expect("its lock is its", two.ask(now("fcntl", "w", 0, 1)), "EAGAIN")
    one.end()
    until("and it is free", lambda: two.ask(now("fcntl", "w")), "ok")


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        hold(sys.argv[2])
    else:
        try:
            globals()[sys.argv[1]](sys.argv[2], sys.argv[3])
        finally:
            for holder in Holder.all:
                holder.process.kill()
