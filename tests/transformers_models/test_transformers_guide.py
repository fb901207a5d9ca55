"""What docs/transformers.md shows, run from top to bottom."""

import re
from pathlib import Path

import small_models
from small_tokenizer import small_tokenizer

GUIDE = Path(__file__).parents[2] / "docs" / "transformers.md"


def test_the_guide(tmp_path, monkeypatch, capsys):
    small_models.build("bart", "sdpa").save_pretrained(tmp_path / "model")
    small_tokenizer().save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    variables = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        exec(compile(block, str(GUIDE), "exec"), variables)
    said = capsys.readouterr().out
    assert said.rstrip().endswith("evsoftmax")
    zeros = float(re.search(r"tensor\((0\.\d+)\)", said)[1])
    assert 0.2 < zeros < 0.9
    assert re.search(r"^encoder .* 1\.00$", said, re.MULTILINE) is None  # padding is no support
    assert len(re.findall(r"^context \(2, 2, \d, \d\) 0\.\d\d$", said, re.MULTILINE)) == 2
