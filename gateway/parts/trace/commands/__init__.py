"""Hold the commands of this part, a module each; see gateway.cli.commands."""
