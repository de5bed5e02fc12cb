"""Translate between the dialects of APIs: pure functions on JSON values, in which nothing is sent.

The gateway works on chat completions alone: bodies, whole answers and chunks. A client that speaks another dialect has
its body translated when it arrives and its reply when it leaves, by the part that serves its API, so that routing,
cascading and caching need not know of it; a backend that speaks another dialect is of a kind that a part adds, which
translates. What chat completions cannot express travels beside them, see `gateway.dialects.native`.
"""
