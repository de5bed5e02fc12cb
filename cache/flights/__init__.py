"""Share one answer among equal concurrent requests, across workers and replicas."""
