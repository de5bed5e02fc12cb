"""Take a picture of every page of the console: `python -m tests.browser.pictures --to DIR`.

Starts `tierline demo` with a minute of traffic, or takes one that runs already (`--state DIR`). Each page is taken in
light and dark, 1280 and 390 pixels wide, from top to end. With `--docs` it takes those that the READMEs show, as a
window of 1280 pixels shows them, with few colours.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.browser.browser import NARROW, WIDE, chromium, missing, visit
from tests.browser.demo import RunningDemo, demo_at, running_demo
from tests.browser.pages import ESCALATED, addresses

DOCS = {
    "now": ("/now?since=15m", "light", 760),
    "request": ("/requests/ESCALATED", "light", 1560),
    "surface": ("/surfaces/chat?since=15m", "dark", 1000),
    "what-if": ("/what-if?surface=chat&escalate.when.uncalibrated_below=0.95", "light", 700),
}
"""What the READMEs show: a page's address (ESCALATED is the id of such a request), its scheme and its height."""
COLOURS = 256


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pictures and return 0; 1 without a browser."""
    parser = argparse.ArgumentParser(prog="python -m tests.browser.pictures", description=__doc__)
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="the folder to write PNGs into")
    parser.add_argument("--state", type=Path, metavar="DIR", help="the state folder of a demo that runs")
    parser.add_argument("--only", default="", metavar="TEXT", help="only pages whose name has this text")
    parser.add_argument("--docs", action="store_true", help="those of the READMEs (in the tree: --to deploy/pictures)")
    parser.add_argument("--minutes", type=float, default=1.0, metavar="N", help="of traffic (default: 1)")
    args = parser.parse_args(argv)
    if why := missing():
        print(why, file=sys.stderr)
        return 1
    args.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        demo = demo_at(args.state) if args.state else stack.enter_context(running_demo(Path(folder), args.minutes))
        if args.docs:
            take_for_docs(demo, args.to, args.only)
        else:
            take(demo, args.to, Path(folder), args.only)
    return 0


def take(demo: RunningDemo, to: Path, folder: Path, only: str) -> None:
    """Write `NAME-SCHEME-WIDTH.png` for each page whose name has `only` in it, and print the name."""
    with chromium() as browser:
        for scheme in ("light", "dark"):
            for width in (WIDE, NARROW):
                for name, address in addresses(demo, folder).items():
                    if only not in name:
                        continue
                    with visit(browser, demo.console, width, scheme) as one:
                        one.open(address)
                        file = to / f"{name}-{scheme}-{width}.png"
                        one.page.screenshot(path=file, full_page=True)
                        print(file.name)


def take_for_docs(demo: RunningDemo, to: Path, only: str) -> None:
    """Write `NAME.png` for each of DOCS whose name has `only` in it, and print its name and size."""
    from PIL import Image

    with chromium() as browser:
        for name, (address, scheme, height) in DOCS.items():
            if only not in name:
                continue
            with visit(browser, demo.console, WIDE, scheme) as one:
                one.page.set_viewport_size({"width": WIDE, "height": height})
                one.open(address.replace("ESCALATED", demo.request_id(ESCALATED)))
                one.page.mouse.move(0, 0)
                shot = Image.open(io.BytesIO(one.page.screenshot()))
            file = to / f"{name}.png"
            shot.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
            print(f"{file.name}: {file.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    sys.exit(main())
