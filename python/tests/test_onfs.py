"""Goal: the package does on a mount what its documents say, and refuses what makes no sense. Method: a real mount, made here with
the binary named by ONFS (default: onfs), memory 64 MiB and a near-line directory; without one, the tests are skipped.
"""

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest
import warnings

import onfs

ONFS = os.environ.get("ONFS", "onfs")
SIZE = 1 << 20


def wait_until(what, seconds=30):
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise AssertionError("it did not come to that")
        time.sleep(0.02)


class OnAMount(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if shutil.which(ONFS) is None:
            raise unittest.SkipTest(f"no {ONFS}")
        if not os.path.exists("/dev/fuse"):
            raise unittest.SkipTest("no /dev/fuse")
        cls.top = tempfile.mkdtemp(prefix="onfs-python-", dir=os.environ.get("SUITES_ROOT", "/var/tmp"))
        for name in ("ssd", "near", "state", "mnt"):
            os.mkdir(f"{cls.top}/{name}")
        cls.mnt = f"{cls.top}/mnt"
        mount = [ONFS, "mount", "--memory", "64MiB", "--ssd", f"{cls.top}/ssd", "--nearline", f"{cls.top}/near"]
        mount += ["--state", f"{cls.top}/state", cls.mnt]
        subprocess.run(mount, check=True, timeout=120, stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        subprocess.run([ONFS, "umount", cls.mnt], check=True, timeout=300, stdout=subprocess.DEVNULL)
        shutil.rmtree(cls.top)

    def cold(self, count, name):
        """So many files of 1 MiB that are in near-line alone."""
        paths = [f"{self.mnt}/{name}-{n:03}" for n in range(count)]
        for n, path in enumerate(paths):
            with open(path, "wb") as out:
                out.write(bytes([n % 251]) * SIZE)
        onfs.flush(paths)
        subprocess.run([ONFS, "migrate", "--wait", "--to", "nearline", *paths], check=True, stdout=subprocess.DEVNULL)
        self.assertEqual([path for path in paths if self.is_up(path)], [])
        return paths

    @staticmethod
    def is_up(path):
        return any(r["tier"] == "memory" and r["bytes"] == SIZE for r in onfs.file(path)["residency"])

    def test_groups_come_up_one_ahead(self):
        paths = self.cold(12, "ahead")
        groups = [paths[n : n + 3] for n in range(0, 12, 3)]
        run = onfs.prefetch(groups)
        wait_until(lambda: run.report()["files_up"] == 3)
        time.sleep(0.3)
        self.assertEqual([path for path in paths if self.is_up(path)], groups[0])
        open(groups[0][1], "rb").close()
        wait_until(lambda: all(map(self.is_up, groups[1])))
        self.assertFalse(any(map(self.is_up, groups[2] + groups[3])))
        self.assertIn(run.number, [r["run"] for r in onfs.runs(self.mnt) if r["state"] == "running"])
        self.assertEqual(run.cancel()["state"], "cancelled")
        self.assertEqual(run.wait(deadline=10)["state"], "cancelled")

    def test_stream_reads_all_and_is_ahead(self):
        paths = self.cold(24, "stream")
        seen, up = [], 0
        for path in onfs.stream(paths, group_size=4, strict=True):
            if len(seen) >= 4:
                up += self.is_up(path)
            with open(path, "rb") as data:
                self.assertEqual(data.read(), bytes([len(seen) % 251]) * SIZE)
            seen.append(path)
            time.sleep(0.05)
        self.assertEqual(seen, paths)
        self.assertGreaterEqual(up, 16)
        report = onfs.runs(self.mnt)[-1]
        self.assertEqual((report["files"], report["wrong"]), (24, 0))

    def test_a_loop_that_is_left_ends_its_run(self):
        paths = self.cold(8, "left")
        prefetcher = onfs.Prefetcher(paths, group_size=2)
        self.assertEqual(len(prefetcher), 8)
        for path in prefetcher:
            break
        self.assertEqual(path, paths[0])
        wait_until(lambda: prefetcher.run.report()["state"] == "cancelled")

    def test_a_long_list_goes_in_several_requests(self):
        paths = self.cold(3, "long")
        # More than one request takes, in groups that do not end with them.
        run = onfs.prefetch([[paths[n % 3] for n in range(700)], [paths[0]] * 700])
        self.assertEqual((run.report()["files"], run.report()["groups"]), (1400, 2))
        run.cancel()

    def test_flush_and_reports(self):
        path = f"{self.mnt}/flush"
        with open(path, "wb") as out:
            out.write(b"x" * 1000)
        report = onfs.flush(path, wait=True, deadline=30)
        self.assertEqual((report["files_done"], report["at_risk_bytes"]), (1, 0))
        self.assertEqual(onfs.file(path)["at_risk_bytes"], 0)
        self.assertEqual(onfs.status(path)["mountpoint"], self.mnt)
        self.assertEqual(onfs.flush(path, wait=False)["files_done"], 1)

    def test_what_makes_no_sense_is_refused(self):
        with self.assertRaises(onfs.NotOnfs):
            onfs.status("/")
        with self.assertRaises(FileNotFoundError):
            onfs.prefetch([[f"{self.mnt}/missing"]])
        with self.assertRaises(IsADirectoryError):
            onfs.prefetch([[self.mnt]])
        with self.assertRaises(onfs.Refused) as refused:
            onfs.cancel(self.mnt, 1 << 40)
        self.assertEqual(refused.exception.code, "not-found")
        with onfs.Connection(self.mnt) as connection, self.assertRaises(onfs.Refused):
            connection.call("run", files=[], groups=[7])
        with onfs.Connection(self.mnt) as connection, self.assertRaises(onfs.Refused) as refused:
            connection.call("no-such-thing")
        self.assertEqual(refused.exception.code, "bad-request")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.assertEqual(list(onfs.stream(["/etc/passwd"])), ["/etc/passwd"])
        self.assertEqual(len(caught), 1)

    def test_another_version_is_told(self):
        connection = onfs.Connection(self.mnt)
        with contextlib.closing(connection):
            body = b'{"version":999,"request":{"do":"status"}}'
            connection._socket.sendall(struct.pack("<I", len(body)) + body)
            answer = connection._read(None)
        self.assertIn("version 999", answer["error"]["message"])


class WithAFake(unittest.TestCase):
    """A daemon that answers badly."""

    def answered(self, answer):
        ours, theirs = socket.socketpair()
        connection = object.__new__(onfs.Connection)
        connection._socket = ours

        def serve():
            with contextlib.closing(theirs):
                theirs.recv(1 << 16)
                theirs.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with contextlib.closing(connection):
                return connection.call("status", deadline=5)
        finally:
            thread.join()

    def test_bad_answers_are_errors(self):
        for answer in (b"", b"\x10\0\0\0{", struct.pack("<I", 2) + b"[]", b"\xff\xff\xff\xff", struct.pack("<I", 1) + b"{"):
            with self.subTest(answer), self.assertRaises(onfs.OnfsError):
                self.answered(answer)
        body = b'{"version":2,"result":{"is":"done"}}'
        with self.assertRaisesRegex(onfs.OnfsError, "version 2"):
            self.answered(struct.pack("<I", len(body)) + body)
        body = b'{"version":1,"result":{"is":"done"}}'
        self.assertIsNone(self.answered(struct.pack("<I", len(body)) + body))


if __name__ == "__main__":
    unittest.main()
