"""Who is answered: requests under a server's own names and from its own pages, and what is said to the others."""

import ipaddress
import re
import socket
from collections.abc import Mapping
from typing import Any

from vitling.errors import UserError

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(\d{1,5}))?")
Scope = Mapping[str, Any]  # of ASGI


class Refused(Exception):
    """A request that is not answered, with its HTTP status, the reason in one line, and headers that belong to the status."""

    def __init__(self, status: int, reason: str, headers: dict[str, str] | None = None):
        super().__init__(reason)
        self.status, self.headers = status, headers or {}


class Names:
    """The names that the page is served under: another one in `Host` is a foreign page that had its own name point here."""

    def __init__(self, *hosts: str):
        """`hosts` are names and addresses that the page listens at; it is served at the loopback address too."""
        given = {_address(host) or host.lower() for host in hosts}
        # Listening everywhere, it is served under every address: no name server stands behind one that could lie about it.
        self.any_address = not given.isdisjoint({"0.0.0.0", "::"})
        own = {socket.gethostname().lower(), socket.getfqdn().lower()} if self.any_address else set()
        self.names = LOOPBACK | own | given

    def check(self, scope: Scope) -> None:
        """Refuse a foreign `Host`, and an `Origin` that is not this page."""
        hosts, origins = (header_values(scope, name) for name in (b"host", b"origin"))
        name, port = _split(hosts[0]) if len(hosts) == 1 else ("", "")
        if not self._include(name):
            raise Refused(421, f"this page is not served under that name, but as {', '.join(sorted(self.names))}.")
        for origin in origins:
            url = re.fullmatch(r"https?://(.*)", origin)
            asking, asking_port = _split(url[1]) if url else ("", "")
            if not self._include(asking) or asking_port != port:
                raise Refused(403, "this page answers no other page.")

    def _include(self, name: str) -> bool:
        return name in self.names or (self.any_address and _address(name) is not None)


def take_address(host: str, port: int) -> socket.socket:
    """A socket at this address; taken before anything is computed, so that a port in use is known at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(f"host={host}, port={port} is not an address of this computer: {error}.") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise UserError(
            f"cannot listen at {host}, port {port}: {error.strerror}. Choose another port; 0 takes any that is free."
        ) from None
    return listener


def url_of(listener: socket.socket) -> str:
    address, port = listener.getsockname()[:2]
    return f"http://{f'[{address}]' if ':' in address else address}:{port}"


def header_values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").lower() for key, value in scope["headers"] if key == name]


def _split(authority: str) -> tuple[str, str]:
    """Name and port of `name:port`; nothing where it is none."""
    found = AUTHORITY.fullmatch(authority)
    if not found:
        return "", ""
    name = found[1].strip("[]")
    return _address(name) or name, found[2] or ""


def _address(name: str) -> str | None:
    """An IP address as it is usually written; None where it is a name."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return None


def megabytes(count: int) -> str:
    return f"{count / 2**20:,.4g} MB"
