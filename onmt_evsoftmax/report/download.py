"""Files from the web: resumed where they stopped, accepted only with the right checksum."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from collections.abc import Collection
from http.client import HTTPException
from pathlib import Path

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import cannot_write
from onmt_evsoftmax.report.progress import progress

_BLOCK = 1 << 20


def download(url: str, path: Path, checksums: Collection[str], *, otherwise: str) -> None:
    """Download ``url`` to ``path`` unless that exists; an interrupted download is resumed.

    What has arrived is kept in ``path`` + ``.part``; only a whole file with one of ``checksums``
    (``md5:…`` or ``sha256:…``; none: whatever arrives) gets its name. ``otherwise`` ends the error
    messages: how to do without the download.
    """
    if path.exists():
        return
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _append(url, part)
    except (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError) as error:
        raise UserError(
            f"cannot download {url}: {getattr(error, 'reason', None) or error}; run the same "
            f"command again to resume it, or {otherwise}"
        ) from error
    except OSError as error:
        raise cannot_write(part, error) from error
    except ValueError as error:
        raise UserError(f"{url} is not an address to download from; correct it") from error
    try:
        check(part, checksums, f"try again, or {otherwise}")
    except UserError:
        part.unlink()  # there is nothing in it to resume from
        raise
    part.replace(path)


def check(path: Path, checksums: Collection[str], advice: str) -> dict[str, str]:
    """The digests of a file; one of them must be among ``checksums``, if there are any."""
    found = digests(path)
    if checksums and not any(f"{kind}:{value}" in checksums for kind, value in found.items()):
        raise UserError(
            f"{path} has the wrong checksum: sha256:{found['sha256']} md5:{found['md5']}, "
            f"expected {' or '.join(checksums)}; {advice}"
        )
    return found


def digests(path: Path) -> dict[str, str]:
    """MD5 (what many publishers give, against damage only) and SHA-256 of a file."""
    hashes = {"md5": hashlib.md5(usedforsecurity=False), "sha256": hashlib.sha256()}
    try:
        with open(path, "rb") as stream:
            while block := stream.read(_BLOCK):
                for digest in hashes.values():
                    digest.update(block)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return {name: digest.hexdigest() for name, digest in hashes.items()}


def _append(url: str, part: Path) -> None:
    """Append what is missing of ``url`` to ``part``; raise ConnectionError if it ends early."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is missing; the checksum decides
            return
        raise
    with answer:
        # A server that ignores ranges answers 200 and sends the whole file again.
        start = have if answer.status == 206 else 0
        whole = start + int(answer.headers.get("Content-Length") or 0)
        with (
            open(part, "ab" if start else "wb") as stream,
            progress(part.stem, whole or None, unit="B", initial=start) as bar,
        ):
            while block := answer.read(_BLOCK):
                stream.write(block)
                bar.update(len(block))
    # Read in blocks, a connection that was cut looks like the end of the file.
    size = part.stat().st_size
    if size < whole:
        raise ConnectionError(f"the connection ended after {size} of {whole} bytes")
