"""Send the heads of streams before their answers, so that clients see that they are served."""
