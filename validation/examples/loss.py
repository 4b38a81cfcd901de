"""What `table1 --checkpoints` wants of models from Hugging Face, each in a folder with its errors."""

import json

import torch
import transformers

from refgeo.networks.modules import torch_value_and_grad


def model(path, network):
    module = transformers.AutoModelForSequenceClassification.from_pretrained(path.parent).eval()
    errors = json.loads((path.parent / "errors.json").read_text())
    ids, labels = torch.arange(32).reshape(4, 8), torch.tensor([0, 1, 0, 1])  # a batch of your training data

    def loss(call, ids, labels):
        return torch.nn.functional.cross_entropy(call(input_ids=ids).logits, labels)

    evaluate = torch_value_and_grad(module, network, loss)
    return {
        "value_and_grad": lambda blocks, batch: evaluate(blocks, *batch),
        "batches": [(ids, labels)],
        "gap": errors["test"] - errors["train"],
        "test loss": errors["test loss"],
        "frozen": ["*embeddings*", "*pooler*"],
    }
