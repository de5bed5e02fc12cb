"""Translate OpenAI's Responses API into chat completions and back.

items     what both sides share: reasoning items, log-probabilities, annotations, usage
reading   a client's body -> the body of a chat completion
replies   the Response object, from a request and a completion or its items
events    chunks of a chat completion -> the API's stream of events
client    the dialect of a client, made of these
"""
