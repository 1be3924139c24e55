"""Refuse connections to other machines, in every Python process that has this folder in its PYTHONPATH.

The tests set it (conftest.py), so that their processes and those that these start behave as on a machine without a
network. Who swallows the error is found, too: the folder ``FINESIGHT_TEST_REFUSALS`` then names the test and the host
(refusals.py). What does not go through Python's sockets is not covered: gRPC, torch's own sockets, browsers; see
cluster/test_no_network_at_all.py. ``FINESIGHT_TEST_NETWORKS=10.7.0.0/24`` allows networks, separated by commas.
"""

import contextlib
import errno
import ipaddress
import os
import socket
import sys

ALLOWED = [ipaddress.ip_network(text) for text in os.environ.get("FINESIGHT_TEST_NETWORKS", "").split(",") if text]
LOCAL_NAMES = {"", "localhost", "ip6-localhost", socket.gethostname()}


def is_allowed(host):
    """Return whether an address is of this machine, or was allowed."""
    address = ipaddress.ip_address(str(host).partition("%")[0])
    if address.is_loopback or address.is_unspecified or any(address in network for network in ALLOWED):
        return True
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as own:
        try:
            own.bind((str(host), 0))  # works for addresses of this machine alone; Ray's processes talk by them
        except OSError:
            return False
    return True


def is_own_name(name):
    """Return whether a name, or an address, is looked up without asking another machine."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name in LOCAL_NAMES
    return True


def record(host):
    """Keep for the end of the session which test asked for the host."""
    folder = os.environ.get("FINESIGHT_TEST_REFUSALS")
    if folder:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
        with contextlib.suppress(OSError), open(os.path.join(folder, f"{os.getpid()}.txt"), "a") as file:
            file.write(f"{test}\t{host}\n")


def refuse(event, arguments):
    if event in ("socket.getaddrinfo", "socket.gethostbyname"):
        name = arguments[0].decode() if isinstance(arguments[0], bytes) else arguments[0] or ""
        if not is_own_name(name):
            record(name)
            raise socket.gaierror(socket.EAI_AGAIN, f"tests use no network: {name}")
    elif event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        if isinstance(address, tuple) and address:
            try:
                allowed = is_allowed(address[0])
            except ValueError:
                allowed = address[0] in LOCAL_NAMES
            if not allowed:
                # Connecting datagrams sends nothing: libraries learn by it which address of this machine is used.
                if event != "socket.connect" or arguments[0].type != socket.SOCK_DGRAM:
                    record(address[0])
                raise OSError(errno.ENETUNREACH, f"tests use no network: {address}")


sys.addaudithook(refuse)
