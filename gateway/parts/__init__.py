"""Hold the list of Tierline's parts: what a gateway serves without."""
