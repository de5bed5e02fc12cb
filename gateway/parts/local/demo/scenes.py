"""Draw scenes of requests from `traffic.yaml`, the same ones for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

_TRAFFIC: Final = Path(__file__).with_name("traffic.yaml")


@dataclass(frozen=True, slots=True)
class Scene:
    """One client's requests as `traffic.yaml` describes them; its head says what each field means."""

    name: str
    surface: str
    share: int
    ask: tuple[str, ...] = ()
    stream: bool = False
    conversation: bool = False
    body: Mapping[str, Any] | None = None
    raw: Mapping[str, Any] | None = None
    rating: float | None = None
    pause: float = 0.0
    show: str = ""


@dataclass(frozen=True, slots=True)
class DrawnScene:
    """A scene with its words filled in; `luck`, from 0 to 1, decides on its ratings, one number per request."""

    scene: Scene
    texts: tuple[str, ...]
    luck: tuple[float, ...]

    @property
    def requests(self) -> int:
        """How many requests it sends."""
        return len(self.luck)


def read_scenes() -> tuple[tuple[Scene, ...], dict[str, list[str]]]:
    """Return the scenes, and the words that fill their gaps."""
    content = yaml.safe_load(_TRAFFIC.read_text(encoding="utf-8"))
    return tuple(Scene(**{**scene, "ask": tuple(scene.get("ask", ()))}) for scene in content["scenes"]), content[
        "words"
    ]


def draw_scenes(seed: int) -> Iterator[DrawnScene]:
    """Yield each scene once, in the order of the file, and then any of them by their shares, without an end."""
    scenes, words = read_scenes()
    rng = random.Random(seed)  # noqa: S311  the same traffic for the same seed is what is wanted
    for scene in scenes:
        yield _filled(scene, words, rng)
    shares = [scene.share for scene in scenes]
    while True:
        yield _filled(rng.choices(scenes, shares)[0], words, rng)


def _filled(scene: Scene, words: Mapping[str, Sequence[str]], rng: random.Random) -> DrawnScene:
    chosen: dict[str, object] = {name: rng.choice(values) for name, values in words.items()}
    chosen |= {"topic2": rng.choice(words["topic"]), "number": rng.randrange(1000, 10_000)}
    texts = tuple(text.format(**chosen) for text in scene.ask)
    return DrawnScene(scene, texts, tuple(rng.random() for _ in texts or (None,)))
