"""What docs/eole.md shows, run from top to bottom, with a smaller model."""

import re
import shlex
import shutil
from pathlib import Path

import yaml
from eole_runs import LEGACY, ROOT, SIZE, eole

from onmt_evsoftmax import __main__ as door

GUIDE = ROOT / "docs" / "eole.md"


def test_the_guide(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.en", "train.de", "test.en"):
        shutil.copy(toy / name, name)
    shutil.copy(LEGACY / "evsoftmax_step_30.pt", "model_step_10000.pt")
    ran = []
    for language, block in re.findall(r"```(\w+)\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        if language == "yaml":
            config = yaml.safe_load(block)
            config["model"] |= SIZE
            config["model"]["embeddings"]["word_vec_size"] = SIZE["hidden_size"]
            config["training"] |= {"train_steps": 3, "bucket_size": 20, "num_workers": 0}
            Path("config.yaml").write_text(yaml.safe_dump(config))
            continue
        for line in block.splitlines():
            program, rest = line.split(maxsplit=1)
            if program == "eole":
                eole(rest)
                assert "predict" not in line or len(Path("test.de").read_text().splitlines()) == 20
                Path("test.de").unlink(missing_ok=True)
            elif program == "onmt_evsoftmax":
                assert door.main(shlex.split(rest)) == 0
            ran.append(program)
    assert ran == [*["pip"] * 3, *["eole"] * 4, "onmt_evsoftmax", "eole"]
