"""Off the request's path: answer a share of the requests by another tier too, and have a model judge both answers."""
