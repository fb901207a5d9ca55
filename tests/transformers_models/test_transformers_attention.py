"""Attention inside transformers' models: the same whatever surrounds a sentence."""

import functools

import pytest
import small_models
import torch
import transformers as hf
from small_models import ABLE, FAMILIES, batch, build

import onmt_evsoftmax.transformers as ours
from onmt_evsoftmax import normalizer_names
from onmt_evsoftmax.normalizers.registry import get_record
from onmt_evsoftmax.transformers import attention

GENERATING = [name for name in ABLE if FAMILIES[name].generates]
TYPES = [torch.float32, torch.bfloat16]
everywhere = pytest.mark.parametrize("name", ABLE)
generating = pytest.mark.parametrize("name", GENERATING)
both_types = pytest.mark.parametrize("dtype", TYPES, ids=str)


def close(a, b, dtype=torch.float32):
    """Equal up to the rounding of the type; bfloat16 has eight bits."""
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(a.float(), b.float(), atol=tolerance, rtol=tolerance)


def inputs(name, dtype=torch.float32, side="right"):
    given = batch(name, side)
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in given.items()}


@everywhere
def test_softmax_of_ours_is_theirs(name):
    given = inputs(name)
    with torch.no_grad():
        wanted = build(name, "eager")(**given).logits
        close(build(name, "softmax")(**given).logits, wanted)
        sparse = build(name)(**given).logits
    assert (sparse - wanted).abs().max() > 0.1


@pytest.mark.parametrize("normalizer", normalizer_names())
def test_every_normalizer_is_registered(normalizer):
    model = build("bart", normalizer)
    with torch.no_grad():
        out = model(**inputs("bart"), output_attentions=True)
    for weights in (*out.encoder_attentions, *out.decoder_attentions, *out.cross_attentions):
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    sparse = (out.encoder_attentions[0][0] == 0).any()
    assert sparse == (normalizer != "softmax")


@both_types
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", [name for name in ABLE if name != "whisper"])  # it has no padding
def test_padded_is_alone(name, side, dtype):
    model = build(name, dtype=dtype)
    given = inputs(name, dtype, side)
    real = given["attention_mask"][1].bool()
    alone = {"input_ids": given["input_ids"][1:, real], "attention_mask": torch.ones(1, 4)}
    if FAMILIES[name].kinds == ("decoder",):  # where positions start at the first real token
        given["position_ids"] = (given["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    elif side == "left":
        pytest.skip("positions of an encoder start at the padding")
    if "decoder_input_ids" in given:
        alone["decoder_input_ids"] = given["decoder_input_ids"][1:]
    with torch.no_grad():
        together, single = model(**given).logits[1], model(**alone).logits[0]
    if "decoder_input_ids" not in given:
        together = together[real]
    close(together, single, dtype)


def generate(model, name, dtype=torch.float32, **options):
    given = inputs(name, dtype, "left" if FAMILIES[name].kinds == ("decoder",) else "right")
    given.pop("decoder_input_ids", None)
    torch.manual_seed(0)
    out = model.generate(
        **given,
        max_new_tokens=9,
        min_new_tokens=6,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
        **options,
    )
    return out.sequences, torch.stack(out.scores)


@generating
@both_types
@pytest.mark.parametrize("beams", [1, 3])
def test_cached_is_uncached(name, beams, dtype):
    model = build(name, dtype=dtype)
    tokens, scores = generate(model, name, dtype, num_beams=beams, use_cache=False)
    cached, cached_scores = generate(model, name, dtype, num_beams=beams)
    first = scores[0].isfinite()  # before anything was chosen
    close(scores[0][first], cached_scores[0][first], dtype)
    if dtype == torch.float32 or torch.equal(tokens, cached):  # rounding may choose another beam
        assert torch.equal(tokens, cached)
        finite = scores.isfinite()
        close(scores[finite], cached_scores[finite], dtype)


@generating
@pytest.mark.parametrize("beams", [1, 3])
def test_static_cache_is_dynamic(name, beams):
    model = build(name)
    options = {"num_beams": beams, "disable_compile": True}
    tokens, scores = generate(model, name, **options)
    static, static_scores = generate(model, name, cache_implementation="static", **options)
    assert torch.equal(tokens, static)
    finite = scores.isfinite()
    close(scores[finite], static_scores[finite])


@pytest.fixture
def calls(monkeypatch):
    """Every call of our attention: its tensors, mask and options, and its result."""
    found = []
    original = attention.sparse_attention

    def hooked(query, key, value, mask, dropout, causal, scale, **options):
        out = original(query, key, value, mask, dropout, causal, scale, **options)
        found.append((query, key, value, mask, causal, scale, out))
        return out

    monkeypatch.setattr(attention, "sparse_attention", hooked)
    return found


def in_float64(query, key, mask, causal, scale, function):
    """The weights of one call, from the definition."""
    query, key = query.double(), key.double()
    key = key.repeat_interleave(query.size(1) // key.size(1), 1)
    scores = query @ key.transpose(-1, -2) * (query.size(-1) ** -0.5 if scale is None else scale)
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if causal:
        allowed = allowed.tril()
    if mask is not None and mask.dtype == torch.bool:
        allowed = allowed & mask
    elif mask is not None:
        scores = scores + mask.double()
    scores = scores.masked_fill(~allowed, -torch.inf)
    return function(scores)


@everywhere
@both_types
@pytest.mark.parametrize("normalizer", ["evsoftmax", "sparsemax", "entmax15"])
def test_weights_returned_are_weights_used(name, normalizer, dtype, calls):
    model = build(name, normalizer, dtype=dtype)
    with torch.no_grad(), ours.record_attention() as recorded:
        model(**inputs(name, dtype))
    sites = ours.attention_sites(model)
    assert set(recorded) == set(sites) != set()
    assert len(calls) == len(recorded)
    function = get_record(normalizer).function
    for (query, key, value, mask, causal, scale, out), record in zip(
        calls, recorded.values(), strict=True
    ):
        wanted = in_float64(query, key, mask, causal, scale, function)
        # From queries and keys as they are in bfloat16: the scores themselves are float32.
        torch.testing.assert_close(record.weights.double(), wanted, atol=1e-5, rtol=1e-4)
        assert torch.equal(record.support, wanted > 0)
        value = value.double().repeat_interleave(query.size(1) // value.size(1), 1)
        close(out, wanted @ value, dtype)


@everywhere
def test_asking_for_weights_changes_nothing(name):
    model = build(name)
    given = inputs(name)
    with torch.no_grad(), ours.record_attention() as recorded:
        out = model(**given, output_attentions=True)
        again = model(**given, output_attentions=True)
    with torch.no_grad():
        close(model(**given).logits, out.logits)
    fields = [v for k, v in again.items() if k.endswith("attentions") and v is not None]
    returned = [weights for field in fields for weights in field]
    assert len(returned) == len(recorded)
    for record in recorded.values():
        assert any(torch.equal(record.weights, weights) for weights in returned)
        assert (record.weights == 0).any()


def test_gradients():
    model = build("bart", dtype=torch.float64, encoder_layers=1, decoder_layers=1)
    mask = torch.tensor([[1, 1, 1, 0]])
    torch.manual_seed(1)
    words = torch.randn(1, 4, 16, dtype=torch.float64, requires_grad=True)
    target = torch.randn(1, 3, 16, dtype=torch.float64, requires_grad=True)

    def run(source, target):
        out = model(inputs_embeds=source, attention_mask=mask, decoder_inputs_embeds=target)
        return out.logits[..., :4]

    assert torch.autograd.gradcheck(run, (words, target))


@pytest.mark.parametrize("causal", [False, True])
def test_position_biases(causal):
    """Part of the scores, with gradients; of T5 itself in the tests above."""
    torch.manual_seed(2)
    query, key, value = (torch.randn(1, 2, 4, 3, dtype=torch.float64) for _ in range(3))
    bias = torch.randn(1, 2, 4, 4, dtype=torch.float64)
    mask = None if causal else torch.tensor([1, 1, 1, 0]).bool().expand(1, 1, 4, 4)

    def run(query, key, value, bias):
        run = functools.partial(attention.attend, torch.nn.Module(), implementation="evsoftmax")
        return run(query, key, value, mask, position_bias=bias, is_causal=causal)[0]

    given = [t.requires_grad_() for t in (query, key, value, bias)]
    scores = query @ key.transpose(-1, -2) * 3**-0.5 + bias
    hidden = torch.ones(4, 4).triu(1).bool() if causal else ~mask
    wanted = get_record("evsoftmax").function(scores.masked_fill(hidden, -torch.inf)) @ value
    torch.testing.assert_close(run(*given), wanted.transpose(1, 2))
    assert torch.autograd.gradcheck(run, given)


def test_dropout():
    model = build("bart", attention_dropout=0.5, dropout=0.0).train()
    given = inputs("bart")

    def run(seed):
        torch.manual_seed(seed)
        return model(**given).logits

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    model.eval()
    assert torch.equal(run(1), run(2))


@pytest.mark.parametrize("name", ["bart", "llama"])
def test_compiled(name):
    torch._dynamo.reset()
    # A cache of an encoder-decoder model breaks the graph, with sdpa too.
    model, given = build(name), {**inputs(name), "use_cache": False}
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        close(compiled(**given).logits, model(**given).logits)


def test_a_missing_mask_is_an_error(monkeypatch):
    from transformers.masking_utils import AttentionMaskInterface

    given = inputs("bart")
    model = build("bart")
    monkeypatch.delitem(AttentionMaskInterface._global_mapping, "evsoftmax")
    with pytest.raises(RuntimeError, match="got no mask, because none is registered"):
        model(**given)


def test_a_mask_that_is_added_hides_too():
    """The float masks of eager attention, −10,000 and the smallest number, are no scores."""
    model, given = build("llama"), inputs("llama")
    with torch.no_grad():
        wanted = model(**given).logits
        allowed = torch.ones(7, 7).tril().bool() & given["attention_mask"].bool()[:, None, None]
        for lowest in (-10_000.0, torch.finfo(torch.float32).min, -torch.inf):
            mask = torch.zeros(allowed.shape).masked_fill(~allowed, lowest)
            close(model(given["input_ids"], attention_mask=mask).logits[0], wanted[0])
    with pytest.raises(TypeError, match=r"passes a mask of shape .* torch\.int64"):
        model(given["input_ids"], attention_mask=allowed.long())


def test_sliding_windows():
    config = {**FAMILIES["llama"].config, "sliding_window": 3}
    build_mistral = functools.partial(small_models.Family, kinds=("decoder",), config=config)
    FAMILIES["mistral"] = build_mistral(lambda **c: hf.MistralForCausalLM(hf.MistralConfig(**c)))
    given = inputs("llama")
    with torch.no_grad():
        real = given["attention_mask"].bool()  # what lies farther behind sees nothing in its window
        soft = build("mistral", "softmax")(**given).logits[real]
        close(soft, build("mistral", "eager")(**given).logits[real])
        out = build("mistral")(**given, output_attentions=True)
    outside = torch.ones(7, 7).tril(-3).bool()
    assert all((weights[:, :, outside] == 0).all() for weights in out.attentions)
    model = build("mistral")
    tokens, scores = generate(model, "mistral", use_cache=False)
    cached, cached_scores = generate(model, "mistral")
    assert torch.equal(tokens, cached)
    close(scores[scores.isfinite()], cached_scores[scores.isfinite()])


def test_softcap():
    config = {**FAMILIES["llama"].config, "head_dim": 4, "attn_logit_softcapping": 0.7}
    FAMILIES["gemma2"] = small_models.Family(
        lambda **c: hf.Gemma2ForCausalLM(hf.Gemma2Config(**c)), ("decoder",), config=config
    )
    given = inputs("llama")
    with torch.no_grad():
        close(build("gemma2", "softmax")(**given).logits, build("gemma2", "eager")(**given).logits)
        sparse = build("gemma2")(**given, output_attentions=True)
    assert (sparse.attentions[0][0, :, -1] == 0).any()


def test_attention_sinks_are_refused():
    config = {**FAMILIES["llama"].config, "head_dim": 4, "num_local_experts": 2}
    torch.manual_seed(0)
    model = hf.GptOssForCausalLM(hf.GptOssConfig(**config, attn_implementation="evsoftmax"))
    with pytest.raises(ValueError, match=r"GptOssAttention uses attention sinks"):
        model(**inputs("llama"))
