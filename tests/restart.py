#!/usr/bin/env python3
"""Programs of tests/restart that must not notice that the daemon under them is another one.

    restart.py PART DIR GO    works in DIR until the file GO is gone; ends with 0 if everything was as it should be
    restart.py held DIR       opens and locks all kinds of things; for each line on standard input it looks at them
    restart.py lost DIR       has files open and one locked; at a line on standard input the lock is to be lost, and nothing else
    restart.py unanswered DIR makes one change of each kind, all at once, and looks whether each was made once; each step at a line on standard input
"""
import ctypes
import errno
import fcntl
import mmap
import os
import random
import struct
import subprocess
import sys
import threading


# Can files be mapped so?
SHARED = os.environ.get("RESTART_SHARED", "yes") == "yes"


def rounds(go):
    number = 0
    while os.path.exists(go):
        number += 1
        yield number
    assert number > 0


def write(dir, go):
    """A block at a time, each says what it is; all are read again now and then."""
    blocks, have = 256, {}
    with open(f"{dir}/written", "w+b", buffering=0) as file:
        for n in rounds(go):
            at = random.randrange(blocks)
            block = struct.pack("<QQ", at, n) * 256
            assert os.pwrite(file.fileno(), block, at * 4096) == 4096
            have[at] = block
            look = random.choice(list(have))
            assert os.pread(file.fileno(), 4096, look * 4096) == have[look], look
            if n % 50 == 0:
                os.fsync(file.fileno())
        for at, block in have.items():
            assert os.pread(file.fileno(), 4096, at * 4096) == block, at


def append(dir, go):
    with open(f"{dir}/appended", "ab", buffering=0) as file:
        for n in rounds(go):
            assert file.write(struct.pack("<Q", n) * 16) == 128
    lines = open(f"{dir}/appended", "rb").read()
    assert len(lines) == n * 128, (len(lines), n)
    assert all(lines[i * 128:i * 128 + 8] == struct.pack("<Q", i + 1) for i in range(n))


def names(dir, go):
    """What is not to be done twice: each ends as it must, never with EEXIST or ENOENT for the wrong reason."""
    base = f"{dir}/names"
    os.mkdir(base)
    for n in rounds(go):
        a, b = f"{base}/a{n}", f"{base}/b{n}"
        os.close(os.open(a, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        os.link(a, b)
        assert os.stat(b).st_nlink == 2
        os.unlink(a)
        os.rename(b, a)
        os.symlink("x", b)
        assert os.readlink(b) == "x"
        os.unlink(b)
        os.mknod(b)
        os.unlink(b)
        try:
            os.unlink(b)
            raise AssertionError("removed twice")
        except FileNotFoundError:
            pass
        os.unlink(a)
        assert os.listdir(base) == []


def dirs(dir, go):
    base = f"{dir}/dirs"
    os.mkdir(base)
    for n in rounds(go):
        os.mkdir(f"{base}/d")
        os.mkdir(f"{base}/d/e")
        os.rename(f"{base}/d/e", f"{base}/e")
        try:
            os.mkdir(f"{base}/e")
            raise AssertionError("made twice")
        except FileExistsError:
            pass
        os.rmdir(f"{base}/d")
        os.rmdir(f"{base}/e")


def attributes(dir, go):
    path = f"{dir}/attributes"
    open(path, "w").close()
    for n in rounds(go):
        value = str(n).encode()
        os.setxattr(path, "user.n", value, os.XATTR_CREATE)
        assert os.getxattr(path, "user.n") == value
        try:
            os.setxattr(path, "user.n", b"other", os.XATTR_CREATE)
            raise AssertionError("made twice")
        except FileExistsError:
            pass
        os.removexattr(path, "user.n")
        os.chmod(path, 0o600 + n % 8)
        assert os.stat(path).st_mode & 0o777 == 0o600 + n % 8


def mapped(dir, go):
    with open(f"{dir}/mapped", "w+b") as file:
        file.truncate(1 << 20)
        with mmap.mmap(file.fileno(), 1 << 20) as area:
            have = {}
            for n in rounds(go):
                at = random.randrange(1 << 17) * 8
                area[at:at + 8] = struct.pack("<Q", n)
                have[at] = n
                if n % 200 == 0:
                    area.flush()
                look = random.choice(list(have))
                assert struct.unpack("<Q", area[look:look + 8])[0] == have[look]
            area.flush()
        for at, n in have.items():
            assert os.pread(file.fileno(), 8, at) == struct.pack("<Q", n)


def count(dir, go):
    """Two programs count in one file, each step under a lock, with a descriptor that stays open and with new ones."""
    path = f"{dir}/count"
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", 0))
    children = []
    for new in (False, True):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            file, steps = os.open(path, os.O_RDWR), 0
            for _ in rounds(go):
                if new:
                    os.close(file)
                    file = os.open(path, os.O_RDWR)
                fcntl.lockf(file, fcntl.LOCK_EX)
                n, = struct.unpack("<Q", os.pread(file, 8, 0))
                os.pwrite(file, struct.pack("<Q", n + 1), 0)
                steps += 1
                if not new:
                    fcntl.lockf(file, fcntl.LOCK_UN)
            os.write(write, struct.pack("<Q", steps))
            os._exit(0)
        os.close(write)
        children.append((pid, read))
    steps = 0
    for pid, read in children:
        assert os.waitpid(pid, 0)[1] == 0
        steps += struct.unpack("<Q", os.read(read, 8))[0]
    with open(path, "rb") as file:
        assert struct.unpack("<Q", file.read()) == (steps,), steps


def is_locked(path, how):
    """By others, as another process sees it."""
    test = f"""import fcntl, sys
file = open({path!r}, "r+")
try:
    fcntl.{how}(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(7)"""
    return subprocess.run([sys.executable, "-c", test]).returncode == 7


def held(dir):
    os.makedirs(f"{dir}/many")
    for n in range(2000):
        open(f"{dir}/many/{n}", "w").close()
    reader = open(f"{dir}/read", "w+b", buffering=0)
    reader.write(b"0123456789" * 100_000)
    reader.close()
    reader = open(f"{dir}/read", "rb", buffering=0)
    assert reader.read(15) == b"012345678901234"
    appender = open(f"{dir}/append", "ab", buffering=0)
    appender.write(b"first")
    removed = open(f"{dir}/removed", "w+b", buffering=0)
    removed.write(b"still here")
    os.unlink(f"{dir}/removed")
    unnamed = os.open(dir, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(unnamed, b"no name")
    locked = open(f"{dir}/locked", "w+")
    fcntl.lockf(locked, fcntl.LOCK_EX)
    flocked = open(f"{dir}/flocked", "w+")
    fcntl.flock(flocked, fcntl.LOCK_EX)
    in_place = open(f"{dir}/read", "rb")
    area = mmap.mmap(in_place.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED if SHARED else mmap.MAP_PRIVATE)
    in_place.close()
    stores = open(f"{dir}/stores", "w+b")
    stores.truncate(1 << 20)
    shared = mmap.mmap(stores.fileno(), 1 << 20) if SHARED else None
    listing = os.scandir(f"{dir}/many")
    seen = [next(listing).name for _ in range(700)]
    print("ok", flush=True)
    n = 0
    for _ in sys.stdin:
        n += 1
        assert reader.read(10) == (b"5678901234" if n == 1 else b"5678901234")
        assert reader.tell() == 15 + 10 * n
        appender.write(b"+more")
        assert open(f"{dir}/append", "rb").read() == b"first" + b"+more" * n
        removed.seek(0)
        assert removed.read() == b"still here" + b"!" * (n - 1)
        removed.write(b"!")
        assert os.fstat(removed.fileno()).st_nlink == 0
        assert os.pread(unnamed, 7, 0) == b"no name"
        assert is_locked(f"{dir}/locked", "lockf") and is_locked(f"{dir}/flocked", "flock")
        assert area[500_000:500_010] == b"0123456789"
        if shared:
            shared[4096 * n:4096 * n + 4] = b"data"
            shared.flush()
            assert os.pread(stores.fileno(), 4, 4096 * n) == b"data"
        seen += [entry.name for _, entry in zip(range(300), listing)]
        print("ok", flush=True)
    seen += [entry.name for entry in listing]
    assert sorted(seen, key=int) == [str(n) for n in range(2000)], len(seen)
    fcntl.lockf(locked, fcntl.LOCK_UN)
    fcntl.flock(flocked, fcntl.LOCK_UN)
    assert not is_locked(f"{dir}/locked", "lockf") and not is_locked(f"{dir}/flocked", "flock")
    subprocess.run(["ln", "-L", f"/proc/{os.getpid()}/fd/{unnamed}", f"{dir}/named"], check=True)
    assert open(f"{dir}/named", "rb").read() == b"no name"


def lock_is_lost(locked):
    """Who believes in it is told, and may lock anew through another descriptor."""
    try:
        locked.write(b"as if it were locked")
        raise AssertionError("its lock is not known any more")
    except OSError as error:
        assert error.errno == errno.EIO, error
    locked.close()
    with open(locked.name, "r+b", buffering=0) as again:
        fcntl.lockf(again, fcntl.LOCK_EX)
        again.write(b"locked again")


def lost(dir):
    """A server that is started anew does not know of locks that nobody brings it."""
    file = open(f"{dir}/file", "w+b", buffering=0)
    file.write(b"written")
    os.fsync(file.fileno())
    removed = open(f"{dir}/removed", "w+b", buffering=0)
    removed.write(b"still here")
    os.fsync(removed.fileno())
    os.unlink(f"{dir}/removed")
    locked = open(f"{dir}/locked", "w+b", buffering=0)
    fcntl.lockf(locked, fcntl.LOCK_EX)
    print("ok", flush=True)
    for _ in sys.stdin:
        assert os.pread(file.fileno(), 7, 0) == b"written"
        assert os.pread(removed.fileno(), 10, 0) == b"still here"
        assert os.fstat(removed.fileno()).st_nlink == 0
        lock_is_lost(locked)
        print("ok", flush=True)


def is_told(file):
    """Once."""
    try:
        os.fsync(file.fileno())
        raise AssertionError("what was answered is lost, and fsync does not say so")
    except OSError as error:
        assert error.errno == errno.EIO, error
    os.fsync(file.fileno())


def unsynced(dir):
    """The data server loses what it answered, and another daemon is asked whether it is durable."""
    files = [open(f"{dir}/{name}", "w+b", buffering=0) for name in ("synced", "unsynced", "told")]
    for file in files:
        file.write(b"w" * 1_000_000)
    os.fsync(files[0].fileno())
    print("ok", flush=True)
    synced, first, second = files
    sys.stdin.readline()
    os.fsync(synced.fileno())
    assert os.pread(synced.fileno(), 1_000_001, 0) == b"w" * 1_000_000
    is_told(first)
    # The daemon hears of it here (far behind what is lost), and another one is asked.
    os.pwrite(second.fileno(), b"w" * 4096, 1 << 28)
    print("ok", flush=True)
    sys.stdin.readline()
    is_told(second)
    for file in files:
        os.ftruncate(file.fileno(), 0)
        os.pwrite(file.fileno(), b"n" * 1_000_000, 0)
        os.fsync(file.fileno())
        assert os.pread(file.fileno(), 1_000_000, 0) == b"n" * 1_000_000
    print("ok", flush=True)


def given_up(dir):
    """The session is given up while no daemon serves: files go on, locks are lost, and what was removed may be gone."""
    file = open(f"{dir}/file", "w+b", buffering=0)
    file.write(b"written")
    os.fsync(file.fileno())
    removed = open(f"{dir}/removed", "w+b", buffering=0)
    removed.write(b"still here")
    os.unlink(f"{dir}/removed")
    locked = open(f"{dir}/locked", "w+b", buffering=0)
    fcntl.lockf(locked, fcntl.LOCK_EX)
    print("ok", flush=True)
    sys.stdin.readline()
    assert os.pread(file.fileno(), 7, 0) == b"written"
    os.pwrite(file.fileno(), b"more", 7)
    os.fsync(file.fileno())
    try:
        assert os.pread(removed.fileno(), 10, 0) == b"still here"
    except OSError as error:
        assert error.errno in (errno.EIO, errno.ESTALE), error
    lock_is_lost(locked)
    os.mkdir(f"{dir}/made")
    with open(f"{dir}/file", "rb") as again:
        assert again.read() == b"writtenmore"
    print("ok", flush=True)


LIBC = ctypes.CDLL(None, use_errno=True)
RENAME_EXCHANGE = 2
FALLOC_FL_PUNCH_HOLE_KEEP_SIZE = 3


def checked(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def exchange(a, b):
    checked(LIBC.renameat2(-100, a.encode(), -100, b.encode(), RENAME_EXCHANGE))


def punch(file, at, length):
    checked(LIBC.fallocate(file, FALLOC_FL_PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(at), ctypes.c_long(length)))


def content(path):
    with open(path, "rb") as file:
        return file.read()


def absent(path):
    try:
        os.lstat(path)
        return False
    except FileNotFoundError:
        return True


def changes(dir):
    """Pairs of a change and what has to be so after it was made once. Each works in a directory of its own, whose kernel lock it holds."""
    def empty(at):
        os.makedirs(f"{dir}/{at}", exist_ok=True)
        # No directory on the way is looked up before the change.
        return f"/proc/self/fd/{os.open(f'{dir}/{at}', os.O_PATH | os.O_DIRECTORY)}"

    def file(at, name, data=b""):
        path = f"{empty(at)}/{name}"
        with open(path, "wb") as made:
            made.write(data)
        return path

    d = empty("mkdir")
    yield lambda d=d: os.mkdir(f"{d}/x"), lambda d=d: os.listdir(d) == ["x"] and os.stat(d).st_nlink == 3
    d = empty("create")
    fds = []
    yield (lambda d=d: fds.append(os.open(f"{d}/x", os.O_CREAT | os.O_EXCL | os.O_RDWR)),
           lambda d=d: os.write(fds[0], b"new") == 3 and content(f"{d}/x") == b"new")
    d = empty("mknod")
    yield lambda d=d: os.mknod(f"{d}/x", 0o10600), lambda d=d: os.listdir(d) == ["x"] and os.lstat(f"{d}/x").st_nlink == 1
    d = empty("symlink")
    yield lambda d=d: os.symlink("to", f"{d}/x"), lambda d=d: os.readlink(f"{d}/x") == "to"
    a = file("link", "a")
    yield lambda a=a: os.link(a, a + "2"), lambda a=a: os.stat(a).st_nlink == 2
    a = file("unlink", "a")
    yield lambda a=a: os.unlink(a), lambda a=a: absent(a)
    a = file("unlink-one", "a")
    os.link(a, a + "2")
    yield lambda a=a: os.unlink(a), lambda a=a: absent(a) and os.stat(a + "2").st_nlink == 1
    d = empty("rmdir")
    os.mkdir(f"{d}/x")
    yield lambda d=d: os.rmdir(f"{d}/x"), lambda d=d: os.listdir(d) == [] and os.stat(d).st_nlink == 2
    a = file("rename", "a", b"one")
    yield lambda a=a: os.rename(a, a + "2"), lambda a=a: absent(a) and content(a + "2") == b"one"
    a, b = file("over", "a", b"one"), file("over", "b", b"two")
    yield lambda a=a, b=b: os.rename(a, b), lambda a=a, b=b: absent(a) and content(b) == b"one"
    a, b = file("exchange", "a", b"one"), file("exchange", "b", b"two")
    yield lambda a=a, b=b: exchange(a, b), lambda a=a, b=b: content(a) == b"two" and content(b) == b"one"
    a = file("set", "a")
    yield lambda a=a: os.setxattr(a, "user.n", b"1", os.XATTR_CREATE), lambda a=a: os.getxattr(a, "user.n") == b"1"
    a = file("removed", "a")
    os.setxattr(a, "user.n", b"1")
    yield lambda a=a: os.removexattr(a, "user.n"), lambda a=a: os.listxattr(a) == []
    a = file("append", "a", b"one")
    end = os.open(a, os.O_WRONLY | os.O_APPEND)
    yield lambda: os.write(end, b"two"), lambda a=a: content(a) == b"onetwo"
    a = file("cut", "a", b"0123456789")
    yield lambda a=a: os.truncate(a, 4), lambda a=a: content(a) == b"0123"
    a = file("hole", "a", b"x" * 12288)
    hole = os.open(a, os.O_RDWR)
    yield lambda: punch(hole, 4096, 4096), lambda a=a: content(a) == b"x" * 4096 + bytes(4096) + b"x" * 4096
    a = file("mode", "a")
    yield lambda a=a: os.chmod(a, 0o640), lambda a=a: os.stat(a).st_mode & 0o777 == 0o640
    d = empty("unnamed")
    files = []
    yield (lambda d=d: files.append(os.open(d, os.O_TMPFILE | os.O_RDWR, 0o600)),
           lambda d=d: os.write(files[0], b"x") == 1 and os.fstat(files[0]).st_nlink == 0 and os.listdir(d) == [])


def unanswered(dir):
    for n, _ in enumerate(sys.stdin):
        pairs = list(changes(f"{dir}/{n}"))
        failed = []
        print(len(pairs), flush=True)
        sys.stdin.readline()

        def make(number, change):
            try:
                change()
            except OSError as error:
                failed.append((number, error))

        threads = [threading.Thread(target=make, args=(number, change)) for number, (change, _) in enumerate(pairs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
        for number, (_, as_it_should) in enumerate(pairs):
            assert as_it_should(), number
        print("ok", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
