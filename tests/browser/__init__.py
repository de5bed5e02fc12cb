"""The console in a real browser, over a real gateway and store with the demo's traffic.

pages      which pages there are, by the routes of the app
browser    start the system's Chromium, open pages, and note what they asked for and complained of
demo       start `tierline demo`, and find the requests in it that pages are about
pictures   `python -m tests.browser.pictures`: every page as PNG, in light and dark, wide and narrow

`make browser` installs what is needed beside the system's Chromium; without them these tests are skipped.
"""
