"""The loss of a Hugging Face classifier, for ``refgeo sharpness`` and ``refgeo verify``.

    refgeo sharpness --checkpoint model/ --loss loss_classifier.py --metric inv,mix

``model/`` is what ``save_pretrained`` wrote, with the tokenizer. Put your own texts and labels below, or read a file.
"""

import torch
import transformers

import refgeo as rg

TEXTS = ["A wonderful film.", "I want my two hours back.", "It grows on you.", "Nothing happens, at length."]
LABELS = [1, 0, 1, 0]
BATCH = 2
FROZEN = ["*embeddings*"]  # blocks that do not move, with wildcards


def model(path, network):
    folder = path.parent
    module = transformers.AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batches = [
        dict(
            tokenizer(TEXTS[i : i + BATCH], padding=True, truncation=True, return_tensors="pt"),
            labels=torch.tensor(LABELS[i : i + BATCH]),
        )
        for i in range(0, len(TEXTS), BATCH)
    ]
    evaluate = rg.adapters.torch_value_and_grad(module, network, lambda call, batch: call(**batch).loss, frozen=FROZEN)
    return {"value_and_grad": evaluate, "batches": batches, "frozen": FROZEN}
