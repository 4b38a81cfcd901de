# pip install torch==2.13.0 peft==0.21.2
import torch
from peft import LoraConfig, get_peft_model

for merge in ("svd", "cat"):
    torch.manual_seed(0)
    config = LoraConfig(target_modules=["0"], r=3, use_rslora=True, init_lora_weights=False)
    model = get_peft_model(torch.nn.Sequential(torch.nn.Linear(6, 5)), config, "one")
    model.add_adapter("other", config)
    model.add_weighted_adapter(["one", "other"], [1.0, 0.0], "merged", combination_type=merge)
    one, merged = map(model.base_model.model[0].get_delta_weight, ("one", "merged"))
    print(f"{merge} with the weights 1 and 0: {(merged / one).mean():.3g} times the first adapter, should be 1")
