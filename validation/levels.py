"""What the design of `refgeo check` meets: for every subject its levels, circumstances and pairs of these.

    python -m validation levels [--metric inv] [--seed N]

A level is met where a right implementation was asked in a call that decides a verdict. A level that no value meets, or
a circumstance that a value does not meet though it exists for it, is a hole: `tests/conformance/test_design.py` fails.
"""

import argparse
import itertools
from types import SimpleNamespace

import refgeo as rg
from refgeo import paper
from refgeo.conformance import trajectories
from refgeo.conformance.backend import Backend
from refgeo.conformance.call import Event
from refgeo.conformance.circumstances import CIRCUMSTANCES
from refgeo.conformance.features import LEVELS, SIZES, Features, apart, levels_of, shown, sizes_of
from refgeo.conformance.judge import Judge
from refgeo.conformance.plan import Plan
from refgeo.conformance.points import Points
from refgeo.conformance.searches import networks

EVERY_LEVEL = {(kind, band) for kind, bands in (SIZES | LEVELS).items() for band in bands}

EVERY_PAIR = {
    frozenset(((one, x), (other, y)))
    for one, other in itertools.combinations(SIZES, 2) for x in SIZES[one] for y in SIZES[other]
} - {frozenset(pair) for pair in apart("full")}  # fmt: skip
"""Every two bands of sizes that can be."""


def retraction(metric, G, H, v_G, v_H, t):
    return G + t * v_G, H + t * v_H


def geodesic(metric, G, H, v_G, v_H, t, order):
    if order != "exact":
        return paper.geodesic(metric, G, H, v_G, v_H, t, order)
    space = {"inv": rg.InvariantMetric, "mix": rg.MixedMetric}[metric]().at(rg.Pair(G, H))
    return tuple(space.geodesic(rg.Pair(v_G, v_H), t, "exact"))


def step(state, G, H, e_G, e_H):
    g = rg.MixedMetric().at(rg.Pair(G, H)).riemannian_gradient(rg.Pair(e_G, e_H))
    return state, (G - 0.1 * g.G).astype(G.dtype), (H - 0.1 * g.H).astype(H.dtype)


def right_backend():
    """Every value by the paper's formulas, exact geodesics by refgeo's geometry, and an update rule."""
    names = ("inner_product", "horizontal_projection", "riemannian_gradient", "riemannian_hessian", "christoffel")
    functions = {name: getattr(paper, name) for name in names}
    return SimpleNamespace(**functions, retraction=retraction, geodesic=geodesic, step=step)


def evidence_of(metric, seed=0):
    """What is seen of a right implementation, by check."""
    plan = Plan.of([metric], None, Points(seed=seed))
    judge = Judge(plan, Backend(right_backend()), metric)
    for i in range(len(judge.points)):
        judge.look_at(i)
    return {name: found for name, found in judge.evidence.items() if name not in judge.rules}


def met(evidence):
    """The levels, the circumstances, and the pairs of both, that decisive evidence has met."""
    told = [one for one in evidence if one.decisive and one.event is Event.RESULT]
    places = {(Features.parse(one.case), one.circumstance) for one in told}
    levels = {level for features, _ in places for level in levels_of(features)}
    circumstances = {circumstance for _, circumstance in places}
    pairs = {(level, circumstance) for features, circumstance in places for level in levels_of(features)}
    visible = {level for features, _ in places for level in {*shown(features), *sizes_of(features).items()}}
    return levels, circumstances, pairs, visible


def pairs_met(evidence):
    """Every two bands of sizes that decisive evidence has met together."""
    told = {Features.parse(one.case) for one in evidence if one.decisive and one.event is Event.RESULT}
    return {frozenset(pair) for one in told for pair in itertools.combinations(sizes_of(one).items(), 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--metric", default="inv")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    words = [one.words for one in CIRCUMSTANCES if one.words]
    print(f"{len(EVERY_LEVEL)} levels of {len(SIZES | LEVELS)} kinds, {len(words)} circumstances")
    for name, found in evidence_of(options.metric, options.seed).items():
        levels, circumstances, pairs, _ = met(found)
        counts = f"{len(levels)} levels, {len(circumstances - {''})} circumstances, {len(pairs)} pairs"
        print(f"{name}[{options.metric}]: {counts}")
        holes = [f"{kind} {band}" for kind, band in sorted(EVERY_LEVEL - levels)]
        holes += [one for one in words if one not in circumstances]
        print(*(f"    not met: {hole}" for hole in holes), sep="\n", end="\n" * bool(holes))
    rule = trajectories.Rule(Backend(right_backend()), "step", Points(seed=options.seed), {})
    places = [one[0].case.rpartition("/")[::2] for one in trajectories.Comparisons.of(rule).told]
    pairs = {(level, element) for name, element in places for level in levels_of(Features.parse(name))}
    starts, elements = (len(set(some)) for some in zip(*places, strict=True))
    print(f"trajectories: {starts} starts, {elements} classes of elements, {len(pairs)} pairs of a level and a class")
    for network in networks("quick", options.seed):
        n, m, h, blocks = network.sizes
        print(f"search {network.name}: h = {h}, n = {n}, m = {m}, {blocks} blocks")


if __name__ == "__main__":
    main()
