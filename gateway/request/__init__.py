"""What is known of one request, and what may refuse it: values, and checks without I/O."""
