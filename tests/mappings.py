#!/usr/bin/env python3
"""Mappings of files on mounts of a cluster: what programs on one client see, and what those on another do. First word: which; then the two mounts.

Another client is another process with the other mount; here one process stands for both, since the mounts know nothing of that."""
import errno, mmap, os, signal, subprocess, sys, time

PAGE = mmap.PAGESIZE


def until(what, seconds, holds):
    """Something that has a bound: how long it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, f"{what}: not within {seconds} s"
        time.sleep(0.005)
    return time.monotonic() - began


def child(code, *args):
    """Another program: its status, or minus the signal that ended it."""
    return subprocess.run([sys.executable, "-c", "import mmap, os, sys\n" + code, *map(str, args)]).returncode


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def pread(fd, length, offset):
    return os.pread(fd, length, offset)


def one_client(a, b):
    """Reads, writes and two mappings of one file see the same bytes, and the other client does after msync, munmap, fsync and close."""
    path, other = f"{a}/one", f"{b}/one"
    write(path, bytes(5 * PAGE))
    fd = os.open(path, os.O_RDWR)
    m, n = mmap.mmap(fd, 5 * PAGE), mmap.mmap(fd, 5 * PAGE, prot=mmap.PROT_READ)
    m[10:13] = b"abc"
    assert n[10:13] == b"abc" and pread(fd, 3, 10) == b"abc"
    for i in range(200):
        at = i * 97 % (5 * PAGE - 8)
        word = b"%08d" % i
        os.pwrite(fd, word, at)
        assert m[at:at + 8] == n[at:at + 8] == word, "a write is in the mappings"
        m[at:at + 8] = word[::-1]
        assert pread(fd, 8, at) == word[::-1] == n[at:at + 8], "a change of a mapping is read"
    m[0:5] = b"msync"
    m.flush()
    assert read(other)[:5] == b"msync"
    m[0:5] = b"fsync"
    os.fsync(fd)
    assert read(other)[:5] == b"fsync"
    m[0:5] = b"close"
    os.close(os.dup(fd))
    assert read(other)[:5] == b"close"
    m[PAGE:PAGE + 6] = b"munmap"
    os.close(fd)
    m.close()
    assert read(other)[PAGE:PAGE + 6] == b"munmap"
    assert n[PAGE:PAGE + 6] == b"munmap", "a mapping outlives the descriptor"
    n.close()
    assert os.stat(other).st_size == os.stat(path).st_size == 5 * PAGE


def beside(a, b):
    """A write that was answered is in the mappings, also where another program reads the same page of its mapping all the time."""
    path = f"{a}/beside"
    write(path, bytes(2 * PAGE))
    code = """
fd = os.open(sys.argv[1], os.O_RDONLY)
m = mmap.mmap(fd, 2 * mmap.PAGESIZE, prot=mmap.PROT_READ)
while m[mmap.PAGESIZE] != 255: pass
"""
    others = [subprocess.Popen([sys.executable, "-c", "import mmap, os, sys\n" + code, path]) for _ in range(2)]
    fd = os.open(path, os.O_RDWR)
    m = mmap.mmap(fd, 2 * PAGE, prot=mmap.PROT_READ)
    for i in range(2000):
        os.pwrite(fd, bytes([i % 255]), i % PAGE)
        assert m[i % PAGE] == i % 255, f"write {i}"
    os.pwrite(fd, b"\xff", PAGE)
    assert all(other.wait(30) == 0 for other in others)


def protections(a, b):
    """What is opened for reading alone is not mapped for writing, and a write takes set-id bits away with a mapping or without."""
    path = f"{a}/protected"
    write(path, bytes(PAGE))
    fd = os.open(path, os.O_RDONLY)
    try:
        mmap.mmap(fd, PAGE)
        raise AssertionError("mapped for writing")
    except PermissionError:
        pass
    private = mmap.mmap(fd, PAGE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    private[0:3] = b"own"
    assert read(path)[:3] == bytes(3)
    os.close(fd)


def cut(a, b):
    """Behind the end of a file that is cut, here or by another client, there is SIGBUS, and zeros where it ends within a page."""
    code = """
fd = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(fd, 4 * mmap.PAGESIZE)
assert m[3 * mmap.PAGESIZE] == 1
os.truncate(sys.argv[2], mmap.PAGESIZE + 100)
assert m[mmap.PAGESIZE + 99] == 1
assert m[mmap.PAGESIZE + 100] == 0, 'behind the end, in its page'
os.write(1, b'')
m[3 * mmap.PAGESIZE]
"""
    for n, by in enumerate([a, b]):
        write(f"{a}/cut{n}", b"\1" * 4 * PAGE)
        assert child(code, f"{a}/cut{n}", f"{by}/cut{n}") == -signal.SIGBUS, f"by {by}"
        assert os.stat(f"{b}/cut{n}").st_size == PAGE + 100


def others_write(a, b):
    """A mapping that was read shows what another client writes once that client was answered, or within a second while it has the file open."""
    path, other = f"{a}/others", f"{b}/others"
    write(path, b"0" * 3 * PAGE)
    fd = os.open(path, os.O_RDONLY)
    m = mmap.mmap(fd, 3 * PAGE, prot=mmap.PROT_READ)
    assert m[PAGE] == ord("0")
    time.sleep(1.2)  # The lease of a file that was just written.
    for i in range(1, 4):
        assert m[PAGE] == ord("0") + i - 1
        time.sleep(1.2)
        assert m[PAGE] == ord("0") + i - 1
        with open(other, "r+b", buffering=0) as f:
            # Opening it asked the pages back.
            f.seek(PAGE)
            f.write(b"%d" % i)
        until("a mapping follows", 1.5, lambda: m[PAGE] == ord("0") + i)
    longest = 0
    with open(other, "r+b", buffering=0) as f:
        for i in range(30):
            f.seek(2 * PAGE)
            f.write(b"%c" % (65 + i))
            longest = max(longest, until("while it is written", 1.5, lambda: m[2 * PAGE] == 65 + i))
    print(f"longest {longest:.3f} s")
    os.close(fd)


def dirty(a, b):
    """What was changed through a mapping is seen by a client that opens the file for writing."""
    path, other = f"{a}/dirty", f"{b}/dirty"
    for i in range(5):
        write(path, bytes(2 * PAGE))
        fd = os.open(path, os.O_RDWR)
        m = mmap.mmap(fd, 2 * PAGE)
        m[PAGE:PAGE + 5] = b"dirty"
        theirs = os.open(other, os.O_RDWR)
        # Another client had it open for writing at the same time: within the bound.
        until("what was changed is written", 1.5, lambda: pread(theirs, 5, PAGE) == b"dirty")
        os.pwrite(theirs, b"theirs", 0)
        until("what the other writes is mapped", 1.5, lambda: m[0:6] == b"theirs")
        os.close(theirs)
        m.close()
        os.close(fd)
        assert read(other)[:6] == b"theirs" and read(path)[PAGE:PAGE + 5] == b"dirty"


CELLS = [0, PAGE, 3 * PAGE + 8, 5 * PAGE]
SIZE = 6 * PAGE
# What is mapped may be so old while others have the file open for writing (S-242), on a busy machine.
OLD = 4.0


def reader(path, seconds, how):
    """Another program: reads cells for so long, and says when it read what. A number, -1: behind the end."""
    fd = os.open(path, os.O_RDONLY)
    end, (into, out) = time.monotonic() + float(seconds), os.pipe()
    m = mmap.mmap(fd, SIZE, prot=mmap.PROT_READ)
    view, n = memoryview(m), 0
    print("ready", flush=True)
    while time.monotonic() < end:
        cell, n = n % len(CELLS), n + 1
        began = time.monotonic()
        if how == "mapped":
            # The kernel reads it: no signal but an error where there is nothing.
            try:
                os.fstat(fd)
                at = CELLS[cell] + os.write(out, view[CELLS[cell]:CELLS[cell] + 8])
                got = os.read(into, 8) if at else b""
            except OSError as error:
                assert error.errno == 14, error
                got = b""
        else:
            got = os.pread(fd, 8, CELLS[cell])
        ended = time.monotonic()
        print(cell, int.from_bytes(got, "little") if len(got) == 8 else -1, began, ended)
        time.sleep(0.002)


def readers(a, b, seconds="12", seed="1"):
    """Programs on both clients read a file, mapped and not, while it is written and cut through both, with rests in which it is kept."""
    import random
    choose, path, seconds = random.Random(int(seed)), [f"{a}/read", f"{b}/read"], float(seconds)
    write(path[0], bytes(SIZE))
    programs = [
        (how, subprocess.Popen([sys.executable, __file__, "reader", at, str(seconds), how], stdout=subprocess.PIPE, text=True))
        for at in path for how in ("mapped", "read")
    ]
    assert all(program.stdout.readline() == "ready\n" for _, program in programs)
    # Of each cell: since when it may be there, until when it may be seen, and what.
    history, number, size = [[(0, 0)] for _ in CELLS], 0, SIZE
    ended = [[] for _ in CELLS]

    def change(cells, value, call):
        began = time.monotonic()
        call()
        done = time.monotonic()
        for cell in cells:
            ended[cell].append(done)
            history[cell].append((began, value))

    end = time.monotonic() + seconds
    held = None
    while time.monotonic() < end:
        at = choose.choice(path)
        number += 1
        kind = choose.random()
        if kind < 0.6:
            inside = [n for n, offset in enumerate(CELLS) if offset + 8 <= size]
            cell = choose.choice(inside)
            fd = os.open(at, os.O_WRONLY)
            change([cell], number, lambda: os.pwrite(fd, number.to_bytes(8, "little"), CELLS[cell]))
            os.close(fd)
        elif kind < 0.85:
            new = choose.choice([PAGE + 100, 2 * PAGE, SIZE])
            gone = [n for n, offset in enumerate(CELLS) if offset + 8 > new]
            back = [n for n, offset in enumerate(CELLS) if size < offset + 8 <= new]
            change(gone + back, None, lambda: os.truncate(at, new))
            for cell in gone:
                history[cell][-1] = (history[cell][-1][0], -1)
            for cell in back:
                history[cell][-1] = (history[cell][-1][0], 0)
            size = new
        elif held is None:
            held = os.open(at, os.O_WRONLY)
        else:
            os.close(held)
            held = None
        time.sleep(choose.choice([0, 0.01, 0.05, 0.3, 1.5]))
    counts = {}
    for how, program in programs:
        said, _ = program.communicate()
        assert program.returncode == 0, f"{how}: {program.returncode}"
        for line in said.splitlines():
            cell, value, began, done = line.split()
            cell, value, began, done = int(cell), int(value), float(began), float(done)
            since = began - (OLD if how == "mapped" else 0)
            right = [
                v for n, (from_, v) in enumerate(history[cell])
                if from_ <= done and (n >= len(ended[cell]) or ended[cell][n] >= since)
            ]
            assert value in right, f"{how}: cell {cell} is {value} at {began:.3f}, not one of {right}"
            counts[how] = counts.get(how, 0) + 1
    assert len(counts) == 2, counts
    print(f"{number} changes, {counts}")


def stopped(a, b, daemon):
    """The daemon of one client is stopped while its programs have mapped a file, and changed it: another client that writes it is not held up for
    long, and what both wrote is there when the daemon goes on."""
    path, other = f"{a}/stopped", f"{b}/stopped"
    write(path, bytes(2 * PAGE))
    fd = os.open(other, os.O_RDWR)
    m = mmap.mmap(fd, 2 * PAGE)
    m[0:4] = b"mine"
    assert m[PAGE] == 0
    os.kill(int(daemon), signal.SIGSTOP)
    try:
        began = time.monotonic()
        with open(path, "r+b", buffering=0) as f:
            f.seek(PAGE)
            f.write(b"theirs")
        print(f"{time.monotonic() - began:.1f} s for another to write")
        assert time.monotonic() - began < 20
        assert read(path)[PAGE:PAGE + 6] == b"theirs"
    finally:
        os.kill(int(daemon), signal.SIGCONT)
    until("what the other wrote is mapped", 20, lambda: m[PAGE:PAGE + 6] == b"theirs")
    m.flush()
    assert read(path)[:4] == b"mine" and read(path)[PAGE:PAGE + 6] == b"theirs"
    m.close()
    os.close(fd)


def refused(a, b):
    """Without leases."""
    path = f"{b}/refused"
    write(path, bytes(PAGE))
    fd = os.open(path, os.O_RDWR)
    try:
        mmap.mmap(fd, PAGE)
        raise AssertionError("it is mapped")
    except OSError as error:
        assert error.errno == errno.ENODEV, error
    assert mmap.mmap(fd, PAGE, flags=mmap.MAP_PRIVATE)[0] == 0


def away(a, b, kill, back):
    """A data server is killed (by the program `kill`) while a mapping is changed, and comes back: msync waits and carries all of it."""
    path = f"{a}/away"
    write(path, bytes(64 * PAGE))
    fd = os.open(path, os.O_RDWR)
    m = mmap.mmap(fd, 64 * PAGE)
    assert m[0] == 0
    subprocess.run([kill], check=True)
    coming = subprocess.Popen([back])
    for n in range(64):
        m[n * PAGE:n * PAGE + 4] = b"%04d" % n
    m.flush()
    assert coming.wait() == 0
    got = read(f"{b}/away")
    assert all(got[n * PAGE:n * PAGE + 4] == b"%04d" % n for n in range(64))
    os.close(fd)


def sqlite(a, b):
    """A database in WAL mode, whose index is a shared mapping, by several programs of one client; another client reads it then."""
    import sqlite3
    path = f"{a}/db"
    code = """
import sqlite3
c = sqlite3.connect(sys.argv[1], timeout=60)
for i in range(int(sys.argv[3])):
    with c:
        c.execute('INSERT INTO t VALUES (?, ?)', (sys.argv[2], i))
"""
    c = sqlite3.connect(path, timeout=60)
    assert c.execute("PRAGMA journal_mode=WAL").fetchone()[0] == "wal"
    c.execute("CREATE TABLE t (who, n)")
    c.commit()
    each = 40
    programs = [subprocess.Popen([sys.executable, "-c", "import mmap, os, sys\n" + code, path, str(n), str(each)]) for n in range(3)]
    assert all(p.wait() == 0 for p in programs)
    assert c.execute("SELECT count(*), count(DISTINCT who), max(n) FROM t").fetchone() == (3 * each, 3, each - 1)
    assert c.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    c.close()
    assert not os.path.exists(path + "-wal")
    c = sqlite3.connect(f"{b}/db", timeout=60)
    assert c.execute("SELECT count(*) FROM t").fetchone()[0] == 3 * each
    c.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
