# pip install torch==2.13.0 peft==0.21.2 peft-singlora==0.2.0
import torch
from peft import get_peft_model
from peft_singlora import SingLoRAConfig, update_singlora_global_step

torch.manual_seed(0)
network, x = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False)), torch.randn(4, 8)
plain = network(x).detach()
model = get_peft_model(network, SingLoRAConfig(r=2, lora_alpha=2, target_modules=["0"]))
update_singlora_global_step(model, 1000)
adapted = model(x).detach() - plain
model.base_model.model[0].merge()
merged = model(x).detach() - plain
times = merged.norm() / adapted.norm()
print(f"after merge(), the adapter adds {times:.2g} times as much to the output as before, should be 1")
