"""The pages' data: each module reads the archive and returns plain values, which templates and JSON show."""
