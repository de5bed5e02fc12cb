"""Translate between the dialects of APIs: pure functions on JSON values, in which nothing is sent.

The gateway works on chat completions alone: bodies, whole answers and chunks. A client that speaks another dialect has
its body translated when it arrives and its reply when it leaves (`ClientDialect`), so that routing, cascading and
caching need not know of it; a backend that speaks another dialect translates in `gateway.backends`. What chat
completions cannot express travels beside them, see `gateway.dialects.native`.
"""
