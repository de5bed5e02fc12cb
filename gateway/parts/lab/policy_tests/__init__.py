"""Test policies without a model or a store: cases in `*.test.yaml`, and coverage of every clause. No sockets."""
