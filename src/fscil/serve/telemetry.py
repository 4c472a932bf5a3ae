"""What Prometheus may ask for: requests, their time, batches, classes."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)


class Telemetry:
    """The counters of one service, in a registry of its own."""

    def __init__(self, classes: Callable[[], int], in_flight: Callable[[], int], waiting: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "fscil_requests", "Requests answered.", ["method", "route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "fscil_request_seconds",
            "Time from the head of a request to the end of its answer.",
            ["method", "route"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self._batches = Histogram(
            "fscil_batch_images",
            "Photos that went through the network at once.",
            buckets=IMAGES,
            registry=self._registry,
        )
        for name, about, now in (
            ("fscil_classes", "Classes the model knows.", classes),
            ("fscil_in_flight", "Requests being worked on.", in_flight),
            ("fscil_photos_waiting", "Photos accepted and not yet answered.", waiting),
        ):
            Gauge(name, about, registry=self._registry).set_function(now)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def batch(self, images: int) -> None:
        self._batches.observe(images)

    def text(self) -> bytes:
        return generate_latest(self._registry)
