"""PEFT's merges of adapters, `add_weighted_adapter`, as ``merge(factors, weights)``.

refgeo check validation/third_party/merges.py:linear --checks merge
"""

from types import SimpleNamespace

import torch


def merged_by(combination, **options):
    """The merge of adapters of one layer; their scaling is 1."""

    def merge(factors, weights):
        from peft import LoraConfig, get_peft_model

        (n, h), m = factors[0][0].shape, factors[0][1].shape[0]
        dtype = torch.float64 if factors[0][0].dtype.itemsize == 8 else torch.float32
        layer = torch.nn.Sequential(torch.nn.Linear(m, n, bias=False, dtype=dtype))
        config = LoraConfig(r=h, lora_alpha=h, target_modules=["0"])
        model = get_peft_model(layer, config, "adapter0")
        for i in range(1, len(factors)):
            model.add_adapter(f"adapter{i}", config)
        one = model.base_model.model[0]
        for i, (G, H) in enumerate(factors):
            one.lora_A[f"adapter{i}"].weight.data = torch.tensor(H.T.copy(), dtype=dtype)
            one.lora_B[f"adapter{i}"].weight.data = torch.tensor(G, dtype=dtype)
        names = [f"adapter{i}" for i in range(len(factors))]
        torch.manual_seed(0)  # some of them drop entries at random
        model.add_weighted_adapter(names, list(weights), "merged", combination_type=combination, **options)
        A, B = (part["merged"].weight.detach() for part in (one.lora_A, one.lora_B))
        scaling = one.scaling["merged"]
        return (scaling * B).numpy(), A.T.numpy()

    return SimpleNamespace(merge=merge)


linear = merged_by("linear")
svd = merged_by("svd")
ties = merged_by("ties", density=1.0)
dare_linear = merged_by("dare_linear", density=0.5)
magnitude_prune = merged_by("magnitude_prune", density=1.0)
