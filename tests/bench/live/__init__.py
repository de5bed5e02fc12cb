"""`python -m tests.bench --only live`: budgets, streams, hedging and load, measured over real sockets.

The real gateway stands in front of scripted model servers that are made for load; clients come as they please (open
loop), never when the last answer is there. Every scenario is a file here that gives rows of one table.
"""
