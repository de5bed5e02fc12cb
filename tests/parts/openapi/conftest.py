from tests.gateway.http.test_api_route import app

__all__ = ["app"]
