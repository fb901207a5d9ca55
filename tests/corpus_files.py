"""Small archives in the layouts and under the names that IWSLT, WMT, Multi30k and Tatoeba use."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

WORDS = {
    "en": ["the", "a", "small", "cat", "dog", "sees", "likes", "house", "tree", "not"],
    "de": ["die", "eine", "kleine", "Katze", "Hund", "sieht", "mag", "Haus", "Baum", "nicht"],
}


def sentence(lang: str, number: int, tail: str = "") -> str:
    """A sentence of five to nine words that differs from every other number's."""
    words = [WORDS[lang][(number * 7 + place * 3) % 10] for place in range(5 + number % 4)]
    return " ".join([f"Nr{number}", *words]) + f"{tail}."


def tar(path: Path, members: dict[str, str | bytes], packed: str = "gz") -> Path:
    with tarfile.open(path, f"w:{packed}") as archive:  # type: ignore[call-overload]
        for name, text in members.items():
            data = text.encode() if isinstance(text, str) else text
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def gz(path: Path, text: str | bytes) -> Path:
    path.write_bytes(gzip.compress(text.encode() if isinstance(text, str) else text))
    return path


def zipped(path: Path, members: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


def segments(lang: str, name: str, numbers: range) -> str:
    """IWSLT's XML."""
    body = "".join(
        f'<seg id="{i}"> {sentence(lang, n)} &amp; so </seg>\n' for i, n in enumerate(numbers, 1)
    )
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<mteval>\n<refset setid="{name}">\n'
        f'<doc docid="1">\n<talkid>1</talkid>\n<title>A title</title>\n{body}</doc>\n'
        "</refset>\n</mteval>\n"
    )


def tags(lang: str, count: int) -> str:
    """IWSLT's train.tags."""
    lines = [
        "<url>http://www.ted.com/talks/x</url>",
        "<keywords>talks, cats</keywords>",
        "<speaker>Jane Doe</speaker>",
        "<talkid>1</talkid>",
        f"<title>{sentence(lang, 0)}</title>",
        f"<description>{sentence(lang, 1)}</description>",
    ]
    return "\n".join(lines + [f" {sentence(lang, n)} " for n in range(2, count)]) + "\n"


IWSLT_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


def iwslt_members(pair: str = "de-en", lines: int = 100) -> dict[str, str | bytes]:
    members: dict[str, str | bytes] = {f"{pair}/README": "read me\n"}
    for lang in ("en", "de"):
        members[f"{pair}/train.tags.{pair}.{lang}"] = tags(lang, lines)
        for place, name in enumerate(IWSLT_TESTS):
            numbers = range(1000 + 10 * place, 1003 + 10 * place)
            members[f"{pair}/IWSLT14.{name}.{pair}.{lang}.xml"] = segments(lang, name, numbers)
    return members


def sgm(kind: str, lang: str, numbers: range) -> str:
    """WMT's SGML: no XML, bare ampersands."""
    body = "".join(
        f'<seg id="{i}">{sentence(lang, n)} R&D &amp; x</seg>\n' for i, n in enumerate(numbers, 1)
    )
    head = f'<{kind} setid="newstest" srclang="any">\n<doc docid="d">\n<p>\n'
    return f"{head}{body}</p>\n</doc>\n</{kind}>\n"


def wmt(folder: Path) -> None:
    def plain(lang: str, numbers: range) -> str:
        return "".join(f"{sentence(lang, n)}\n" for n in numbers)

    def both(stem: str, numbers: range) -> dict[str, str | bytes]:
        return {f"{stem}.de-en.{lang}": plain(lang, numbers) for lang in ("en", "de")}

    crawl = both("commoncrawl", range(0, 60))
    crawl["commoncrawl.de-en.en"] += "An empty side\n\n" + "far " * 20 + "\n"  # type: ignore[operator]
    crawl["commoncrawl.de-en.de"] += "\nEine leere Seite\nweit\n"  # type: ignore[operator]
    crawl["commoncrawl.de-en.annotation"] = "x\n"
    tar(folder / "training-parallel-commoncrawl.tgz", crawl)
    tar(folder / "training-parallel-europarl-v7.tgz", both("training/europarl-v7", range(60, 110)))
    tar(
        folder / "training-parallel-nc-v11.tgz",
        both("training-parallel-nc-v11/news-commentary-v11", range(110, 130)),
    )
    for archive, year, numbers in (("dev", 2015, range(200, 206)), ("test", 2016, range(300, 305))):
        tar(
            folder / f"{archive}.tgz",
            {
                f"{archive}/newstest{year}-ende-src.en.sgm": sgm("srcset", "en", numbers),
                f"{archive}/newstest{year}-ende-ref.de.sgm": sgm("refset", "de", numbers),
                f"{archive}/newstest{year}-deen-src.de.sgm": "unused\n",
            },
        )


def multi30k(folder: Path, languages: tuple[str, str] = ("en", "de")) -> None:
    for file, numbers in (
        ("train", range(80)),
        ("val", range(100, 110)),
        ("test_2016_flickr", range(200, 208)),
    ):
        for lang in languages:
            gz(folder / f"{file}.{lang}.gz", "".join(f"{sentence(lang, n)}\n" for n in numbers))


def tatoeba(folder: Path) -> None:
    rows = [
        f"{sentence('en', n // 2, ' now')}\t{sentence('de', n)}\tCC-BY 2.0" for n in range(4500)
    ]
    rows.append(f"{sentence('en', 200)}\tEine Bildunterschrift aus dem Test\tCC-BY 2.0")
    with zipfile.ZipFile(folder / "deu-eng.zip", "w") as archive:
        archive.writestr("deu.txt", "\n".join(rows) + "\n")
        archive.writestr("_about.txt", "about\n")


def unchecked(folder: Path, archives: Path) -> Path:
    """A list of these archives with no checksum demanded: the recipes' are of the real ones."""
    path = folder / "sources.yaml"
    rows = [f"  {file.name}: [http://x/{file.name}]\n" for file in sorted(archives.iterdir())]
    path.write_text("archives:\n" + "".join(rows))
    return path
