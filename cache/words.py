"""The English the guards know: which words carry a question's meaning, and which are only its wrapping."""

from __future__ import annotations

import re
from typing import Final

_WRAPPING = re.compile(
    r"""^(?:\s*(?:
        hi|hello|hey|please|ok|okay|so|well|
        (?:can|could|would|will)\s+(?:you|u|someone|anyone)\s+(?:please\s+)?(?:kindly\s+)?(?:tell|explain\s+to|show|help)\s+me|
        (?:can|could)\s+(?:you|someone)\s+(?:please\s+)?(?:explain|describe)|
        (?:please\s+)?(?:tell|show)\s+me|
        i(?:\s+would|'d)?\s+(?:want|like|need)\s+to\s+know|
        i(?:'m|\s+am)\s+(?:wondering|curious)(?:\s+about)?|
        do\s+you\s+(?:happen\s+to\s+)?know
    )[\s,!.:]+)+""",
    re.IGNORECASE | re.VERBOSE,
)
_HOW = re.compile(
    r"""^\s*(?:
        how\s+(?:can|do|does|could|should|would|may|might|must|to)(?:\s+(?:i|you|we|one|someone|a\s+person|anyone))?(?:\s+to)?|
        what(?:\s+is|\s+are)\s+(?:the|a|some)\s+(?:(?:good|best)\s+)?(?:steps?|ways?|methods?|process|procedure)\s+(?:to|of|for)|
        in\s+what\s+way\s+(?:can|do)\s+(?:i|you|we)
    )\s+""",
    re.IGNORECASE | re.VERBOSE,
)
_IF_I_WANT = re.compile(
    r"^\s*(?:if\s+(?:i|you)\s+want\s+to|in\s+order\s+to)\s+(.+?),?\s+what\s+(?:should|can|must|do)\s+(?:i|you)\s+do\W*$",
    re.IGNORECASE | re.DOTALL,
)
_CONTRACTIONS = re.compile(r"(?<=[a-z])(?:n't|'(?:s|re|m|ll|ve|d))\b", re.IGNORECASE)
_EXPANDED = {"n't": " not", "'s": " is", "'re": " are", "'m": " am"}
_EXPANDED |= {"'ll": " will", "'ve": " have", "'d": " would"}


def unwrap(text: str) -> str:
    """`text` without its greeting and its politeness, with every way to ask for a way asked as `howto`."""
    if "’" in text:
        text = text.replace("’", "'")
    if "'" in text:
        text = text.replace("can't", "can not").replace("won't", "will not")
        text = _CONTRACTIONS.sub(lambda found: _EXPANDED[found[0].lower()], text)
    text = _WRAPPING.sub("", text, count=1)
    if found := _IF_I_WANT.match(text):
        return f"howto {found[1]}"
    return _HOW.sub("howto ", text, count=1)


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


EMPTY: Final = _set(
    """a an the this that these those there here is are am be been being was were do does did doing done have has
    had having will shall of to in on at for with about as and it its if then than just
    really actually indeed exactly basically simply truly very quite also too ever please some any whether
    fact etc get gets got thing things one ones"""
)
"""Words that may come and go, as far as the guard on wording is concerned; other guards look at some of them."""

NEGATIONS: Final = _set(
    """not no never none nobody nothing nowhere neither nor without cannot unable except excluding lack lacks lacking
    hardly barely rarely seldom non minus stop avoid refuse fail
    unless nicht kein keine nie pas jamais sans nunca sin"""
)
TIME_WORDS: Final = _set(
    """before after since until till during while ago past future next last previous previously formerly earlier later
    first second third final already still yet again anymore longer used become becoming always often sometimes daily
    weekly monthly yearly annual hourly morning afternoon evening night noon midnight day days week weeks month months
    year years hour hours minute minutes second seconds decade century weekend monday tuesday wednesday thursday friday
    saturday sunday january february march april june july august september october november december am pm bc ad
    spring summer autumn fall winter christmas easter"""
)
PAST: Final = _set("was were did had been")
FUTURE: Final = _set("will shall gonna")
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
}  # fmt: skip
OTHERS: Final = {
    "he": "he", "him": "he", "his": "he", "himself": "he", "she": "she", "her": "she", "hers": "she", "herself": "she",
    "they": "they", "them": "they", "their": "they", "theirs": "they", "themselves": "they",
}  # fmt: skip
"""Kept in the text's order, unlike `i` and `you`: who does what to whom hangs on it."""

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
OPPOSITES: Final = tuple(tuple(_set(side) for side in pair.split("/")) for pair in _OPPOSITES.split(";"))

_SYNONYMS = """buy purchase; start begin commence; fast quick rapid; film movie; photo picture; phone telephone;
tv television; kid child children; fix repair; big large; car automobile; mail email e-mail; info information;
difference differ different; uk britain; us usa america; max maximum; min minimum; maths math mathematics;
someone somebody; everyone everybody; anyone anybody; laptop notebook; colour color; centre center; help assist;
make create; men man; women woman; people person; best greatest; biggest largest; happen occur; stop quit"""
SYNONYMS: Final = {
    word: group.split()[0] for group in _SYNONYMS.split(";") for word in group.split()[1:] if group.strip()
}


VOLATILE: Final = _set(
    """today tonight tomorrow yesterday now nowadays currently current latest newest recent recently lately breaking
    upcoming live news headline headlines weather forecast price prices pricing stock stocks share shares inflation
    score scores standings trending traffic president ceo champion heute aktuell jetzt aujourd actuel maintenant hoy
    ahora actual"""
)
"""A question with one of these may have another answer tomorrow."""
_VOLATILE_PAIRS = """this morning; this afternoon; this evening; this week; this weekend; this month; this year;
this quarter; this season; last night; last week; last weekend; last month; last year; next week; next weekend;
next month; next year; the moment; these days; so far; to date; cost of; exchange rate; exchange rates; interest rate;
interest rates; temperature in; prime minister; what time; what day; what date; what year; how old"""
VOLATILE_PAIRS: Final = frozenset(tuple(pair.split()) for pair in _VOLATILE_PAIRS.split(";"))
POINTING_BACK: Final = _set(
    "it its this that these those they them their he she him his her above previous former latter same"
)
"""Words that may stand for something said before."""


def stem(word: str) -> str:
    """A word without its commonest English ending: enough to equate `cats` and `cat`, `using` and `use`."""
    word = SYNONYMS.get(word, word)
    if len(word) < 4 or not word.isascii():
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("ing") and len(word) > 5:
        word = word[:-3]
        return _single(word)
    if word.endswith("ed") and len(word) > 4:
        return _single(word[:-2])
    if word.endswith(("ches", "shes", "sses", "xes", "zes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


def _single(word: str) -> str:
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
        word = word[:-1]
    return word[:-1] if word.endswith("e") else word
