"""The collector reads WordNet's lines, relates words by them, and leaves opposites out."""

from __future__ import annotations

from tools.collect_exchanges import main, synsets, word_pairs

VERBS = """\
  1 a notice
00000010 40 v 02 buy 0 purchase 0 001 @ 00000020 v 0000 01 + 08 00 | obtain by purchase
00000020 40 v 02 acquire 0 Get_Hold 1 001 ! 00000030 v 0101 01 + 08 00 | come into
00000030 40 v 02 lose 0 acquire 2 000 | no longer have
"""


def test_words_are_related_by_sets_and_pointers_but_for_opposites() -> None:
    net = {("v", offset): synset for offset, synset in synsets(VERBS)}
    assert net["v", 10].words == ("buy", "purchase")
    pairs = word_pairs(net)
    assert pairs["synonyms"] == {("buy", "purchase")}
    assert pairs["kind of (verbs)"] == {("acquire", "buy"), ("acquire", "purchase")}


def test_a_folder_without_the_package_is_one_error(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    assert main(["--packages", str(tmp_path)]) != 0
    assert "apt-get download wordnet-base" in capsys.readouterr().err
