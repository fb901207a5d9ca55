"""The registry: names, options, modules, losses, and what third parties add."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import functional
import pytest
import torch

import onmt_evsoftmax
from onmt_evsoftmax import doctor
from onmt_evsoftmax.normalizers import registry as normalizers
from onmt_evsoftmax.normalizers.registry import (
    get_loss,
    get_normalizer,
    get_record,
    normalizer_names,
    records,
    register_normalizer,
)

SCORES = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([True, True, True, True, False])


@pytest.mark.parametrize(
    "name", ["softmax", "evsoftmax", "sparsemax", "entmax15", "entmax", "sparsehourglass"]
)
def test_each_name_is_its_function(name):
    assert name in normalizer_names()
    module = get_normalizer(name).eval()
    function = getattr(functional, name)
    assert torch.equal(module(SCORES, MASK), function(SCORES, MASK))
    assert torch.equal(module(SCORES, MASK, -1), function(SCORES, MASK, -1))
    assert torch.equal(
        module(SCORES, MASK, return_support=True)[1], function(SCORES, MASK, return_support=True)[1]
    )
    assert getattr(onmt_evsoftmax, name) is function


def test_eps_is_for_training_only():
    module = get_normalizer("evsoftmax", eps=1e-3)
    assert torch.equal(module.train()(SCORES), functional.evsoftmax(SCORES, eps=1e-3))
    assert torch.equal(module.eval()(SCORES), functional.evsoftmax(SCORES))
    assert "eps=0.001" in repr(module.train())


def test_learned_alpha_per_head():
    module = get_normalizer("entmax", alpha="learn", heads=3)
    assert module.alpha.flatten().tolist() == [1.5] * 3
    torch.testing.assert_close(module(SCORES), functional.entmax15(SCORES), atol=1e-5, rtol=0)
    optimizer = torch.optim.SGD(module.parameters(), lr=5.0)
    for _ in range(200):  # sparser is better for the first head, denser for the others
        optimizer.zero_grad()
        heads = module(SCORES).square().sum((0, 2, 3))
        (heads[1:].sum() - heads[0]).backward()
        optimizer.step()
    first, *others = module.alpha.flatten().tolist()
    assert 1.5 < first < 2
    assert all(1 < alpha < 1.5 for alpha in others)
    again = get_normalizer("entmax", alpha="learn", heads=3)
    again.load_state_dict(module.state_dict())
    assert torch.equal(again(SCORES), module(SCORES))
    module.pre_alpha.data.fill_(-1e4)  # alpha is 1 to the last bit, yet nothing breaks
    torch.testing.assert_close(module(SCORES), functional.softmax(SCORES), atol=1e-6, rtol=0)


def test_a_fixed_alpha_has_no_parameter():
    module = get_normalizer("entmax", alpha="1.3")
    assert list(module.state_dict()) == []
    torch.testing.assert_close(module(SCORES), functional.entmax(SCORES, alpha=1.3))


def test_the_loss_stands_beside_its_normalizer():
    y = torch.randint(5, (2,))
    x = SCORES[:, 0, 0]
    for name in ("softmax", "evsoftmax", "sparsemax", "entmax15", "entmax"):
        assert get_loss(name)(x, y).isfinite(), name
    assert get_loss("evsoftmax", eps=1e-2)(x, y) < get_loss("evsoftmax", eps=1e-9)(x, y) + 1


@pytest.fixture
def registry(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(normalizers, "_REGISTERED", {})


@pytest.mark.usefixtures("registry")
def test_third_parties_register_their_own():
    class Hardmax(torch.nn.Module):
        def __init__(self, temperature: float = 1.0) -> None:
            super().__init__()

        def forward(self, scores, mask=None, dim=-1):
            scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
            return (scores == scores.amax(dim, keepdim=True)).to(scores.dtype)

    register_normalizer("hardmax", Hardmax)
    assert "hardmax" in normalizer_names()
    assert get_normalizer("hardmax", temperature=2.0)(SCORES, MASK).sum() == 2 * 3 * 4
    with pytest.raises(ValueError, match="registered already"):
        register_normalizer("hardmax", Hardmax)
    with pytest.raises(ValueError, match="did you mean temperature"):
        get_normalizer("hardmax", temprature=2.0)
    with pytest.raises(ValueError, match="no loss of its own"):
        get_loss("hardmax")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: get_normalizer("evsotfmax"),
            r"did you mean evsoftmax\?\); known: softmax, evsoftmax",
        ),
        (lambda: get_loss("sparsmax"), "did you mean sparsemax"),
        (
            lambda: get_normalizer("entmax", alhpa=1.3),
            r"did you mean alpha\?\); known: alpha, heads",
        ),
        (lambda: get_normalizer("softmax", eps=1.0), "'eps'; known: none"),
        (lambda: get_normalizer("entmax", alpha="lern"), "or learn, not 'lern'"),
        (lambda: get_normalizer("entmax", alpha=0.9), "at least 1"),
        (lambda: get_normalizer("evsoftmax", eps=-1.0), "eps must be"),
        (lambda: get_normalizer("sparsehourglass", q=0.0), "q must be positive"),
        (lambda: get_loss("softmax", alpha=1.5), "unknown option of the loss of 'softmax'"),
    ],
)
def test_errors_list_what_is_valid_and_the_nearest(call, says):
    with pytest.raises(ValueError, match=says):
        call()


# --- records --------------------------------------------------------------------------------------


def test_our_records_come_in_order_and_say_what_they_are_for():
    ours = ["softmax", "evsoftmax", "sparsemax", "entmax15", "entmax", "sparsehourglass", "posthoc"]
    assert normalizer_names()[: len(ours)] == ours
    assert "posthoc" in normalizer_names("test-time")
    assert "posthoc" not in normalizer_names("attention")
    assert "sparsehourglass" in normalizer_names("attention")
    assert "sparsehourglass" not in normalizer_names("generator")
    for record in records():
        assert set(record.uses) <= set(normalizers.USES)
        assert (record.loss is not None) == ("generator" in record.uses)
        assert record.formula
        assert record.trained_as is None or record.trained_as in ours


@pytest.mark.parametrize("record", records(), ids=lambda record: record.name)
def test_parameters_are_what_the_function_and_the_module_take(record):
    for parameter in record.parameters:
        default = record.function(SCORES, **{parameter.name: parameter.default})
        assert torch.equal(record.function(SCORES), default)
        module = get_normalizer(record.name, **{parameter.name: str(parameter.default)})
        assert torch.equal(module(SCORES), default)
        with pytest.raises(ValueError, match=parameter.name):
            parameter.parse("-1")
        with pytest.raises(ValueError, match=parameter.name):
            parameter.parse("much")


@pytest.mark.parametrize("record", records(), ids=lambda record: record.name)
def test_the_log_form_is_the_logarithm(record):
    if record.log_function is None:
        pytest.skip("has none")
    exact = {p.name: p.default for p in record.parameters}
    got = record.log_function(SCORES, MASK, **exact)
    torch.testing.assert_close(got.exp(), record.function(SCORES, MASK, **exact))
    assert (got[..., ~MASK] == -torch.inf).all()


def test_records_are_pickled_by_name():
    for name in normalizer_names():
        assert pickle.loads(pickle.dumps(get_record(name))) is get_record(name)
        module = get_normalizer(name).eval()
        for copied in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
            assert torch.equal(copied(SCORES), module(SCORES))


def test_titles_and_colours_need_no_torch_and_take_any_name():
    code = (
        "import sys; from onmt_evsoftmax.normalizers.registry import title_of, colour_of;"
        "print(title_of('evsoftmax'), title_of('run.seed1'), colour_of('evsoftmax'),"
        "colour_of('run.seed1') != '', 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.split() == ["ev-softmax", "run.seed1", "#009e73", "True", "False"]
    for record in records():
        assert normalizers.title_of(record.name) == record.title
        assert normalizers.colour_of(record.name) == record.colour
    assert len({record.colour for record in records()}) == len(records())


# --- entry points ---------------------------------------------------------------------------------

MODULE = """
import torch
from onmt_evsoftmax.normalizers.registry import Normalizer

def halfmax(scores, mask=None, dim=-1, *, power=1.0):
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    top = scores >= scores.amax(dim, keepdim=True) - 1
    return top / top.sum(dim, keepdim=True) ** power

RECORD = Normalizer(name="anything", function=halfmax, title="Half-max", colour="#123456")
NUMBER = 3
"""


@pytest.fixture
def their_package(tmp_path, monkeypatch):
    """A distribution beside ours with these entry points, as pip would install it."""
    name = "their_normalizers"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / f"{name}_broken.py").write_text("import a_module_that_is_missing\n")
    info = tmp_path / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[onmt_evsoftmax.normalizers]\n"
        f"halfmax = {name}:halfmax\n"
        f"recorded = {name}:RECORD\n"
        f"evsoftmax = {name}:halfmax\n"
        f"numbermax = {name}:NUMBER\n"
        f"brokenmax = {name}_broken:halfmax\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    forget_entry_points()
    yield name
    forget_entry_points()
    sys.modules.pop(name, None)


def forget_entry_points():
    normalizers._entry_points.cache_clear()
    normalizers._from_entry_point.cache_clear()


def test_other_packages_bring_records_or_functions(their_package):
    assert normalizer_names()[-2:] == ["halfmax", "recorded"]
    assert get_record("halfmax").package == "their_normalizers"
    module = get_normalizer("halfmax", power=2.0)
    p, support = module(SCORES, MASK, return_support=True)
    assert torch.equal(support, p > 0)
    assert (p[..., ~MASK] == 0).all()
    assert torch.equal(pickle.loads(pickle.dumps(module))(SCORES, MASK), p)
    record = get_record("recorded")
    assert (record.name, record.package) == ("recorded", "their_normalizers")
    assert normalizers.title_of("recorded") == "Half-max"
    assert normalizers.colour_of("recorded") == "#123456"
    with pytest.raises(ValueError, match="did you mean power"):
        get_normalizer("halfmax", pwoer=2.0)


def test_a_broken_entry_point_is_named_when_used_and_hinders_nothing(their_package):
    assert "brokenmax" not in normalizer_names()
    for name, says in (
        ("brokenmax", "brokenmax.*their_normalizers.*a_module_that_is_missing"),
        ("numbermax", "neither a record nor a function"),
    ):
        with pytest.raises(ValueError, match=says):
            get_normalizer(name)
    assert get_record("evsoftmax").package is None  # ours stay ours
    broken = normalizers.broken_entry_points()
    assert set(broken) == {"brokenmax", "numbermax", "evsoftmax"}
    found = {f.what: f for f in doctor._normalizers()}
    assert "halfmax (their_normalizers)" in found["normalizers"].found
    assert found["normalizer brokenmax"].advice
    assert normalizers.title_of("brokenmax") == "brokenmax"


def test_our_names_do_not_look_at_other_packages(monkeypatch):
    monkeypatch.setattr(normalizers, "_entry_points", lambda: pytest.fail("looked"))
    assert get_normalizer("evsoftmax") is not None
    assert normalizers.title_of("evsoftmax") == "ev-softmax"
