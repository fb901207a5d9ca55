"""The command line of score: examples that run, errors of one sentence, tables of every kind."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT, tool
from scoring_texts import GERMAN, corpus, noisy, write

from onmt_evsoftmax import score as scoring
from onmt_evsoftmax.corpora.marks import undo_subwords
from onmt_evsoftmax.report.console import UserError

REFERENCE = corpus(2)


def score(command: str) -> None:
    """Run the command inside this process, which is faster."""
    assert scoring.main(shlex.split(command)) == 0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a reference and the outputs of two systems, two seeds each."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "reference.de", REFERENCE)
    write(tmp_path / "output.txt", noisy(REFERENCE, 0.3, 0))
    for seed in (1, 2):
        write(tmp_path / f"softmax.{seed}.txt", noisy(REFERENCE, 0.4, seed))
        write(tmp_path / f"evsoftmax.{seed}.txt", noisy(REFERENCE, 0.2, seed + 10))
    return tmp_path


# ---------------------------------------------------------------- help and examples


def help_examples() -> list[str]:
    text = tool("score", "--help", cwd=ROOT).stdout.replace("\\\n", " ")
    return [line.strip()[2:] for line in text.splitlines() if line.strip().startswith("$ ")]


def test_the_examples_of_the_help_run(folder: Path) -> None:
    examples = help_examples()
    assert len(examples) == 2
    for example in examples:
        assert example.startswith("onmt_score ")
        result = tool("score", example.removeprefix("onmt_score "), cwd=folder)
        assert result.returncode == 0, result.stderr
        assert "warning" not in result.stderr
    assert r"\begin{tabular}{@{}lrr@{}}" in (folder / "table.tex").read_text()
    report = json.loads((folder / "scores.json").read_text())
    assert report["systems"]["softmax"] == ["softmax.1.txt", "softmax.2.txt"]
    assert [metric["name"] for metric in report["metrics"]] == [
        "BLEU",
        "chrF2++",
        "TER",
        "ROUGE-1",
        "ROUGE-2",
        "ROUGE-L",
        "METEOR",
    ]
    for metric in report["metrics"]:
        assert metric["systems"]["softmax"]["comparison"]["stars"] == "**"
        assert "comparison" not in metric["systems"]["evsoftmax"]


def test_the_tool_and_the_installed_command_are_one_definition() -> None:
    assert "from onmt_evsoftmax.score import entry" in (ROOT / "tools/score.py").read_text()
    assert callable(scoring.entry)


def test_importing_the_package_imports_no_scoring_library() -> None:
    code = (
        "import sys, onmt_evsoftmax; "
        "print([m for m in ('sacrebleu', 'nltk', 'rouge_score', 'matplotlib') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    )
    assert result.stdout.strip() == "[]"


# ---------------------------------------------------------------- bad input


BAD = {
    "short hypothesis": (
        "--hyp short.txt --ref reference.de",
        "reference.de has 96 lines but short.txt has 3",
    ),
    "short reference": (
        "--hyp output.txt --ref reference.de short.txt",
        "short.txt has 3",
    ),
    "empty": ("--hyp empty.txt --ref reference.de", "empty.txt is empty"),
    "blank": ("--hyp output.txt --ref blank.txt", "blank.txt has only blank lines"),
    "bad UTF-8": ("--hyp latin1.txt --ref reference.de", "latin1.txt, line 2: not valid UTF-8"),
    "missing": ("--hyp nowhere.txt --ref reference.de", "cannot read nowhere.txt"),
    "folder": ("--hyp a --ref reference.de", "cannot read a: Is a directory"),
    "baseline": (
        "--hyp softmax=output.txt softmax.1.txt --ref reference.de --baseline sofmax",
        "unknown baseline 'sofmax' (did you mean softmax?)",
    ),
    "baseline alone": (
        "--hyp output.txt --ref reference.de --baseline output",
        "needs another system",
    ),
    "metric": (
        "--hyp output.txt --ref reference.de --metrics bleu meteo",
        "unknown metric 'meteo' (did you mean meteor?)",
    ),
    "language": ("--hyp output.txt --ref reference.de --lang xx", "unknown language 'xx'"),
    "no language": (
        "--hyp output.txt --ref reference.de --metrics bleu-tok-lc",
        "needs the language",
    ),
    "same stem": (
        "--hyp a/out.txt b/out.txt --ref reference.de",
        "would both be called 'out'; name them",
    ),
    "same run": ("--hyp a=output.txt a=output.txt --ref reference.de", "given twice"),
    "same run by another path": (
        "--hyp a=output.txt a=./output.txt --ref reference.de",
        "given twice",
    ),
    "no file": ("--hyp a= --ref reference.de", "must be FILE or NAME=FILE"),
    "two stdin": ("--hyp a=- b=- --ref reference.de", "can be read once"),
    "ending": ("--hyp output.txt --ref reference.de -o table.xls", "one of .txt .md .tex .json"),
    "sentences": ("--hyp output.txt --ref reference.de --sentences x.csv", "must be .tsv"),
    "outputs": ("--hyp output.txt --ref reference.de -o x.md -o ./x.md", "the same name"),
    "resamples": ("--hyp output.txt --ref reference.de --resamples 0", "from 1 to 10000000, not 0"),
    "seed": ("--hyp output.txt --ref reference.de --seed -1", "argument --seed: must be"),
    "digits": ("--hyp output.txt --ref reference.de --digits 99", "from 0 to 10, not 99"),
    "blank system alone": ("--hyp blank.txt --ref reference.de", "blank.txt has only blank lines"),
    "blank systems": ("--hyp a=blank.txt b=blank.txt --ref reference.de", "has only blank lines"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_leaves_nothing(case: str, folder: Path) -> None:
    write(folder / "short.txt", REFERENCE[:3])
    (folder / "empty.txt").write_bytes(b"")
    (folder / "blank.txt").write_bytes(b" \n" * len(REFERENCE))
    (folder / "latin1.txt").write_bytes("Guten Tag\nGrüße\n".encode("latin-1"))
    for name in "ab":
        (folder / name).mkdir()
        write(folder / name / "out.txt", REFERENCE)
    before = sorted(folder.rglob("*"))
    command, message = BAD[case]
    outputs = "" if case in ("ending", "sentences") else "-o table.tex --sentences s.tsv"
    with pytest.raises(UserError) as error:
        score(f"{command} {outputs}")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("case", ["bad UTF-8", "short reference"])
def test_bad_input_exits_with_2(case: str, folder: Path) -> None:
    write(folder / "short.txt", REFERENCE[:3])
    (folder / "latin1.txt").write_bytes("Guten Tag\nGrüße\n".encode("latin-1"))
    command, message = BAD[case]
    result = tool("score", f"{command} --lang de -o table.tex", cwd=folder)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not (folder / "table.tex").exists()


def test_an_output_that_cannot_be_written_leaves_no_other(folder: Path) -> None:
    (folder / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot write"):
        score("--hyp output.txt --ref reference.de -o a.md -o file/b.md")
    assert not (folder / "a.md").exists()
    assert not list(folder.glob(".a.md*"))


# ---------------------------------------------------------------- input


def test_collapsed_systems_alone_are_scored_if_that_is_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "blank.txt").write_bytes(b"\n" * len(REFERENCE))
    score("--hyp blank.txt --ref reference.de --lang de --json --metrics bleu chrf++ --allow-blank")
    told = json.loads(capsys.readouterr().out)
    assert [metric["systems"]["blank"]["mean"] for metric in told["metrics"]] == [0.0, 0.0]


def test_a_collapsed_system_gets_the_lowest_scores_and_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One system that says nothing must not hide what the others say."""
    (folder / "blank.txt").write_bytes(b" \n" * len(REFERENCE))
    score(
        "--hyp good=output.txt bad=blank.txt --ref reference.de --lang de --json --baseline good "
        "--metrics bleu bleu-tok-lc chrf++ ter rouge-1 rouge-2 rouge-l meteor --sentences s.tsv "
        "--resamples 20"
    )
    output = capsys.readouterr()
    assert output.err.count("warning") == 1
    assert "blank.txt has only blank lines" in output.err
    metrics = json.loads(output.out)["metrics"]
    assert len(metrics) == 8
    for metric in metrics:
        worst = 0 if metric["higher_is_better"] else 100
        assert metric["systems"]["bad"]["mean"] == pytest.approx(worst), metric["name"]
        assert metric["systems"]["good"]["mean"] not in (0, 100)
        assert metric["systems"]["bad"]["comparison"]["stars"] in ("*", "**")


def test_standard_input(folder: Path) -> None:
    text = (folder / "output.txt").read_text(encoding="utf-8")
    command = "--ref reference.de --lang de --json --hyp"
    piped = json.loads(tool("score", f"{command} -", cwd=folder, stdin=text).stdout)
    file = json.loads(tool("score", f"{command} stdin=output.txt", cwd=folder).stdout)
    assert piped["metrics"] == file["metrics"]
    assert piped["systems"] == {"stdin": ["-"]}


def test_windows_line_ends_and_trailing_blanks_change_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (folder / "output.txt").read_text(encoding="utf-8").splitlines()
    (folder / "dos.txt").write_bytes("".join(f"{line} \r\n" for line in lines).encode())
    score("--hyp a=output.txt b=dos.txt --ref reference.de --lang de --json")
    for metric in json.loads(capsys.readouterr().out)["metrics"]:
        assert metric["systems"]["a"] == metric["systems"]["b"]


def test_files_may_hold_an_equals_sign_and_names_a_slash(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "lr=0.5").mkdir()
    write(folder / "lr=0.5" / "out.txt", REFERENCE)
    score("--hyp lr=0.5/out.txt 'w/o a mask=output.txt' --ref reference.de --metrics ter --json")
    systems = {"out": ["lr=0.5/out.txt"], "w/o a mask": ["output.txt"]}
    assert json.loads(capsys.readouterr().out)["systems"] == systems
    with pytest.raises(UserError, match=r"cannot read a/lr=0\.6/out\.txt"):
        score("--hyp a/lr=0.6/out.txt --ref reference.de")


def test_metrics_can_be_spelt_in_many_ways(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    score("--hyp output.txt --ref reference.de --json --metrics ROUGE1,chrF TER")
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert [metric["name"] for metric in metrics] == ["ROUGE-1", "chrF2++", "TER"]


def test_tokenised_text_is_warned_of_where_sacrebleu_warns(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for count in (99, 100):
        write(folder / f"{count}", ["Das ist gut ."] * count)
        for extra, warned in (("", count == 100), ("--tokenized", False)):
            score(f"--hyp {count} --ref {count} --metrics bleu {extra}")
            assert (f"{count} looks tokenised" in capsys.readouterr().err) == warned
        theirs = subprocess.run(
            [sys.executable, "-m", "sacrebleu", str(count), "-i", str(count)],
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
        assert ("forgot to detokenize" in theirs.stderr) == (count == 100)


def test_subwords_are_warned_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, lines in (("bpe", ["Grö@@ ße zählt"] * 9), ("sp", ["▁Grö ße ▁zählt"] * 9)):
        write(folder / name, lines)
        write(folder / "plain", ["Größe zählt"] * 9)
        score(f"--hyp {name} --ref plain --metrics ter")
        assert "--undo-bpe" in capsys.readouterr().err
        score(f"--hyp {name} --ref plain --metrics ter --undo-bpe --json")
        output = capsys.readouterr()
        assert output.err == ""
        assert json.loads(output.out)["metrics"][0]["systems"][name]["mean"] == 0


def test_undo_bpe_inverts_subword_nmt(tmp_path: Path) -> None:
    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe

    with (tmp_path / "codes").open("w+", encoding="utf-8") as codes:
        learn_bpe(GERMAN, codes, 200)
        codes.seek(0)
        bpe = BPE(codes)
    pieces = [bpe.process_line(line) for line in GERMAN]
    assert sum("@@ " in line for line in pieces) > 40
    assert undo_subwords(pieces) == GERMAN
    assert undo_subwords(GERMAN) == GERMAN


def test_undo_bpe_inverts_sentencepiece(tmp_path: Path) -> None:
    import sentencepiece

    model = str(tmp_path / "model")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(GERMAN),
        model_prefix=model,
        vocab_size=300,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=f"{model}.model")
    pieces = [" ".join(processor.encode(line, out_type=str)) for line in GERMAN]
    assert all("▁" in line for line in pieces)
    assert undo_subwords(pieces) == GERMAN


# ---------------------------------------------------------------- output


def test_every_ending_writes_its_format_and_json_keeps_every_digit(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    score(
        "--hyp a=output.txt b=softmax.1.txt --ref reference.de --lang de --metrics bleu rouge-l "
        "--baseline a --resamples 50 -o t.txt -o t.json -o sub/t.md -o t.tex --sentences s.tsv "
        "--digits 3 --json"
    )
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((folder / "t.json").read_text())
    mean = printed["metrics"][0]["systems"]["a"]["mean"]
    assert mean != round(mean, 6)
    for name in ("t.txt", "sub/t.md", "t.tex"):
        assert f"{mean:.3f}" in (folder / name).read_text(encoding="utf-8")
    table = (folder / "s.tsv").read_text().splitlines()
    assert table[0].split("\t") == ["line", "system", "run", "BLEU", "ROUGE-L"]
    assert len(table) == 1 + 2 * len(REFERENCE)
    rouge = [float(line.split("\t")[4]) for line in table[1 : 1 + len(REFERENCE)]]
    expected = printed["metrics"][1]["systems"]["a"]["mean"]
    assert sum(rouge) / len(rouge) == pytest.approx(expected, abs=1e-4)


def test_the_same_seed_gives_the_same_report(folder: Path) -> None:
    command = (
        "--hyp a=softmax.1.txt a=softmax.2.txt b=output.txt --ref reference.de --metrics bleu "
        "--baseline a --resamples 60 --json --seed"
    )
    first, again, other = (tool("score", f"{command} {seed}", cwd=folder).stdout for seed in "112")
    assert first == again != other
