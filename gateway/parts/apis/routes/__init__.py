"""Answer the paths of these APIs, a module for each."""
