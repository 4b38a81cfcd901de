# pip install torch==2.13.0 peft==0.21.2
import copy
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model

for start in ("pissa", "olora"):
    torch.manual_seed(0)
    network, x = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False)), torch.randn(7, 64)
    original = copy.deepcopy(network)
    model = get_peft_model(network, LoraConfig(target_modules=["0"], r=8, init_lora_weights=start), "one")
    layer = model.base_model.model[0].base_layer
    before, weight = model(x).detach(), layer.weight.detach().clone()
    model.add_weighted_adapter(["one"], [1.0], "merged", combination_type="svd")
    moved = (layer.weight - weight).norm() / weight.norm()
    after = (model(x) - before).norm() / before.norm()  # of the old adapter, which nobody has touched
    model.set_adapter("merged")
    merged = (model(x) - before).norm() / before.norm()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, selected_adapters=["merged"])
        loaded = (PeftModel.from_pretrained(original, f"{folder}/merged")(x) - before).norm() / before.norm()
    print(f"{start}: the merge of one adapter moves the base weight by {moved:.1g}, should be 0;")
    print(f"    output of the old adapter changed by {after:.1g}, of the merged one by {merged:.1g},")
    print(f"    and of the merged one, saved and loaded, by {loaded:.1g}, should all be nearly 0")
