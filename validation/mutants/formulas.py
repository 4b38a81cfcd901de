"""The referee on trial by machine: every single change of the literal formulas is WRONG, or equal.

    python -m validation formulas [--workers N] [--every N]

One sign, factor, transpose, operand, axis or term of `refgeo/paper.py` is changed at a time. A mutant is *equal*
where its results are those of the formulas, up to rounding, at random points; any other one is judged as a backend.
Printed beside the verdict is what the referee says of it: the formula that it has read, or a place.
"""

import argparse
import ast
import concurrent.futures
import copy
import inspect
import itertools
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import refgeo as rg
from refgeo import paper
from refgeo.conformance.protocol.operations import OPERATIONS

SOURCE = inspect.getsource(paper)
FUNCTIONS = [name for name in OPERATIONS if hasattr(paper, name)]
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult}
NAMES = {"G": "H", "H": "G", "S": "T", "T": "S", "a": "b", "b": "a", "v_G": "v_H", "v_H": "v_G", "e_G": "e_H",
         "e_H": "e_G", "a_G": "b_G", "b_G": "a_G", "a_H": "b_H", "b_H": "a_H", "w_G": "w_H", "w_H": "w_G",
         "F": "a", "K": "c", "c": "d", "d": "c", "S_dot": "T_dot", "T_dot": "S_dot", "g_G": "g_H", "g_H": "g_G",
         "c_G": "c_H", "c_H": "c_G"}  # fmt: skip


def changes(node):
    """Yield what may stand in the place of an expression."""
    if isinstance(node, ast.BinOp):
        if type(node.op) in OPERATORS:
            yield "operator", ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
        if isinstance(node.op, (ast.Add, ast.Sub)):
            yield "term left out", node.left
            yield "term left out", node.right if isinstance(node.op, ast.Add) else ast.UnaryOp(ast.USub(), node.right)
        if isinstance(node.op, ast.MatMult):
            yield "operands exchanged", ast.BinOp(node.right, node.op, node.left)
            yield "factor left out", node.left
            yield "factor left out", node.right
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "sign", node.operand
    if isinstance(node, ast.Attribute) and node.attr == "mT":
        yield "transpose left out", node.value
    if isinstance(node, ast.Constant) and isinstance(node.value, float):
        yield "number", ast.Constant(2.0 * node.value if node.value else 1.0)
    if isinstance(node, ast.Constant) and node.value in (-2, -1):
        yield "axis", ast.Constant(-3 - node.value)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in NAMES:
        yield "another operand", ast.Name(NAMES[node.id], ast.Load())
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield "transposed", ast.Attribute(node, "mT", ast.Load())
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("solve", "divide"):
        swap = {"solve": (1, 0), "divide": (0, 1)}[node.func.id]
        yield "no inverse", node.args[swap[0]]
        yield "the matrix, not its inverse", ast.BinOp(node.args[0], ast.MatMult(), node.args[1])


class _At(ast.NodeTransformer):
    """Replaces one expression, counted through the tree."""

    def __init__(self, place, replacement):
        self.place, self.replacement, self.seen = place, replacement, -1

    def generic_visit(self, node):
        if isinstance(node, ast.expr):
            self.seen += 1
            if self.seen == self.place:
                return self.replacement
        return super().generic_visit(node)


def mutants():
    """(function of the source, line, what was changed, source)."""
    tree = ast.parse(SOURCE)
    pieces = [ast.unparse(node) for node in tree.body]
    used = {*FUNCTIONS, "grams", "sym", "solve", "divide", "trace"}
    for i, function in enumerate(tree.body):
        if not isinstance(function, ast.FunctionDef) or function.name not in used:
            continue
        bare = copy.deepcopy(function)
        bare.returns, bare.args.defaults, bare.decorator_list = None, bare.args.defaults, []
        for argument in bare.args.args:
            argument.annotation = None
        expressions = _in_order(bare)
        for place, node in enumerate(expressions):
            if _is_relaxed(node):
                continue
            for kind, replacement in changes(node):
                changed = _At(place, copy.deepcopy(replacement)).visit(copy.deepcopy(bare))
                text = ast.unparse(ast.fix_missing_locations(changed))
                yield function.name, node.lineno, kind, "\n\n".join([*pieces[:i], text, *pieces[i + 1 :]])


def _in_order(function):
    """Expressions as `_At` meets them."""
    result = []

    class Collect(ast.NodeTransformer):
        def generic_visit(self, node):
            if isinstance(node, ast.expr):
                result.append(node)
            return super().generic_visit(node)

    Collect().visit(copy.deepcopy(function))
    return result


def _is_relaxed(node):
    """Of what only a relaxed geometry needs."""
    return "relaxation" in ast.unparse(node)


def results(functions):
    """Return all functions at random points, of both metrics."""
    rng, actual = np.random.default_rng(0), []
    for batch, n, m, h in (((), 7, 5, 3), ((2,), 4, 4, 2), ((3,), 3, 3, 3)):
        for metric, name in itertools.product(("inv", "mix"), FUNCTIONS):
            count = 1 + len(OPERATIONS[name].vectors)
            arrays = [rng.standard_normal((*batch, rows, h)) for _ in range(count) for rows in (n, m)]
            for extra in ((0.7, 1), (0.7, 2)) if name == "geodesic" else ((),):
                result = functions[name](metric, *arrays, *extra)
                actual += list(result) if isinstance(result, tuple) else [result]
    return actual


def is_equal(source):
    """Return whether a mutant gives the formulas' numbers, up to rounding; what cannot be run does not."""
    functions = {"__name__": "mutant"}
    try:
        exec(compile(source, "mutant", "exec"), functions)
        pairs = zip(results(functions), results(vars(paper)), strict=True)
        return all(np.allclose(mine, right, rtol=1e-7, atol=1e-9) for mine, right in pairs)
    except Exception:
        return False


def judge(mutant):
    """Judge a mutant, and return what the referee says: (function, line, what, outcome, explanation)."""
    name, line, kind, source = mutant
    if is_equal(source):
        return name, line, kind, "equal", ""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mutant.py"
        file.write_text(source, encoding="utf-8")
        report = rg.check(str(file), cases=CASES)
    rows = [row for row in report.failures if row.kind == "value"]
    message = next((row.differs or row.diagnosis or row.message for row in rows), "")
    read = any(row.yours for row in rows)
    return name, line, kind, "WRONG, read" if read else "WRONG" if report.wrong else "MISSED", message


CASES = ("5x4x2", "3-5x4x3", "7x4x1", "10x9x4", "4x4x4", "5x4x3/k3/t=-2", "5x4x3/k30")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="one of so many")
    options = parser.parse_args()
    jobs, start, outcomes = list(mutants())[:: options.every], time.perf_counter(), []
    with concurrent.futures.ProcessPoolExecutor(options.workers) as pool:
        for result in pool.map(judge, jobs, chunksize=2):
            outcomes.append(result[3])
            print(f"{result[3]:12s} {result[0]}:{result[1]} {result[2]:26s} {result[4][:150]}", flush=True)
    counts = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
    print(f"{len(jobs)} changes: {counts}, {time.perf_counter() - start:.0f} s")
    return int("MISSED" in outcomes)


if __name__ == "__main__":
    sys.exit(main())
