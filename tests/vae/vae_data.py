"""Small data sets in the real file formats, for the tests of the VAE experiments."""

from __future__ import annotations

import gzip
import io
import struct
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor


def idx_bytes(tensor: Tensor) -> bytes:
    """A uint8 tensor as the content of an idx file."""
    header = bytes([0, 0, 8, tensor.dim()]) + struct.pack(f">{tensor.dim()}I", *tensor.shape)
    return header + bytes(tensor.flatten().tolist())


def write_mnist(folder: Path, train: int = 200, test: int = 40, size: int = 8) -> Path:
    """MNIST's four files with images of ``size`` × ``size``: digit d lights up its own rows."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    for prefix, count in (("train", train), ("t10k", test)):
        labels = torch.arange(count) % 10
        images = torch.randint(0, 60, (count, size, size), generator=generator)
        for image, label in zip(images, labels.tolist(), strict=True):
            image.view(-1)[label * size * size // 10 : (label + 1) * size * size // 10] = 255
        for kind, tensor in (("images-idx3", images), ("labels-idx1", labels)):
            content = idx_bytes(tensor.to(torch.uint8))
            (folder / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(content))
    return folder


def jpeg(shade: int, mode: str = "RGB", size: int = 64) -> bytes:
    """A plain JPEG."""
    buffer = io.BytesIO()
    Image.new(mode, (size, size), shade if mode == "L" else (shade, 0, 255 - shade)).save(
        buffer, "JPEG"
    )
    return buffer.getvalue()


def write_tiny_imagenet(folder: Path, classes: int = 3, train: int = 4, val: int = 2) -> Path:
    """tiny-ImageNet's folder layout; the class's number is its shade. One image is grey."""
    root = folder / "tiny-imagenet-200"
    wnids = [f"n0000000{index}" for index in range(classes)]
    annotations = []
    for index, wnid in enumerate(wnids):
        images = root / "train" / wnid / "images"
        images.mkdir(parents=True)
        for number in range(train):
            mode = "L" if index == number == 0 else "RGB"
            (images / f"{wnid}_{number}.JPEG").write_bytes(jpeg(index * 80, mode))
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
        (root / "val" / "images").mkdir(parents=True, exist_ok=True)
        for number in range(val):
            name = f"val_{index * val + number}.JPEG"
            (root / "val" / "images" / name).write_bytes(jpeg(index * 80))
            annotations.append(f"{name}\t{wnid}\t0\t0\t62\t62")
    (root / "val" / "val_annotations.txt").write_text("\n".join(annotations) + "\n")
    (root / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (root / "words.txt").write_text("".join(f"{w}\tthing {w[-1]}, stuff\n" for w in wnids))
    return root
