# pip install torch==2.13.0 peft==0.21.2
import torch
from peft import LoraConfig, get_peft_model

for start in ("pissa", "olora"):
    torch.manual_seed(0)
    network, x = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False)), torch.randn(7, 64)
    model = get_peft_model(network, LoraConfig(target_modules=["0"], r=8, init_lora_weights=start), "one")
    layer = model.base_model.model[0].base_layer
    before, weight = model(x).detach(), layer.weight.detach().clone()
    model.add_weighted_adapter(["one"], [1.0], "merged", combination_type="svd")
    moved = (layer.weight - weight).norm() / weight.norm()
    after = (model(x) - before).norm() / before.norm()  # of the old adapter, which nobody has touched
    model.set_adapter("merged")
    merged = (model(x) - before).norm() / before.norm()
    print(f"{start}: the merge of one adapter moves the base weight by {moved:.2g}, should be 0;")
    print(f"    output of the old adapter changed by {after:.2g}, of the merged one by {merged:.2g}, should be 0")
