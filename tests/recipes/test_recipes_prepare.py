"""The recipes' prepare.sh, end to end on small archives in the official layouts, and its errors."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import corpus_files as archives
import pytest

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
BIN = Path(sys.executable).parent


def run(
    script: str, *options: object, path: str | None = None, limit: str = ""
) -> subprocess.CompletedProcess:
    """Run recipes/SCRIPT with this Python's programs on the PATH."""
    environment = {
        **os.environ,
        "PATH": path or f"{BIN}:{os.environ['PATH']}",
    }
    command = [str(RECIPES / script), *map(str, options)]
    shell = ["bash", "-c", f'{limit} exec "$0" "$@"', *command]
    return subprocess.run(shell, capture_output=True, text=True, env=environment, timeout=300)


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def failed(done: subprocess.CompletedProcess, output: Path, *said: str) -> None:
    """Exit code 2, one sentence with all of ``said``, and no half-written file."""
    assert done.returncode == 2, done.stderr
    sentences = [line for line in done.stderr.splitlines() if "error: " in line]
    assert len(sentences) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for words in said:
        assert words in sentences[0]
    for name in files(output) if output.exists() else {}:
        assert ".tmp" not in name, name
        assert not name.endswith(".part"), name


@pytest.fixture
def iwslt(tmp_path: Path) -> Path:
    """A folder with de-en.tgz; the returned path is the archive's."""
    (tmp_path / "in").mkdir()
    return archives.tar(tmp_path / "in" / "de-en.tgz", archives.iwslt_members())


def prepare_iwslt(archive: Path, *options: object, **more: str) -> subprocess.CompletedProcess:
    output = archive.parent.parent / "out"
    size = () if "--subwords-from" in options else ("--size", 60)
    return run(
        "iwslt14/prepare.sh", "--data-dir", archive.parent, "-o", output, *size, "--jobs", 1,
        *options, **more,
    )  # fmt: skip


# ---------------------------------------------------------------- whole recipes


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["de-en", "en-de"])
def test_iwslt14_from_the_official_archive(tmp_path, pair):
    (tmp_path / "in").mkdir()
    archive = archives.tar(tmp_path / "in" / f"{pair}.tgz", archives.iwslt_members(pair))
    done = prepare_iwslt(archive)
    assert done.returncode == 0, done.stderr
    text, data = tmp_path / "out" / "text", tmp_path / "out" / "data"
    for lang in ("en", "de"):
        expected = [archives.sentence(lang, n) for n in range(100)]
        assert lines(text / f"valid.{lang}") == expected[22::23]
        assert lines(text / f"train.{lang}") == [
            line for n, line in enumerate(expected, 1) if n % 23 != 0
        ]
        numbers = [1000 + 10 * place + n for place in range(5) for n in range(3)]
        assert lines(text / f"test.{lang}") == [
            archives.sentence(lang, n) + " & so" for n in numbers
        ]
        joined = [line.replace("@@ ", "") for line in lines(data / f"test.{lang}")]
        assert joined == lines(tmp_path / "out" / "tokenised" / f"test.{lang}")
    # Subwords know the training text only: the last test sentence's number is in pieces.
    assert "Nr1042" not in lines(data / "test.en")[-1].split()
    vocabulary = {line.split("\t")[0] for line in lines(data / "vocab.shared")}
    used = {
        piece
        for lang in ("en", "de")
        for line in lines(data / f"train.{lang}")
        for piece in line.split()
    }
    assert vocabulary == used

    before = files(tmp_path / "out")
    again = prepare_iwslt(archive)
    assert again.returncode == 0
    told = [line for line in again.stderr.splitlines() if "tgz" not in line]
    assert told
    assert all("already there, nothing to do" in line for line in told)
    (data / "valid.de").unlink()
    assert prepare_iwslt(archive).returncode == 0
    assert files(tmp_path / "out") == before, "what was lost is made again, the same"


@pytest.mark.slow
def test_wmt16_from_the_official_archives(tmp_path):
    (tmp_path / "in").mkdir()
    archives.wmt(tmp_path / "in")
    sources = archives.unchecked(tmp_path, tmp_path / "in")
    done = run(
        "wmt16/prepare.sh", "--data-dir", tmp_path / "in", "-o", tmp_path / "out",
        "--sources", sources, "--size", 60, "--jobs", 1,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = tmp_path / "out" / "text"
    assert lines(text / "test.de") == [
        archives.sentence("de", n) + " R&D & x" for n in range(300, 305)
    ]
    assert len(lines(text / "valid.en")) == 6
    assert lines(text / "commoncrawl.en") == [archives.sentence("en", n) for n in range(60)]
    assert "kept 60 of 63 pairs (dropped: 2 empty, 1 lopsided)" in done.stderr
    assert [len(lines(text / f"{name}.de")) for name in ("europarl", "newscommentary")] == [50, 20]
    assert (tmp_path / "out" / "data" / "vocab.shared").exists()

    # IWSLT14 in the subwords of WMT16, to fine-tune its model.
    (tmp_path / "more" / "in").mkdir(parents=True)
    archive = archives.tar(tmp_path / "more" / "in" / "de-en.tgz", archives.iwslt_members())
    done = prepare_iwslt(archive, "--subwords-from", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    for name in ("bpe.codes", "vocab.shared"):
        ours = tmp_path / "more" / "out" / "data" / name
        assert ours.read_bytes() == (tmp_path / "out" / "data" / name).read_bytes()


@pytest.mark.slow
def test_tatoeba_and_multi30k(tmp_path):
    (tmp_path / "in").mkdir()
    archives.multi30k(tmp_path / "in")
    archives.tatoeba(tmp_path / "in")
    sources = archives.unchecked(tmp_path, tmp_path / "in")
    done = run(
        "tatoeba-multi30k/prepare.sh", "--data-dir", tmp_path / "in",
        "-o", tmp_path / "out with space", "--sources", sources, "--size", 100, "--jobs", 1,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = tmp_path / "out with space" / "text"
    parts = {name: lines(text / f"tatoeba-{name}.en") for name in ("train", "valid", "test")}
    assert (len(parts["valid"]), len(parts["test"])) == (1000, 1000)
    assert not set(parts["train"]) & set(parts["valid"] + parts["test"])
    captions = lines(text / "test.en")
    assert not set(captions) & {line for part in parts.values() for line in part}
    data = tmp_path / "out with space" / "data"
    joined = [line.replace(" ", "").replace("▁", " ").strip() for line in lines(data / "test.en")]
    assert joined == captions


# ---------------------------------------------------------------- what can go wrong


def test_dry_run_does_nothing(iwslt):
    done = prepare_iwslt(iwslt, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert (
        "onmt_evsoftmax corpora split --every 23 -o text raw/clean.en raw/clean.de" in done.stdout
    )
    assert not (iwslt.parent.parent / "out").exists()


@pytest.mark.parametrize(
    "script", sorted(str(p.relative_to(RECIPES)) for p in RECIPES.glob("*/*.sh"))
)
def test_help_shows_an_example(script):
    done = run(script, "--help")
    assert done.returncode == 0
    assert f"$ recipes/{script}" in done.stdout
    assert "--data-dir" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--colour", "red"], "unrecognized arguments: --colour red"),
        (["--size"], "argument --size: expected one argument"),
        (["--size", "big"], "argument --size: must be a whole number from 1 to 10000000, not big"),
        (["--jobs", "0"], "argument --jobs: must be a whole number from 1 up, not 0"),
        (["--subwords", "letters"], "argument --subwords: invalid choice: 'letters'"),
        (["--data-dir", "/nowhere"], "--data-dir /nowhere is not a folder"),
        (["--subwords-from", "/nowhere"], "--subwords-from /nowhere is not a folder"),
        (["--subwords-from", "/tmp", "--size", "9"], "of the subwords in /tmp: leave it out"),
        (["--source", "de"], "source and target are both de"),
        (["--normalizer", "softmax"], "unrecognized arguments: --normalizer softmax"),
    ],
)
def test_wrong_options(tmp_path, options, said):
    failed(run("multi30k/prepare.sh", "-o", tmp_path / "out", *options), tmp_path / "out", said)
    assert not (tmp_path / "out").exists()


def test_variables_of_the_environment_are_no_options(iwslt, monkeypatch):
    for name, value in {"size": "7", "subwords": "none", "src": "xx", "data_dir": "/no"}.items():
        monkeypatch.setenv(name, value)
    assert prepare_iwslt(iwslt).returncode == 0
    assert (iwslt.parent.parent / "out" / "data" / "subwords").read_text() == "bpe 60\n"


def test_a_wrong_checksum(iwslt):
    sources = iwslt.parent.parent / "sources.yaml"
    sources.write_text(f"archives: {{de-en.tgz: [http://x/de-en.tgz, 'sha256:{'0' * 64}']}}\n")
    done = prepare_iwslt(iwslt, "--sources", sources)
    failed(
        done, iwslt.parent.parent / "out", "de-en.tgz has the wrong checksum", "expected sha256:000"
    )
    assert not list((iwslt.parent.parent / "out").glob("text/*"))


def test_a_truncated_archive(iwslt):
    whole = iwslt.read_bytes()
    iwslt.write_bytes(whole[:-400])
    failed(prepare_iwslt(iwslt), iwslt.parent.parent / "out", "de-en.tgz is truncated or damaged")
    iwslt.write_bytes(whole)
    done = prepare_iwslt(iwslt)
    assert done.returncode == 0, done.stderr


def test_other_subwords_in_the_same_folder(iwslt):
    assert prepare_iwslt(iwslt).returncode == 0
    out = iwslt.parent.parent / "out"
    before = files(out)
    for options in (["--size", 70], ["--subwords", "sentencepiece"]):
        failed(
            prepare_iwslt(iwslt, *options), out, "was made with 'bpe 60', not with", "another -o"
        )
    assert files(out) == before


def test_a_job_that_is_ended_leaves_no_temporary_file(tmp_path):
    """As a scheduler does it, in the middle of a step."""
    (tmp_path / "a.en").write_text("some words .\n" * 2_000_000)
    command = [BIN / "onmt_evsoftmax", "corpora", "tokenise", "--lang", "en",
               "--jobs", "1", "-o", tmp_path / "out", tmp_path / "a.en"]  # fmt: skip
    job = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL)
    while not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir()):
        assert job.poll() is None
        time.sleep(0.05)
    job.terminate()
    assert job.wait(timeout=60) == 143
    assert list((tmp_path / "out").iterdir()) == []


def changed(iwslt: Path, member: str, text: str | bytes) -> subprocess.CompletedProcess:
    archives.tar(iwslt, archives.iwslt_members() | {f"de-en/{member}": text})
    return prepare_iwslt(iwslt)


def test_unequal_line_counts(iwslt):
    done = changed(iwslt, "train.tags.de-en.de", archives.tags("de", 97))
    out = iwslt.parent.parent / "out"
    failed(done, out, "train.tags.de-en.en has 100 lines but", "train.tags.de-en.de has 97")
    assert not (out / "raw").exists() or files(out / "raw") == {}


def test_invalid_utf8(iwslt):
    broken = archives.tags("de", 100).encode().replace(b"Nr50", b"Nr\xff")
    done = changed(iwslt, "train.tags.de-en.de", broken)
    failed(done, iwslt.parent.parent / "out", "train.tags.de-en.de, line 55: not valid UTF-8")


def test_an_empty_side(iwslt):
    done = changed(iwslt, "train.tags.de-en.de", "\n" * 100)
    failed(done, iwslt.parent.parent / "out", "train.tags.de-en.de is an empty side")


def test_a_test_set_that_is_missing(iwslt):
    members = archives.iwslt_members()
    del members["de-en/IWSLT14.TED.tst2011.de-en.en.xml"]
    archives.tar(iwslt, members)
    failed(prepare_iwslt(iwslt), iwslt.parent.parent / "out",
           "de-en.tgz has no file IWSLT14.TED.tst2011.de-en.en.xml; it has")  # fmt: skip


def test_a_full_disk(iwslt):
    # No file may grow beyond 1 KiB: the system refuses the write as it does on a full disk.
    done = prepare_iwslt(iwslt, limit="ulimit -f 1; ")
    failed(
        done,
        iwslt.parent.parent / "out",
        "cannot write",
        "free some space and run the same command",
    )
    assert prepare_iwslt(iwslt, "--dry-run").returncode == 0


def test_subwords_of_a_recipe_that_was_not_prepared(iwslt, tmp_path):
    (tmp_path / "wmt16").mkdir()
    done = prepare_iwslt(iwslt, "--subwords-from", tmp_path / "wmt16")
    failed(done, tmp_path / "out", "wmt16 has no data/bpe.codes; prepare that recipe first")
