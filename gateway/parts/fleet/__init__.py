"""Run several gateways in clouds: identities of clouds."""
