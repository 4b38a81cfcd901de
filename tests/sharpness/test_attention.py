"""Attention at second order: at zero residual the Hessian modulo GL(h) is an explicit matrix (see mathematics.md)."""

import autograd.numpy as anp
import numpy as np
import pytest

import refgeo as rg

TOKENS, WIDTH, OUTPUT, HEADS, SENTENCES = 5, 6, 4, 2, 3
SIZE = 2  # of a head
FAMILY = {
    "inv": (rg.InvariantMetric(), 0.0),
    "s=0.5": (rg.InterpolatedMetric(0.5), 0.5),
    "mix": (rg.MixedMetric(), 1.0),
}
family = pytest.mark.parametrize("name", FAMILY)


def layer(params, x):
    """Σ_k P_k x B_k, where P_k = softmax(x A_k xᵀ/√h), for one sentence."""
    total = 0.0
    for k in range(HEADS):
        A = anp.dot(params["qk"].G[k], params["qk"].H[k].T)
        B = anp.dot(params["vo"].G[k], params["vo"].H[k].T)
        weights = anp.exp(anp.dot(anp.dot(x, A), x.T) / SIZE**0.5)
        total = total + anp.dot(anp.dot(weights / anp.sum(weights, axis=1, keepdims=True), x), B)
    return total


def setting(seed, only=None, size=1.0):
    """Parameters that fit their data exactly, and the loss ½‖out − y‖²; value and output are so many times as large."""
    rng = np.random.default_rng(seed)
    params = {
        name: rg.Pair(*(rng.standard_normal((HEADS, rows, SIZE)) for rows in (WIDTH, columns)))
        for name, columns in (("qk", WIDTH), ("vo", OUTPUT))
    }
    params["vo"] = rg.Pair(size * params["vo"].G, params["vo"].H)
    sentences = rng.standard_normal((SENTENCES, TOKENS, WIDTH))
    targets = [layer(params, x) for x in sentences]
    loss = rg.value_and_grad(
        lambda p: sum(
            0.5 * anp.sum((layer({**params, **p}, x) - y) ** 2) for x, y in zip(sentences, targets, strict=True)
        )
    )
    return {name: params[name] for name in ("qk", "vo") if only in (None, name)}, params, sentences, loss


def horizontal_frame(G, H, s):
    """The changes dX of a basis that is orthonormal in the metric: w u vᵀ, with w² = σ_i^(2−2s) + σ_j^(2−2s).

    A singular vector beside the rank has no σ.
    """
    U, sigma, Vt = np.linalg.svd(G @ H.T)
    weights = np.zeros(max(len(U), len(Vt)))
    weights[:SIZE] = sigma[:SIZE] ** (2.0 - 2.0 * s)
    return [np.sqrt(weights[i] + weights[j]) * np.outer(U[:, i], Vt[j])
            for i in range(len(U)) for j in range(len(Vt)) if weights[i] + weights[j] > 0.0]  # fmt: skip


def jacobian(params, sentences, s, blocks):
    """Of all outputs: Bᵀ Cov_s dAᵀ x_s/√h for query and key, and P x dB for value and output."""
    columns = []
    for k in range(HEADS):
        A, B = (params[name].G[k] @ params[name].H[k].T for name in ("qk", "vo"))
        parts = {"qk": [], "vo": []}
        for x in sentences:
            scores = x @ A @ x.T / SIZE**0.5
            P = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
            parts["vo"].append([P @ x @ dB for dB in horizontal_frame(params["vo"].G[k], params["vo"].H[k], s)])
            away = x[None] - (P @ x)[:, None]  # x_t − x̄_s
            spread = np.einsum("st,sti,stj->sij", P, away, away)
            parts["qk"].append([
                np.einsum("sij,si->sj", np.einsum("sij,jk->sik", spread, B), x @ dA) / SIZE**0.5
                for dA in horizontal_frame(params["qk"].G[k], params["qk"].H[k], s)
            ])  # fmt: skip
        for name in blocks:
            columns += [np.concatenate([np.ravel(out) for out in outs]) for outs in zip(*parts[name], strict=True)]
    return np.array(columns).T


@pytest.mark.slow
@family
@pytest.mark.parametrize("only", [None, "qk", "vo"])
def test_the_spectrum_is_that_of_the_matrix_of_singular_values_and_data(name, only):
    metric, s = FAMILY[name]
    moving, params, sentences, loss = setting(0, only)
    J = jacobian(params, sentences, s, list(moving))
    hessian = rg.spectrum.RiemannianHessian(loss, moving, rg.ProductMetric(dict.fromkeys(moving, metric)))
    expected = np.linalg.eigvalsh(J.T @ J)[::-1]
    result = rg.spectrum.eigenvalues(hessian, 6).values
    np.testing.assert_allclose(result, expected[:6], rtol=2e-5)
    assert rg.spectrum.trace(hessian, 3 * hessian.shape[0]).value == pytest.approx(np.sum(J * J), rel=1e-5)


@pytest.mark.slow
@family
def test_sharpness_is_half_of_its_largest_eigenvalue(name):
    metric, s = FAMILY[name]
    moving, params, sentences, loss = setting(1)
    largest = np.linalg.norm(jacobian(params, sentences, s, list(moving)), 2) ** 2
    product = rg.ProductMetric(dict.fromkeys(moving, metric))
    size = float(product.at(moving).norm(moving))
    for share, within in ((1e-3, 0.03), (1e-4, 3e-3)):  # the third order
        result = rg.worst_case_sharpness(loss, moving, product, share * size, n_iter=40)
        assert result.value / (0.5 * (share * size) ** 2 * largest) == pytest.approx(1.0, abs=within)


@family
@pytest.mark.parametrize("seed", range(3))
def test_of_value_and_output_the_largest_singular_value_and_the_data_decide(name, seed):
    """σ₁^(2−2s) λ_max(C) ≤ λ_max ≤ 2σ₁^(2−2s) λ_max(C) for a head, C = Σ(Px)ᵀPx; the trace has all singular values."""
    _, s = FAMILY[name]
    _, params, sentences, _ = setting(seed)
    frame = horizontal_frame(params["vo"].G[0], params["vo"].H[0], s)
    U, sigma, _ = np.linalg.svd(params["vo"].product[0])
    weights = sigma[:SIZE] ** (2.0 - 2.0 * s)
    Z = np.concatenate(list(attend(params, sentences)))
    C = Z.T @ Z
    J = np.array([(Z @ dB).ravel() for dB in frame]).T
    largest, data = np.linalg.norm(J, 2) ** 2, np.linalg.eigvalsh(C)[-1]
    assert weights[0] * data * (1.0 - 1e-12) <= largest <= 2.0 * weights[0] * data
    along = np.einsum("ij,ik,kj->j", U[:, :SIZE], C, U[:, :SIZE])
    assert np.sum(J * J) == pytest.approx(np.sum(weights) * np.trace(C) + OUTPUT * weights @ along)


@pytest.mark.slow
@pytest.mark.parametrize(("block", "name", "factor"), [
    ("vo", "inv", 9.0), ("vo", "s=0.5", 3.0), ("vo", "mix", 1.0),
    ("qk", "inv", 9.0), ("qk", "s=0.5", 9.0), ("qk", "mix", 9.0),
])  # fmt: skip
def test_how_the_size_of_value_and_output_enters(block, name, factor):
    """B → 3B, and targets that are fitted again: by the spectrum, which knows nothing of the formula."""
    result = []
    for size in (1.0, 3.0):
        moving, _, _, loss = setting(0, block, size)
        metric = rg.ProductMetric({block: FAMILY[name][0]})
        result.append(rg.spectrum.eigenvalues(rg.spectrum.RiemannianHessian(loss, moving, metric), 1).values[0])
    assert result[1] / result[0] == pytest.approx(factor, rel=1e-4)


def attend(params, sentences):
    """P x of the first head."""
    for x in sentences:
        scores = np.exp(x @ params["qk"].product[0] @ x.T / SIZE**0.5)
        yield scores / scores.sum(axis=1, keepdims=True) @ x
