"""Reading image data sets, and what is said when their files are bad."""

from __future__ import annotations

import gzip
import zipfile

import pytest
import torch
from vae_data import idx_bytes, write_mnist, write_tiny_imagenet

from onmt_evsoftmax.report import download
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.vae import data


def test_idx_files_come_back_plain_and_compressed(tmp_path):
    tensor = torch.randint(0, 256, (3, 4, 5)).to(torch.uint8)
    (tmp_path / "plain").write_bytes(idx_bytes(tensor))
    (tmp_path / "packed.gz").write_bytes(gzip.compress(idx_bytes(tensor)))
    for name in ("plain", "packed.gz"):
        assert torch.equal(data.read_idx(tmp_path / name, 3), tensor)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "begins with nothing"),
        (b"\x89PNG....", "begins with 89504e47"),
        (idx_bytes(torch.zeros(3, dtype=torch.uint8)), "not with 00000803"),
        (idx_bytes(torch.zeros(2, 2, 2, dtype=torch.uint8))[:9], "truncated in its header"),
        (idx_bytes(torch.zeros(2, 2, 2, dtype=torch.uint8))[:-1], "promises 8 bytes, there are 7"),
        (idx_bytes(torch.zeros(2, 2, 2, dtype=torch.uint8)) + b"x", "there are 9"),
        (idx_bytes(torch.zeros(0, 2, 2, dtype=torch.uint8)), "holds nothing"),
        (
            gzip.compress(idx_bytes(torch.zeros(9, 9, 9, dtype=torch.uint8)), mtime=0)[:-12],
            "damaged gzip",
        ),
        (b"\x1f\x8b" + bytes(30), "damaged gzip"),
    ],
)
def test_bad_idx_files_are_told(tmp_path, content, says):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(UserError, match=says) as error:
        data.read_idx(path, 3)
    assert str(path) in str(error.value)


def test_mnist_from_its_folder(tmp_path):
    loaded = data.load("mnist", write_mnist(tmp_path, 30, 20))
    assert loaded.train.pixels.shape == (30, 1, 8, 8)
    assert loaded.test.labels.tolist() == [i % 10 for i in range(20)]
    few = data.load("mnist", tmp_path, classes=3)
    assert set(few.train.labels.tolist()) == {0, 1, 2}
    assert few.classes == ["0", "1", "2"]


def test_mnist_that_is_not_there_or_does_not_fit(tmp_path):
    with pytest.raises(UserError, match="needs --data-dir"):
        data.load("mnist")
    with pytest.raises(UserError, match="neither train-images-idx3-ubyte nor"):
        data.load("mnist", tmp_path)
    write_mnist(tmp_path, 30, 20)
    short = idx_bytes(torch.zeros(7, dtype=torch.uint8))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(short))
    with pytest.raises(UserError, match="7 labels for 30 images"):
        data.load("mnist", tmp_path)
    with pytest.raises(UserError, match=r"'minst' \(did you mean mnist"):
        data.load("minst", tmp_path)


def test_tiny_imagenet_from_folder_and_zip_is_the_same(tmp_path):
    root = write_tiny_imagenet(tmp_path / "a")
    archive = tmp_path / "b" / "tiny-imagenet-200.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(root.rglob("*")):
            if path.is_file():
                file.write(path, path.relative_to(root.parent))
    places = (tmp_path / "a", root, archive.parent, archive)
    loaded = [data.load("tiny-imagenet", place) for place in places]
    assert loaded[0].train.pixels.shape == (12, 3, 64, 64)
    assert loaded[0].test.pixels.shape == (6, 3, 64, 64)
    assert loaded[0].classes == ["thing 0", "thing 1", "thing 2"]
    for other in loaded[1:]:
        assert torch.equal(other.train.pixels, loaded[0].train.pixels)
        assert torch.equal(other.test.labels, loaded[0].test.labels)
    shade = loaded[0].test.pixels[:, 0].float().mean((1, 2)) / 80
    assert shade.round().long().tolist() == loaded[0].test.labels.tolist()
    small = data.load("tiny-imagenet", root, classes=2, size=16)
    assert small.train.pixels.shape == (8, 3, 16, 16)


def test_bad_tiny_imagenet_is_told(tmp_path):
    with pytest.raises(UserError, match="no tiny-imagenet-200 folder and no"):
        data.load("tiny-imagenet", tmp_path)
    root = write_tiny_imagenet(tmp_path)
    victim = root / "train" / "n00000001" / "images" / "n00000001_2.JPEG"
    for content in (b"not an image", victim.read_bytes()[:300]):
        victim.write_bytes(content)
        with pytest.raises(UserError, match=r"n00000001_2\.JPEG is not a readable image"):
            data.load("tiny-imagenet", tmp_path)
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "tiny-imagenet-200.zip").write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(UserError, match="not a whole zip file"):
        data.load("tiny-imagenet", tmp_path / "z")


def test_mnist_of_two_sizes_is_refused(tmp_path):
    write_mnist(tmp_path, 20, 20)
    large = gzip.compress(idx_bytes(torch.zeros(20, 9, 8, dtype=torch.uint8)))
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(large)
    with pytest.raises(UserError, match="training images are 8 × 8 and the test images 9 × 8"):
        data.load("mnist", tmp_path)


def test_more_classes_than_there_are_and_missing_validation_images_are_refused(tmp_path):
    with pytest.raises(UserError, match="classes: 11 is more than the 10 of mnist; lower it"):
        data.load("mnist", write_mnist(tmp_path / "mnist", 20, 20), classes=11)
    root = write_tiny_imagenet(tmp_path)
    with pytest.raises(UserError, match=r"classes: 4 is more than the 3 of .*tiny-imagenet-200"):
        data.load("tiny-imagenet", tmp_path, classes=4)
    lost = root / "val" / "images" / "val_4.JPEG"
    lost.unlink()
    with pytest.raises(UserError, match=r"lists val/images/val_4\.JPEG, .* \(1 of 6 are not\)"):
        data.load("tiny-imagenet", tmp_path)
    assert len(data.load("tiny-imagenet", tmp_path, classes=2).test.labels) == 4
    (root / "val" / "val_annotations.txt").write_text("\n")
    with pytest.raises(UserError, match=r"has 12 training .* and 0 validation images in val/val_a"):
        data.load("tiny-imagenet", tmp_path)


def test_the_embedded_digits():
    pytest.importorskip("sklearn", reason="the embedded digits need scikit-learn: pip install it")
    loaded = data.load("digits")
    assert loaded.train.pixels.shape == (1437, 1, 8, 8)
    assert len(loaded.test.labels) == 360
    assert loaded.train.pixels.max() == 255


# --- downloads ------------------------------------------------------------------------------------


def test_files_that_are_there_are_not_fetched_but_must_be_the_published_ones(tmp_path, monkeypatch):
    write_mnist(tmp_path, 20, 20)
    with pytest.raises(UserError, match=r"wrong checksum: .*; remove it, or leave out --download"):
        data.load("mnist", tmp_path, fetch=True)
    _, files = data.SOURCES["mnist"]
    ours = {file: "md5:" + download.digests(tmp_path / file)["md5"] for file in files}
    monkeypatch.setitem(data.SOURCES, "mnist", ("http://127.0.0.1:9/", ours))
    assert len(data.load("mnist", tmp_path, fetch=True).train.labels) == 20
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    says = r"cannot download http://127\.0\.0\.1:9/t10k-labels.*put your own copy into --data-dir"
    with pytest.raises(UserError, match=says):
        data.load("mnist", tmp_path, fetch=True)
