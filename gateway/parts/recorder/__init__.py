"""Record what each routing decision was made of, so that it can be made again."""
