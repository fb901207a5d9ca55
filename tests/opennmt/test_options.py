"""Options: what is accepted, what is refused and how, and who wins over a checkpoint."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import onmt.opts
import onmt.train_single
import pytest
import torch
from models import LANGUAGE_MODEL, RNN, TRANSFORMER, build, flags, parse, vocabularies
from onmt.utils.parse import ArgumentParser

from onmt_evsoftmax import kernels
from onmt_evsoftmax.normalizers.registry import get_normalizer, normalizer_names
from onmt_evsoftmax.opennmt.resuming import learned
from onmt_evsoftmax.opennmt.settings import Settings, override, written
from onmt_evsoftmax.opennmt.sites import attention_sites, put_normalizers
from onmt_evsoftmax.report.console import UserError


def parse_yaml(tmp_path: Path, text: str, opts: Any = onmt.opts.train_opts) -> Namespace:
    config = tmp_path / "recipe.yaml"
    config.write_text("data: {}\nsrc_vocab: none\n" + text)
    parser = ArgumentParser()
    opts(parser)
    return parser.parse_known_args(["-config", str(config)])[0]


def test_nothing_written_is_softmax_everywhere() -> None:
    settings = Settings.of(parse())
    assert set(settings.attention.values()) == {"softmax"}
    assert not settings.sparse
    assert written(parse()) == {}


@pytest.mark.parametrize("name", normalizer_names("attention"))
def test_any_name_of_the_registry_for_every_attention(name: str) -> None:
    settings = Settings.of(parse("-attention_normalizer", name))
    assert set(settings.attention.values()) == {name}
    assert settings.sparse == (name != "softmax")


def test_kinds_may_differ(tmp_path: Path) -> None:
    text = "attention_normalizer: evsoftmax\ncontext_attention_normalizer: sparsemax\n"
    settings = Settings.of(parse_yaml(tmp_path, text))
    assert settings.attention == {
        "encoder": "evsoftmax",
        "decoder": "evsoftmax",
        "context": "sparsemax",
    }


def test_yaml_and_command_line_both_count_as_written(tmp_path: Path) -> None:
    options = parse_yaml(tmp_path, "attention_normalizer: softmax\nattention_alpha: 1.25\n")
    assert written(options) == {"attention_normalizer": "softmax", "attention_alpha": 1.25}
    assert written(parse("-generator_function", "softmax")) == {"generator_function": "softmax"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-attention_normalizer", "evsoftmx"], "attention_normalizer: .*did you mean evsoftmax"),
        (
            ["-generator_function", "sparsehourglass"],
            "generator_function: sparsehourglass has no loss .*one of: .*entmax15",
        ),
        (["-global_attention_function", "max"], "global_attention_function: .*known: "),
        (["-attention_alpha", "0.5"], "attention_alpha: alpha must be .*at least 1 .*or learn"),
        (
            ["-attention_alpha", "some"],
            "attention_alpha: alpha must be .*at least 1 .*or learn",
        ),
        (["-attention_eps", "-1"], "attention_eps: eps must be 0"),
        (["-atention_normalizer", "evsoftmax"], "-atention_normalizer .*'attention_normalizer'"),
        (["-layerz", "3"], "-layerz is unknown .*did you mean 'layers'"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(*arguments)


def test_a_misspelt_key_in_yaml_names_file_and_nearest_key(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"recipe\.yaml: the key 'attention_normaliser'.*izer'"):
        parse_yaml(tmp_path, "attention_normaliser: evsoftmax\n")


def test_a_list_under_a_misspelt_key_is_found_too(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the key 'dropouts'.*did you mean 'dropout"):
        parse_yaml(tmp_path, "dropouts: [0.1, 0.2]\n")


def test_commands_can_share_one_yaml(tmp_path: Path) -> None:
    """``n_best`` is translation's, ``num_threads`` the vocabulary's, ``layers`` training's."""
    text = "n_best: 2\nnum_threads: 1\nlayers: 3\nattention_normalizer: evsoftmax\n"
    assert parse_yaml(tmp_path, text).layers == 3
    prepare = getattr(onmt.opts, "data_prepare_opts", None) or onmt.opts.dynamic_prepare_opts
    options = parse_yaml(
        tmp_path, text + "save_data: x\n", lambda p: prepare(p, build_vocab_only=True)
    )
    assert options.num_threads == 1


def test_negative_numbers_are_values_not_options() -> None:
    assert parse("-alignment_layer", "-2").alignment_layer == -2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*TRANSFORMER, "-self_attn_type", "average"], "self_attn_type: average"),
        ([*RNN], "for an RNN decoder write global_attention_function: evsoftmax"),
        (flags(encoder_type="cnn", decoder_type="cnn", layers=1), "CNN"),
        ([*RNN, "-global_attention", "none"], "this model has no attention"),
    ],
)
def test_a_model_with_nothing_to_replace_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(*arguments, "-attention_normalizer", "evsoftmax")


def test_a_kind_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(UserError, match="no multi-headed encoder attention"):
        build(*LANGUAGE_MODEL, "-encoder_attention_normalizer", "evsoftmax")
    with pytest.raises(UserError, match="here, write attention_normalizer"):
        build(*TRANSFORMER, "-global_attention_function", "evsoftmax")


def test_a_kind_named_alone_leaves_average_attention_alone() -> None:
    model = build(
        *TRANSFORMER, *flags(self_attn_type="average", context_attention_normalizer="evsoftmax")
    )
    assert {site.kind for site in attention_sites(model)} == {"encoder", "context"}


def test_a_parameter_that_nothing_uses_is_refused() -> None:
    with pytest.raises(UserError, match="attention_alpha has no effect"):
        build(*TRANSFORMER, *flags(attention_normalizer="evsoftmax", attention_alpha=1.3))
    with pytest.raises(UserError, match="attention_eps has no effect"):
        build(*TRANSFORMER, *flags(attention_normalizer="sparsemax", attention_eps=0.1))
    with pytest.raises(UserError, match="one value per head"):
        build(*RNN, *flags(global_attention_function="entmax", attention_alpha="learn"))


def test_eps_acts_in_training_only() -> None:
    model = build(*TRANSFORMER, *flags(attention_normalizer="evsoftmax", attention_eps=0.5))
    softmax = next(attention_sites(model)).module.softmax
    scores = torch.tensor([[[[1.0, 0.0, -1e18]]]])
    assert softmax.eval()(scores).flatten().tolist() == [1.0, 0.0, 0.0]
    p = softmax.train()(scores).flatten()
    assert p[1] > 0
    assert p[2] == 0


def test_the_report_counts_modules() -> None:
    options = parse(*TRANSFORMER, *flags(attention_normalizer="entmax", attention_alpha="learn"))
    with kernels.using("torch"):
        report = str(put_normalizers(build(*TRANSFORMER), options))
    assert "encoder attention entmax(alpha=learn)" in report
    assert "6 attention modules replaced; backend: torch" in report
    assert "\n" not in report


class TestOverCheckpoints:
    """``train_from``: what is written wins, what is not is inherited, and changes are told."""

    def model_options(self, stored: list[str], *now: str, **extra: Any) -> tuple[Any, Any]:
        checkpoint = {"opt": parse(*TRANSFORMER, *stored), "model": {}}
        options = parse(*TRANSFORMER, "-train_from", "old.pt", *now)
        for name, value in extra.items():
            setattr(options, name, value)
        model_options = onmt.train_single._get_model_opts(options, checkpoint=checkpoint)
        return model_options, options

    def test_nothing_written_inherits(self, caplog: pytest.LogCaptureFixture) -> None:
        model, command = self.model_options(
            flags(
                attention_normalizer="entmax", attention_alpha=1.3, generator_function="evsoftmax"
            )
        )
        for options in (model, command):  # the loss is built from the command's own options
            settings = Settings.of(options)
            assert set(settings.attention.values()) == {"entmax"}
            assert settings.parameters == {"alpha": 1.3}
            assert settings.generator == "evsoftmax"
        assert "wins" not in caplog.text

    def test_written_wins_and_says_so(self, caplog: pytest.LogCaptureFixture) -> None:
        model, _ = self.model_options([], "-attention_normalizer", "evsoftmax")
        assert set(Settings.of(model).attention.values()) == {"evsoftmax"}
        assert "encoder attention softmax → evsoftmax" in caplog.text
        assert "old.pt" in caplog.text

    def test_softmax_can_be_written_too(self) -> None:
        model, command = self.model_options(
            flags(attention_normalizer="evsoftmax", generator_function="sparsemax"),
            *flags(attention_normalizer="softmax", generator_function="softmax"),
        )
        assert not Settings.of(model).sparse
        assert not Settings.of(command).sparse

    def test_the_general_key_speaks_for_kinds_of_the_checkpoint(self) -> None:
        stored = flags(context_attention_normalizer="sparsemax")
        model, _ = self.model_options(stored, "-attention_normalizer", "evsoftmax")
        assert set(Settings.of(model).attention.values()) == {"evsoftmax"}

    def test_one_kind_written_keeps_the_others(self) -> None:
        stored = flags(attention_normalizer="evsoftmax")
        model, _ = self.model_options(stored, "-decoder_attention_normalizer", "softmax")
        assert Settings.of(model).attention == {
            "encoder": "evsoftmax",
            "decoder": "softmax",
            "context": "evsoftmax",
        }

    def test_an_old_alpha_goes_with_its_normalizer(self) -> None:
        stored = flags(attention_normalizer="entmax", attention_alpha="learn")
        model, _ = self.model_options(stored, "-attention_normalizer", "evsoftmax")
        assert Settings.of(model).parameters == {}

    def test_override_opts_inherits_ours_as_well(self) -> None:
        stored = flags(attention_normalizer="evsoftmax")
        model, _ = self.model_options(stored, "--override_opts")
        assert set(Settings.of(model).attention.values()) == {"evsoftmax"}

    def test_a_generator_that_cannot_be_is_refused_at_the_start(self) -> None:
        with pytest.raises(UserError, match="does not go with copy_attn"):
            self.model_options([], *flags(generator_function="sparsemax", copy_attn=True))
        with pytest.raises(UserError, match="does not go with lm_prior_model"):
            self.model_options([], *flags(generator_function="sparsemax", lm_prior_model="lm.pt"))


def test_overruling_tells_every_change() -> None:
    options = parse(*flags(attention_normalizer="entmax", attention_alpha=1.3))
    changes = override(options, {"attention_normalizer": "evsoftmax", "attention_eps": 0.1})
    assert changes == [
        "encoder attention entmax → evsoftmax",
        "decoder attention entmax → evsoftmax",
        "context attention entmax → evsoftmax",
        "attention alpha 1.3 → unset",
        "attention eps unset → 0.1",
    ]


class TestGuidedAlignment:
    """A gold link outside the support has no gradient; there is a warning that says what to do."""

    ALIGN = flags(lambda_align=0.5, alignment_layer=-1)

    def warnings(self, caplog: pytest.LogCaptureFixture, **options: Any) -> str:
        given = parse(*TRANSFORMER, *self.ALIGN, *flags(**options))
        onmt.train_single._get_model_opts(given)
        return caplog.text

    def test_exact_zeros_train_nothing(self) -> None:
        """Which is why: here the gold key is below the mean."""
        for eps, trains in ((0.0, False), (1e-6, True)):
            scores = torch.tensor([2.0, 0.0, 2.0], requires_grad=True)
            p = get_normalizer("evsoftmax", eps=eps)(scores)
            (-p.clamp(min=1e-18).log()[1]).backward()
            assert bool(scores.grad.abs().sum() > 0) == trains

    def test_a_warning_names_the_remedy(self, caplog: pytest.LogCaptureFixture) -> None:
        text = self.warnings(caplog, attention_normalizer="evsoftmax")
        assert "guided alignment (lambda_align) with evsoftmax" in text
        assert "set attention_eps to a small number" in text

    def test_where_there_is_none_softmax_is(self, caplog: pytest.LogCaptureFixture) -> None:
        text = self.warnings(caplog, context_attention_normalizer="sparsemax")
        assert "use context_attention_normalizer: softmax" in text
        assert "attention_eps" not in text

    @pytest.mark.parametrize(
        "options",
        [
            {"attention_normalizer": "evsoftmax", "attention_eps": 1e-6},
            {"encoder_attention_normalizer": "evsoftmax"},
            {},
        ],
    )
    def test_no_warning_without_need(
        self, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
    ) -> None:
        assert "guided alignment" not in self.warnings(caplog, **options)


LEARN = flags(attention_normalizer="entmax", attention_alpha="learn")


def test_learned_alphas_are_one_per_head_and_train() -> None:
    model = build(*TRANSFORMER, *LEARN).train()
    names = learned(name for name, _ in model.named_parameters())
    assert len(names) == 6
    parameters = dict(model.named_parameters())
    assert all(parameters[name].shape == (2, 1, 1) for name in names)
    source = torch.randint(4, 16, (3, 5, 1))
    output, _ = model(source, source, torch.tensor([5, 5, 5]))
    output.square().sum().backward()
    assert all(parameters[name].grad.abs().sum() > 0 for name in names)


@pytest.mark.parametrize("before", [[], LEARN, flags(attention_normalizer="evsoftmax")])
@pytest.mark.parametrize("after", [[], LEARN, flags(attention_normalizer="sparsemax")])
def test_optimizer_state_survives_alphas_that_come_or_go(
    before: list[str], after: list[str]
) -> None:
    from onmt.utils.optimizers import Optimizer

    adam = flags(optim="adam", learning_rate=0.01, train_from="old.pt")
    old = build(*TRANSFORMER, *before, seed=1).train()
    optimizer = Optimizer.from_opt(old, parse(*adam))
    source = torch.randint(4, 16, (3, 5, 1))
    old(source, source, torch.tensor([5, 5, 5]))[0].square().sum().backward()
    optimizer.step()
    moments = {
        name: optimizer._optimizer.state[parameter]["exp_avg"]
        for name, parameter in old.named_parameters()
        if parameter.grad is not None
    }
    checkpoint = {
        "opt": parse(*TRANSFORMER, *adam, *before),
        "model": {k: v for k, v in old.state_dict().items() if "generator" not in k},
        "optim": optimizer.state_dict(),
    }
    options = parse(*TRANSFORMER, *adam, *after)
    onmt.train_single._get_model_opts(options, checkpoint=checkpoint)
    new = build(*TRANSFORMER, *(after or before), seed=2)
    restored = Optimizer.from_opt(new, options, checkpoint=checkpoint)
    compared = 0
    for name, parameter in new.named_parameters():
        state = restored._optimizer.state.get(parameter)
        if name in moments:
            assert torch.equal(state["exp_avg"], moments[name])
            compared += 1
        else:
            assert not state
    assert compared > 50
    assert restored.training_step == 2


def test_vocabularies_have_the_specials_where_the_tests_expect_them() -> None:
    assert vocabularies()["tgt"]["<blank>"] == 1
