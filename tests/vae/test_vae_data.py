"""Reading image data sets, and what is said when their files are bad."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import threading
import zipfile

import pytest
import torch
from vae_data import idx_bytes, write_mnist, write_tiny_imagenet

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.vae import data, download


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
    with pytest.raises(UserError, match="choose one of digits, mnist"):
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


class _Server(http.server.BaseHTTPRequestHandler):
    content = bytes(range(256)) * 5000
    ranges = True
    cut = 0  # close the connection after that many bytes, once
    chunked = False
    asked: list = []  # noqa: RUF012 - one server per test process

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.asked.append(wanted)
        start = int(wanted[6:-1]) if wanted and self.ranges else 0
        if start >= len(self.content):
            self.send_error(416)
            return
        body = self.content[start:]
        self.send_response(206 if start else 200)
        if self.chunked:  # a reply that breaks off in its second chunk
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n" % 1000 + body[:1000] + b"\r\nffff\r\n" + body[:10])
            return
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.cut or None])
        type(self).cut = 0

    def log_message(self, *_):
        pass


@pytest.fixture
def remote():
    server = http.server.HTTPServer(("127.0.0.1", 0), _Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _Server.ranges, _Server.cut, _Server.chunked = True, 0, False
    _Server.asked.clear()
    digest = hashlib.md5(_Server.content, usedforsecurity=False).hexdigest()
    yield download.Remote(f"http://127.0.0.1:{server.server_port}/file", digest)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("have", [0, 1000, 256 * 5000])
def test_a_download_resumes_where_it_stopped(tmp_path, remote, have, ranges):
    _Server.ranges = ranges
    if have:
        (tmp_path / "file.part").write_bytes(_Server.content[:have])
    path = download.fetch(remote, tmp_path / "file")
    assert path.read_bytes() == _Server.content
    assert _Server.asked == [f"bytes={have}-" if have else None]
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    download.fetch(remote, path)
    assert len(_Server.asked) == 1


def test_a_wrong_checksum_and_a_dead_server_are_told(tmp_path, remote):
    with pytest.raises(UserError, match="another checksum"):
        download.fetch(download.Remote(remote.url, "0" * 32), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="run the same command again to go on"):
        download.fetch(download.Remote("http://127.0.0.1:9/x", "0"), tmp_path / "file")


@pytest.mark.parametrize("have", [0, 1000])
def test_a_connection_that_is_cut_is_told_and_resumed(tmp_path, remote, have):
    if have:
        (tmp_path / "file.part").write_bytes(_Server.content[:have])
    _Server.cut = 700_000
    arrived = have + _Server.cut
    says = f"ended after {arrived} of {len(_Server.content)} bytes; run the same command again"
    with pytest.raises(UserError, match=says):
        download.fetch(remote, tmp_path / "file")
    assert (tmp_path / "file.part").stat().st_size == arrived
    assert download.fetch(remote, tmp_path / "file").read_bytes() == _Server.content
    assert _Server.asked[-1] == f"bytes={arrived}-"


def test_a_chunked_answer_that_is_cut_is_told(tmp_path, remote):
    _Server.chunked = True
    with pytest.raises(UserError, match="run the same command again"):
        download.fetch(remote, tmp_path / "file")


def test_a_damaged_file_is_not_taken_for_a_download(tmp_path, remote):
    (tmp_path / "file").write_bytes(_Server.content[:-1])
    with pytest.raises(UserError, match=r"file has another checksum than .*; remove it and run"):
        download.fetch(remote, tmp_path / "file")
    assert not _Server.asked


def test_a_file_in_place_of_the_folder_is_told(tmp_path, remote):
    archive = tmp_path / "tiny.zip"
    archive.write_bytes(b"")
    with pytest.raises(UserError, match=r"cannot make the folder .*tiny\.zip: File exists; give"):
        download.fetch(remote, archive / "file")
