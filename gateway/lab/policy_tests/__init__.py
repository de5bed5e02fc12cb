"""Test policies without a model or a store: cases in `*.test.yaml`, coverage of every clause, mutants. No sockets."""
