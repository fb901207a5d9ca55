"""Choosing a normalizer: by kind of attention, refused where it cannot be, kept when saved."""

import json
import subprocess
import sys

import pytest
import torch
import transformers as hf
from packaging.version import Version
from small_models import ABLE, BART, FAMILIES, SMALL, TOKENS, batch, build

import onmt_evsoftmax.transformers as ours
from onmt_evsoftmax import get_normalizer, register_normalizer

REFUSING = {
    "FSMTForConditionalGeneration": lambda **c: hf.FSMTForConditionalGeneration(
        hf.FSMTConfig(**{**BART, "src_vocab_size": 40, "tgt_vocab_size": 40}, langs=["a", "b"], **c)
    ),
    "XGLMForCausalLM": lambda **c: hf.XGLMForCausalLM(
        hf.XGLMConfig(**TOKENS, d_model=16, ffn_dim=16, num_layers=1, attention_heads=2, **c)
    ),
    "BloomForCausalLM": lambda **c: hf.BloomForCausalLM(
        hf.BloomConfig(**TOKENS, hidden_size=16, n_layer=1, n_head=2, **c)
    ),
    "FalconForCausalLM": lambda **c: hf.FalconForCausalLM(hf.FalconConfig(**SMALL, **c)),
    "LEDForConditionalGeneration": lambda **c: hf.LEDForConditionalGeneration(
        hf.LEDConfig(**BART, attention_window=4, **c)
    ),
    "ProphetNetForConditionalGeneration": lambda **c: hf.ProphetNetForConditionalGeneration(
        hf.ProphetNetConfig(
            **TOKENS,
            hidden_size=16,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
            num_encoder_layers=1,
            num_decoder_layers=1,
            num_encoder_attention_heads=2,
            num_decoder_attention_heads=2,
            **c,
        )
    ),
}
if "t5" not in ABLE:
    REFUSING["T5ForConditionalGeneration"] = lambda **c: FAMILIES["t5"].build(
        **FAMILIES["t5"].config, **c
    )


@pytest.mark.parametrize("name", REFUSING)
def test_models_with_softmax_of_their_own_are_refused(name):
    refusal = "cannot have another normalizer: its"
    with pytest.raises(ValueError, match=rf"{refusal} \w+ computes softmax"):
        REFUSING[name](attn_implementation="evsoftmax")
    model = REFUSING[name]()
    with pytest.raises(ValueError, match=rf"^{name} {refusal} \w*(Attention|Attn)\w* computes"):
        ours.use(model, "evsoftmax")


@pytest.mark.parametrize("name", ABLE)
def test_kinds_of_attention(name):
    model = build(name)
    sites = ours.attention_sites(model)
    assert sorted(sites.values()) == sorted(2 * list(FAMILIES[name].kinds))
    parts = {"encoder": "encoder", "decoder": "decoder", "context": "decoder"}
    for path, module in model.named_modules():
        if sites.get(module) and "context" in FAMILIES[name].kinds:
            assert f"{parts[sites[module]]}." in path


def test_a_decoder_with_context_attention_of_bert():
    decoder = {**SMALL, "is_decoder": True, "add_cross_attention": True}
    config = hf.EncoderDecoderConfig.from_encoder_decoder_configs(
        hf.BertConfig(**SMALL), hf.BertConfig(**decoder)
    )
    model = ours.use(hf.EncoderDecoderModel(config), "evsoftmax", "context").eval()
    kinds = ours.attention_sites(model).values()
    assert sorted(kinds) == ["context"] * 2 + ["decoder"] * 2 + ["encoder"] * 2
    with torch.no_grad():
        out = model(**batch("bart"), output_attentions=True)
    assert (out.cross_attentions[0] == 0).any()
    assert (out.encoder_attentions[0][0] > 0).all()


def run(model, name="bart"):
    with torch.no_grad():
        return model(**batch(name), output_attentions=True)


def test_kinds_are_chosen_separately():
    model, stock = build("bart", "sdpa"), run(build("bart", "eager"))
    assert ours.use(model, "sparsemax", "context") is model
    out = run(model)
    torch.testing.assert_close(out.encoder_last_hidden_state, stock.encoder_last_hidden_state)
    torch.testing.assert_close(out.decoder_attentions[0], stock.decoder_attentions[0])
    assert (out.cross_attentions[0][0] == 0).any()
    # Without the weights, the kinds that are left alone are computed by transformers.
    with torch.no_grad():
        torch.testing.assert_close(model(**batch("bart")).logits, out.logits, atol=1e-4, rtol=1e-4)
    ours.use(model, "evsoftmax", ["encoder"])
    assert (run(model).encoder_attentions[0][0] == 0).any()
    torch.testing.assert_close(run(model).decoder_attentions[0], stock.decoder_attentions[0])
    ours.use(model, "evsoftmax")
    assert model.config._attn_implementation == "evsoftmax"
    assert torch.equal(run(model).logits, run(build("bart")).logits)
    ours.use(model, "sdpa")
    with torch.no_grad():
        torch.testing.assert_close(
            model(**batch("bart")).logits, stock.logits, atol=1e-4, rtol=1e-4
        )


def test_a_wrong_choice_says_what_there_is():
    model = build("llama", "sdpa")
    with pytest.raises(ValueError, match=r"evsoftmx.*evsoftmax"):
        ours.use(model, "evsoftmx")
    with pytest.raises(ValueError, match="encoders"):
        ours.use(model, "evsoftmax", "encoders")
    with pytest.raises(ValueError, match="LlamaForCausalLM has no context attention, only decoder"):
        ours.use(model, "evsoftmax", "context")


@pytest.fixture
def another():
    """A normalizer that is registered after the import."""
    from onmt_evsoftmax.normalizers import registry

    register_normalizer("doubled", lambda: get_normalizer("evsoftmax"))
    yield "doubled"
    del registry._REGISTERED["doubled"]


def test_normalizers_registered_later(another):
    later, evsoftmax = build("bart", another), build("bart")
    torch.testing.assert_close(run(later).logits, run(evsoftmax).logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        run(ours.use(build("bart", "sdpa"), another)).logits,
        run(evsoftmax).logits,
        atol=1e-4,
        rtol=1e-4,
    )


@pytest.mark.parametrize("kinds", ["context", ("encoder", "decoder", "context")], ids=str)
@pytest.mark.parametrize("name", [n for n in ABLE if "context" in FAMILIES[n].kinds])
def test_the_choice_is_saved(name, kinds, tmp_path):
    model = ours.use(build(name, "sdpa"), "evsoftmax", kinds)
    for folder in (tmp_path / "first", tmp_path / "second"):  # loaded and saved again
        model.save_pretrained(folder)
        loaded = type(model).from_pretrained(folder).eval()
        assert torch.equal(run(loaded, name).logits, run(model, name).logits)
        assert (run(loaded, name).cross_attentions[0] == 0).any()
        model = loaded
    stock = type(model).from_pretrained(tmp_path / "first", attn_implementation="sdpa").eval()
    stock.save_pretrained(tmp_path / "stock")
    saved = json.loads((tmp_path / "stock" / "config.json").read_text())
    assert not {"attn_implementation", "attention_normalizer"} & set(saved)


def test_an_argument_is_saved_too(tmp_path):
    model = build("llama", "sparsemax")
    model.save_pretrained(tmp_path)
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config._attn_implementation == "sparsemax"
    with torch.no_grad():
        given = batch("llama")
        assert torch.equal(loaded.eval()(**given).logits, model(**given).logits)


@pytest.mark.skipif(
    Version(hf.__version__) < Version("5.22"), reason="drops the name without a word"
)
def test_without_the_import_a_sparse_model_is_refused(tmp_path):
    build("llama").save_pretrained(tmp_path)
    program = (
        "import sys, transformers\n"
        f"transformers.LlamaForCausalLM.from_pretrained({str(tmp_path)!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0
    assert 'attn_implementation="evsoftmax"` is not supported' in done.stderr


def test_nobody_else_imports_transformers():
    program = "import sys, onmt_evsoftmax, onmt_evsoftmax.normalizers.registry, onmt_evsoftmax_hook"
    check = f"{program}\nonmt_evsoftmax_hook.start()\nassert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)
