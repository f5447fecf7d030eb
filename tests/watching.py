#!/usr/bin/env python3
"""What a monitoring system does, for tests/cluster: reads /metrics and /healthz, strictly, and hangs on purpose.

metrics ADDRESS DOCS   prints the samples, one a line; each must be well formed and described in DOCS (docs/metrics.md)
health ADDRESS         prints the status, then the lines
serve PATH             listens at a Unix socket, and says nothing
hang ADDRESS           holds connections that never ask, and one that never reads, until they are cut; fails if they are not
"""
import re
import socket
import sys
import time

SAMPLE = re.compile(r'([a-z_]+)(\{[a-z]+="(?:[^"\\]|\\.)*"(?:,[a-z]+="(?:[^"\\]|\\.)*")*\})? (-?[0-9.e+-]+|\+Inf)$')


def connect(address):
    if address.startswith("unix:"):
        stream = socket.socket(socket.AF_UNIX)
        stream.settimeout(30)
        stream.connect(address[len("unix:"):])
        return stream
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=30)


def get(address, path):
    with connect(address) as stream:
        stream.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        answer = b""
        while more := stream.recv(65536):
            answer += more
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    assert int(headers["content-length"]) == len(body), (headers, len(body))
    return int(lines[0].split()[1]), headers, body.decode()


def metrics(address, docs):
    status, headers, text = get(address, "/metrics")
    assert status == 200, status
    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0"), headers
    with open(docs) as described:
        names = dict(re.findall(r"^\| `([a-z_]+)` \| ([a-z]+) \|", described.read(), re.M))
    lines = text.split("\n")
    assert lines[-2:] == ["# EOF", ""], lines[-2:]
    kinds, buckets, whole, counts = {}, {}, {}, {}
    for line in lines[:-2]:
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split()
            assert family not in kinds, f"twice: {line}"
            kinds[family] = kind
            continue
        if line.startswith("# HELP "):
            continue
        found = SAMPLE.match(line)
        assert found, f"not a sample: {line}"
        name, labels = found[1], found[2] or ""
        family = next(f for f in kinds if name == f or (name.startswith(f) and name[len(f):] in ENDS[kinds[f]]))
        described = family + ("_total" if kinds[family] == "counter" else "")
        assert names.get(described) == kinds[family], f"{described} is not in {docs} as a {kinds[family]}"
        if name.endswith("_bucket"):
            row = re.sub(r'le="[^"]*",?', "", labels)
            assert buckets.get((family, row), 0) <= float(found[3]), f"a class has less than the one before: {line}"
            buckets[family, row] = float(found[3])
            if 'le="+Inf"' in labels:
                whole[family, row.rstrip("{}")] = float(found[3])
        if name.endswith("_count") and kinds[family] == "histogram":
            counts[family, labels.rstrip("{}")] = float(found[3])
        print(line)
    assert whole == counts, "the last class of each histogram has all"


ENDS = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}


def health(address):
    status, _, text = get(address, "/healthz")
    print(status)
    print(text, end="")


def hang(address):
    streams = []
    for n in range(40):
        try:
            stream = connect(address)
            stream.sendall(b"GET /metrics HTTP/1.1\r\n" if n % 2 else b"G")
            streams.append(stream)
        except OSError:
            # As many as it takes.
            pass
    assert streams
    begun = time.monotonic()
    for stream in streams:
        stream.settimeout(60)
        try:
            while stream.recv(65536):
                pass
        except ConnectionError:
            pass
    print(f"{len(streams)} were cut after {time.monotonic() - begun:.1f} s")


def serve(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            time.sleep(60)


if __name__ == "__main__":
    {"metrics": metrics, "health": health, "hang": hang, "serve": serve}[sys.argv[1]](*sys.argv[2:])
