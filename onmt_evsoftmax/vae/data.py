"""Image data sets as whole tensors: embedded digits, MNIST's idx files, tiny-ImageNet's folders."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from onmt_evsoftmax.report import download
from onmt_evsoftmax.report.console import UserError, unknown_name
from onmt_evsoftmax.report.progress import progress
from onmt_evsoftmax.vae import distributed

#: Names that ``load`` knows.
DATA_SETS = ("digits", "mnist", "tiny-imagenet")
#: The one that comes with scikit-learn and needs no files.
EMBEDDED = "digits"

#: Data set → (where its files are, file → the checksum that their publishers give).
SOURCES = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "tiny-imagenet": (
        "http://cs231n.stanford.edu/",
        {"tiny-imagenet-200.zip": "md5:90528d7ca1a48142e341f4ef8d21d0de"},
    ),
}


class Images(NamedTuple):
    """``pixels`` (N, channels, height, width) uint8 and ``labels`` (N,) int64."""

    pixels: Tensor
    labels: Tensor

    def unit(self) -> Tensor:
        """Pixels as float32 in [0, 1]."""
        return self.pixels.float() / 255

    def to(self, device: torch.device | str) -> Images:
        return Images(self.pixels.to(device), self.labels.to(device))


class DataSet(NamedTuple):
    """Training and test images with the names of the classes."""

    train: Images
    test: Images
    classes: list[str]

    def to(self, device: torch.device | str) -> DataSet:
        return self._replace(train=self.train.to(device), test=self.test.to(device))


def load(
    name: str,
    folder: str | Path | None = None,
    *,
    fetch: bool = False,
    classes: int = 0,
    size: int = 0,
) -> DataSet:
    """The data set ``name``; ``folder`` holds its files, which ``fetch`` downloads if absent.

    ``classes`` > 0 keeps only that many first classes, ``size`` > 0 scales tiny-ImageNet's images
    to that many pixels each way.
    """
    if name not in DATA_SETS:
        raise UserError(unknown_name("data set", name, DATA_SETS))
    if name == EMBEDDED:
        data = _digits()
    else:
        if folder is None:
            raise UserError(f"data set {name} needs --data-dir FOLDER with its files")
        place = Path(folder)
        if fetch:
            _fetch(name, place)
        data = _mnist(place) if name == "mnist" else _tiny_imagenet(place, classes, size)
    return _first_classes(name, data, classes) if classes else data


def _fetch(name: str, place: Path) -> None:
    """Download what is not there; a file that is there must be the published one."""
    if distributed.rank() == 0:  # all processes would write to the same place
        address, files = SOURCES[name]
        for file, checksum in files.items():
            if (place / file).exists():
                advice = "remove it, or leave out --download to use it as it is"
                download.check(place / file, [checksum], advice)
            otherwise = "put your own copy into --data-dir and leave out --download"
            download.download(address + file, place / file, [checksum], otherwise=otherwise)
    distributed.wait()


def _first_classes(name: str, data: DataSet, classes: int) -> DataSet:
    _check_classes(name, len(data.classes), classes)

    def keep(images: Images) -> Images:
        chosen = images.labels < classes
        return Images(images.pixels[chosen], images.labels[chosen])

    return DataSet(keep(data.train), keep(data.test), data.classes[:classes])


def _check_classes(name: str, there: int, wanted: int) -> None:
    if wanted > there:
        raise UserError(f"classes: {wanted} is more than the {there} of {name}; lower it")


def _digits() -> DataSet:
    """scikit-learn's 1797 digits of 8 × 8; every fifth is a test image."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UserError(
            "the embedded digits need scikit-learn: pip install 'onmt_evsoftmax[vae]'"
        ) from error
    bunch = load_digits()
    pixels = (torch.from_numpy(bunch.images) * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    test = torch.arange(len(labels)) % 5 == 0
    train, tested = (Images(pixels[chosen], labels[chosen]) for chosen in (~test, test))
    return DataSet(train, tested, list("0123456789"))


# --- MNIST ----------------------------------------------------------------------------------------


def _mnist(folder: Path) -> DataSet:
    def part(prefix: str) -> Images:
        pixels = read_idx(_find(folder, f"{prefix}-images-idx3-ubyte"), 3)
        path = _find(folder, f"{prefix}-labels-idx1-ubyte")
        labels = read_idx(path, 1).long()
        if len(pixels) != len(labels):
            raise UserError(f"{path} has {len(labels)} labels for {len(pixels)} images")
        if len(labels) and labels.max() > 9:
            raise UserError(f"{path}: label {int(labels.max())} is not a digit")
        return Images(pixels.unsqueeze(1), labels)

    train, test = part("train"), part("t10k")
    one, other = (" × ".join(map(str, images.pixels.shape[2:])) for images in (train, test))
    if one != other:
        raise UserError(
            f"{folder}: the training images are {one} and the test images {other}; "
            "their files do not belong together, fetch them again"
        )
    return DataSet(train, test, list("0123456789"))


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.exists():
            return candidate
    raise UserError(
        f"{folder} has neither {name} nor {name}.gz; point --data-dir at MNIST's four files, "
        "or add --download"
    )


def read_idx(path: str | Path, dimensions: int) -> Tensor:
    """The uint8 tensor of an idx file (plain or .gz) that must have that many dimensions."""
    try:
        raw = Path(path).read_bytes()
        content = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is a damaged gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    header = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, 8, dimensions]):
        raise UserError(
            f"{path} is not the idx file expected: it begins with {content[:4].hex() or 'nothing'}"
            f", not with {bytes([0, 0, 8, dimensions]).hex()}"
        )
    if len(content) < header:
        raise UserError(f"{path} is truncated in its header; fetch it again")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise UserError(
            f"{path} is truncated or too long: its header promises {math.prod(shape)} bytes, "
            f"there are {len(content) - header}; fetch it again"
        )
    body = bytearray(content[header:])
    if not body:
        raise UserError(f"{path} holds nothing")
    return torch.frombuffer(body, dtype=torch.uint8).reshape(shape)


# --- tiny-ImageNet --------------------------------------------------------------------------------


class _Tree:
    """The files below ``tiny-imagenet-200/``, in a zip or in a folder, by their relative names."""

    def __init__(self, place: Path) -> None:
        zips = [place] if place.suffix == ".zip" else sorted(place.glob("tiny-imagenet*.zip"))
        root = place / "tiny-imagenet-200"
        folder = root if (root / "wnids.txt").exists() else place
        if (folder / "wnids.txt").exists():
            self.where, self.archive = folder, None
            self.names = {p.relative_to(folder).as_posix() for p in folder.rglob("*.*")}
        elif zips:
            self.where = zips[0]
            try:
                self.archive = zipfile.ZipFile(zips[0])
            except (OSError, zipfile.BadZipFile) as error:
                raise UserError(f"{zips[0]} is not a whole zip file ({error})") from error
            listed = self.archive.namelist()
            self.prefix = next(
                (n[: -len("wnids.txt")] for n in listed if n.endswith("wnids.txt")), ""
            )
            self.names = {n.removeprefix(self.prefix) for n in listed if not n.endswith("/")}
        else:
            raise UserError(
                f"{place} has no tiny-imagenet-200 folder and no tiny-imagenet*.zip; "
                "point --data-dir at one, or add --download"
            )

    def read(self, name: str) -> bytes:
        try:
            if self.archive is None:
                return (self.where / name).read_bytes()
            return self.archive.read(self.prefix + name)
        except (OSError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"{self.where}: cannot read {name} ({error})") from error

    def lines(self, name: str) -> list[list[str]]:
        """The lines of a text file, split at tabs."""
        text = self.read(name).decode("utf-8", errors="replace")
        return [line.split("\t") for line in text.splitlines() if line.strip()]

    def image(self, name: str, size: int) -> Tensor:
        """(3, size, size) uint8; grey images get three equal channels."""
        from PIL import Image

        try:
            with Image.open(io.BytesIO(self.read(name))) as opened:
                picture = opened.convert("RGB")
        except (OSError, SyntaxError, ValueError) as error:
            raise UserError(
                f"{self.where}: {name} is not a readable image ({error}); replace it"
            ) from error
        if picture.size != (size, size):
            picture = picture.resize((size, size), Image.Resampling.BOX)
        flat = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        return flat.reshape(size, size, 3).permute(2, 0, 1)


def _tiny_imagenet(place: Path, classes: int, size: int) -> DataSet:
    tree = _Tree(place)
    size = size or 64
    wnids = [fields[0] for fields in tree.lines("wnids.txt")]
    _check_classes(str(tree.where), len(wnids), classes)
    wnids = wnids[: classes or None]
    number = {wnid: index for index, wnid in enumerate(wnids)}
    training: list[tuple[str, int]] = []
    for name in sorted(tree.names):
        parts = name.split("/")
        if parts[0] == "train" and len(parts) == 4 and parts[1] in number:
            training.append((name, number[parts[1]]))
    validation = [
        (f"val/images/{fields[0]}", number[fields[1]])
        for fields in tree.lines("val/val_annotations.txt")
        if len(fields) > 1 and fields[1] in number
    ]
    missing = [name for name, _ in validation if name not in tree.names]
    if missing:
        raise UserError(
            f"{tree.where}: val/val_annotations.txt lists {missing[0]}, which is not there "
            f"({len(missing)} of {len(validation)} are not); unpack the archive again"
        )
    if not training or not validation:
        raise UserError(
            f"{tree.where} has {len(training)} training images in train/ and {len(validation)} "
            "validation images in val/val_annotations.txt of the classes in wnids.txt; "
            "unpack the archive again"
        )
    words = {fields[0]: fields[-1].split(",")[0] for fields in tree.lines("words.txt")}

    def read(part: str, listed: list[tuple[str, int]]) -> Images:
        # Closed before an error is told, so that its sentence is the last line.
        title, hidden = f"tiny-imagenet {part}", distributed.rank() != 0
        with progress(title, len(listed), unit="images", lines=listed, quiet=hidden) as bar:
            pixels = torch.stack([tree.image(name, size) for name, _ in bar])
        return Images(pixels, torch.tensor([label for _, label in listed]))

    names = [words.get(wnid, wnid) for wnid in wnids]
    return DataSet(read("train", training), read("val", validation), names)
