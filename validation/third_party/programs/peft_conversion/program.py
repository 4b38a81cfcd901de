# pip install torch==2.13.0 peft==0.21.2
import copy
import warnings

import peft
import torch

warnings.simplefilter("ignore")
METHODS = {
    "PSOFT": peft.PsoftConfig(r=4), "DeLoRA": peft.DeloraConfig(r=4), "LoKr": peft.LoKrConfig(r=4),
    "LoHa": peft.LoHaConfig(r=4), "VeRA": peft.VeraConfig(r=4), "C3A": peft.C3AConfig(block_size=4),
    "FourierFT": peft.FourierFTConfig(n_frequency=30), "LoRA with rsLoRA": peft.LoraConfig(r=4, use_rslora=True),
}  # fmt: skip
for name, config in METHODS.items():
    torch.manual_seed(0)
    base, x = torch.nn.Sequential(torch.nn.Linear(24, 20, bias=False)), torch.randn(9, 24)
    config.target_modules = {"0"}
    model = peft.get_peft_model(copy.deepcopy(base), config).eval()
    for p in model.parameters():
        if p.requires_grad:
            p.data += 0.3 * torch.randn(p.shape)
    output = model(x).detach()
    converted, state = peft.convert_to_lora(model, rank=20)
    lora = peft.get_peft_model(copy.deepcopy(base), converted)
    peft.set_peft_model_state_dict(lora, state)
    error = (lora.eval()(x) - output).norm() / (output - base(x)).norm()
    print(f"{name}: what the converted adapter adds to the output is right to 1e-5: {bool(error < 1e-5)}")
