"""Make the artefacts that ship with Tierline: what only its makers run. Nothing imports this package."""
