"""The models: distances, CVAE, semi-supervised VAE, VQ-VAE, PixelCNN, Wide ResNet."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from functional import evsoftmax, evsoftmax_kl, posthoc_evidential

from onmt_evsoftmax.normalizers import registry
from onmt_evsoftmax.normalizers.registry import Normalizer, get_normalizer, register_normalizer
from onmt_evsoftmax.vae import distances, latent
from onmt_evsoftmax.vae.autoencoder import VQVAE, usage
from onmt_evsoftmax.vae.estimators import ESTIMATORS
from onmt_evsoftmax.vae.experiments import cvae, ssvae
from onmt_evsoftmax.vae.pixelcnn import PixelCNN, draw
from onmt_evsoftmax.vae.semisupervised import SSVAE, NegativeElbo, losses
from onmt_evsoftmax.vae.wideresnet import WideResNet, augment, top_accuracy

NAMES = ["softmax", "sparsemax", "entmax15", "evsoftmax"]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(3)


# --- distances ------------------------------------------------------------------------------------


def test_even_and_odd_are_one_apart_not_zero():
    even, odd = distances.parity_targets()
    assert distances.label_wasserstein(even, odd).item() == pytest.approx(1.0)
    assert distances.total_variation(even, odd).item() == pytest.approx(1.0)
    assert distances.legacy_wasserstein(even, odd).item() == 0.0  # the published figure's blindness


def test_distances_agree_with_scipy():
    stats = pytest.importorskip("scipy.stats", reason="the comparison needs scipy: pip install it")
    p, q = torch.rand(2, 20, 10, dtype=torch.float64).softmax(-1)
    places = range(10)
    for a, b in zip(p, q, strict=True):
        assert distances.label_wasserstein(a, b).item() == pytest.approx(
            stats.wasserstein_distance(places, places, a, b)
        )
        assert distances.legacy_wasserstein(a, b).item() == pytest.approx(
            stats.wasserstein_distance(a, b)
        )


# --- latent variables and CVAE --------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_training_form_is_finite_and_near_the_exact_one(name):
    scores = (5 * torch.randn(40, 10)).requires_grad_()
    log_p = latent.log_probabilities(name, scores, 1e-6)
    p, _ = latent.exact(name, scores)
    assert log_p.isfinite().all()
    torch.testing.assert_close(log_p.exp(), p, rtol=0, atol=1e-4)
    log_p.sum().backward()
    assert scores.grad.isfinite().all()


def test_kl_is_that_of_the_losses_module_and_of_torch():
    a, b = torch.randn(2, 8, 10, dtype=torch.float64)
    ours = latent.categorical_kl(
        *(latent.log_probabilities("evsoftmax", scores, 1e-6) for scores in (a, b))
    )
    torch.testing.assert_close(ours, evsoftmax_kl(a, b))
    kl = F.kl_div(b.log_softmax(-1), a.log_softmax(-1), reduction="none", log_target=True).sum(-1)
    torch.testing.assert_close(latent.categorical_kl(a.log_softmax(-1), b.log_softmax(-1)), kl)


def test_entropy_of_zeros_is_zero_with_its_gradient():
    p = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]], requires_grad=True)
    h = latent.entropy(p)
    torch.testing.assert_close(h, torch.tensor([1.0, 2.0]).log())
    h.sum().backward()
    assert p.grad.isfinite().all()


def test_posthoc_from_the_last_layer_is_evsoftmax_of_its_scores():
    model = cvae.CVAE(20, cvae.Configuration()).double()
    prior, support = model.prior_of("posthoc")
    scores = model.prior(torch.eye(2, dtype=torch.float64))
    expected, expected_support = evsoftmax(scores, return_support=True)
    torch.testing.assert_close(prior, expected)
    assert torch.equal(support, expected_support)
    features = torch.randn(30, 7, dtype=torch.float64)
    last = torch.nn.Linear(7, 12).double()
    torch.testing.assert_close(
        posthoc_evidential(features, last.weight, last.bias), evsoftmax(last(features))
    )


@pytest.mark.parametrize("name", NAMES)
def test_cvae_loss_reaches_every_part(name):
    configuration = cvae.Configuration()
    model = cvae.CVAE(20, configuration)
    x, y = torch.rand(16, 20), F.one_hot(torch.arange(16) % 2, 2).float()
    loss, numbers = cvae.elbo_loss(model, name, configuration, x, y)
    loss.backward()
    assert loss.isfinite()
    assert numbers["kl"] >= 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert sum(p.numel() for p in model.prior.parameters()) == 2 * 30 + 30 + 30 * 10 + 10


# --- semi-supervised VAE --------------------------------------------------------------------------


def ss_model(pixels: int = 16, layers: int = 1) -> SSVAE:
    return SSVAE(pixels, 10, width=12, hidden=10, gaussian=3, layers=layers).double()


NONE = torch.tensor([], dtype=torch.long)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_marginal_loss_over_the_support_is_the_full_one_in_value_and_gradient(name, layers):
    model = ss_model(layers=layers)
    with torch.no_grad():
        model.scores.weight.mul_(20)  # so that sparse normalizers are sparse
    x = torch.bernoulli(torch.full((30, 16), 0.4, dtype=torch.float64))
    noise = torch.randn(30, 10, 3, dtype=torch.float64)
    parameters = list(model.parameters())
    sparse = losses(model, name, x, NONE, None, noise).unknown.mean()
    calls = model.decoded
    sparse_gradients = torch.autograd.grad(sparse, parameters)

    q, support = get_normalizer(name).eval()(model.classify(x), return_support=True)
    cost = NegativeElbo(model, x, noise)
    rows = torch.arange(30).repeat_interleave(10)
    every = cost.pairs(rows, torch.arange(10).repeat(30)).view(30, 10)
    kl = (q * torch.where(support, q * 10, 1.0).log()).sum(-1)
    full = ((q * every).sum(-1) + kl).mean()
    full_gradients = torch.autograd.grad(full, parameters)
    torch.testing.assert_close(sparse, full, rtol=0, atol=1e-6)
    for a, b in zip(sparse_gradients, full_gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    assert calls == int(support.sum())  # counted inside the decoder
    assert name == "softmax" or calls < 200


def test_a_relaxed_class_at_a_corner_is_that_class():
    model = ss_model()
    x = torch.bernoulli(torch.full((5, 16), 0.5, dtype=torch.float64))
    noise = torch.randn(5, 1, 3, dtype=torch.float64).expand(5, 10, 3)
    cost = NegativeElbo(model, x, noise)
    classes = torch.tensor([0, 3, 9, 3, 1])
    one_hot = F.one_hot(classes, 10).double()
    torch.testing.assert_close(cost.relaxed(one_hot), cost.pairs(torch.arange(5), classes))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_fit_the_model(name):
    model = ss_model()
    x = torch.bernoulli(torch.full((8, 16), 0.5, dtype=torch.float64))
    loss = losses(model, "softmax", x, NONE, ESTIMATORS[name](16).double()).unknown
    loss.mean().backward()
    assert model.scores.weight.grad.abs().sum() > 0
    calls = {"sfe": 1, "sfe+": 2, "nvil": 1, "sum-and-sample": 2, "gumbel": 1, "st-gumbel": 1}
    assert model.decoded == 8 * calls[name]


@pytest.mark.parametrize("name", [*NAMES, "sfe+", "gumbel"])
def test_labelled_and_unlabelled_images_cost_together_what_they_cost_apart(name):
    model, labels = ss_model(), torch.tensor([3, 1, 4])
    with torch.no_grad():
        model.scores.weight.mul_(20)
    x = torch.bernoulli(torch.full((8, 16), 0.5, dtype=torch.float64))
    noise = torch.randn(8, 10, 3, dtype=torch.float64)
    estimator = ESTIMATORS[name](16).double() if name in ESTIMATORS else None
    normalizer = "softmax" if estimator else name

    def cost(x, labels, noise):
        torch.manual_seed(1)
        return losses(model, normalizer, x, labels, estimator, noise)

    whole, known, unknown = (
        cost(x, labels, noise), cost(x[:3], labels, noise[:3]), cost(x[3:], NONE, noise[3:])
    )  # fmt: skip
    torch.testing.assert_close(whole.known, known.known)
    torch.testing.assert_close(whole.unknown, unknown.unknown)
    assert torch.equal(whole.support, unknown.support)


def test_negligible_classes_are_not_decoded_and_change_nothing_but_rounding():
    model = ss_model()  # float64: what is left out counts, not how the rest is added up
    with torch.no_grad():
        model.scores.weight.mul_(600)  # so that most classes are negligible
    x = torch.bernoulli(torch.full((50, 16), 0.5, dtype=torch.float64))
    noise = torch.randn(50, 10, 3, dtype=torch.float64)

    def gradients(negligible):
        model.decoded = 0
        found = losses(model, "softmax", x, NONE, None, noise, negligible)
        return torch.autograd.grad(found.unknown.mean(), list(model.parameters())), model.decoded

    (every, all_pairs), (kept, pairs) = gradients(0.0), gradients(1e-7)
    assert all_pairs == 500
    assert pairs < 300
    for a, b in zip(kept, every, strict=True):
        # What is left out is below 1e-7, times the factor that the scores have here.
        assert (a - b).norm() <= 600 * 1e-7 * b.norm()


def test_both_counts_of_classes_are_reported():
    model, x = ss_model().float(), torch.bernoulli(torch.full((50, 16), 0.5))
    with torch.no_grad():
        model.scores.weight.mul_(5000)  # exp underflows below −104
    found = losses(model, "evsoftmax", x, NONE)
    judged = ssvae.judge(model, "evsoftmax", x, torch.zeros(50, dtype=torch.long))
    assert judged["support_test"] == found.support.double().mean()
    assert judged["nonzero_test"] == found.nonzero.double().mean()
    assert 1 <= judged["nonzero_test"] < judged["support_test"] < 10


def test_test_images_are_fixed_and_training_images_are_not():
    grey = torch.rand(10, 50)
    assert torch.equal(ssvae.binarize(grey, 7), ssvae.binarize(grey, 7))
    assert not torch.equal(ssvae.binarize(grey), ssvae.binarize(grey))


def test_the_split_is_a_partition_in_proportion():
    labels = torch.arange(1000) % 10
    parts = ssvae.split(labels, 0.1, 0)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(1000))
    assert torch.bincount(labels[parts.labelled]).tolist() == [10] * 10
    assert not torch.equal(parts.labelled, ssvae.split(labels, 0.1, 1).labelled)
    held_out = ssvae.split(labels, 0.1, 0, 300)
    assert torch.equal(torch.cat(held_out).sort().values, torch.arange(1000))
    assert [len(part) for part in held_out] == [70, 630, 300]
    assert torch.bincount(labels[held_out.labelled]).min() >= 6


def test_posthoc_accuracy_is_that_of_softmax():
    model = ss_model()
    x, labels = torch.rand(50, 16, dtype=torch.float64).round(), torch.arange(50) % 10
    dense, sparse = (ssvae.judge(model, m, x, labels) for m in ("softmax", "posthoc"))
    assert dense["accuracy"] == sparse["accuracy"]
    assert dense["support_test"] == 10 > sparse["support_test"]


def test_any_normalizer_with_zeros_gets_a_finite_training_form():
    """One that another package brings has neither a log form nor an eps."""

    def hardmax(scores, mask=None, dim=-1):
        return F.one_hot(scores.argmax(dim), scores.size(dim)).to(scores)

    record = Normalizer("hardmax-of-a-test", hardmax)
    register_normalizer(record)
    try:
        scores = torch.tensor([[1.0, 3.0, 2.0]])
        log_p = latent.log_probabilities(record.name, scores, 1e-3)
        p, support = latent.exact(record.name, scores)
        assert latent.methods_of(record.name) == [record.name]
    finally:
        del registry._REGISTERED[record.name]
    torch.testing.assert_close(log_p.exp(), (p + 1e-3) / 1.003)
    assert support.tolist() == [[False, True, False]]


# --- PixelCNN -------------------------------------------------------------------------------------


def pixelcnn() -> PixelCNN:
    return PixelCNN(codes=7, classes=3, hidden=6, layers=4, head=9).double()


def test_pixelcnn_is_causal():
    model, labels = pixelcnn(), torch.tensor([1])
    codes = torch.randint(7, (1, 5, 6))
    before = model(codes, labels)
    for position in range(30):
        changed = codes.clone()
        changed.view(-1)[position] = (changed.view(-1)[position] + 1) % 7
        difference = (model(changed, labels) - before).abs().sum(1).flatten()
        assert (difference[: position + 1] == 0).all()
        if position < 29:
            assert difference[position + 1 :].max() > 0
            assert difference[position + 1 :][0] > 0 or position % 6 == 5  # its right neighbour


def test_xavier_initialisation_reaches_every_layer_of_the_pixelcnn():
    model = PixelCNN(codes=7, classes=3, hidden=6, layers=2, head=9, xavier=True)
    layers = [m for m in model.modules() if isinstance(m, (torch.nn.Conv2d, torch.nn.Linear))]
    assert len(layers) == 2 * 4 + 2
    for layer in layers:
        bound = (6 / sum(torch.nn.init._calculate_fan_in_and_fan_out(layer.weight))) ** 0.5
        assert 0.8 * bound < layer.weight.abs().max() <= bound
        assert (layer.bias == 0).all()


def test_pixelcnn_sees_its_class():
    model, codes = pixelcnn(), torch.randint(7, (1, 4, 4))
    assert not torch.equal(model(codes, torch.tensor([0])), model(codes, torch.tensor([2])))


@pytest.mark.parametrize("method", [*NAMES, "posthoc"])
def test_cached_sampling_is_uncached_sampling(method):
    model, labels, shape = pixelcnn(), torch.tensor([0, 2, 1, 1]), (4, 5)
    with torch.no_grad():
        model.last.weight.mul_(20)  # so that sparse normalizers are sparse
    how = partial(latent.exact, method)
    codes, sizes = model.sample(labels, shape, how, torch.Generator().manual_seed(9))
    generator = torch.Generator().manual_seed(9)
    slow, slow_sizes = torch.zeros_like(codes), torch.zeros_like(sizes)
    for i in range(shape[0]):
        for j in range(shape[1]):
            v = h = model.embedding(slow).movedim(-1, 1)
            for layer in model.layers:
                v, h = layer(v, h, labels)
            features = model.head(h)[:, :, i, j]
            p, support = how(model.last(features))
            slow[:, i, j] = draw(p, generator)
            slow_sizes[:, i, j] = support.sum(-1)
    assert torch.equal(codes, slow)
    assert torch.equal(sizes, slow_sizes)
    assert (sizes == 7).all() if method == "softmax" else (sizes < 7).any()


def test_codes_are_drawn_from_p_and_never_without_mass():
    p = torch.tensor([0.5, 0.0, 0.3, 0.2, 0.0])
    drawn = torch.bincount(draw(p.expand(100_000, -1)), minlength=5) / 100_000
    torch.testing.assert_close(drawn, p, rtol=0, atol=6e-3)
    assert drawn[1] == drawn[4] == 0


# --- VQ-VAE and Wide ResNet -----------------------------------------------------------------------


def test_codes_are_the_nearest_and_shapes_return():
    model = VQVAE(3, 11, 8, 2).eval()
    images = torch.rand(5, 3, 16, 16) * 2 - 1
    codes = model.encode(images)
    assert codes.shape == (5, 4, 4)
    assert model.decode(codes).shape == images.shape
    vectors = model.encoder(images).movedim(1, -1).reshape(-1, 8)
    assert torch.equal(torch.cdist(vectors, model.codebook.weight).argmin(-1), codes.flatten())


def test_gradients_pass_straight_through_and_stay_apart():
    model = VQVAE(1, 5, 4, 1)
    images = torch.rand(2, 1, 8, 8)
    rebuilt, codebook_loss, commitment, _ = model(images)
    encoder, book = model.encoder[0].weight, model.codebook.weight
    of = {
        "rebuilt": torch.autograd.grad(
            rebuilt.sum(), (encoder, book), retain_graph=True, allow_unused=True
        ),
        "codebook": torch.autograd.grad(
            codebook_loss, (encoder, book), retain_graph=True, allow_unused=True
        ),
        "commitment": torch.autograd.grad(commitment, (encoder, book), allow_unused=True),
    }
    learns = {k: tuple(g is not None and bool(g.abs().sum() > 0) for g in v) for k, v in of.items()}
    assert learns == {
        "rebuilt": (True, False),
        "codebook": (False, True),
        "commitment": (True, False),
    }


def test_codebook_usage():
    assert usage(torch.tensor([0, 1, 2, 3]), 8) == (4, pytest.approx(4.0))
    assert usage(torch.zeros(9, dtype=torch.long), 8) == (1, pytest.approx(1.0))


def test_wide_resnet():
    model = WideResNet(3, 7, depth=10, width=2)
    assert model(torch.randn(2, 3, 16, 16)).shape == (2, 7)
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert sum(m.kernel_size == (3, 3) for m in convolutions) == 10 - 3
    with pytest.raises(ValueError, match="6 n"):
        WideResNet(3, 7, depth=12)


def test_top_accuracy_and_augmentation():
    scores = torch.eye(4)
    assert top_accuracy(scores, torch.tensor([0, 1, 2, 0]), 1) == 75.0
    assert top_accuracy(scores, torch.tensor([3, 3, 3, 3]), 9) == 100.0
    images = torch.rand(6, 3, 16, 16)
    changed = augment(images)
    assert changed.shape == images.shape
    torch.testing.assert_close(changed.sum((1, 2, 3)), images.sum((1, 2, 3)))
