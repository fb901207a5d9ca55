"""Archives from the web or from a local folder, always checked; downloads can be interrupted."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from tqdm import tqdm

from onmt_evsoftmax.corpora.archives import check_whole
from onmt_evsoftmax.corpora.parallel import full_disk, lines_of, write_lines
from onmt_evsoftmax.report.console import UserError

_CHUNK = 1 << 20
RECORD = "checksums.sha256"  # of what was fetched, in the format of sha256sum


@dataclass(frozen=True)
class Source:
    """A row of a recipe's ``sources.tsv``: file, address, checksums that somebody published."""

    name: str
    url: str
    checksums: tuple[str, ...]  # "md5:…" or "sha256:…"; any one of them may match


def read_sources(path: Path) -> list[Source]:
    """Read ``sources.tsv``: name, address, checksums separated by spaces or ``-`` for none."""
    sources = []
    for number, line in enumerate(lines_of(path), start=1):
        if not line or line.startswith("#"):
            continue
        parts = line.split("\t")
        if len(parts) < 3:
            raise UserError(f"{path}, line {number}: name, address and checksums need two tabs")
        checksums = () if parts[2] == "-" else tuple(parts[2].split())
        for checksum in checksums:
            if checksum.partition(":")[0] not in ("md5", "sha256"):
                raise UserError(f"{path}, line {number}: {checksum} is not md5:… or sha256:…")
        sources.append(Source(parts[0], parts[1], checksums))
    return sources


def fetch(sources: list[Source], folder: Path, data_dir: Path | None = None) -> list[str]:
    """Have every source in ``data_dir`` if given, else in ``folder``; return remarks on them.

    A file is checked against the published checksums. Where nobody published any, its SHA-256 is
    recorded in ``folder`` the first time and must be the same ever after.
    """
    record = folder / RECORD
    known = _read_record(record) if record.exists() else {}
    remarks = []
    for source in sources:
        path = _local(source, data_dir) if data_dir else _downloaded(source, folder, known)
        sums = _digests(path)
        remarks.append(_verify(source, path, sums, known))
        if not source.checksums and source.name not in known:
            check_whole(path)  # what is recorded now would be asked for ever after
        known[source.name] = sums["sha256"]
    write_lines(record, (f"{digest}  {name}" for name, digest in sorted(known.items())))
    return remarks


def _read_record(path: Path) -> dict[str, str]:
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines_of(path))}


def _local(source: Source, data_dir: Path) -> Path:
    path = data_dir / source.name
    if not path.is_file():
        raise UserError(
            f"{path} does not exist; put {source.name} there (from {source.url}), "
            "or leave out --data-dir to download it"
        )
    return path


def _digests(path: Path) -> dict[str, str]:
    hashes = {"md5": hashlib.md5(usedforsecurity=False), "sha256": hashlib.sha256()}
    try:
        with open(path, "rb") as stream:
            while chunk := stream.read(_CHUNK):
                for digest in hashes.values():
                    digest.update(chunk)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return {name: digest.hexdigest() for name, digest in hashes.items()}


def _verify(source: Source, path: Path, sums: dict[str, str], known: dict[str, str]) -> str:
    if source.checksums:
        if any(f"{kind}:{digest}" in source.checksums for kind, digest in sums.items()):
            return f"{source.name}: checksum verified"
        expected = " or ".join(source.checksums)
    elif source.name not in known or known[source.name] == sums["sha256"]:
        seen = "verified" if source.name in known else "recorded"
        return f"{source.name}: no published checksum; sha256 {sums['sha256'][:16]}… {seen}"
    else:
        expected = f"sha256:{known[source.name]}, recorded in {RECORD} at its first use"
    raise UserError(
        f"{path} has the wrong checksum: sha256:{sums['sha256']} md5:{sums['md5']}, expected "
        f"{expected}; delete it and fetch it again, or list yours with --sources if you trust it"
    )


def _downloaded(source: Source, folder: Path, known: dict[str, str]) -> Path:
    path, part = folder / source.name, folder / f"{source.name}.part"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _download(source.url, part)
    except (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"cannot download {source.url}: {reason}; run the same command again to go on where "
            f"it stopped, or put {source.name} into a folder and name it with --data-dir"
        ) from error
    except OSError as error:
        raise full_disk(part, error) from error
    try:
        _verify(source, part, _digests(part), known)
    except UserError:
        part.unlink()  # what has the wrong checksum is no use to resume from
        raise
    part.replace(path)
    return path


def _download(url: str, part: Path) -> None:
    """Append what is missing of ``url`` to ``part``; raise ConnectionError if it ends early."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is missing: the part is the whole file
            return
        raise
    with answer:
        if have and answer.status != 206:  # the server does not resume: begin again
            have = 0
        left = int(answer.headers.get("Content-Length", 0))
        with (
            open(part, "ab" if have else "wb") as stream,
            tqdm(
                desc=part.stem, total=have + left or None, initial=have, unit="B", unit_scale=True
            ) as progress,
        ):
            while chunk := answer.read(_CHUNK):
                stream.write(chunk)
                progress.update(len(chunk))
    size = part.stat().st_size
    if left and size < have + left:
        raise ConnectionError(f"the connection ended after {size} of {have + left} bytes")
