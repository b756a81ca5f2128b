"""Models whose layers look only so far back, against transformers' own attention."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from kvtrace.engine.attention import ATTENTION_NAME, register
from kvtrace.engine.attention.batch import PagedBatch
from kvtrace.engine.batch import Chunk
from kvtrace.engine.model.support import geometry_of, refuse_unsupported
from kvtrace.engine.sequence import Sampling

WINDOW = 10
FIGURES: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "sliding_window": WINDOW,
}
LATER_LAYERS = {"use_sliding_window": True, "max_window_layers": 2}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "Cohere2": {},
    "Exaone4": {},
    "Gemma3Text": {"query_pre_attn_scalar": 8} | ALTERNATING,
    "Ministral": ALTERNATING,
    "Mistral": {},
    "Olmo3": {},
    "Phi3": {},
    "Qwen2": LATER_LAYERS,
    "Qwen3": LATER_LAYERS,
    "Starcoder2": {},
}


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_windowed_models_match_transformers(family: str) -> None:
    import transformers

    register()
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**FIGURES | FAMILIES[family])
    refuse_unsupported(config, family)
    make = transformers.AutoModelForCausalLM.from_config
    own = make(copy.deepcopy(config), attn_implementation="eager").eval()
    model = make(copy.deepcopy(config), attn_implementation=ATTENTION_NAME).eval()
    model.load_state_dict(own.state_dict())
    tokens = [5 + (index * 7) % 90 for index in range(60)]
    expected = own(input_ids=torch.tensor([tokens])).logits[0]

    pool = torch.full((6, *geometry_of(config, 4).block_shape), float("nan"))
    found = []
    for start, end in ((0, 20), (20, 21), (21, 60)):
        chunk = Chunk(0, tuple(tokens[start:end]), start, (3, 1, 4, 2), 0, True, Sampling(), 0, 0)
        output = model(
            input_ids=torch.tensor([tokens[start:end]]),
            position_ids=torch.arange(start, end)[None],
            use_cache=False,
            paged_batch=PagedBatch.pack([chunk], pool),
        )
        found.append(output.logits[0])
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-4, atol=1e-4)
