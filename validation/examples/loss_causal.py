"""The loss of a Hugging Face causal language model, for ``refgeo sharpness`` and ``refgeo verify``.

    refgeo sharpness --checkpoint model/ --loss loss_causal.py --metric inv,mix

``model/`` is what ``save_pretrained`` wrote, with the tokenizer. For Llama, Mistral and Qwen2 the layout is
``llama_rotary``, which is the default: rotary positions leave only a part of GL(h).
"""

import fnmatch

import transformers

import refgeo as rg

TEXTS = ["The cat sleeps on the sofa, and the dog under it.", "Seven is divisible by one and by seven only."]
FROZEN = ["*embed_tokens*", "*wte*", "*wpe*", "lm_head*"]  # blocks that do not move, if there are any of this name


def model(path, network):
    folder = path.parent
    module = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batches = [dict(ids := tokenizer(text, return_tensors="pt"), labels=ids["input_ids"]) for text in TEXTS]
    frozen = [pattern for pattern in FROZEN if fnmatch.filter(network.blocks, pattern)]
    evaluate = rg.adapters.torch_value_and_grad(module, network, lambda call, batch: call(**batch).loss, frozen=frozen)
    return {"value_and_grad": evaluate, "batches": batches, "frozen": frozen}
