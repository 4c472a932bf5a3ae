"""Metrics for Prometheus: requests, their duration, batch sizes, classes."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

DURATION_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)  # seconds
BATCH_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)  # photos


class ServiceMetrics:
    """The metrics of one service, in a registry of its own."""

    def __init__(self, classes: Callable[[], int], in_flight: Callable[[], int], queued: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "fscil_requests", "HTTP requests.", ["method", "route", "status"], registry=self._registry
        )
        self._durations = Histogram(
            "fscil_request_seconds",
            "Seconds from the headers of a request to the end of its response.",
            ["method", "route"],
            buckets=DURATION_BUCKETS,
            registry=self._registry,
        )
        self._batch_sizes = Histogram(
            "fscil_batch_images",
            "Photos per forward pass of the network.",
            buckets=BATCH_SIZE_BUCKETS,
            registry=self._registry,
        )
        for name, description, value in (
            ("fscil_classes", "Classes of the model.", classes),
            ("fscil_in_flight", "Requests being processed.", in_flight),
            ("fscil_photos_waiting", "Photos accepted and not answered yet.", queued),
        ):
            Gauge(name, description, registry=self._registry).set_function(value)

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._durations.labels(method, route).observe(seconds)

    def observe_batch(self, size: int) -> None:
        self._batch_sizes.observe(size)

    def exposition(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
