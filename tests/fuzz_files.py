"""Good files of every kind that a command reads, and the same damaged, for random command lines."""

from __future__ import annotations

import gzip
import json
import os
import random
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import traces

LEGACY = Path(__file__).parent / "legacy"
TEXT = "ein Mann reitet\nzwei Hunde\nder Junge spielt mit dem Ball .\n"
#: What onmt_build_vocab and onmt_train read: a model that is trained in no time.
VOCABULARY = """data: {train: {path_src: s.en, path_tgt: s.de}}
save_data: made
src_vocab: made.src
tgt_vocab: made.tgt
"""
TRAIN = """data: {train: {path_src: s.en, path_tgt: s.de}}
src_vocab: v.src
tgt_vocab: v.tgt
encoder_type: transformer
decoder_type: transformer
enc_layers: 1
dec_layers: 1
heads: 2
hidden_size: 16
word_vec_size: 16
transformer_ff: 16
batch_size: 8
bucket_size: 20
num_workers: 0
train_steps: 2
save_checkpoint_steps: 2
save_model: made
"""


def names() -> list[str]:
    """Of all files that there are."""
    with tempfile.TemporaryDirectory() as name:
        fill(Path(name))
        return sorted(os.listdir(name))


def fill(folder: Path) -> None:
    """Good files of every kind that a command reads, and the same damaged."""
    good: dict[str, bytes] = {
        "a.txt": TEXT.encode(),
        "b.txt": TEXT.replace("Hunde", "Katzen").encode(),
        "pieces.txt": "▁ein ▁Ma nn\n▁zwei ▁H unde\n▁der .\n".encode(),
        "gold.align": b"0-0 1?1\n0-0\n\n",
        "codes": b"#version: 0.2\ne i\nei n</w>\n",
        "a.yaml": b"heads: 8\ndropout: [0.1]\n",
        "recipe.yaml": b"archives: {a.txt: ['http://127.0.0.1:9/a.txt']}\n",
        "counts.json": json.dumps(_counts()).encode(),
        "scores.json": json.dumps(_scores()).encode(),
        "a.gz": gzip.compress(TEXT.encode()),
        "m.pt": (LEGACY / "evsoftmax_step_30.pt").read_bytes(),
        "s.en": (LEGACY / "t.en").read_bytes(),
        "s.de": (LEGACY / "t.de").read_bytes(),
        "train.yaml": TRAIN.encode(),
        "vocab.yaml": VOCABULARY.encode(),
        "translate.yaml": b"beam_size: 2\nmax_length: 4\n",
        "v.src": _vocabulary("t.en"),
        "v.tgt": _vocabulary("t.de"),
    }
    for name, data in good.items():
        (folder / name).write_bytes(data)
    for name, count in (("ev.trace", 3), ("soft.trace", 3), ("one.trace", 1)):
        traces.write(folder / name, count, "softmax" if name == "soft.trace" else "evsoftmax")
    with tarfile.open(folder / "a.tgz", "w:gz") as tar:
        tar.add(folder / "a.txt", "in/a.txt")
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.write(folder / "a.txt", "in/a.txt")
    dice = random.Random(0)
    for name in ("ev.trace", "m.pt", "counts.json", "a.gz", "a.zip"):
        data = bytearray((folder / name).read_bytes())
        stem, suffix = os.path.splitext(name)
        (folder / f"{stem}-cut{suffix}").write_bytes(data[: len(data) * 2 // 3])
        for _ in range(20):
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        (folder / f"{stem}-bits{suffix}").write_bytes(data)
    odd: dict[str, bytes] = {
        "empty": b"",
        "blank.txt": b" \n\n \n",
        "noise.bin": dice.randbytes(3000),
        "noise.trace": b"onmt_evsoftmax trace 1\n" + dice.randbytes(3000),
        "head.trace": b"onmt_evsoftmax trace 1\n{}\n",
        "latin.txt": TEXT.replace("spielt", "übt").encode("latin-1"),
        "utf16.txt": TEXT.encode("utf-16"),
        "bom.txt": TEXT.encode("utf-8-sig"),
        "nul.txt": TEXT.replace(" ", "\0").encode(),
        "dos.txt": TEXT.replace("\n", "\r\n").encode(),
        "separators.txt": "a\u2028b\x85c\x1cd\ne\nf\n".encode(),
        "huge.txt": b"word " * 40_000 + b"\n\n\n",
        "long.txt": b"a\n" * 5000,
        "null.json": b"null",
        "list.json": b"[1, {}]",
        "deep.json": b"[" * 100_000,
        "nan.json": b'{"systems": {"a": ["x"]}, "metrics": [{"name": "B", "systems": {"a": '
        b'{"mean": NaN}}}]}',
        "wild.yaml": b"a: &a [*a]\n? {x: 1}\n: 2\n",
        "tab.yaml": b"\tx: 1\n",
        "x=1.txt": TEXT.encode(),
        "two words.txt": TEXT.encode(),
        "-dash.txt": TEXT.encode(),
        "ünï 你好.txt": TEXT.encode(),
    }
    for name, data in odd.items():
        (folder / name).write_bytes(data)
    for name, data in (("job", json.dumps(_job())), ("job-list", "[]"), ("job-cut", '{"seed')):
        (folder / name).mkdir()
        (folder / name / "results.json").write_text(data)
    (folder / "folder").mkdir()
    (folder / "folder.txt").mkdir()
    (folder / "folder" / "a.txt").write_text(TEXT)
    (folder / "link.txt").symlink_to("a.txt")
    (folder / "loop.txt").symlink_to("loop.txt")
    (folder / "dangling.txt").symlink_to("nowhere.txt")


def _vocabulary(name: str) -> bytes:
    words = sorted(set((LEGACY / name).read_text(encoding="utf-8").split()))
    return "".join(f"{word}\t1\n" for word in words).encode()


def _counts() -> list[dict[str, Any]]:
    mean = {"mean": 2.5}
    kinds = {"context": {"all": {"attended": mean, "available": mean}}}
    return [{"kinds": kinds, "paper": mean}]


def _job() -> dict[str, Any]:
    metrics = {"softmax": {"metrics": {"w1": 1.5, "support": 4}}}
    return {"experiment": "cvae", "seed": 1, "methods": metrics}


def _scores() -> dict[str, Any]:
    systems = {name: {"mean": 30.0, "standard_error": None} for name in ("softmax", "evsoftmax")}
    return {
        "systems": {name: ["a.txt"] for name in systems},
        "baseline": "softmax",
        "metrics": [{"name": "BLEU", "systems": systems}],
    }
