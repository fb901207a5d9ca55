"""Steps from archives to subwords, against awk, subword-nmt itself, and what must never be lost."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import sentencepiece
from corpus_files import gz, iwslt_members, sentence, sgm, tags, tar, zipped
from hypothesis import given
from hypothesis import strategies as st

from onmt_evsoftmax.corpora import extract, parallel, split, subwords, tokenise
from onmt_evsoftmax.corpora.archives import check_whole, member_lines
from onmt_evsoftmax.corpora.clean import Cleaning
from onmt_evsoftmax.corpora.marks import joined
from onmt_evsoftmax.corpora.verbs import main
from onmt_evsoftmax.report.console import UserError

words = st.lists(st.sampled_from(["a", "bb", "ccc"]), max_size=12).map(" ".join)
pairs = st.lists(st.tuples(words, words), max_size=30)


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


# ---------------------------------------------------------------- parallel text


def test_unequal_counts_are_named_with_their_numbers(tmp_path):
    source, target = write(tmp_path / "a.en", "1", "2", "3", "4"), write(tmp_path / "a.de", "1")
    with pytest.raises(UserError, match=r"a\.en has 4 lines but .*a\.de has 1;"):
        list(parallel.pairs_of(source, target))
    with pytest.raises(UserError, match=r"a\.de has 1 lines but .*a\.en has 4;"):
        list(parallel.pairs_of(target, source))


def test_invalid_utf8_is_named_with_file_and_line(tmp_path):
    path = tmp_path / "a.en"
    path.write_bytes(b"fine\nGr\xfc\xdfe\n")
    with pytest.raises(UserError, match=r"a\.en, line 2: not valid UTF-8"):
        list(parallel.lines_of(path))


def test_an_empty_side_is_an_error(tmp_path):
    source, target = write(tmp_path / "a.en", "x", "y"), write(tmp_path / "a.de", "", "  ")
    with pytest.raises(UserError, match=r"a\.de is an empty side: all its 2 lines are blank"):
        list(parallel.pairs_of(source, target))
    (tmp_path / "none").touch()
    with pytest.raises(UserError, match="none is empty"):
        list(parallel.lines_of(tmp_path / "none"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_nothing_and_says_what_to_do(tmp_path, monkeypatch, code):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(code, "No space left on device")

    monkeypatch.setattr(parallel, "open", lambda *_, **__: Full(), raising=False)
    with pytest.raises(UserError, match=r"out\.de: No space left on device; free some space"):
        parallel.write_columns([tmp_path / "out.en", tmp_path / "out.de"], [("a", "b")])
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_rows_leaves_neither_file(tmp_path):
    def rows():
        yield "a", "b"
        raise UserError("broken")

    with pytest.raises(UserError, match="broken"):
        parallel.write_columns([tmp_path / "out.en", tmp_path / "out.de"], rows())
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- archives and formats


@pytest.mark.parametrize("name", ["a.tgz", "a.gz", "a.zip"])
@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_a_truncated_archive_is_named(tmp_path, name, keep):
    path = tmp_path / name
    text = "".join(f"{sentence('en', n)} {hash(str(n))}\n" for n in range(5000))
    if name == "a.tgz":
        tar(path, {"x/a.en": text, "x/b.en": text})
    elif name == "a.gz":
        gz(path, text)
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.en", text)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    member = None if name == "a.gz" else ("b.en" if name == "a.tgz" else "a.en")
    with pytest.raises(UserError, match=rf"{name} is truncated or damaged .*fetch it again"):
        list(member_lines(path, member))


@pytest.mark.parametrize("kind", ["bz2", "xz"])
@pytest.mark.parametrize("read", [lambda path: list(member_lines(path, "b.en")), check_whole])
def test_a_damaged_archive_is_named(tmp_path, kind, read):
    text = "".join(f"{hash(str(n))}\n" for n in range(5000))
    path = tar(tmp_path / f"a.tar.{kind}", {"a.en": text, "b.en": text}, kind)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"a\.tar\.{kind} is truncated or damaged"):
        read(path)


@pytest.mark.parametrize(
    ("local", "central", "said"), [(6, 8, "is encrypted"), (8, 10, "compression method")]
)
def test_an_archive_that_cannot_be_unpacked_is_named(tmp_path, local, central, said):
    path = zipped(tmp_path / "a.zip", {"a.en": "text"})
    content = bytearray(path.read_bytes())
    for place in (local, content.index(b"PK\x01\x02") + central):  # flags, or compression
        content[place] |= 1 if said == "is encrypted" else 99
    path.write_bytes(content)
    for read in (lambda: list(member_lines(path, "a.en")), lambda: check_whole(path)):
        with pytest.raises(UserError, match=rf"a\.zip is .*{said}"):
            read()


def test_a_missing_member_is_named_with_those_that_are_there(tmp_path):
    path = tar(tmp_path / "dev.tgz", {"dev/newstest2014.en": "x\n"})
    with pytest.raises(
        UserError, match=r"dev\.tgz has no file newstest2015; it has newstest2014\.en"
    ):
        list(member_lines(path, "newstest2015"))


def test_tags_drop_metadata_but_keep_titles_and_descriptions():
    found = list(extract.tags(tags("en", 5).splitlines()))
    assert found == [sentence("en", n) for n in range(5)]


def test_segments_of_xml_and_sgml_are_unescaped():
    xml = str(iwslt_members()["de-en/IWSLT14.TED.tst2010.de-en.en.xml"])
    assert next(extract.segments(xml.splitlines())) == sentence("en", 1020) + " & so"
    found = list(extract.segments(sgm("srcset", "en", range(3)).splitlines()))
    assert found == [sentence("en", n) + " R&D & x" for n in range(3)]


def test_columns_take_two_and_name_a_line_with_fewer(tmp_path):
    path = write(tmp_path / "deu.txt", "Hi.\tHallo!\tCC-BY", "Run!")
    rows = extract.columns(str(path), parallel.lines_of(path))
    assert next(rows) == ("Hi.", "Hallo!")
    with pytest.raises(UserError, match=r"deu\.txt, line 2: no tab"):
        next(rows)


# ---------------------------------------------------------------- cleaning and splitting


@given(pairs, st.integers(1, 10), st.sampled_from([1.0, 1.5, 9.0]), st.booleans())
def test_cleaning_keeps_exactly_what_the_rules_allow(rows, longest, ratio, unique):
    rules = Cleaning(longest, ratio, unique, held_out={"a bb"})
    kept = list(rules(rows))
    expected, seen = [], set()
    for pair in rows:
        lengths = sorted(len(side.split()) for side in pair)
        fine = lengths[0] > 0 and lengths[1] <= longest and lengths[1] <= ratio * lengths[0]
        if fine and pair[0] != "a bb" and not (unique and pair in seen):
            expected.append(pair)
            seen.add(pair)
    assert kept == expected
    assert rules.kept + sum(rules.dropped.values()) == len(rows)


def test_every_23rd_line_is_what_awk_says(tmp_path):
    source = write(tmp_path / "a.en", *(f"e{n}" for n in range(100)))
    target = write(tmp_path / "a.de", *(f"d{n}" for n in range(100)))
    assert (
        main(["split", str(source), str(target), "--every", "23", "-o", str(tmp_path / "s")]) == 0
    )
    for name, rule in (("valid", "NR%23==0"), ("train", "NR%23!=0")):
        for path in (source, target):
            told = subprocess.run(["awk", rule, path], capture_output=True, text=True, check=True)
            assert (tmp_path / "s" / f"{name}{path.suffix}").read_text() == told.stdout


@given(st.lists(st.tuples(st.integers(0, 30).map(str), st.integers().map(str)), min_size=60))
def test_a_source_sentence_is_on_one_side_of_the_split(rows):
    if len({source for source, _ in rows}) <= 6:
        return
    parts: dict[str, list] = {"train": [], "valid": [], "test": []}
    for part, pair in split.by_source(3, rows):
        parts[part].append(pair)
    sources = {part: {source for source, _ in found} for part, found in parts.items()}
    assert len(parts["valid"]) == len(parts["test"]) == 3
    assert not sources["train"] & sources["valid"]
    assert not sources["train"] & sources["test"]
    assert not sources["valid"] & sources["test"]
    shuffled = {source for part, (source, _) in split.by_source(3, rows[::-1]) if part == "test"}
    assert shuffled == sources["test"], "the split depends on sentences, not on their order"


def test_too_few_sentences_to_hold_out_are_told():
    with pytest.raises(UserError, match="cannot hold out twice 2 source sentences of 3"):
        list(split.by_source(2, [("a", "x"), ("b", "x"), ("c", "x")]))


# ---------------------------------------------------------------- words and subwords


@pytest.mark.parametrize(
    "text", ["„Grüß Gott“, sagte sie.", "Ein Mann (rechts) lacht!", "A & B < C"]
)
def test_detokenising_undoes_tokenising(text):
    tokens = tokenise.tokenise_line("de", text)
    assert tokens != text or "&" in text
    assert tokenise.detokenise_line("de", tokens).replace(" ", "") == text.replace(" ", "")


def test_processes_change_nothing(monkeypatch):
    monkeypatch.setattr(tokenise, "_BLOCK", 8)
    lines = [sentence("de", n) for n in range(50)]
    assert list(tokenise.mapped(str.upper, lines, 2, "t")) == [line.upper() for line in lines]


TEXT = [sentence(lang, n) for n in range(60) for lang in ("en", "de")]


def test_bpe_is_subword_nmts_own(tmp_path):
    from subword_nmt.learn_bpe import learn_bpe

    subwords.learn("bpe", [write(tmp_path / "text", *TEXT)], 40, tmp_path / "codes")
    theirs = io.StringIO()
    learn_bpe(io.StringIO("\n".join(TEXT)), theirs, 40)
    assert (tmp_path / "codes").read_text() == theirs.getvalue()


@pytest.mark.parametrize(
    ("kind", "name", "size"), [("bpe", "codes", 40), ("sentencepiece", "s.model", 60)]
)
def test_joined_subwords_are_the_text_again(tmp_path, kind, name, size):
    model = tmp_path / name
    subwords.learn(kind, [write(tmp_path / "text", *TEXT)], size, model)
    assert subwords.kind_of(model) == kind
    unseen = "Überall Häuser zzz."
    encoded = [subwords.encode_line(model, line) for line in [*TEXT, unseen]]
    assert any(
        len(pieces.split()) > len(line.split()) for pieces, line in zip(encoded, TEXT, strict=False)
    )
    assert [joined(line, kind) for line in encoded] == [*TEXT, unseen]


def test_a_wrong_model_is_refused_in_one_sentence(tmp_path):
    path = write(tmp_path / "x.model", "no model")
    with pytest.raises(UserError, match=r"x\.model is not a subword model"):
        subwords.encoder(path)


@pytest.mark.parametrize("size", [90000, 10**30])
def test_too_many_pieces_are_told(tmp_path, size):
    text = write(tmp_path / "text", *TEXT)
    with pytest.raises(UserError, match=f"SentencePiece cannot learn {size} pieces"):
        subwords.learn("sentencepiece", [text], size, tmp_path / "s.model")
    assert list(tmp_path.iterdir()) == [text]


def test_pieces_of_a_large_corpus_are_learnt_from_all_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(subwords, "MOST_SENTENCES", len(TEXT))
    texts = [write(tmp_path / "a", *TEXT), write(tmp_path / "b", *["лес"] * len(TEXT))]
    subwords.learn("sentencepiece", texts, 44, tmp_path / "s.model")
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "s.model"))
    assert model.unk_id() not in model.encode("лес Nr8 cat")


def test_a_carriage_return_within_a_line_is_no_word(tmp_path):
    for name, blank in (("codes", " "), ("returns", " \r ")):
        text = write(tmp_path / "text", f"low{blank}lower", f"lower{blank}low")
        subwords.learn("bpe", [text], 3, tmp_path / name)
    assert (tmp_path / "codes").read_bytes() == (tmp_path / "returns").read_bytes()


def test_text_without_anything_to_merge_is_told(tmp_path):
    with pytest.raises(UserError, match="nothing to merge"):
        subwords.learn("bpe", [write(tmp_path / "text", "a b", "c a")], 10, tmp_path / "codes")


@pytest.mark.parametrize("option", [["--every", "0"], ["--by-source", "-1"], ["--every", "x"]])
def test_numbers_are_checked_by_the_command(tmp_path, option):
    source, target = write(tmp_path / "a.en", "x"), write(tmp_path / "a.de", "y")
    with pytest.raises(UserError, match=f"argument {option[0]}: "):
        main(["split", str(source), str(target), *option, "-o", str(tmp_path)])


# ---------------------------------------------------------------- verbs in a pipe, and twice


def piped(text: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "onmt_evsoftmax", "corpora", *words],
        input=text,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout


def test_a_pipe_of_verbs_is_the_same_as_their_files(tmp_path):
    archive = tar(tmp_path / "de-en.tgz", iwslt_members())
    member = f"{archive}::train.tags.de-en.de"
    lines = piped("", "extract", "--format", "tags", "--source", member)
    tokens = piped(lines, "tokenise", "--lang", "de")
    (tmp_path / "text").mkdir()
    text = write(tmp_path / "text" / "a.de", *lines.splitlines())
    main(["tokenise", "--lang", "de", "-o", str(tmp_path / "tokens"), str(text)])
    assert (tmp_path / "tokens" / "a.de").read_text(encoding="utf-8") == tokens
    codes = tmp_path / "bpe.codes"
    main(["learn-bpe", "--size", "30", "-o", str(codes), str(tmp_path / "tokens" / "a.de")])
    pieces = piped(tokens, "encode", "--model", str(codes))
    assert "@@" in pieces
    assert piped(pieces, "decode", "--kind", "bpe", "--detokenise", "de") == lines
    counted = piped(pieces, "vocabulary").splitlines()
    assert sum(int(row.split("\t")[1]) for row in counted) == len(pieces.split())


def test_pairs_in_a_pipe_have_a_tab_between(tmp_path):
    (tmp_path / "a.tsv").write_text("one two\teins zwei\nalone\t\none two\teins zwei\n")
    pairs = piped("", "extract", "--format", "columns", "--source", str(tmp_path / "a.tsv"))
    assert piped(pairs, "clean") == "one two\teins zwei\n"
    swapped = ["extract", "--format", "columns", "--swap", "--source", str(tmp_path / "a.tsv")]
    assert piped("", *swapped).startswith("eins zwei\tone two\n")


def test_a_tab_within_a_sentence_does_not_cut_it_in_a_pipe(tmp_path):
    source, target = write(tmp_path / "a.en", "one\ttwo"), write(tmp_path / "a.de", "eins\tzwei")
    files = ["extract", "--source", str(source), "--target", str(target)]
    assert piped(piped("", *files), "clean") == "one two\teins zwei\n"


@pytest.mark.parametrize(("kind", "size"), [("bpe", "20"), ("sentencepiece", "60")])
def test_subwords_of_a_pipe_are_those_of_its_file(tmp_path, kind, size):
    text = write(tmp_path / "text", *TEXT)
    for name in ("file.model", "pipe.model"):
        words = [f"learn-{kind}", "--size", size, "-o", str(tmp_path / name)]
        piped("\n".join(TEXT), *words, *([str(text)] if name == "file.model" else []))
    assert (tmp_path / "pipe.model").read_bytes() == (tmp_path / "file.model").read_bytes()


def test_pairs_of_a_pipe_are_checked():
    done = subprocess.run(
        [sys.executable, "-m", "onmt_evsoftmax", "corpora", "check"],
        input="one\teins\n", capture_output=True, encoding="utf-8", check=True,
    )  # fmt: skip
    assert done.stderr == "standard input: 1 pairs\n"


def test_a_finished_verb_does_nothing_and_says_so(tmp_path, capsys):
    source, target = write(tmp_path / "a.en", *TEXT), write(tmp_path / "a.de", *TEXT)
    out = [str(tmp_path / "b.en"), str(tmp_path / "b.de")]
    assert main(["clean", str(source), str(target), "-o", *out]) == 0
    before = [Path(path).stat().st_mtime_ns for path in out]
    assert main(["clean", str(source), str(target), "-o", *out]) == 0
    assert f"{out[0]}, {out[1]}: already there, nothing to do" in capsys.readouterr().err
    assert [Path(path).stat().st_mtime_ns for path in out] == before


@pytest.mark.parametrize(
    "words",
    [
        "clean a.en a.de -o a.en b.de",
        "tokenise --lang en -o . a.en",
        "encode --model codes -o . link.en",
        "vocabulary -o a.en a.en a.de",
        "learn-bpe --size 5 -o a.de a.en a.de",
        "decode --kind bpe a.en -o a.en",
        "extract --source a.en --target a.de -o a.en b.de",
    ],
)
def test_an_output_that_is_an_input_is_refused(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.en", *TEXT)
    write(tmp_path / "a.de", *TEXT)
    subwords.learn("bpe", [tmp_path / "a.en"], 5, tmp_path / "codes")
    (tmp_path / "link.en").symlink_to("a.en")
    before = (tmp_path / "a.en").read_bytes()
    with pytest.raises(UserError, match=r"is the input .*; give the output another name"):
        main(words.split())
    assert (tmp_path / "a.en").read_bytes() == before
    assert not (tmp_path / "b.de").exists()


@pytest.mark.parametrize("lang", ["ru", "ja", "zh", "el", "xx"])
def test_any_language_can_be_tokenised(lang):
    assert tokenise.tokenise_line(lang, "Ωραία, мир!").split()[-1] == "!"


def test_a_target_without_text_is_asked_for(tmp_path):
    source = write(tmp_path / "a.en", "x")
    with pytest.raises(UserError, match="there is no --target"):
        main(["extract", "--source", str(source), "-o", str(tmp_path / "x"), str(tmp_path / "y")])
    assert list(tmp_path.iterdir()) == [source]


def test_an_absurd_number_of_merges_is_refused():
    with pytest.raises(UserError, match="must be a whole number from 1 to 10000000, not 999"):
        main(["learn-bpe", "a.txt", "--size", "9" * 30, "-o", "codes"])


@pytest.mark.parametrize(("verb", "script"), [("run", "run"), ("options", "prepare")])
def test_help_names_the_script_of_the_recipe(verb, script, capsys):
    for words, name in ((["recipes/demo", "--help"], "demo"), (["--help"], "RECIPE")):
        with pytest.raises(SystemExit) as left:
            main([verb, *words])
        assert left.value.code == 0
        assert f"usage: recipes/{name}/{script}.sh [options]" in capsys.readouterr().out
