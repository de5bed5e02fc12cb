"""Test policies, replay what requests recorded under other policies, and explain decisions.

Nothing that serves requests imports this package.
"""
