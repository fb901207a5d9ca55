"""Fetching: checksums, and downloads that are cut off, from a server of our own on this machine."""

from __future__ import annotations

import hashlib
import http.server
import threading
from pathlib import Path
from typing import ClassVar

import pytest
from corpus_files import gz, tar, zipped

from onmt_evsoftmax.corpora.fetch import Source, fetch, listed
from onmt_evsoftmax.corpora.verbs import main
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.download import download

CONTENT = bytes(range(256)) * 4000  # a million bytes


def sha(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Server(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT; cuts the connection after ``cut`` bytes; may not know Range."""

    cut: int | None = None
    ranges = True
    asked: ClassVar[list[str | None]] = []

    def do_GET(self):
        wanted = self.headers.get("Range")
        type(self).asked.append(wanted)
        start = int(wanted[6:-1]) if wanted and self.ranges else 0
        if start >= len(CONTENT):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        body = CONTENT[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(Server, "asked", [])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/a.tgz"
        running.shutdown()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_download_is_checked_and_kept(server, tmp_path):
    source = Source("a.tgz", server, (sha(CONTENT),))
    fetch([source], tmp_path)
    assert (tmp_path / "a.tgz").read_bytes() == CONTENT
    fetch([source], tmp_path)
    assert len(Server.asked) == 1, "a complete file is not downloaded again"
    assert names(tmp_path) == {"a.tgz", "checksums.sha256"}


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_download_goes_on_where_it_stopped(server, tmp_path, monkeypatch, ranges):
    source = Source("a.tgz", server, (sha(CONTENT),))
    monkeypatch.setattr(Server, "cut", 300_000)
    with pytest.raises(UserError, match=r"cannot download .*same command again to resume it"):
        fetch([source], tmp_path)
    assert names(tmp_path) == {"a.tgz.part"}
    kept = (tmp_path / "a.tgz.part").stat().st_size
    monkeypatch.setattr(Server, "cut", None)
    monkeypatch.setattr(Server, "ranges", ranges)
    fetch([source], tmp_path)
    assert (tmp_path / "a.tgz").read_bytes() == CONTENT
    assert Server.asked == [None, f"bytes={kept}-"]


def test_a_part_that_is_whole_needs_no_more_bytes(server, tmp_path):
    (tmp_path / "a.tgz.part").write_bytes(CONTENT)
    fetch([Source("a.tgz", server, (sha(CONTENT),))], tmp_path)
    assert (tmp_path / "a.tgz").read_bytes() == CONTENT


def test_a_download_with_the_wrong_checksum_is_removed(server, tmp_path):
    with pytest.raises(UserError, match=r"has the wrong checksum: sha256:.* expected sha256:00"):
        fetch([Source("a.tgz", server, ("sha256:00",))], tmp_path)
    assert names(tmp_path) == set()


def test_a_dead_address_is_told(tmp_path):
    with pytest.raises(UserError, match=r"cannot download http://127\.0\.0\.1:9/x: .*--data-dir"):
        fetch([Source("x", "http://127.0.0.1:9/x", ())], tmp_path)


@pytest.mark.parametrize("address", ["url", "", "http://[x/"])
def test_what_is_no_address_is_told(tmp_path, address):
    with pytest.raises(UserError, match="is not an address to download from"):
        download(address, tmp_path / "x", (), otherwise="do without")


def test_a_local_copy_is_checked_in_its_place(tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    (data / "a.tgz").write_bytes(b"x")
    md5 = "md5:" + hashlib.md5(b"x", usedforsecurity=False).hexdigest()
    assert fetch([Source("a.tgz", "", ("sha256:0", md5))], out, data) == [
        "a.tgz: checksum verified"
    ]
    (data / "a.tgz").write_bytes(b"y")
    with pytest.raises(UserError, match=r"a\.tgz has the wrong checksum"):
        fetch([Source("a.tgz", "", (md5,))], out, data)
    with pytest.raises(
        UserError, match=r"b\.tgz does not exist; put b\.tgz there \(from http://b\)"
    ):
        fetch([Source("b.tgz", "http://b", ())], out, data)


def test_without_a_published_checksum_the_first_use_is_remembered(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x")
    source, out = Source("a.txt", "", ()), tmp_path / "out"
    assert "recorded" in fetch([source], out, tmp_path)[0]
    assert "verified" in fetch([source], out, tmp_path)[0]
    (tmp_path / "a.txt").write_bytes(b"y")
    with pytest.raises(
        UserError, match=r"wrong checksum: .*recorded in checksums.sha256 at its first use"
    ):
        fetch([source], out, tmp_path)


def test_a_checksum_of_another_kind_is_refused():
    with pytest.raises(UserError, match=r"a\.gz: crc:1 is not md5:… or sha256:…"):
        listed({"a.gz": ["http://x/a.gz", "crc:1"]})


@pytest.mark.parametrize("words", [None, [], "http://x", [3], ["http://x", 3]])
def test_an_archive_without_an_address_is_refused(words):
    with pytest.raises(UserError, match=r"archives: a\.gz must have \[ADDRESS, CHECKSUM, …\]"):
        listed({"a.gz": words})


@pytest.mark.parametrize("text", ["a: 3", "archives:", "archives: [a]", "archives: {}"])
def test_a_list_without_archives_is_refused(tmp_path, text):
    (tmp_path / "list.yaml").write_text(text)
    with pytest.raises(UserError, match=r"list\.yaml lists no archives"):
        main(["fetch", "--sources", str(tmp_path / "list.yaml"), "-o", str(tmp_path / "out")])


@pytest.mark.parametrize("name", ["a.tgz", "a.zip", "a.gz"])
def test_an_archive_that_was_cut_off_is_not_recorded(tmp_path, name):
    """Else the whole one would be refused for ever after."""
    data, out = tmp_path / "in", tmp_path / "out"
    data.mkdir()
    whole = {
        "a.tgz": lambda path: tar(path, {"text": "words " * 5000}),
        "a.gz": lambda path: gz(path, "words " * 5000),
        "a.zip": lambda path: zipped(path, {"text": "words " * 5000}),
    }[name]
    whole(data / name)
    (data / name).write_bytes((data / name).read_bytes()[:-30])
    with pytest.raises(UserError, match="is truncated or damaged"):
        fetch([Source(name, "", ())], out, data)
    whole(data / name)
    assert "recorded" in fetch([Source(name, "", ())], out, data)[0]
