"""List the English words the guards know: those that carry a question's meaning, and those that are fillers."""

from __future__ import annotations

import re
from typing import Final

_WRAPPING = re.compile(
    r"""^(?:\s*(?:
        please\b[\s,]*|
        # `Hello Kitty` is no greeting.
        (?:hi|hello|hey|ok|okay|so|well)(?:\s+there)?(?:\s*[,!.:]+|
            \s+(?=(?:what|who|where|when|why|how|which|can|could|would|will|do|does|is|are|please|i|tell|show)\b))|
        (?:
            (?:can|could|would|will)\s+(?:you|u|someone|anyone)\s+(?:please\s+)?(?:kindly\s+)?
                (?:tell|explain\s+to|show|help)\s+me|
            (?:can|could)\s+(?:you|someone)\s+(?:please\s+)?(?:explain|describe)|
            (?:tell|show)\s+me|
            i(?:\s+would|'d)?\s+(?:want|like|need)\s+to\s+know|
            i(?:'m|\s+am)\s+(?:wondering|curious)(?:\s+about)?|
            do\s+you\s+(?:happen\s+to\s+)?know
        )[\s,!.:]+
    ))+""",
    re.IGNORECASE | re.VERBOSE,
)
_HOW = re.compile(
    r"""^\s*(?:
        how\s+to|
        how\s+(?:can|do|does|could|should|would|may|might|must)\s+(?:i|you|we|one|someone|a\s+person|anyone)|
        what(?:\s+is|\s+are)\s+(?:the|a|some)\s+(?:(?:good|best)\s+)?(?:steps?|ways?|methods?|process|procedure)\s+(?:to|of|for)|
        in\s+what\s+way\s+(?:can|do)\s+(?:i|you|we)
    )\s+""",
    re.IGNORECASE | re.VERBOSE,
)
_IF_I_WANT = re.compile(
    r"^\s*(?:if\s+(?:i|you)\s+want\s+to|in\s+order\s+to)\s+(.+?),?\s+what\s+(?:should|can|must|do)\s+(?:i|you)\s+do\W*$",
    re.IGNORECASE | re.DOTALL,
)
_FILLER = re.compile(r"\bsome\s+of\s+(?=the\b)|\bin\s+fact\b", re.IGNORECASE)
_CONTRACTIONS = re.compile(
    r"""(?<=[a-z])(?:n't|'(?:re|m|ll|ve|d))\b | (?<=\bit|\bhe)'s\b | (?<=\bwho|\bhow|\bwhy|\bshe)'s\b
    | (?<=\bwhat|\bwhen|\bthat|\bhere)'s\b | (?<=\bwhere|\bthere)'s\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""Expands `'s` only where it certainly is `is`: `the dog's food` is not `the dog is food`."""
_EXPANDED = {"n't": " not", "'s": " is", "'re": " are", "'m": " am", "'ll": " will", "'ve": " have", "'d": " would"}


def unwrap(text: str) -> str:
    """Return `text` without greeting and politeness, with every way to ask for a method as `howto`."""
    if "’" in text:
        text = text.replace("’", "'")
    if "'" in text:
        text = text.replace("can't", "can not").replace("won't", "will not")
        text = _CONTRACTIONS.sub(lambda match: _EXPANDED[match[0].lower()], text)
    text = text.replace("cannot", "can not")
    text = _WRAPPING.sub("", text, count=1)
    if match := _IF_I_WANT.match(text):
        return f"howto {match[1]}"
    return _HOW.sub("howto ", _FILLER.sub("", text), count=1)


def word_set(words: str) -> frozenset[str]:
    """Split a string of words."""
    return frozenset(words.split())


def pair_set(pairs: str) -> frozenset[tuple[str, ...]]:
    """Split a string of word pairs separated by semicolons."""
    return frozenset(tuple(pair.split()) for pair in pairs.split(";"))


EMPTY: Final = word_set("a an the please kindly really actually basically indeed truly")
"""Words that can be added or removed without changing what is asked."""
LINKS: Final = word_set(
    """of to in on at for with about as from by into onto over under between among through against within upon per via
    and or but if then than that whether because so"""
)
"""Words that begin another part of the sentence."""
_FORMS: Final = {
    "is": "be", "are": "be", "am": "be", "was": "be", "were": "be", "does": "do", "did": "do", "has": "have",
    "had": "have", "will": "will", "shall": "will", "gonna": "will", "these": "this", "those": "that",
}  # fmt: skip
TENSES: Final = {
    "was": "past", "were": "past", "did": "past", "had": "past", "will": "future", "shall": "future", "gonna": "future",
}  # fmt: skip
NEGATIONS: Final = word_set(
    """not no never none nobody nothing nowhere neither nor without cannot unable except excluding lack lacks lacking
    hardly barely rarely seldom non minus stop avoid refuse fail
    unless nicht kein keine nie pas jamais sans nunca sin"""
)
TIME_WORDS: Final = word_set(
    """before after since until till during while ago past future next last previous previously formerly earlier later
    first second third final already still yet again anymore longer used become becoming always often sometimes daily
    weekly monthly yearly annual hourly morning afternoon evening night noon midnight day days week weeks month months
    year years hour hours minute minutes second seconds decade century weekend monday tuesday wednesday thursday friday
    saturday sunday january february march april june july august september october november december am pm bc ad
    spring summer autumn fall winter christmas easter"""
)
ASKED: Final = {
    "who": "who", "whom": "who", "whose": "who", "what": "what", "which": "what", "when": "when", "where": "where",
    "why": "why", "how": "how", "howto": "howto",
}  # fmt: skip
MODALS: Final = {
    "can": "can", "could": "can", "may": "may", "might": "may", "should": "should", "must": "must", "ought": "should",
    "would": "would", "need": "must",
}  # fmt: skip
PERSONS: Final = {
    "i": "i", "me": "i", "my": "i", "mine": "i", "myself": "i", "we": "i", "us": "i", "our": "i", "ours": "i",
    "you": "you", "your": "you", "yours": "you", "yourself": "you",
    "he": "he", "him": "he", "his": "he", "himself": "he", "she": "she", "her": "she", "hers": "she", "herself": "she",
    "they": "they", "them": "they", "their": "they", "theirs": "they", "themselves": "they",
}  # fmt: skip
FUNCTION: Final = {word: word for word in LINKS} | _FORMS | PERSONS
"""Function words and the form they are compared as. They stay in the text's order, which determines who does what to
whom, and where."""
FAINT: Final = EMPTY.union(LINKS, _FORMS, PERSONS, ASKED, MODALS) | word_set(
    """this that there here be been being do doing done have having will it its just truly exactly simply very quite
    also too ever some any fact etc get gets got thing things one ones work mean more"""
)
"""Words without a topic of their own: a question of these alone refers to something said before."""

_UNITS = """two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBERS: Final = (
    {word: str(i) for i, word in enumerate(_UNITS.split(), 2)}
    | {word: str(10 * i) for i, word in enumerate(_TENS.split(), 2)}
    | {"zero": "0"}
    | {"hundred": "100", "thousand": "1000", "million": "1e6", "billion": "1e9", "half": "0.5", "quarter": "0.25"}
    | {"twice": "2", "double": "2", "triple": "3", "dozen": "12", "once": "1"}
)

_OPPOSITES = """
more greater higher increase increasing raise maximum most up gain
    / less fewer lower decrease decreasing reduce minimum least down lose;
enable activate allow accept approve unlock unblock / disable deactivate forbid deny reject decline lock block;
start begin open launch / stop end close quit finish; win / lose; buy purchase / sell; on / off; left / right;
add insert include install attach / remove delete exclude uninstall detach;
good better best safe healthy legal right true possible
    / bad worse worst dangerous unsafe unhealthy illegal wrong false impossible;
hot warm / cold cool; big large long tall high / small little short low; fast quick / slow; hide hidden / show visible;
encrypt encode compress zip import upload push send lend
    / decrypt decode decompress unzip export download pull receive borrow;
male man men boy husband father brother son / female woman women girl wife mother sister daughter;
advantage advantages pros benefit benefits / disadvantage disadvantages cons drawback drawbacks;
cheap cheapest / expensive; love like / hate dislike
"""
OPPOSITES: Final = tuple(tuple(word_set(side) for side in pair.split("/")) for pair in _OPPOSITES.split(";"))

_SYNONYMS = """buy purchase; start begin commence; fast quick rapid; film movie; photo picture; phone telephone;
tv television; kid child children; fix repair; big large; car automobile; mail email e-mail; info information;
difference differ different; uk britain; us usa america; max maximum; min minimum; maths math mathematics;
someone somebody; everyone everybody; anyone anybody; laptop notebook; colour color; centre center; help assist;
make create; men man; women woman; people person; best greatest; biggest largest; happen occur"""
SYNONYMS: Final = {
    word: group.split()[0] for group in _SYNONYMS.split(";") for word in group.split()[1:] if group.strip()
}


FOREIGN: Final = word_set(
    """der die das den dem des ein eine einer eines einem einen und oder ist sind wird wurde von zum zur mit auf bei
    nach aus wie kann ich mein meine wo wann warum wer el los las un una unos unas y es son fue de del en al con por
    para que qué cómo dónde cuándo quién mi su se le les du au aux et ou est sont dans avec pour sur qui quoi où quand
    pourquoi mon ma mes ce cette il lo gli di che è sono per os da em um uma het een van voor hoe"""
)
"""Function words of German, Spanish, French, Italian, Portuguese and Dutch, without those that are English too."""
POINTING_BACK: Final = word_set(
    "it its this that these those they them their he she him his her above previous former latter same"
)
"""Words that may refer to something said before."""


_OTHER_THINGS: Final = word_set(
    "glasses goods arms customs woods means manners spectacles odds news spirits airs waters minutes teens"
)
"""Plurals with a meaning of their own. Words in -ics are handled by their ending."""


def stem(word: str) -> str:
    """Return a word without plural or third-person ending, or its commonest synonym.

    `-ing` and `-ed` are kept: marketing is not a market, nor is something partitioned a partition.
    """
    word = SYNONYMS.get(word, word)
    if len(word) < 4 or not word.isascii() or not word.endswith("s") or word in _OTHER_THINGS:
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "sses", "xes", "zes", "oes")):
        return word[:-2]
    return word if word.endswith(("ss", "us", "is", "ics")) else word[:-1]
