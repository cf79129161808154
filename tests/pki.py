"""Certificates for tests alone: an authority, a provider and a client, valid for a hundred years.

Made once with the openssl tool; the authority's key was thrown away.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBrTCCAVOgAwIBAgIURervuF5ycXtItTdbpfUNjml0NpwwCgYIKoZIzj0EAwIw
IzEhMB8GA1UEAwwYU290dG92b2NlIHRlc3QgYXV0aG9yaXR5MCAXDTI2MTEzMDE4
MDQzNloYDzIxMjYxMTA2MTgwNDM2WjAjMSEwHwYDVQQDDBhTb3R0b3ZvY2UgdGVz
dCBhdXRob3JpdHkwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARSJr6EmNMHaUCn
RFv0GnuXkSXjXONFFbnwgwzd2g9d0/6eo37lkwbI1OyhsnVc6P638mujjuF0soQO
OavdE1Qno2MwYTAdBgNVHQ4EFgQUxUDSAG6gO1YbQ3vxlms5UcDeqjQwHwYDVR0j
BBgwFoAUxUDSAG6gO1YbQ3vxlms5UcDeqjQwDwYDVR0TAQH/BAUwAwEB/zAOBgNV
HQ8BAf8EBAMCAQYwCgYIKoZIzj0EAwIDSAAwRQIhAMhGUzi/wfag0dUjORY9q2zR
ZF2HpllEKXTGTtuTg1dPAiAXrmxTgKogFpSTukbb4LrUT8Mh86og5OoJlEfBvuqc
Fw==
-----END CERTIFICATE-----
"""

PROVIDER = """\
-----BEGIN CERTIFICATE-----
MIIB6TCCAY+gAwIBAgIUb01zAlSP6Js9czhJgkvNhgwOlxowCgYIKoZIzj0EAwIw
IzEhMB8GA1UEAwwYU290dG92b2NlIHRlc3QgYXV0aG9yaXR5MCAXDTI2MTEzMDE4
MDQzNloYDzIxMjYxMTA2MTgwNDM2WjAgMR4wHAYDVQQDDBVTb3R0b3ZvY2UgdGVz
dCBzZXJ2ZXIwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASUusmiW8zlYz5eiz2V
TYQYu3IdNgkvsDPaamVyAl0JfGd+9dqxiJMQwv90ppNUGylI9VfmiI0eXesIs0XD
d1s8o4GhMIGeMAwGA1UdEwEB/wQCMAAwDgYDVR0PAQH/BAQDAgeAMBMGA1UdJQQM
MAoGCCsGAQUFBwMBMCkGA1UdEQQiMCCCDXByb3ZpZGVyLnRlc3SCCWxvY2FsaG9z
dIcEfwAAATAdBgNVHQ4EFgQU7gJxdMDR/1Z+FcsNGHGKavtKrz4wHwYDVR0jBBgw
FoAUxUDSAG6gO1YbQ3vxlms5UcDeqjQwCgYIKoZIzj0EAwIDSAAwRQIhAP6mSQem
8AbClAPr921Z2tnr4wsBgPT2ws4CXzpIKI2bAiA5fusLiDi20UPpRFbz0+crXcBh
/KaxpDwAkOe5Dn8NfQ==
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgJ/VAZOX3V3MGgOeE
rUFGQWpYfYEg3KV5gaQOVkSPP8KhRANCAASUusmiW8zlYz5eiz2VTYQYu3IdNgkv
sDPaamVyAl0JfGd+9dqxiJMQwv90ppNUGylI9VfmiI0eXesIs0XDd1s8
-----END PRIVATE KEY-----
"""

CLIENT = """\
-----BEGIN CERTIFICATE-----
MIIBvDCCAWKgAwIBAgIUb01zAlSP6Js9czhJgkvNhgwOlxswCgYIKoZIzj0EAwIw
IzEhMB8GA1UEAwwYU290dG92b2NlIHRlc3QgYXV0aG9yaXR5MCAXDTI2MTEzMDE4
MDQzNloYDzIxMjYxMTA2MTgwNDM2WjAgMR4wHAYDVQQDDBVTb3R0b3ZvY2UgdGVz
dCBjbGllbnQwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASfCWtbhC2aeYqrB9tP
Ho/k1I+5O5c9Anupw2UOY8sWj79S1F9gT5Vqq/za11LkpQAKn7dhZZoH4OuSHHRH
F6JFo3UwczAMBgNVHRMBAf8EAjAAMA4GA1UdDwEB/wQEAwIHgDATBgNVHSUEDDAK
BggrBgEFBQcDAjAdBgNVHQ4EFgQUMmsG1Neq9vX5focPaSuNIZVQV+4wHwYDVR0j
BBgwFoAUxUDSAG6gO1YbQ3vxlms5UcDeqjQwCgYIKoZIzj0EAwIDSAAwRQIgJtUC
2VplIwhCCRh2QJIjC3QrgpfFAzn7DyqRXfQ86yUCIQCcksRiw6JFseMdM372blry
ePDzbu3EBDMBhWop7zs6dw==
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgeIq0AsZvCN1KgXOH
w2XSOHflDRgbMWMfFYn4C4QI6yKhRANCAASfCWtbhC2aeYqrB9tPHo/k1I+5O5c9
Anupw2UOY8sWj79S1F9gT5Vqq/za11LkpQAKn7dhZZoH4OuSHHRHF6JF
-----END PRIVATE KEY-----
"""


def write(folder: Path) -> tuple[Path, Path, Path]:
    """Write authority, provider and client to a folder, the latter two with their keys."""
    paths = []
    for name, text in (("ca", AUTHORITY), ("provider", PROVIDER), ("client", CLIENT)):
        path = folder / f"{name}.pem"
        path.write_text(text)
        paths.append(path)
    ca, provider, client = paths
    return ca, provider, client


def serving(folder: Path, *, ask_client: bool = False) -> ssl.SSLContext:
    """Return the context of a provider named provider.test, localhost and 127.0.0.1."""
    ca, provider, _ = write(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(provider)
    if ask_client:
        context.load_verify_locations(ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
