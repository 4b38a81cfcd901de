r"""PEFT's merges of adapters, `add_weighted_adapter`, as ``merge(factors, weights)``, and laws of a mean of adapters.

A merge is a mean of points on the quotient, so it obeys laws without anybody's knowing the right result (`LAWS`). For
n = m = h the mean in mix, and that of flat space, is :math:`\sum_i w_i X_i`: the column *products*.
"""

import numpy as np

SHAPES = ((6, 5, 2), (5, 7, 3), (4, 4, 1))
ROUNDINGS = 500.0
"""Of Gram matrices whose factors have condition numbers of 2, inverted, with room for a right merge."""


def draw_factor(rng, rows, h):
    """Draw a factor of condition number 2."""
    left, right = (np.linalg.qr(rng.standard_normal((k, h)))[0] for k in (rows, h))
    return (left * rng.permutation(np.geomspace(1.0, 0.5, h))) @ right.T


def adapters(sizes, count):
    rng, (n, m, h) = np.random.default_rng(sizes), sizes
    return [(draw_factor(rng, n, h), draw_factor(rng, m, h)) for _ in range(count)]


def product(pair):
    return pair[0] @ pair[1].T


def idempotent(merge, sizes):
    """The same adapter, merged with itself, is itself."""
    (item,) = adapters(sizes, 1)
    return merge([item, item], [0.5, 0.5]), product(item), [item]


def counted(merge, sizes):
    """The same adapter, merged with itself with the weights 1 and 1, is itself, if entries are divided by a count."""
    (item,) = adapters(sizes, 1)
    return merge([item, item], [1.0, 1.0]), product(item), [item]


def representation(merge, sizes):
    """Other factors (G A⁻¹, H Aᵀ) of one adapter give the same product."""
    (G, H), second = two = adapters(sizes, 2)
    A = draw_factor(np.random.default_rng(0), sizes[2], sizes[2])
    return merge(two, [0.25, 0.75]), product(merge([(G @ np.linalg.inv(A), H @ A.T), second], [0.25, 0.75])), two


def symmetric(merge, sizes):
    """The order of the adapters with their weights does not matter."""
    three, weights = adapters(sizes, 3), [0.125, 0.375, 0.5]
    return merge(three, weights), product(merge(three[::-1], weights[::-1])), three


def weight_one(merge, sizes):
    """A source of weight 1, with weight 0 for the others, is returned."""
    two = adapters(sizes, 2)
    return merge(two, [1.0, 0.0]), product(two[0]), two


def products(merge, _):
    """Σ wᵢ Xᵢ where the factors are square and no product on the way is singular."""
    first, second = adapters((3, 3, 3), 2)
    second = tuple(x + 0.1 * y for x, y in zip(first, second, strict=True))
    return merge([first, second], [0.25, 0.75]), 0.25 * product(first) + 0.75 * product(second), [first, second]


LAWS = {law.__name__: law for law in (idempotent, counted, representation, symmetric, weight_one, products)}


def error(merge, law):
    """By how much a law does not hold, as a share of the longest product that is merged; 0 if rounding explains it."""
    errors = []
    for sizes in SHAPES:
        merged, expected, pairs = law(merge, sizes)
        size = max(np.linalg.norm(product(pair)) for pair in pairs)
        errors.append(float(np.linalg.norm(product(merged) - expected) / size))
    return max(errors) if max(errors) > ROUNDINGS * np.finfo(float).eps else 0.0


def merge_with(combination, use_rslora=False, **options):
    """Return the merge of adapters of one layer; factors include the scaling."""

    def merge(factors, weights):
        import torch
        from peft import LoraConfig, get_peft_model

        (n, h), m = factors[0][0].shape, factors[0][1].shape[0]
        dtype = torch.float64 if factors[0][0].dtype.itemsize == 8 else torch.float32
        layer = torch.nn.Sequential(torch.nn.Linear(m, n, bias=False, dtype=dtype))
        config = LoraConfig(r=h, lora_alpha=h, target_modules=["0"], use_rslora=use_rslora)
        model = get_peft_model(layer, config, "adapter0")
        for i in range(1, len(factors)):
            model.add_adapter(f"adapter{i}", config)
        item = model.base_model.model[0]
        names = [f"adapter{i}" for i in range(len(factors))]
        for name, (G, H) in zip(names, factors, strict=True):
            item.lora_A[name].weight.data = torch.tensor(H.T.copy(), dtype=dtype)
            item.lora_B[name].weight.data = torch.tensor(G / item.scaling[name], dtype=dtype)
        torch.manual_seed(0)  # some of them drop entries at random
        model.add_weighted_adapter(names, list(weights), "merged", combination_type=combination, **options)
        A, B = (part["merged"].weight.detach() for part in (item.lora_A, item.lora_B))
        scaling = item.scaling["merged"]
        return (scaling * B).numpy(), A.T.numpy()

    return merge


MERGES = {
    "svd": merge_with("svd"),
    "cat": merge_with("cat"),
    "linear": merge_with("linear"),
    "ties": merge_with("ties", density=1.0),
    "ties_svd": merge_with("ties_svd", density=1.0),
    "dare_linear": merge_with("dare_linear", density=0.5),
    "dare_linear_svd": merge_with("dare_linear_svd", density=0.5),
    "magnitude_prune": merge_with("magnitude_prune", density=1.0),
    "magnitude_prune_svd": merge_with("magnitude_prune_svd", density=1.0),
}
"""Those that drop entries keep all of them, but for those that drop them at random."""
