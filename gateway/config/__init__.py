"""Read the deployment's configuration: its schema, its loader, the environment, the reload of policies."""
