"""Let agents find requests, explain decisions and plan changes, over the Model Context Protocol.

It reads the ledger's files, the store and the policies, as the console does, and changes nothing.
"""
