"""Fetching a public file: resumed where it stopped, and accepted only with the right checksum."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from onmt_evsoftmax.console import UserError

_BLOCK = 1 << 18


class Remote(NamedTuple):
    """A file elsewhere; ``md5`` is what its publishers give, and guards against damage only."""

    url: str
    md5: str


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"

#: Data set → file name → where it comes from.
SOURCES = {
    "mnist": {
        "train-images-idx3-ubyte.gz": Remote(
            _MNIST + "train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"
        ),
        "train-labels-idx1-ubyte.gz": Remote(
            _MNIST + "train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"
        ),
        "t10k-images-idx3-ubyte.gz": Remote(
            _MNIST + "t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"
        ),
        "t10k-labels-idx1-ubyte.gz": Remote(
            _MNIST + "t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"
        ),
    },
    "tiny-imagenet": {
        "tiny-imagenet-200.zip": Remote(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"
        ),
    },
}


def fetch(remote: Remote, target: Path) -> Path:
    """Download to ``target`` unless it is there; an interrupted download goes on at the next call.

    What has arrived is kept in ``target`` + ``.part``; only a complete file of the right checksum
    gets its name.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(remote.url)
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            # A server that ignores ranges answers 200 and sends the whole file again.
            resumed = answer.status == 206
            length = int(answer.headers.get("Content-Length") or 0)
            start = have if resumed else 0
            with (
                open(part, "ab" if resumed else "wb") as file,
                tqdm(
                    total=start + length or None,
                    initial=start,
                    unit="B",
                    unit_scale=True,
                    desc=target.name,
                ) as bar,
            ):
                while block := answer.read(_BLOCK):
                    file.write(block)
                    bar.update(len(block))
    except urllib.error.HTTPError as error:
        if error.code != 416:  # the part is complete already: let its checksum decide
            raise _failed(remote, target, str(error)) from error
    except OSError as error:
        raise _failed(remote, target, str(error)) from error
    if _md5(part) != remote.md5:
        part.unlink()
        raise UserError(
            f"{remote.url}: the download has another checksum than {remote.md5} and was removed; "
            "try again, or put your own copy into --data-dir"
        )
    os.replace(part, target)
    return target


def _failed(remote: Remote, target: Path, why: str) -> UserError:
    return UserError(
        f"cannot download {remote.url}: {why}; call again to resume, or put the file at {target}"
    )


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
