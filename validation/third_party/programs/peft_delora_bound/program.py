# pip install torch==2.13.0 peft==0.21.2
import torch
from peft import DeloraConfig, get_peft_model

torch.manual_seed(0)
weight = torch.nn.Linear(256, 512, bias=False)
weight.weight.data.normal_()
config = DeloraConfig(r=8, delora_lambda=15, target_modules=["0"], init_weights=False)
layer = get_peft_model(torch.nn.Sequential(weight), config).base_model.model[0]
length = layer.get_delta_weight("default").norm().item()
largest = layer.base_layer.weight.norm(dim=0).max().item()
print(f"delora_lambda = 15: Frobenius norm of the weight change {length:.0f}")
print(f"15 times the norm of the longest column of the base weight: {15 * largest:.0f}")
