"""Anthropic's Messages API, for clients that speak it and for backends that do.

backend.py   a chat-completions body -> the request to send          what a backend needs
replies.py   its message and its events -> completion and chunks
client.py    a client's request -> a chat-completions body           what the route `/v1/messages` needs
writer.py    completion and chunks -> its message and its events
models.py    what the models of the API take, as data
"""
