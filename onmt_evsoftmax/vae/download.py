"""Fetching a public file: resumed where it stopped, and accepted only with the right checksum."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from onmt_evsoftmax.report.console import UserError

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
        if _md5(target) != remote.md5:
            raise UserError(
                f"{target} has another checksum than {remote.md5}; remove it and run the same "
                "command again, or leave out --download to use it as it is"
            )
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make the folder {target.parent}: {error.strerror}; give another as "
            "--data-dir, or leave out --download if the data set is there"
        ) from error
    part = target.with_name(target.name + ".part")
    try:
        _append(remote.url, part)
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"cannot download {remote.url}: {error}; run the same command again to go on where it "
            f"stopped, or put the file at {target}"
        ) from error
    if _md5(part) != remote.md5:
        part.unlink()
        raise UserError(
            f"{remote.url}: the download has another checksum than {remote.md5} and was removed; "
            "try again, or put your own copy into --data-dir"
        )
    os.replace(part, target)
    return target


def _append(url: str, part: Path) -> None:
    """Write to ``part`` what it lacks of ``url``; ConnectionError if the answer ends early."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # the part is complete already: let its checksum decide
            return
        raise
    with answer:
        # A server that ignores ranges answers 200 and sends the whole file again.
        start = have if answer.status == 206 else 0
        length = int(answer.headers.get("Content-Length") or 0)
        with (
            open(part, "ab" if start else "wb") as file,
            tqdm(
                total=start + length or None,
                initial=start,
                unit="B",
                unit_scale=True,
                desc=part.stem,
            ) as bar,
        ):
            while block := answer.read(_BLOCK):
                file.write(block)
                bar.update(len(block))
    # Reading in blocks, urllib takes a connection that was cut for the end of the file.
    size = part.stat().st_size
    if size < start + length:
        raise ConnectionError(f"the connection ended after {size} of {start + length} bytes")


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
