"""The paper's Algorithm 1 (Auto-PGD) written out literally for coordinates of one number, as a sharpness routine.

refgeo check validation/backends/alg1.py --checks sharpness

Independent of refgeo: plain NumPy, the paper's gradient at the perturbed weights, 20 iterations, one start, which is
random and near the centre of the ball unless it is given.
"""

import numpy as np


def sharpness(metric, problem, G, H, rho, order, n_iter=20, start=None):
    u, v = G, H
    weight_u, weight_v = (v**2, u**2) if metric == "mix" else (1 / u**2, 1 / v**2)

    def norm(a, b):
        return np.sqrt(np.sum(weight_u * a**2 + weight_v * b**2))

    def project(a, b):
        if metric != "adaptive":  # horizontal: a/u = b/v
            half = 0.5 * (a / u + b / v)
            a, b = half * u, half * v
        shrink = min(1.0, rho / max(norm(a, b), 1e-300))
        return shrink * a, shrink * b

    def end(a, b):
        if metric == "adaptive" or order == 1:
            return u + a, v + b
        if order == "exact":
            if metric == "inv":
                return u * np.exp(a / u), v * np.exp(b / v)
            growth = np.maximum(1 + a / u + b / v, 0.0)
            return u * np.sqrt(growth), v * np.sqrt(growth)
        if metric == "inv":  # Γ(ξ, ξ) = −ξ²/u
            return u + a + 0.5 * a**2 / u, v + b + 0.5 * b**2 / v
        return u + a - 0.5 * a * b / v, v + b - 0.5 * a * b / u

    here, _ = problem.value_and_grad(u, v)

    def evaluate(x):
        value, gradient = problem.value_and_grad(*end(*x))
        return value - here, (gradient[0] / weight_u, gradient[1] / weight_v)

    def move(x, gradient, step):
        length = norm(*gradient)
        if length == 0.0:
            return x
        return project(*(a + step * g / length for a, g in zip(x, gradient, strict=True)))

    if start is None:
        start = (1e-3 * rho * np.random.default_rng(0).standard_normal(u.shape) * w for w in (u, v))
    x = project(*start)
    value, gradient = evaluate(x)
    best, best_x, best_gradient, before = value, x, gradient, x
    step, improved, last, last_best, last_step = 2 * rho, 0, 0, best, 2 * rho
    points, gap = [0.0, 0.22], 0.22
    while points[-1] < 1.0:
        gap = max(gap - 0.03, 0.06)
        points.append(points[-1] + gap)
    checkpoints = {int(np.ceil(round(p * n_iter, 9))) for p in points[1:]}
    for k in range(n_iter):
        z = move(x, gradient, step)
        if k > 0:
            z = project(*(a + 0.75 * (c - a) + 0.25 * (a - d) for a, c, d in zip(x, z, before, strict=True)))
        before, x, old = x, z, value
        value, gradient = evaluate(x)
        improved += value > old
        if value > best:
            best, best_x, best_gradient = value, x, gradient
        if k + 1 in checkpoints:
            if improved < 0.75 * (k + 1 - last) or (step == last_step and best == last_best):
                last_step, step = step, step / 2
                x, value, gradient = best_x, best, best_gradient
            else:
                last_step = step
            improved, last, last_best = 0, k + 1, best
    return best, best_x
