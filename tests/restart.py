#!/usr/bin/env python3
"""Programs of tests/restart that must not notice that the daemon under them is another one.

    restart.py PART DIR GO    works in DIR until the file GO is gone; ends with 0 if everything was as it should be
    restart.py held DIR       opens and locks all kinds of things; for each line on standard input it looks at them
"""
import errno
import fcntl
import mmap
import os
import random
import struct
import subprocess
import sys


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
    area = mmap.mmap(in_place.fileno(), 0, prot=mmap.PROT_READ)
    in_place.close()
    stores = open(f"{dir}/stores", "w+b")
    stores.truncate(1 << 20)
    shared = mmap.mmap(stores.fileno(), 1 << 20)
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


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
