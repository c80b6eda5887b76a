"""What rows may read. Rows are data that others wrote, and the machine holds more than media.

    a file            below the folder of its table or tar, or `media_root`, or an allowed folder
    an object         the same, with urls in place of folders
    a url of the web  on any public address; on others only if its host and port were named
    a tar on the web  below a url that was named, as a store's client opens it, not `download`

A place counts as named if it is the folder in which a row's relative paths begin, or one of the
`allow` of the source. What else a row names is a `SampleError` that says what to type; nothing of
it is read. A file is judged by where it is after all links, of the descriptor that is then read, so
that nobody can change a link in between. An address is judged after the name is looked up, and it
is the one that is connected to.

Through a proxy of the environment, names are looked up by the proxy, so it decides what they lead
to; numbers are judged here all the same.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import socket
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, unquote, urlsplit

from shardmill.errors import ConfigError, SampleError
from shardmill.storage.path import WEB_SCHEMES, is_remote, plain_url

# What no retry changes: the path of this row leads nowhere (EINVAL: a name that no file can have).
# Other errors are those of a disk or a mount, not of the sample.
GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL))
CLOSED = frozenset((errno.EACCES, errno.EPERM))
PATH, STORE, ADDRESS = "path not allowed", "store not allowed", "address not allowed"
PORTS = {"http": 80, "https": 443}
# Without waiting: opening a pipe that nobody writes to would never return.
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
# Looks at a file without opening it, where the system can, so that no device notices.
LOOK = getattr(os, "O_PATH", READ) | os.O_CLOEXEC
MAX_FOLDERS = 256
UNICAST = IPv6Network("2000::/3")
NAT64 = IPv6Network("64:ff9b::/96")
# Where clouds keep credentials, at addresses that pass as public: Azure, Oracle.
METADATA = frozenset((IPv4Address("168.63.129.16"), IPv4Address("192.0.0.192")))
LOCAL_NAMES = ("localhost", ".localhost", "metadata.google.internal")


@dataclass(frozen=True, slots=True, eq=False)
class Allowed:
    """What the rows of one table, tar or folder may read; `home` is where relative paths begin.

    `named` are the places as they were given and `real` the folders after all links, both with a
    slash at the end; `hosts` are "name:port" of the web. The folders that files were opened in stay
    open, so that each is judged once; close it at the end.
    """

    home: str
    named: tuple[str, ...]
    real: tuple[str, ...]
    hosts: frozenset[str]
    folders: dict[str, int] = field(default_factory=dict)

    @classmethod
    def below(cls, home: str, allow: Iterable[str] = ()) -> Allowed:
        """Return what may be read below a folder or url and other places that the user named."""
        home = home if is_remote(home) else os.path.abspath(home)  # noqa: PTH100
        places = (home, *allow)
        real = [os.path.realpath(place) for place in places if not is_remote(place)]
        named = (*places, *real)
        return cls(
            home=home,
            named=tuple(dict.fromkeys(_with_slash(place) for place in named)),
            real=tuple(dict.fromkeys(_with_slash(place) for place in real)),
            hosts=frozenset(_host(urlsplit(p)) for p in places if p.startswith(WEB_SCHEMES)),
        )

    def locate(self, reference: str, *, is_container: bool = False) -> str:
        """Return the path or url that a row names, or raise the `SampleError` that it deserves."""
        if "://" in reference or reference.startswith("pipe:"):
            try:
                if is_remote(reference):
                    return self._locate_url(reference, is_container)
            except ConfigError as error:
                raise SampleError("unknown scheme", f"{error}") from error
            reference = reference.removeprefix("file://")
        if "://" in self.home:
            inside = os.path.normpath(reference)
            if f"{inside}/".startswith(("/", "../")):
                raise _refusal(PATH, inside, self.home, os.path.dirname(inside))  # noqa: PTH120
            return self._locate_url(f"{self.home}/{inside}", is_container)
        place = os.path.normpath(os.path.join(self.home, reference))  # noqa: PTH118
        if not f"{place}/".startswith(self.named):
            raise _refusal(PATH, place, self.home, os.path.dirname(place))  # noqa: PTH120
        return place

    def open(self, place: str) -> int:
        """Return the descriptor of a regular file; pipes, devices and what leads out is refused."""
        folder, _, name = place.rpartition("/")
        try:
            try:
                found = os.open(name, READ | os.O_NOFOLLOW, dir_fd=self._folder(folder or "/"))
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                found = self._open_link(place)
            if stat.S_ISREG(os.fstat(found).st_mode):
                return found
            os.close(found)
        except ValueError as error:
            raise SampleError("missing file", f"{place!r:.300}: {error}") from error
        except OSError as error:
            if error.errno in GONE:
                raise SampleError("missing file", f"{place:.300}") from error
            if error.errno in CLOSED:
                raise SampleError("unreadable file", f"{place}: {error.strerror}") from error
            if error.errno != errno.ENXIO:  # a socket
                raise
        raise SampleError("not a file", place)

    def close(self) -> None:
        """Close the folders."""
        while self.folders:
            os.close(self.folders.popitem()[1])

    def _folder(self, path: str) -> int:
        if path not in self.folders:
            if len(self.folders) >= MAX_FOLDERS:
                self.close()
            self.folders[path] = self._look(path, LOOK | os.O_DIRECTORY)
        return self.folders[path]

    def _open_link(self, path: str) -> int:
        found = self._look(path, LOOK)
        try:
            # What was looked at, not what the link may lead to by now.
            return os.open(f"/dev/fd/{found}", READ)
        finally:
            os.close(found)

    def _look(self, path: str, flags: int) -> int:
        """Return the descriptor of what a path leads to, after it was judged."""
        found = os.open(path, flags)
        try:
            self.check_real(path, _real_path(found))
        except BaseException:
            os.close(found)
            raise
        return found

    def check_real(self, place: str, real: str) -> None:
        """Raise the `SampleError` of a link unless it really leads below one of the folders."""
        if not f"{real}/".startswith(self.real):
            shown = f"{place}, a link to {real},"
            folder = real if os.path.isdir(real) else os.path.dirname(real)  # noqa: PTH112, PTH120
            raise _refusal(PATH, shown, self.home, folder)

    def _locate_url(self, url: str, is_container: bool) -> str:
        try:
            parts = urlsplit(url)
            # Each of these fails for some urls that can be split.
            _ = parts.port, url.encode(), parts.netloc.isascii() or parts.netloc.encode("idna")
            if not parts.hostname:
                raise ValueError("it names no host or bucket")
            # No client of ours sends them, and messages would quote them.
            if parts.scheme in WEB_SCHEMES and "@" in parts.netloc:
                raise ValueError("it holds a user or password")
        except ValueError as error:
            raise SampleError("bad url", str(error)) from error
        is_web = parts.scheme in WEB_SCHEMES
        if is_web and not is_container:
            return url  # judged by its address, when it is known
        climbs = ".." in unquote(parts.path).split("/")
        if climbs or not url.startswith(self.named):
            plain = plain_url(url)
            reason = ADDRESS if is_web else STORE
            raise _refusal(reason, plain, self.home, plain.rpartition("/")[0])
        return url


def check_address(host: str, port: int, addresses: Iterable[str], hosts: frozenset[str]) -> None:
    """Raise `SampleError` unless all addresses of a host are public, or the host was named."""
    name = f"{host.lower().rstrip('.')}:{port}"
    if name in hosts:
        return
    for address in addresses:
        if not _is_public(address):
            shown = f"{host} is at {address}, which is not public"
            raise SampleError(ADDRESS, f"{shown}: to read there, add --allow {_url_of(name)}")


def check_proxied(url: str, hosts: frozenset[str]) -> None:
    """Do what `check_address` does for a host that a proxy will look up: for numbers only."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    try:
        found = socket.getaddrinfo(host.rstrip("."), port, flags=socket.AI_NUMERICHOST)
        addresses = [str(address[0]) for *_, address in found]
    except socket.gaierror:
        addresses = ["127.0.0.1"] if host.rstrip(".").endswith(LOCAL_NAMES) else []
    check_address(host, port, addresses, hosts)


def _refusal(reason: str, shown: str, home: str, folder: str) -> SampleError:
    home = plain_url(home) if is_remote(home) else home
    return SampleError(
        reason, f"{shown:.300} is not below {home}: to read it, add --allow {shlex.quote(folder)}"
    )


def _real_path(descriptor: int) -> str:
    if hasattr(fcntl, "F_GETPATH"):  # macOS
        return os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115


def _is_public(address: str) -> bool:
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and ip in NAT64:
            inner = IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is None:
            return ip in UNICAST and ip.is_global
        ip = inner
    return ip.is_global and not ip.is_multicast and ip not in METADATA


def _host(parts: SplitResult) -> str:
    port = parts.port or PORTS[parts.scheme]
    return f"{(parts.hostname or '').rstrip('.')}:{port}"


def _url_of(name: str) -> str:
    host, _, port = name.rpartition(":")
    host = f"[{host}]" if ":" in host else host
    return f"https://{host}" if port == "443" else f"http://{host}" + (f":{port}" * (port != "80"))


def _with_slash(place: str) -> str:
    return place.rstrip("/") + "/"
