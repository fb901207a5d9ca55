"""Sentences out of the formats that corpora are published in."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from onmt_evsoftmax.corpora.archives import member_lines
from onmt_evsoftmax.report.console import UserError

# Metadata of IWSLT's train.tags files stands in lines of its own: <talkid>12</talkid>.
_TAGGED = re.compile(r"\s*<(\w+)[^>]*>(.*)</\1>\s*")
_TRANSLATED = ("title", "description")  # metadata that both languages have as sentences
_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.IGNORECASE | re.DOTALL)


def tags(lines: Iterable[str]) -> Iterator[str]:
    """``train.tags``: one sentence a line, between lines of metadata, which are dropped."""
    for line in lines:
        found = _TAGGED.fullmatch(line)
        if not found:
            yield line.strip()
        elif found[1] in _TRANSLATED:
            yield found[2].strip()


def segments(lines: Iterable[str]) -> Iterator[str]:
    """IWSLT's XML and WMT's SGML: the text of every ``<seg>``.

    Both are read by their tags alone: SGML is not XML, and some of IWSLT's is not either.
    """
    for found in _SEGMENT.finditer("\n".join(lines)):
        yield " ".join(html.unescape(found[1]).split())


def plain(lines: Iterable[str]) -> Iterator[str]:
    """Text that is one sentence a line already."""
    return (line.strip() for line in lines)


FORMATS: dict[str, Callable[[Iterable[str]], Iterator[str]]] = {
    "tags": tags,
    "segments": segments,
    "plain": plain,
}


def sentences(archive: Path, member: str | None, form: str) -> Iterator[str]:
    """The sentences of one file in an archive; none at all is an error."""
    found = False
    for sentence in FORMATS[form](member_lines(archive, member)):
        found = True
        yield sentence
    if not found:
        where = f"{archive}:{member}" if member else str(archive)
        raise UserError(f"{where} has no sentence in it; is it in the {form} format?")


def columns(where: str, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The first two columns of tab-separated text (Tatoeba's third one credits its authors)."""
    for number, line in enumerate(lines, start=1):
        parts = line.split("\t")
        if len(parts) < 2:
            raise UserError(f"{where}, line {number}: no tab between two sentences")
        yield parts[0].strip(), parts[1].strip()
