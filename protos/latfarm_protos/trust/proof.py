"""Check a server before it is called: its certificate, its role, and whether it accepts ours.

gRPC's client neither shows the certificate of the server nor says why a handshake failed. So a
client first does a handshake with Python's `ssl`, checks the certificate and waits for a byte: an
HTTP/2 server sends first (RFC 9113, section 3.4), or sends the alert with which it refuses our
certificate. The client sends nothing meanwhile, since a server that closes with unread bytes may
lose its alert. Then the client gives gRPC this certificate as the only one to trust, so that its
connections reach this server and no other until the certificate changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass
from typing import Any, Collection

import grpc

from latfarm_protos.trust.contexts import Files, client_context, refusal_of
from latfarm_protos.trust.identity import (
    GONE,
    HANDSHAKE,
    Identity,
    Refusal,
    identity_of,
    judge,
)
from latfarm_protos.trust.revoked import read_revoked


class RefusedError(Exception):
    """We refuse the server, or it refuses us; `refusal` says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


@dataclass(frozen=True)
class Proof:
    """A server that was checked; a channel to it must trust its certificate only."""

    identity: Identity
    certificate: bytes

    def credentials(self, files: Files) -> Any:
        """Credentials of a channel that reaches only this server.

        Raises:
            OSError: our own files cannot be read.
        """
        return grpc.ssl_channel_credentials(
            root_certificates=self.certificate,
            private_key=files.key.read_bytes(),
            certificate_chain=files.cert.read_bytes(),
        )


def listed(files: Files) -> frozenset[str]:
    """The fingerprints of revoked certificates; none if there is no list.

    Raises:
        RevokedError: the list cannot be used.
    """
    return read_revoked(files.revoked) if files.revoked.exists() else frozenset()


def meet(
    host: str, port: int, name: str, files: Files, roles: Collection[str], timeout_s: float
) -> Proof:
    """Check a server.

    Args:
        host: its address.
        port: its port.
        name: the host name or address for which its certificate must be.
        files: our certificate, its key, and the CA of both sides.
        roles: that the server may have.
        timeout_s: of each step, in seconds.

    Raises:
        RefusedError: we refuse the server, or it refuses us.
        OSError: the server cannot be reached.
        TlsFileError: our own files cannot be used.
        RevokedError: the list of revoked certificates cannot be used.
    """
    revoked, context = listed(files), client_context(files)
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(socket.create_connection((host, port), timeout_s))
        try:
            wrapped = stack.enter_context(context.wrap_socket(plain, server_hostname=name))
            proof = _judged(wrapped, roles, revoked)
            first = wrapped.recv(1)
        except socket.timeout:
            raise RefusedError(Refusal(GONE, "it says nothing")) from None
        except (ssl.SSLError, ConnectionError) as error:
            raise RefusedError(refusal_of(error)) from error
    return _welcomed(proof, first)


async def meet_async(
    host: str, port: int, name: str, files: Files, roles: Collection[str], timeout_s: float
) -> Proof:
    """Check a server as `meet` does, in an event loop."""
    revoked, context = listed(files), client_context(files)
    try:
        # First without TLS: a server that cannot be reached has not refused us.
        plain = await asyncio.wait_for(_connected(host, port), timeout_s)
    except asyncio.TimeoutError:
        raise OSError(f"no answer within {timeout_s:.0f} s") from None
    writer: Any = None
    try:
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(sock=plain, ssl=context, server_hostname=name), timeout_s
        )
        proof = _judged_yet(writer.get_extra_info("ssl_object"), roles, revoked)
        first = await asyncio.wait_for(reader.read(1), timeout_s)
    except asyncio.TimeoutError:
        raise RefusedError(Refusal(GONE, "it says nothing")) from None
    except (ssl.SSLError, ConnectionError) as error:
        raise RefusedError(refusal_of(error)) from error
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), timeout_s)
        else:  # the transport owns the socket, and closes it in the next turns of the loop
            await asyncio.sleep(0)
    return _welcomed(proof, first)


async def _connected(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    error: OSError | None = None
    for family, kind, proto, _, address in found:
        plain = socket.socket(family, kind, proto)
        plain.setblocking(False)
        try:
            await loop.sock_connect(plain, address)
        except OSError as problem:
            plain.close()
            error = problem
        except BaseException:
            plain.close()
            raise
        else:
            return plain
    raise error or OSError(f"{host} has no address")


def _judged_yet(wrapped: Any, roles: Collection[str], revoked: Collection[str]) -> Proof | None:
    """The proof, or None if an alert of the server has already ended the session."""
    try:
        return _judged(wrapped, roles, revoked)
    except ValueError:
        return None


def _judged(wrapped: Any, roles: Collection[str], revoked: Collection[str]) -> Proof:
    der = wrapped.getpeercert(True) or b""
    identity = identity_of(wrapped.getpeercert() or {}, der)
    refusal = judge(identity, roles, revoked)
    if refusal is None and wrapped.selected_alpn_protocol() not in (None, "h2"):
        refusal = Refusal(HANDSHAKE, "it speaks no HTTP/2")
    if refusal is not None:
        raise RefusedError(refusal)
    return Proof(identity, ssl.DER_cert_to_PEM_cert(der).encode())


def _welcomed(proof: Proof | None, first: bytes) -> Proof:
    if proof is None or not first:
        raise RefusedError(
            Refusal(GONE, "it ended the connection after the handshake; does it trust us?")
        )
    return proof
