"""Labels of the strange language (`strange_models`), as a gateway records them, without running one."""

from __future__ import annotations

import base64
import random
from typing import Any

import numpy as np

from gateway.parts.measures.label import PairLabel
from routing.difficulty.model import DifficultyModel
from routing.difficulty.text_statistics import counts_of, tokenise
from routing.embedder import StaticEmbedder, bounded
from routing.features import features_of_text
from tests.support.strange_models import RIGHT, WRONG, Language


def label_rows(
    count: int, language: Language, embedder: StaticEmbedder, model: DifficultyModel
) -> list[dict[str, Any]]:
    """Rows of the archive's table `labels`, oldest first: two turns a conversation, judged as the language says.

    Every second answer of the small tier comes with log-probabilities.
    """
    chance = random.Random(3)
    prompts = [language.prompt(chance) for _ in range(count)]
    rows = []
    for i, (prompt, vector) in enumerate(zip(prompts, embedder.embed(prompts), strict=True)):
        features = features_of_text(prompt)
        rated = model.assess(vector, features)
        small, strong = (float(language.is_right(prompt, one)) for one in (0, 1))
        answers = [
            {
                "tier": tier, "backend": tier, "model": tier, "served": tier == "local", "adequate": adequate,
                "cost_usd": 0.0, "tokens_out": 4, "confidence": None, "text": RIGHT if adequate else WRONG,
                "evidence": None if tier == "hosted" or i % 2 else {
                    "finish_reason": "stop", "alternatives": 0, "top_logprobs": "",
                    "logprobs": PairLabel.packed_vector([-0.1 if adequate else -1.5, -0.2, chance.uniform(-1, 0)]),
                },
            }
            for tier, adequate in (("local", small), ("hosted", strong))
        ]  # fmt: skip
        rows.append(
            {
                "request_id": f"req_{i}", "tenant": "acme", "surface": "chat", "policy": "chat@1234567",
                "judged_at": 1767225600.0 + i, "conversation": i // 2,
                "better": "tie" if small == strong else "small" if small else "strong", "agreed": True,
                "judge": "judge-1", "judge_usd": 0.0, "small": answers[0], "strong": answers[1],
                "classifier": model.version, "embedder": embedder.name, "in_domain": rated.in_domain,
                "kind": rated.kind, "quantile": rated.quantile, "p_right": list(rated.p_right),
                "tokens_in": features.approx_tokens, "has_tools": False, "vector": PairLabel.packed_vector(vector),
                "counts": counts_of(features, tokenise(bounded(prompt))).tolist(),
                "messages": [{"role": "user", "content": prompt}],
            }
        )  # fmt: skip
    assert len(np.frombuffer(base64.b64decode(rows[0]["vector"]), np.float16)) == embedder.dimension
    return rows
