"""The archives of a recipe, from the web or from a local folder, checked at every use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onmt_evsoftmax.corpora.archives import check_whole
from onmt_evsoftmax.corpora.parallel import write_lines
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.download import check, download
from onmt_evsoftmax.report.files import lines_of

RECORD = "checksums.sha256"  # of what was fetched, in the format of sha256sum


@dataclass(frozen=True)
class Source:
    """An archive of a recipe: file, address, checksums that somebody published."""

    name: str
    url: str
    checksums: tuple[str, ...]  # "md5:…" or "sha256:…"; any one of them may match


def listed(archives: Mapping[str, list[str]]) -> list[Source]:
    """``archives`` of a recipe.yaml: name → [address, checksums that somebody published …]."""
    sources = []
    for name, words in archives.items():
        texts = isinstance(words, list) and all(isinstance(word, str) for word in (name, *words))
        if not texts or not words:
            raise UserError(f"archives: {name} must have [ADDRESS, CHECKSUM, …], not {words!r}")
        url, *checksums = words
        for checksum in checksums:
            if checksum.partition(":")[0] not in ("md5", "sha256"):
                raise UserError(f"{name}: {checksum} is not md5:… or sha256:…")
        sources.append(Source(name, url, tuple(checksums)))
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
        path = (data_dir or folder) / source.name
        if data_dir is None:
            elsewhere = f"put {source.name} into a folder and name it with --data-dir"
            download(source.url, path, _expected(source, known), otherwise=elsewhere)
        elif not path.is_file():
            raise UserError(
                f"{path} does not exist; put {source.name} there (from {source.url}), "
                "or leave out --data-dir to download it"
            )
        advice = "delete it and fetch it again, or list yours with --sources if you trust it"
        if source.name in known and not source.checksums:
            advice = f"the one expected was recorded in {RECORD} at its first use; {advice}"
        sha256 = check(path, _expected(source, known), advice)["sha256"]
        if source.checksums:
            remarks.append(f"{source.name}: checksum verified")
        else:
            seen = "verified" if source.name in known else "recorded"
            remarks.append(f"{source.name}: no published checksum; sha256 {sha256[:16]}… {seen}")
            if source.name not in known:
                check_whole(path)  # the recorded checksum is required from now on
        known[source.name] = sha256
    write_lines(record, (f"{digest}  {name}" for name, digest in sorted(known.items())))
    return remarks


def _expected(source: Source, known: dict[str, str]) -> tuple[str, ...]:
    """The checksums that somebody published, or else the one recorded at the first use."""
    if source.checksums or source.name not in known:
        return source.checksums
    return (f"sha256:{known[source.name]}",)


def _read_record(path: Path) -> dict[str, str]:
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines_of(path))}
