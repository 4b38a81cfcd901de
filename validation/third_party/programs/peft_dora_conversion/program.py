# pip install torch==2.13.0 peft==0.21.2
import copy

import torch
from peft import LoraConfig, convert_to_lora, get_peft_model, set_peft_model_state_dict

torch.manual_seed(0)
base, x = torch.nn.Sequential(torch.nn.Linear(24, 20, bias=False)), torch.randn(9, 24)
config = LoraConfig(r=4, target_modules=["0"], use_dora=True)
model = get_peft_model(copy.deepcopy(base), config)
layer = model.base_model.model[0]
layer.lora_B["default"].weight.data.normal_(std=0.1)
layer.lora_magnitude_vector["default"].weight.data *= 1 + 0.1 * torch.randn(20)
output = model(x).detach()
try:
    converted_config, state = convert_to_lora(model, rank=20)  # all ranks, so nothing is left out
except TypeError as error:
    print(f"refused, as for other methods that cannot be converted: TypeError: {str(error)[:60]}")
else:
    converted = get_peft_model(copy.deepcopy(base), converted_config)
    set_peft_model_state_dict(converted, state)
    error = (converted(x) - output).norm() / (output - base(x)).norm()
    print(f"error of what the converted adapter adds to the output: {error:.2g}, should be about 1e-6")
