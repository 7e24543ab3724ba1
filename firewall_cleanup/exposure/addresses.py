"""Addresses and host names, however they are written. Pure."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from .fields import DNS_SUBDOMAIN

__all__ = ["host_of", "is_host", "is_service_name", "plain_address", "why_unusable"]

_NUMERIC = re.compile(r"(.*\.)?(\d+|0x[0-9a-f]*)")
"""A name whose last label is a number: resolvers take it for an IPv4 address."""


def plain_address(address: str) -> str:
    """Return an address in one writing, without its zone; of one mapped into IPv6 the IPv4 address, as a socket does.

    Raises ValueError if it is no address.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(ip, "ipv4_mapped", None)
    return str(mapped or ip)


def why_unusable(address: str) -> str | None:
    """Return why an address can be no endpoint and no load balancer's: the API server refuses such ones, too.

    Raises ValueError if it is no address.
    """
    ip = ipaddress.ip_address(plain_address(address))
    if "%" in address:
        return "has a zone, which means something on one node only"
    if ip.is_unspecified or (ip.version == 4 and int(ip) >> 24 == 0):
        return "is unspecified"
    if ip.is_loopback:
        return "is a loopback address"
    if ip.is_link_local:
        return "is a link-local address"
    if ip.is_multicast or str(ip) == "255.255.255.255":
        return "is an address of many"
    return None


def host_of(url: str) -> str:
    """Return the host of an URL, or of what was written in its place: `HOST`, `HOST:PORT`, `[ADDRESS]:PORT`."""
    text = url.strip()
    try:
        host = urlsplit(text if "://" in text else f"//{text}").hostname
    except ValueError:
        return text
    if "://" not in text:
        try:
            plain_address(text.strip("[]"))
        except ValueError:
            return host or text
        return text.strip("[]")
    return host or text


def is_host(text: str) -> bool:
    """Tell whether it is an address without a zone, or a host name that no resolver takes for another address."""
    try:
        return bool(ipaddress.ip_address(text)) and "%" not in text
    except ValueError:
        name = text.lower()
        return DNS_SUBDOMAIN.fullmatch(name) is not None and not _NUMERIC.fullmatch(name)


def is_service_name(host: str, service: str, namespace: str) -> bool:
    """Tell whether a host name is a Service's in the cluster's DNS, whatever the cluster's domain is."""
    name, full = host.lower().rstrip("."), f"{service}.{namespace}.svc"
    return name in {service, f"{service}.{namespace}", full} or name.startswith(f"{full}.")
