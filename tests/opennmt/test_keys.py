"""Nothing that a user wrote is dropped in silence: each case here once trained softmax, or less."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import onmt.bin.build_vocab
import onmt.opts
import pytest
from models import LANGUAGE_MODEL, TRANSFORMER, build, flags, parse, pretend_gpu
from onmt.utils.misc import check_path
from onmt.utils.parse import ArgumentParser
from workbench import IS_35

from onmt_evsoftmax import kernels
from onmt_evsoftmax.opennmt import building
from onmt_evsoftmax.opennmt.sites import put_normalizers
from onmt_evsoftmax.report.console import UserError


def train_options(tmp_path: Path, text: str, *arguments: str) -> Namespace:
    """What ``onmt_train -config recipe.yaml`` makes of a text."""
    config = tmp_path / "recipe.yaml"
    config.write_text(f"src_vocab: none\n{text}")
    parser = ArgumentParser()
    onmt.opts.train_opts(parser)
    return parser.parse_known_args(["-config", str(config), *arguments])[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data: {}\nattention_normalizer:\n", r"recipe\.yaml, line 3: .*_normalizer has no value"),
        ("data: {}\ncontext_attention_normalizer: null\n", "line 3: .* has no value; write one"),
        ("data: {}\nattention_eps: ~\n", "line 3: attention_eps has no value"),
        (
            "data: {}\nattention_normalizer: evsoftmax\nlayers: 2\nattention_normalizer: softmax\n",
            r"line 5: the key 'attention_normalizer' is already in line 3; remove one",
        ),
        ("data: {}\nlayers: 2\nlayers: 6\n", "line 4: the key 'layers' is already in line 3"),
        (
            "data:\n  corpus:\n    path_src: a\n    weight: 1\n    weight: 9\n",
            "line 6: the key 'weight' is already in line 5",
        ),
    ],
)
def test_yaml_that_says_less_than_it_seems(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        train_options(tmp_path, text)


@pytest.mark.parametrize("key", ["[a, b]", "{a: b}", "[attention_normalizer]"])
def test_a_key_that_is_no_word(
    tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in ("c", ""):
        with pytest.raises(SystemExit):
            train_options(tmp_path, f"data: {{}}\n? {key}\n: {value}\n")
        assert "unhashable key" in capsys.readouterr().err


def test_yaml_that_is_fine(tmp_path: Path) -> None:
    text = "base: &base\n  weight: 1\ndata:\n  one:\n    <<: *base\n  two:\n    <<: *base\n"
    with pytest.raises(UserError, match="the key 'base' is unknown"):  # and nothing else
        train_options(tmp_path, text)
    assert train_options(tmp_path, "data: {}\nlayers: 3\nn_best: 2\n").layers == 3


@pytest.mark.parametrize(
    "arguments",
    [["evsoftmax"], ["-layers", "2", "evsoftmax"], ["-n_best", "2", "evsoftmax"], ["x", "-layers"]],
)
def test_a_word_that_belongs_to_no_option(tmp_path: Path, arguments: list[str]) -> None:
    if arguments[-1] == "-layers":
        arguments = [*arguments, "2"]
    with pytest.raises(UserError, match=r"'(evsoftmax|x)' belongs to no option; write the option"):
        train_options(tmp_path, "data: {}\n", *arguments)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("-dropout 0.1 1e400", "dropout must be a finite number, not inf"),
        ("-dropout -0.1", "dropout must be from 0 to 1, not -0.1"),
        ("-label_smoothing 1.5", "label_smoothing must be from 0 to 1, not 1.5"),
        ("-learning_rate nan", "learning_rate must be a finite number, not nan"),
        ("-heads 0", "heads must be at least 1, not 0"),
        ("-accum_count 2 0", "accum_count must be at least 1, not 0"),
    ],
)
def test_numbers_of_a_training_have_a_range(tmp_path: Path, given: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        train_options(tmp_path, "data: {}\n", *given.split())
    assert train_options(tmp_path, "data: {}\n", "-dropout", "0", "1").dropout == [0, 1]


def test_lists_and_options_of_other_commands_are_no_such_words(tmp_path: Path) -> None:
    text = "data: {}\nn_best: 3\ndropout: [0.1, 0.2]\n"
    options = train_options(tmp_path, text, "-beam_size", "4", "-layers", "2")
    assert options.dropout == [0.1, 0.2]


def check_corpus(tmp_path: Path, corpus: dict[Any, Any]) -> Namespace:
    """``data`` with one corpus, as training checks it."""
    (tmp_path / "text").write_text("a\n")
    paths = {"path_src": str(tmp_path / "text"), "path_tgt": str(tmp_path / "text")}
    options = Namespace(data=str({"corpus": {**paths, **corpus}}), transforms=[], n_src_feats=0)
    ArgumentParser._validate_data(options)
    return options


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        ({"transform": ["filtertoolong"]}, "corpus: the key 'transform' .* mean 'transforms'"),
        ({"wieght": 3}, "corpus: the key 'wieght' is unknown; did you mean 'weight'"),
        ({"layers": 3}, "corpus: the key 'layers' is unknown"),
        ({"transforms": ["filtertolong"]}, "unknown transform 'filtertolong' .*mean filtertoolong"),
        ({"transforms": "filtertoolong"}, r"transforms: must be a list, as \[filtertoolong\]"),
        ({"transforms": [{"a": 1}]}, "unknown transform"),
        ({"weight": 0.5}, "weight must be a whole number from 0 up, not 0.5"),
        ({"weight": -1}, "weight must be a whole number from 0 up, not -1"),
        ({"weight": 0}, "no corpus to train on"),
        ({"path_tgt": ["a"]}, r"corpus: path_tgt must be the name of a file, not \['a'\]"),
        ({"path_src": 3}, "path_src must be the name of a file, not 3"),
        ({5: "x"}, "the key 5 is unknown"),
        ({"path_txt" if not IS_35 else "src_feats": "x"}, "is unknown"),
    ],
)
def test_what_a_corpus_does_not_know(tmp_path: Path, corpus: dict[Any, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_corpus(tmp_path, corpus)


def test_what_a_corpus_knows(tmp_path: Path) -> None:
    known = {"weight": 2, "transforms": ["prefix"], "src_prefix": "a", "tgt_prefix": "b"}
    assert check_corpus(tmp_path, known).data["corpus"]["weight"] == 2


@pytest.mark.parametrize(
    "data", ["[]", "corpus", "{corpus: text}", "{a: [", "{}", "{valid: {path_src: a}}"]
)
def test_data_that_is_no_list_of_corpora(data: str) -> None:
    with pytest.raises(UserError, match="data"):
        ArgumentParser._validate_data(Namespace(data=data, transforms=[]))


@pytest.mark.parametrize("data", ["corpus", "{a: [", "{a: {path_src: [s]}}", "{a: {5: x}}"])
def test_a_vocabulary_of_such_data(data: str) -> None:
    options = Namespace(
        data=data,
        transforms=[],
        config=None,
        src_vocab="v",
        tgt_vocab="w",
        share_vocab=False,
        n_sample=0,
    )
    with pytest.raises(UserError, match="data"):
        onmt.bin.build_vocab.build_vocab_main(options)


def test_a_vocabulary_may_be_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_path("v.src")
    check_path("new/v.src")
    assert (tmp_path / "new").is_dir()
    (tmp_path / "v.src").touch()
    with pytest.raises(OSError, match="exists"):
        check_path("v.src")


class TestTranslation:
    """An option of translation acts there, or it is refused; the start-up line says what acts."""

    def test_what_acts_in_training_only_is_refused(self) -> None:
        with pytest.raises(UserError, match="attention_eps acts in training only; remove it"):
            building._refuse_training_options({"attention_eps": 0.1})
        building._refuse_training_options({"attention_eps": 0.0, "attention_alpha": 1.3})

    def test_the_line_shows_what_acts(self) -> None:
        options = parse(*TRANSFORMER, *flags(attention_normalizer="evsoftmax", attention_eps=0.1))
        model = build(*TRANSFORMER)
        assert "evsoftmax(eps=0.1)" in str(put_normalizers(model, options))
        assert "eps" not in str(put_normalizers(model, options, overrides={}))

    @pytest.mark.skipif(not kernels.available(), reason="nothing is fused without the kernels")
    def test_fused_where_decoding_fuses_nothing_is_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fused = {"attention_backend": "fused"}
        options = [*LANGUAGE_MODEL, *flags(attention_normalizer="evsoftmax", **fused)]
        model = build(*options)
        transformer = [*TRANSFORMER, *flags(attention_normalizer="evsoftmax", **fused)]
        report = put_normalizers(model, parse(*options), overrides=fused)
        assert str(report).endswith("fused attention: decoder")
        report = put_normalizers(build(*transformer), parse(*transformer), overrides=fused)
        assert str(report).endswith("fused attention: encoder, decoder, context")
        pretend_gpu(monkeypatch)
        inherited = put_normalizers(model, parse(*options), overrides={})
        assert str(inherited).endswith("fused attention: decoder on CPU, none on GPU")
        report = put_normalizers(build(*transformer), parse(*transformer), overrides=fused)
        assert str(report).endswith("encoder, decoder, context on CPU, encoder on GPU")
        monkeypatch.setattr(kernels, "available", lambda: False)
        with pytest.raises(UserError, match=r"fused is not possible here: .*decoding computes one"):
            put_normalizers(model, parse(*options), overrides=fused)

    def test_a_model_trained_fused_can_be_used_without_kernels(self) -> None:
        options = parse(
            *TRANSFORMER, *flags(attention_normalizer="evsoftmax", attention_backend="fused")
        )
        model = build(*TRANSFORMER)
        with kernels.using("torch"):
            assert "fused attention: none" in str(put_normalizers(model, options, overrides={}))
            with pytest.raises(UserError, match="fused is not possible here"):
                put_normalizers(model, options)

    @pytest.mark.parametrize("option", ["beam_size", "max_length", "n_best", "batch_size"])
    def test_numbers_have_a_range(self, option: str) -> None:
        parser = ArgumentParser()
        onmt.opts.translate_opts(parser)
        given = ["-model", "m.pt", "-src", "s.txt", f"-{option}"]
        with pytest.raises(UserError, match=f"{option} must be at least 1, not 0"):
            parser.parse_args([*given, "0"])
        assert getattr(parser.parse_args([*given, "1"]), option) == 1

    def test_no_more_translations_than_the_beam_has(self) -> None:
        with pytest.raises(UserError, match="n_best 7 needs a beam_size of 7 or more"):
            building._check_translation(Namespace(beam_size=5, n_best=7))
        building._check_translation(Namespace(beam_size=5, n_best=5))

    def test_a_gpu_that_is_not_there(self) -> None:
        with pytest.raises(UserError, match=r"-gpu asks for a GPU, and torch finds (none|only)"):
            building._check_translation(Namespace(gpu=64))
        with pytest.raises(UserError, match="gpu_ranks asks for a GPU, and torch finds"):
            ArgumentParser.validate_train_opts(Namespace(gpu_ranks=list(range(64))))
