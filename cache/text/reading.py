"""Parse a question into the parts that must not differ between it and another. Pure.
    numbers    digits and number words, in order
    negations  `not` by the clause it stands in (its place within a clause may change: `why don't cats`, `why do cats
               not`), every other negation too; and which side of an opposition is named (more or less, on or off)
    names      what is written like a name, an acronym or code
    times      days, months, before and after, and tenses
    asked      who, when, why, how, whether; can, should
    content    every word and symbol in order, function words too: `in the house` is not `on the house`, `do` is not
               `be`. Numbers and times leave a placeholder. Only articles and a few fillers are dropped.
Synonyms and plurals are reduced to one form. The words are in `words.toml`; `spelling.toml` has what is also spelled
otherwise (`b4`, `dont`, `how 2 run`, `non-profit`). Made for English; in another language of one of SCRIPTS it detects
words, names, numbers and order.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from cache.text.thesaurus import groups_of, word_list, word_set
from policies.value_type import from_fields, value_type

_READ_CHARS: Final = 200
_BESIDE_OTHERS: Final = 3
_OFTEN_CHARS: Final = 12
_WORDS: Final = re.compile(r"\w+")
_LETTERS: Final = re.compile(r"[^\W\d_]+")
_NO_LETTER: Final = re.compile(r"[\d_]")
SCRIPTS: Final = frozenset({"Latin"})
"""Scripts whose words are told apart here. In others a change of one sign can reverse a question unnoticed."""
_UNDER_OTHER_NAMES: Final = {
    "ARABIC-INDIC": "Arabic",
    "CJK": "Han",
    "FEMININE": "Latin",
    "MASCULINE": "Latin",
} | dict.fromkeys(("DIGIT", "FULLWIDTH", "KATAKANA-HIRAGANA", "MICRO", "MODIFIER"), "")
"""Scripts of letters whose Unicode name does not begin with it; '' for what several scripts share."""


@lru_cache(maxsize=8)
def text_words(text: str) -> list[str]:
    """Return the rows of letters, digits and `_` in a text, in lower case. Cached, as several readers want those of one
    request; do not change the list.
    """
    return _cut(text, _IN_WORDS, _WORDS)


@lru_cache(maxsize=8)
def text_letters(text: str) -> list[str]:
    """Return the rows of letters alone in a text, in lower case. Cached as `text_words` is, whose list it may be."""
    return letters_of(text) if _NO_LETTER.search(text) else text_words(text)


def first_letters(text: str, count: int) -> list[str]:
    """Return the first `count` of `text_letters`, for which the text's beginning is enough in most cases."""
    letters = letters_of(text[: count * _OFTEN_CHARS]) if len(text) > count * _OFTEN_CHARS else text_letters(text)
    return (letters if len(letters) > count else text_letters(text))[:count]


def word_rows(text: str) -> list[str]:
    """Return the rows of letters, digits and `_` in a text, in lower case."""
    return _cut(text, _IN_WORDS, _WORDS)


def letters_of(text: str) -> list[str]:
    """Return the rows of letters in a text, in lower case."""
    return _cut(text, _IN_LETTERS, _LETTERS)


def _in_place(kept: Callable[[str], bool]) -> bytes:
    """Return a table for `bytes.translate` of Latin-1: what is kept in lower case, a space for all else."""
    return "".join(sign.lower() if kept(sign) else " " for sign in map(chr, range(256))).encode("latin-1")


_IN_WORDS: Final = _in_place(lambda sign: sign.isalnum() or sign == "_")
_IN_LETTERS: Final = _in_place(lambda sign: sign.isalnum() and not sign.isdecimal())


def _cut(text: str, table: bytes, row: re.Pattern[str]) -> list[str]:
    """Return what `row` finds in a text in lower case: of a text in Latin-1 by the table, in a quarter of the time."""
    try:
        return text.encode("latin-1").translate(table).decode("latin-1").split()
    except UnicodeEncodeError:
        return row.findall(text.lower())


_SURELY_LATIN: Final = re.compile("[\\0-\u00b4\u00b6-\u024f\u2000-\u206f]*")
"""Signs of which all letters are Latin (unlike the micro sign), and all else belongs to no script."""


@lru_cache(maxsize=4_096)
def _script(sign: str) -> str:
    """Return the script of a letter or decimal digit, as the first word of its Unicode name; '' for other signs."""
    if not (sign.isalpha() or sign.isdecimal()):
        return ""
    word = unicodedata.name(sign, "unknown").split()[0]
    return _UNDER_OTHER_NAMES.get(word, word.capitalize())


def is_written_in(text: str, scripts: Collection[str]) -> bool:
    """Return whether every letter and digit of the text belongs to these scripts."""
    return (text.isascii() and "Latin" in scripts) or {*map(_script, {*text})} <= {"", *scripts}


def script_of(text: str) -> str:
    """Return the script in which most of the text is written, such as `Latin` or `Han`; '' without letters.

    Any Japanese syllable makes it `Hiragana`. Beside others, Latin letters count a third: they may be names.
    Only the first 200 characters are read.
    """
    if text.isascii():
        return "Latin" if any(map(str.isalpha, text)) else ""
    text = text[:_READ_CHARS]
    if _SURELY_LATIN.fullmatch(text):
        return "Latin" if any(map(str.isalpha, text)) else ""
    scripts = {*map(_script, text)} - {""}
    if "Hiragana" in scripts or "Katakana" in scripts:
        return "Hiragana"
    if len(scripts) < 2:
        return next(iter(scripts), "")
    counts = Counter(map(_script, text))
    del counts[""]
    counts["Latin"] //= _BESIDE_OTHERS
    return counts.most_common(1)[0][0]


def is_english(*texts: str) -> bool:
    """Return whether texts are English by their function words: no text has more of another language in Latin script,
    and one of them has any.
    """
    english = False
    for text in texts:
        marks = list(filter(None, map(_MARK_OF.get, text_letters(text))))
        if sum(marks) < 0:
            return False
        english = english or 1 in marks
    return english


_SPELLINGS: Final = word_list("spelling.toml")


def _by_short(table: dict[str, str]) -> dict[str, str]:
    return {short: long for long, words in table.items() for short in words.split()}


_LOWER: Final = _by_short(_SPELLINGS["lower"])
_SHORT: Final = _by_short(_SPELLINGS["any"]) | _LOWER
_AROUND: Final = {name: frozenset(words.split()) for name, words in _SPELLINGS["digits"].items()}
_SHORT_FORM: Final = re.compile(
    rf"(?<![\w'/-])(?:{'|'.join(sorted(map(re.escape, _SHORT), key=len, reverse=True))})(?![\w'/-])", re.IGNORECASE
)
_DIGIT: Final = re.compile(r"(?:(?<=\A)|(?<=[A-Za-z?!.,]\s))([24])(?=\s++([A-Za-z]++)(?:\s++([A-Za-z0-9]++))?)")
"""A single 2 or 4 between words, the word after it, and the next."""
_LAST_WORD: Final = re.compile(r"(?<![a-z0-9])([a-z0-9]++)\s++\Z", re.IGNORECASE)


_NON: Final = re.compile(r"\bnon[- ](?=[a-z]{3})", re.IGNORECASE)
_FREE: Final = re.compile(rf"\b({'|'.join(_SPELLINGS['free'].split())})[- ]free\b", re.IGNORECASE)


def spelled_out(text: str) -> str:
    """Return `text` with its short forms spelled out, `non-x` as `nonx` and `x-free` as `without x`.

    A 2 or a 4 that may be a number stays one.
    """
    lowered = text.lower()
    if "non" in lowered or "free" in lowered:
        text = _FREE.sub(r"without \1", _NON.sub("non", text))
    return words_spelled_out(text)


def words_spelled_out(text: str) -> str:
    """Return an English text with its short forms spelled out, and with each 2 and 4 that is none as a word."""
    lowered = text.lower()
    if lowered.isascii():  # most are; then the words are found in a third of the time
        plain = _SHORT_ASCII.isdisjoint(lowered.encode().translate(_ASCII_MARKS).split())
    else:
        plain = _SHORT.keys().isdisjoint(lowered.translate(_MARKS).split())
    if not plain:
        text = _SHORT_FORM.sub(_spelled, text)
    return _DIGIT.sub(_word_for, text) if "2 " in text or "4 " in text else text


_MARKS: Final = str.maketrans(dict.fromkeys('.,;:!?"()', " "))
_ASCII_MARKS: Final = bytes.maketrans(b'.,;:!?"()\x1c\x1d\x1e\x1f', b" " * 13)
"""Likewise, and what separates words in a `str` alone."""
_SHORT_ASCII: Final = frozenset(short.encode() for short in _SHORT)


def _spelled(match: re.Match[str]) -> str:
    short = match[0]
    if short.lower() in _LOWER and not short.islower():
        return short
    return _SHORT.get(short.lower(), short)  # `re` takes the letter ſ for s, and ı and İ for i


def _word_for(match: re.Match[str]) -> str:
    """Return what the digit says: `to`, `too`, `for`, or itself."""
    digit, after, then = match[1], match[2].lower(), (match[3] or "").lower()
    found = _LAST_WORD.search(match.string, 0, match.start())
    before = found[1].lower() if found else ""
    if (
        after in _AROUND["both_before"]
        and before
        and (after != "a" or not _AROUND["english"].isdisjoint(match.string.split()))
    ):
        return "to" if digit == "2" else "for"
    counts = after in _AROUND["counted"] or _is_plural(after)
    return _two(before, after, then, counts) if digit == "2" else _four(before, after, then, counts)


def _two(before: str, after: str, then: str, counts: bool) -> str:
    if after in _AROUND["too_before"] or (then in ("2", "to") and not counts and after not in _AROUND["verbs"]):
        return "too"
    if _is_plural(before) and _is_plural(after) and before not in _AROUND["numbered"] | _AROUND["to_after"]:
        return "to"  # hectares 2 acres
    verb = after in _AROUND["verbs"] and not _is_plural(then) and before and before not in _AROUND["numbered"]
    return "to" if not counts and (verb or before in _AROUND["to_after"]) else "2"


def _four(before: str, after: str, then: str, counts: bool) -> str:
    if after in _AROUND["for_before"] or before in _AROUND["for_after"]:
        return "for"
    if not before or before.isdigit() or counts or before in _AROUND["numbered"]:
        return "4"
    return "4" if before in _AROUND["verbs"] and not after.endswith("ing") else "for"


def _is_plural(word: str) -> bool:
    return word.endswith("s") and not word.endswith(("ss", "us", "is"))


_WRAPPING = re.compile(
    r"""^(?:\s*+(?:
        please\b[\s,]*+|
        # `Hello Kitty` is no greeting.
        (?:hi|hello|hey|ok|okay|so|well)(?:\s++there)?(?:\s*+[,!.:]++|
            \s++(?=(?:what|who|where|when|why|how|which|can|could|would|will|do|does|is|are|please|i|tell|show)\b))|
        (?:
            (?:(?:do|does)\s++)?(?:anyone|anybody|someone|somebody)\s++(?:here\s++)?knows?|
            (?:can|could|would|will)\s++(?:you|u|someone|anyone)\s++(?:please\s++)?(?:kindly\s++)?
                (?:tell|explain\s++to|show|help)\s++me|
            (?:can|could)\s++(?:you|someone)\s++(?:please\s++)?(?:explain|describe)|
            (?:tell|show)\s++me|
            i(?:\s++would|'d)?\s++(?:want|like|need)\s++to\s++know|
            i(?:'m|\s++am)\s++(?:wondering|curious)(?:\s++about)?|
            do\s++you\s++(?:happen\s++to\s++)?know
        )[\s,!.:]++
    ))++""",
    re.IGNORECASE | re.VERBOSE,
)
_HOW = re.compile(
    r"""^\s*+(?:
        how\s++to|
        how\s++(?:can|do|does|could|should|would|may|might|must)\s++(?:i|you|we|one|someone|a\s++person|anyone)|
        what(?:\s++is|\s++are)\s++(?:the|a|some)\s++(?:(?:good|best)\s++)?(?:steps?|ways?|methods?|process|procedure)\s++(?:to|of|for)|
        in\s++what\s++way\s++(?:can|do)\s++(?:i|you|we)
    )\s++""",
    re.IGNORECASE | re.VERBOSE,
)
_IF_I_WANT = re.compile(
    r"^\s*+(?:if\s++(?:i|you)\s++want\s++to|in\s++order\s++to)\s++(.+?)(?<!\s),?\s++what\s++(?:should|can|must|do)\s++(?:i|you)\s++do\W*+$",
    re.IGNORECASE | re.DOTALL,
)
_FILLER = re.compile(r"\bsome\s++of\s++(?=the\b)|\bin\s++fact\b", re.IGNORECASE)
_CONTRACTIONS = re.compile(
    r"""(?<=[a-z])(?:n't|'(?:re|m|ll|ve|d))\b | (?<=\bit|\bhe)'s\b | (?<=\bwho|\bhow|\bwhy|\bshe)'s\b
    | (?<=\bwhat|\bwhen|\bthat|\bhere)'s\b | (?<=\bwhere|\bthere)'s\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""Expands `'s` only where it certainly is `is`: `the dog's food` is not `the dog is food`."""
_EXPANDED = {"n't": " not", "'s": " is", "'re": " are", "'m": " am", "'ll": " will", "'ve": " have", "'d": " would"}


def unwrap(text: str) -> str:
    """Return `text` without greetings and polite phrases, with every way to ask for a method as `howto`."""
    if "’" in text:
        text = text.replace("’", "'")
    text = spelled_out(text) if FOREIGN.isdisjoint(text.lower().split()) else text
    if "'" in text:
        text = text.replace("can't", "can not").replace("won't", "will not")
        text = _CONTRACTIONS.sub(lambda match: _EXPANDED.get(match[0].lower(), match[0]), text)
    text = text.replace("cannot", "can not")
    if match := _WRAPPING.match(text):
        text = text[match.end() :]
    if match := _IF_I_WANT.match(text):
        return f"howto {match[1]}"
    folded = text.casefold()
    if "some" in folded or "fact" in folded:
        text = _FILLER.sub("", text)
    match = _HOW.match(text)
    return text if match is None else f"howto {text[match.end() :]}"


def _by_word(table: Mapping[str, str]) -> dict[str, str]:
    """Turn a table of forms, each with its words, into one from each word to its form."""
    return {word: form for form, words in table.items() for word in words.split()}


LISTS: Final = word_list("words.toml")
EMPTY: Final = word_set(LISTS["empty"])
LINKS: Final = word_set(LISTS["links"])
NEGATIONS: Final = word_set(LISTS["negations"])
_ENGLISH: Final = word_set(LISTS["english"])
FOREIGN: Final = word_set(LISTS["foreign"])
_MARK_OF: Final = dict.fromkeys(FOREIGN - _ENGLISH, -1) | dict.fromkeys(_ENGLISH - FOREIGN, 1)
NUMBERS: Final = _by_word(LISTS["numbers"])
_TIMES: Final = word_set(LISTS["times"])
_TENSES: Final = _by_word(LISTS["tenses"])
_ASKED: Final = _by_word(LISTS["asked"])
_MODALS: Final = _by_word(LISTS["modals"])
_FORMS: Final = _by_word(LISTS["forms"]) | _by_word(LISTS["persons"])
FUNCTION: Final = {word: word for word in LINKS} | _FORMS
"""Function words and the form they are compared as. They stay in the text's order, which determines who does what to
whom, and where."""
FAINT: Final = EMPTY.union(FUNCTION, _ASKED, _MODALS, word_set(LISTS["faint"]))
"""Words without a topic: a question made only of these refers to something said before."""
_SYNONYMS: Final = {word: group[0] for group in groups_of(LISTS["synonyms"]) for word in group[1:]}
_OTHER_THINGS: Final = word_set(LISTS["other_things"])
_POLES: Final = {
    word: 2 * place + side
    for place, pair in enumerate(LISTS["opposites"].split(";"))
    for side, words in enumerate(groups_of(pair, "/"))
    for word in words
}
"""Words on a side of an opposition, each with the number of the side."""


def stem(word: str) -> str:
    """Return a word without plural or third-person ending, or its commonest synonym.

    `-ing` and `-ed` are kept: marketing is not a market, nor is something partitioned a partition.
    """
    word = _SYNONYMS.get(word, word)
    if len(word) < 4 or not word.isascii() or not word.endswith("s") or word in _OTHER_THINGS:
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "sses", "xes", "zes", "oes")):
        return word[:-2]
    return word if word.endswith(("ss", "us", "is", "ics")) else word[:-1]


_LETTER = r"[^\W\d_]"
_TOKEN: Final = re.compile(
    rf"""
    {_LETTER}+(?:[\d_]\w*)? | (?<![\w)])-?\d+(?:[.,]\d+)* | \d+ | _\w*   # word, x1, a_b; -1,000.5; __init__
    | (?<!{_LETTER}{{2}})-(?!{_LETTER}{{2}}) | (?<!\w)- | -(?!\w)        # a minus, not the hyphen of a compound
    | (?<=\d)[!:] | !(?=[\w=(]) | '(?=\()                                # 5!, 3:4, !done, f'(x)
    | [^\w\s.,;:!?'"“”‘’„«»…¿¡、。，？！：；「」\-—]                          # any other symbol that is no punctuation
    """,
    re.VERBOSE,
)
_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_CODE = re.compile(r"[^\W_]\d|\w_|^[a-z]++[A-Z]|^[A-Z]{2}")
"""In a token: a digit after a letter, an underscore within, `camelCase`, two capitals in front."""
_NUMBER, _TIME = "#", "@"
_BETWEEN: Final = re.compile(r"[ -]?")
"""What may stand between the parts of a number."""
_TEN, _HUNDRED = 10, 100
_MAY_JOIN: Final = frozenset({"who", "when", "where"})
"""What may join a clause instead of asking: `a man who snores`, `what helps when I snore`."""
_ASKS_AFTER: Final = word_set(LISTS["asks_after"])
_ASKS_BEFORE: Final = word_set(LISTS["asks_before"])
_NEAREST: Final = re.compile(r"(?<![^\W_])([^\W_]++)\s++\Z")
_NEXT: Final = re.compile(r"\s++([^\W_]++)")


_HALVES: Final = ("AM", "PM")
"""Halves of the day, which are no acronyms."""


@value_type
class QuestionReading:
    """The parsed question; see the module's docstring. `negations` are (number of clauses before it, word)."""

    numbers: tuple[str, ...]
    negations: tuple[tuple[int, str], ...]
    poles: frozenset[int]
    names: frozenset[str]
    times: tuple[str, ...]
    asked: tuple[frozenset[str], frozenset[str]]
    content: tuple[str, ...]
    stems: frozenset[str]


class _Token(NamedTuple):
    """What a token adds to the reading, wherever it stands."""

    content: str
    """Its form in the content; '' for nothing."""
    also: bool = False
    """Whether it adds anything else."""
    kind: Literal["", "number", "negation", "time", "asked", "modal", "name"] = ""
    value: str = ""
    """What it is of its kind."""
    named: Literal["always", "inside", "as letter", "as last letter"] = "always"
    """Where a name is one. `inside` a sentence, not at its beginning. A letter that is an article (`A`, `a`) where a
    word follows is a name `as last letter` without one behind it; `A` also inside a sentence (`as letter`).
    """
    pole: int | None = None
    clause: bool = False
    """Whether a clause begins with it."""


_made = from_fields(_Token)
_LISTED: Final = EMPTY.union(FUNCTION, NUMBERS, NEGATIONS, _TIMES, _ASKED, _MODALS, _POLES)


@lru_cache(maxsize=16_384)
def _token(raw: str) -> _Token:
    """Classify one token; cached, because a few thousand words make up most questions."""
    word = raw.lower()
    if word == raw and word.isalpha() and word not in _LISTED:
        return _made((stem(word), False, "", "", "always", None, False))
    return _other_token(raw, word)


def _other_token(raw: str, word: str) -> _Token:
    """Classify what is no plain word, or one that is listed; `word` is the token in lower case."""
    if raw[-1].isdecimal() and (raw[0].isdecimal() or raw[0] == "-"):
        # `1,000` is `1000`, but `1,5` is not `15`, and `1.000` is not `1` everywhere.
        return _Token(_NUMBER, True, "number", raw.replace(",", "") if _THOUSANDS.fullmatch(raw) else raw)
    if not raw[-1].isalnum():
        return _Token(raw)
    if len(raw) > 1 and raw.isupper() and raw not in _HALVES:  # `US` is not `us`, `IT` is not `it`
        return _Token(stem(word), True, "name", stem(word))
    if word in EMPTY:
        return (
            _Token("", True, "name", word, "as letter" if raw == "A" else "as last letter")
            if len(word) == 1
            else _Token("")
        )
    if word in FUNCTION:
        if word in LINKS:
            return _Token(FUNCTION[word], True, clause=True)
        return _Token(FUNCTION[word], True, "time", _TENSES[word]) if word in _TENSES else _Token(FUNCTION[word])
    if word in NUMBERS:
        return _Token(_NUMBER, True, "number", NUMBERS[word])
    if word in NEGATIONS:
        return _Token("" if word == "not" else word, True, "negation", word)
    if word in _TIMES:
        return _Token(_TIME, True, "time", word)
    if word in _ASKED:
        return _Token("", True, "asked", _ASKED[word], clause=True)
    if word in _MODALS:
        return _Token("", True, "modal", _MODALS[word])
    form, code, pole = stem(word), _CODE.search(raw) is not None, _POLES.get(word)
    if code or raw != word:
        return _Token(form, True, "name", form, "always" if code else "inside", pole)
    return _Token(form, pole is not None, pole=pole)


@lru_cache(maxsize=4_096)
def read(text: str) -> QuestionReading:
    """Parse one question; cached, because stored questions are compared repeatedly."""
    return read_unwrapped(unwrap(text))


def read_unwrapped(text: str) -> QuestionReading:
    """Parse a question that `unwrap` would not change."""
    content, names, poles = list[str](), set[str](), set[int]()
    negations = list[tuple[int, str]]()
    numbers, times, asked, modals = list[str](), list[str](), list[str](), list[str]()
    clauses = ended = 0
    for match in _TOKEN.finditer(text):
        token = _token(match[0])
        if not token.also:
            if token.content:
                content.append(token.content)
            continue
        form, _, kind, value, named, pole, clause = token
        # A letter that is a name, and a word that joins a clause, are told only by what is around them.
        around = False
        if kind == "name":
            around = _is_name(named, text, match)
            if around:
                names.add(value)
        elif kind == "number":
            joined = _BETWEEN.fullmatch(text, ended, match.start()) and _joined(numbers, match[0], value)
            ended = match.end()
            if joined:
                continue
            numbers.append(value)
        elif kind == "negation":
            negations.append((clauses, value))
        elif kind == "asked":
            around = value in _MAY_JOIN and _joins(text, match)
            asked += () if around else (value,)
        elif kind:
            (times if kind == "time" else modals).append(value)
        if form or around:
            content.append(form or value)
        clauses += clause
        if pole is not None:
            poles.add(pole)
    return QuestionReading(
        numbers=tuple(numbers),
        negations=tuple(negations),
        poles=frozenset(poles),
        names=frozenset(names),
        times=tuple(times),
        asked=(frozenset(asked), frozenset(modals)),
        content=tuple(content),
        stems=frozenset(content),
    )


def _joined(numbers: list[str], word: str, value: str) -> bool:
    """Multiply or add a number word to the last number, if both are one: `5 million`, `twenty-two`."""
    if not numbers or word[0].isdecimal():
        return False
    number, other = float(numbers[-1].replace(",", ".")), float(value)
    if other >= _HUNDRED and 0 < number < other:
        numbers[-1] = f"{number * other:.0f}"
    elif 1 < other < _TEN < number < _HUNDRED and number % _TEN == 0:
        numbers[-1] = f"{number + other:.0f}"
    else:
        return False
    return True


def _joins(text: str, word: re.Match[str]) -> bool:
    """Return whether `who`, `when` or `where` begins a clause about what is before it, and asks for nothing."""
    before, after = _NEAREST.search(text, max(0, word.start() - 30), word.start()), _NEXT.match(text, word.end())
    if before is None or after is None or before[1].lower() in _ASKS_AFTER:
        return False
    return word[0].lower().startswith("who") or after[1].lower() not in _ASKS_BEFORE


def _is_name(named: str, text: str, token: re.Match[str]) -> bool:
    """Return whether a token that may be a name is one in its place."""
    if named == "always":
        return True
    if named == "inside":
        return not _opens_sentence(text, token.start())
    # `vitamin A`, `option a?`: not followed by a word, it is no article.
    return (named == "as letter" and not _opens_sentence(text, token.start())) or not _goes_on(text, token.end())


def _opens_sentence(text: str, start: int) -> bool:
    before = text[:start].rstrip()
    return not before or before[-1] in ".!?:\n"


def _goes_on(text: str, end: int) -> bool:
    return text[end : end + 1].isspace() and text[end + 1 : end + 2].isalnum()
