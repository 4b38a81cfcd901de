"""Three tiny networks in ball arithmetic, with the groups that move their weights and leave their outputs alone.

Tokens are rows. A head computes softmax(q kᵀ/√h) v W_o; query and key weights belong together like G and H of
(GA⁻¹, HAᵀ), and so do the value weights and W_oᵀ. Biases are the last rows of G and H.
"""

from dataclasses import dataclass

from flint import arb, arb_mat, fmpq, fmpq_mat

SMALL = fmpq(1, 1024)
"""Added to variances and mean squares."""


def softmax(scores, causal=False):
    """Of each row; causal: over what is not later."""
    rows = []
    for i, row in enumerate(scores.tolist()):
        powers = [x.exp() if not causal or j <= i else arb(0) for j, x in enumerate(row)]
        total = sum(powers, arb(0))
        rows.append([x / total for x in powers])
    return arb_mat(rows)


def entrywise(function, *matrices):
    """Return a function of entries."""
    entries = [function(*xs) for xs in zip(*(M.entries() for M in matrices), strict=True)]
    return arb_mat(matrices[0].nrows(), matrices[0].ncols(), entries)


def gelu(x):
    """Return the product x Φ(x)."""
    return x * (1 + (x / arb(2).sqrt()).erf()) / 2


def silu(x):
    """Return the quotient x / (1 + e⁻ˣ)."""
    return x / (1 + (-x).exp())


def every_row(row, count):
    """Return the same row so many times."""
    return arb_mat(row.tolist() * count)


def root_mean_square_norm(x, scale):
    """Return the rows x / √(mean x² + ε) · scale."""
    sizes = [(sum((z * z for z in row), arb(0)) / x.ncols() + arb(SMALL)).sqrt() for row in x.tolist()]
    return arb_mat(
        [
            [z / size * g for z, g in zip(row, scale.entries(), strict=True)]
            for row, size in zip(x.tolist(), sizes, strict=True)
        ]
    )


def layer_norm(x, scale, shift):
    """Return the same of x − mean x, plus shift."""
    means = [[sum(row, arb(0)) / x.ncols()] * x.ncols() for row in x.tolist()]
    return root_mean_square_norm(x - arb_mat(means), scale) + every_row(shift, x.nrows())


def affine(x, weights, bias):
    """Return the rows x W + b."""
    return x * weights + every_row(bias, x.nrows())


@dataclass(frozen=True)
class Bert:
    """An encoder's layer: biases, two layer norms behind their sums, GELU."""

    width: int = 4
    heads: int = 2
    size: int = 2
    hidden: int = 5
    tokens: int = 3

    @property
    def inputs(self):
        return {"x": (self.tokens, self.width), "target": (self.tokens, self.width)}

    @property
    def shapes(self):
        d, h, f = self.width, self.size, self.hidden
        named = {f"b_{part}_{i}": (1, h) for i in range(self.heads) for part in "qkv"}
        named |= {f"W_{part}_{i}": (d, h) for i in range(self.heads) for part in "qkv"}
        named |= {f"W_o_{i}": (h, d) for i in range(self.heads)}
        named |= {"b_o": (1, d), "W_1": (d, f), "b_1": (1, f), "W_2": (f, d), "b_2": (1, d)}
        return named | {f"{part}_{k}": (1, d) for part in ("scale", "shift") for k in (1, 2)}

    def output(self, w):
        x = w["x"]
        summed = every_row(w["b_o"], self.tokens)
        for i in range(self.heads):
            q, k, v = (affine(x, w[f"W_{part}_{i}"], w[f"b_{part}_{i}"]) for part in "qkv")
            attention = softmax(q * k.transpose() * (1 / arb(self.size).sqrt()))
            summed += attention * v * w[f"W_o_{i}"]
        y = layer_norm(x + summed, w["scale_1"], w["shift_1"])
        inner = entrywise(gelu, affine(y, w["W_1"], w["b_1"]))
        return layer_norm(y + affine(inner, w["W_2"], w["b_2"]), w["scale_2"], w["shift_2"])

    def elements(self, rng, steep, element, integers):
        named = {f"{pair}_{i}": element(rng, self.size, steep) for i in range(self.heads) for pair in ("qk", "vo")}
        return named | {f"shift_{i}": integers(rng, 1, self.size) for i in range(self.heads)}

    def move(self, w, elements):
        target = dict(w)
        for i in range(self.heads):
            A, B = elements[f"qk_{i}"], elements[f"vo_{i}"]
            for part in ("W", "b"):
                target[f"{part}_q_{i}"] = w[f"{part}_q_{i}"] * A.inv()
                target[f"{part}_k_{i}"] = w[f"{part}_k_{i}"] * A.transpose()
                target[f"{part}_v_{i}"] = w[f"{part}_v_{i}"] * B.inv()
            target[f"b_k_{i}"] += elements[f"shift_{i}"]  # the same for all keys, which softmax removes
            target[f"W_o_{i}"] = B * w[f"W_o_{i}"]
        return target


@dataclass(frozen=True)
class Decoder:
    """A decoder's layer: causal, no biases, root mean square norms before, SiLU gates, shared keys and values."""

    width: int = 4
    heads: int = 4
    shared: int = 2
    size: int = 2
    hidden: int = 3
    tokens: int = 3
    rotary: bool = False

    inputs = Bert.inputs

    @property
    def shapes(self):
        d, h, f = self.width, self.size, self.hidden
        named = {f"W_q_{i}": (d, h) for i in range(self.heads)}
        named |= {f"W_{part}_{j}": (d, h) for j in range(self.shared) for part in "kv"}
        named |= {f"W_o_{i}": (h, d) for i in range(self.heads)}
        return named | {"W_gate": (d, f), "W_up": (d, f), "W_down": (f, d), "scale_1": (1, d), "scale_2": (1, d)}

    def group_of(self, i):
        """Return the key and value head of a query head."""
        return i * self.shared // self.heads

    def output(self, w):
        x = root_mean_square_norm(w["x"], w["scale_1"])
        y = w["x"]
        for i in range(self.heads):
            j = self.group_of(i)
            q, k, v = (x * w[f"W_{part}"] for part in (f"q_{i}", f"k_{j}", f"v_{j}"))
            if self.rotary:
                q, k = self.rotate(q), self.rotate(k)
            attention = softmax(q * k.transpose() * (1 / arb(self.size).sqrt()), causal=True)
            y += attention * v * w[f"W_o_{i}"]
        z = root_mean_square_norm(y, w["scale_2"])
        gated = entrywise(lambda a, b: silu(a) * b, z * w["W_gate"], z * w["W_up"])
        return y + gated * w["W_down"]

    def rotate(self, x):
        """Rotate row p by the angle p·10000^(−2j/h) in the plane of columns j and j + h/2."""
        half = self.size // 2
        rows = []
        for p, row in enumerate(x.tolist()):
            angles = [p * arb(10000) ** (arb(-j) / half) for j in range(half)]
            sines, cosines = [a.sin() for a in angles], [a.cos() for a in angles]
            first = [row[j] * cosines[j] - row[j + half] * sines[j] for j in range(half)]
            second = [row[j + half] * cosines[j] + row[j] * sines[j] for j in range(half)]
            rows.append(first + second)
        return arb_mat(rows)

    def elements(self, rng, steep, element, integers):
        drawn = {}
        for j in range(self.shared):
            drawn[f"qk_{j}"] = complex_element(rng, self.size, steep) if self.rotary else element(rng, self.size, steep)
            drawn[f"vo_{j}"] = element(rng, self.size, steep)
        return drawn

    def move(self, w, elements):
        target = dict(w)
        for j in range(self.shared):
            target[f"W_k_{j}"] = w[f"W_k_{j}"] * elements[f"qk_{j}"].transpose()
            target[f"W_v_{j}"] = w[f"W_v_{j}"] * elements[f"vo_{j}"].inv()
        for i in range(self.heads):
            j = self.group_of(i)
            target[f"W_q_{i}"] = w[f"W_q_{i}"] * elements[f"qk_{j}"].inv()
            target[f"W_o_{i}"] = elements[f"vo_{j}"] * w[f"W_o_{i}"]
        return target


def complex_element(rng, h, steep):
    """Return what commutes with rotary positions: in every plane a complex number, here of modulus √2ᵏ."""
    half, A = h // 2, fmpq_mat(h, h)
    for j in range(half):
        real, imaginary = ((1, 0), (0, 1), (1, 1), (1, -1))[int(4 * rng.random())]
        size = fmpq(2) ** (int((2 * steep + 1) * rng.random()) - steep)
        A[j, j] = A[j + half, j + half] = real * size
        A[j, j + half], A[j + half, j] = imaginary * size, -imaginary * size
    return A


ALL = {
    "bert": Bert(),
    "grouped": Decoder(),
    "rotary": Decoder(heads=2, shared=1, size=4, rotary=True),
}
