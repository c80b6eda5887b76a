"""Real servers on loopback: a web server that answers range requests, an S3 store, an Azure one."""

from __future__ import annotations

import base64
import hmac
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ACCESS_KEY, SECRET_KEY = "devkey", "devsecret"
START_TIMEOUT_S = 90


class RangeHandler(SimpleHTTPRequestHandler):
    """Serves the files of a folder, whole or by one byte range."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data, wanted = path.read_bytes(), self.headers.get("Range")
        first, last = 0, len(data) - 1
        if wanted:
            low, _, high = wanted.removeprefix("bytes=").partition("-")
            first, last = int(low), min(int(high or last), last)
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        self.end_headers()
        self.wfile.write(data[first : last + 1])

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """Serve a folder; yield the url."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(RangeHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def find_weed() -> str | None:
    """Return the program of SeaweedFS, if it is installed."""
    return shutil.which(
        "weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )


@contextmanager
def s3_server(folder: Path, bucket: str) -> Iterator[str]:
    """Run SeaweedFS with its data in a folder, and one bucket; yield the endpoint's url."""
    weed = find_weed()
    assert weed is not None
    config = folder / "s3.json"
    keys = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "dev", "credentials": keys, "actions": actions}
    config.write_text(json.dumps({"identities": [identity]}))
    ports = free_ports(4)
    command = [weed, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += ["-master.volumeSizeLimitMB=64", "-volume.max=40", "-filer", "-s3"]
    command += [f"-{role}.port={port}" for role, port in zip(PORTS, ports)]
    # Two more services have fixed ports, so that a second server could not start beside this one.
    command += [f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    endpoint = f"http://127.0.0.1:{ports[3]}"
    try:
        wait_for(endpoint, process)
        # A bucket is a folder of the filer.
        make_folder(f"http://127.0.0.1:{ports[2]}/buckets/{bucket}/")
        yield endpoint
    finally:
        process.kill()  # nothing of it is kept, and a polite end takes it ten seconds
        process.wait()


def find_azurite() -> str | None:
    """Return the program of Microsoft's emulator of Azure's blobs, if it is installed."""
    return os.environ.get("AZURITE") or shutil.which("azurite-blob") or shutil.which("azurite")


@contextmanager
def azure_server(folder: Path, container: str) -> Iterator[str]:
    """Run Azurite with its data in a folder, and one container; yield the endpoint's url."""
    azurite, (port,) = find_azurite(), free_ports(1)
    assert azurite is not None
    command = [azurite, "--silent", "--location", str(folder), "--skipApiVersionCheck"]
    command += ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    endpoint = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
    try:
        wait_for(endpoint, process)
        make_container(endpoint, container)
        yield endpoint
    finally:
        process.kill()
        process.wait()


# The account that the emulator has, with its key: both are in its manual.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


def make_container(endpoint: str, container: str) -> None:
    """Create a container; the client of our own has no request for it."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    named = "".join(f"{name}:{value}\n" for name, value in headers.items())
    place = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{container}"
    signed = "PUT" + "\n" * 12 + f"{named}{place}\nrestype:container"
    key = base64.b64decode(AZURE_KEY)
    signature = base64.b64encode(hmac.digest(key, signed.encode(), "sha256")).decode()
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{signature}"
    url = f"{endpoint}/{container}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)).close()


PORTS = ("master", "volume", "filer", "s3")


def free_ports(count: int) -> list[int]:
    """Return ports that are free, and free with 10000 added, which SeaweedFS uses for gRPC."""
    found: list[int] = []
    for port in range(20000 + os.getpid() % 8000, 40000):
        if len(found) == count:
            break
        if all(is_free(candidate) for candidate in (port, port + 10000)):
            found.append(port)
    return found


def is_free(port: int) -> bool:
    """Say whether nobody listens on a port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def make_folder(url: str) -> None:
    """Create a folder of SeaweedFS' filer, which may still be starting."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            request = urllib.request.Request(url, method="POST")
            urllib.request.urlopen(request, timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def wait_for(endpoint: str, process: subprocess.Popen[bytes]) -> None:
    """Return when the endpoint answers; without a signature it answers 403."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(endpoint, timeout=5)
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError("the server does not answer")
