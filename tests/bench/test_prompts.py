"""Natural prompts are taken for what they are: a language, a question for both caches, or one for the cross-encoder."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from cache import shipped_cross_encoder
from cache.planning.eligibility import why_not_the_question
from cache.semantic.decision import decide_by, default_threshold, shortlist
from cache.semantic.verifier import Verifier, shipped_verifier
from cache.text.languages import language
from gateway.parts.encoders.cross_encoder import CrossEncoder
from tests.bench.prompts import LANGUAGES, LENGTHS, natural, pairs, rewordings, stored
from tests.cache.samples import policy


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("code", LANGUAGES)
def test_prompts_go_the_full_path_in_their_language(code: str, length: str) -> None:
    """Hardly one is kept from the semantic cache or in no language, no two are alike, and a seed makes them again."""
    texts = list(islice(natural(3, [code], [length]), 200))
    assert len(set(texts)) == 200 and texts == list(islice(natural(3, [code], [length]), 200))
    assert sum(language(text).code == code for text in texts) >= 190
    assert sum(not why_not_the_question(text) for text in texts) >= 190


def test_rewordings_are_left_to_the_cross_encoder_and_taken() -> None:
    """Neither rule nor guard decides them, and the score is above the threshold."""
    semantic = policy(semantic={"ttl": "1h", "guards": ["negation", "numbers", "entities", "dates"]}).cache.semantic
    assert semantic is not None
    model, verifier = CrossEncoder.load(shipped_cross_encoder()), Verifier.load(shipped_verifier("static"))
    decide = decide_by(semantic, verifier, screening=True, scripts=model.scripts, languages=model.languages)
    least = default_threshold(semantic, verifier, screening=True, strict=model.strict)
    assert len(stored(5)) == 160 and len(set(rewordings(5))) > 1_000
    for question, asked in random.Random(5).sample(list(pairs(5)), 40):
        chosen = shortlist(decide, asked, [(question, 0.9)], 1)
        assert chosen is not None and chosen.doubtful, asked
        assert model.scores([(question, asked)])[0] >= least, (question, asked)
