"""Detect questions that contain a text to work on; every letter of it may matter, so no neighbour may answer them.

`Translate: the dog is in the house`, `how many letters are in having`, `uppercase "hello"`: what the guards treat as
filler is the subject itself here. Signs of it: a quoted part, a colon with something behind it, code, several lines, a
task that works on text, a word about language. It errs on the side of too many: such a question still has the exact
cache.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import Final

from cache.text.words import pair_set, word_set

_SIGNS = re.compile(
    r"""["“”„«»‹›「」『』`{};]       # quotes and code; 5" matches too, at the cost of a miss
    | (?<!\w)['‘](?=\w)           # an opening quote, not an apostrophe
    | :(?!\d)\s*\S                # `French: good morning`; 10:30 is a time
    | \n\s*\S                     # several lines
    | \w\(|=[=>]|[-=]>|::|</|/>   # code
    """,
    re.VERBOSE,
)
_POLITE: Final = word_set(
    """a ahead and are be can could d do for go hello help hey hi i if just kindly let like ll me mind my need now ok
    okay our please so the then to try us want we will would you your"""
)
"""What may come before the task: `could you please`, `I want you to`, `help me`."""
_ASKS_LEAVE: Final = frozenset((may, who) for may in ("can", "could", "do", "would", "if") for who in ("i", "we")) | {
    ("if", "you"),
    ("in", "order"),
}
_TASKS: Final = word_set(
    """add alphabetise alphabetize analyse analyze annotate calculate capitalise capitalize change check classify clean
    complete compute condense continue convert copy correct count cut decipher decode decrypt delete divide echo edit
    elaborate encode encrypt evaluate expand extract factor factorise factorize fill finish fix format improve insert
    interpret join label lowercase make mark modify multiply order parse polish print proofread punctuate put read
    reformat reformulate remove render repeat replace reverse review rewrite round say shorten simplify solve sort split
    subtract summarise summarize tag tidy title transform translate transcribe trim truncate turn type uppercase verify
    write"""
)
"""Verbs that, at the beginning of a request, name work on what follows. `How do I convert ...` is a question."""
_DESCRIBING: Final = word_set(
    """a all an any both each every her his how if its my our out some sure that the their these this those what whether
    which why your"""
)
"""After one of these a task describes its object (`remove the staging environment`), which is not the text itself."""
_ON_ITS_WORDS: Final = word_set(
    """capitalise capitalize correct count decipher decode decrypt echo encode encrypt print proofread punctuate put
    read repeat reverse say title type"""
)
"""Tasks that work on exactly the words that follow, whatever they are: `print the end`."""
_OF_TEXT: Final = word_set(
    """translate translated translates translating translation spell spelled spelling spelt misspelled pronounce
    pronounced pronunciation rhyme rhymes rhyming anagram anagrams palindrome palindromes syllable syllables letter
    letters vowel vowels consonant consonants uppercase lowercase capitalise capitalize rewrite
    rephrase reword paraphrase proofread summarise summarize conjugate conjugation transliterate verbatim grammar
    grammatical grammatically punctuation sentence sentences phrase phrases paragraph plural singular tense verb noun
    adjective adverb prefix suffix synonym synonyms antonym antonyms homophone homophones etymology idiom regex regexp
    übersetze übersetzen übersetz buchstabiere traduis traduisez traduire traduce traducir traduzca traduza
    traduzir traduci"""
)
"""Words about language: the words around one are mentioned, not only used."""
_PAIRS: Final = pair_set(
    """the word; a word; word for; words for; words that; words with; you say; to say; we say; i say; one say;
    in reverse; many words; many times; many digits; many characters; characters in"""
)


def carried(question: str, words: Sequence[str], seen: Set[str], pairs: Set[tuple[str, ...]]) -> bool:
    """Return whether a question contains a text to work on.

    `words` are its words in lower case, `seen` their set, `pairs` the pairs of neighbours.
    """
    if not seen.isdisjoint(_OF_TEXT) or not _PAIRS.isdisjoint(pairs) or _SIGNS.search(question):
        return True
    # `Can I add ...` and `if you want to add ...` ask for information; `can you add ...` gives a task.
    if tuple(words[:2]) in _ASKS_LEAVE:
        return False
    at = next((at for at, word in enumerate(words) if word not in _POLITE), None)
    return at is not None and words[at] in _TASKS and not _describes(words[at : at + 2])


def _describes(begin: Sequence[str]) -> bool:
    """Return whether a task's first two words show that it only describes its object."""
    return len(begin) > 1 and begin[0] not in _ON_ITS_WORDS and begin[1] in _DESCRIBING
